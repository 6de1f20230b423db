"""A tool as an agent: a call of it by another program is a run, with its journal, its approval and its budget."""

from __future__ import annotations

import msgspec

from pyagent.core.fleet.agent import Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.messages import JsonObject

NAME = "mcp-tool"


class CalledTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tool is called, and with what."""

    tool: str
    arguments: JsonObject = {}


class ToolOutput(msgspec.Struct, frozen=True):
    """What the tool returned, as text; a tool may well return nothing."""

    text: str

    def __str__(self) -> str:
        return self.text


class ToolAgent:
    """Calls the one tool that its arguments name."""

    name = NAME
    description = "Calls a tool for an MCP client."
    arguments = CalledTool

    def score(self, _: Task) -> float:
        """Tasks of others are not for it."""
        return 0.0

    async def run(self, context: Context, task: Task) -> ToolOutput:
        """Return what the tool returns."""
        called = task.arguments_as(CalledTool)
        returned = await context.call_tool(called.tool, called.arguments)
        return ToolOutput("" if returned is None else text_of(returned))
