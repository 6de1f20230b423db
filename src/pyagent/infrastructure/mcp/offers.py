"""What PyAgent offers as an MCP server: its agents, and tools that were chosen, each as a tool of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
from mcp_types import Tool, ToolAnnotations

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task, arguments_type, unknown_name
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import JsonObject
from pyagent.infrastructure.called_runs import MAX_TASK_CHARACTERS, called_names
from pyagent.infrastructure.mcp.tool_agent import NAME

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.orchestrator import Fleet

AGENT_PREFIX = "agent_"
_TASK = Annotated[str, msgspec.Meta(description="What the agent is to do, with all it needs to know.")]


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as clients see it, and the agent that a call of it runs. `form` checks its arguments."""

    tool: Tool
    agent: str
    form: FleetTool
    is_agent: bool

    async def task(self, arguments: JsonObject) -> Task:
        """Return the task that a call means; raises `RequestError` for arguments that do not fit."""
        if sum(len(text) for text in arguments.values() if isinstance(text, str)) > MAX_TASK_CHARACTERS:
            raise RequestError(f"a call takes up to {MAX_TASK_CHARACTERS:,} characters", param="arguments")
        await self.form.checked(arguments)
        if not self.is_agent:
            return Task(text=f"call {self.form.name}", arguments={"tool": self.form.name, "arguments": arguments})
        return Task(text=str(arguments["task"]), arguments=cast("JsonObject", arguments.get("arguments") or {}))


def offers_of(fleet: Fleet, agents: Sequence[str], tools: Sequence[str]) -> dict[str, Offer]:
    """Return what is offered, by name. Raises `RequestError` naming the nearest where there is no such agent or tool.

    `*` among the agents is all of them. An agent that takes arguments of its own takes them as `arguments`.
    """
    there = {name: agent for name, agent in fleet.agents.items() if name != NAME}
    wanted = list(there) if "*" in agents else list(dict.fromkeys(agents))
    for what, names, known in (("agent", wanted, there), ("tool", tools, fleet.tools)):
        for name in names:
            if name not in known:
                raise unknown_name(what, name, list(known))
    offered: dict[str, Offer] = {}
    for called, name in called_names(dict.fromkeys(wanted), AGENT_PREFIX).items():
        offered[called] = _agent_offer(called, there[name])
    for called, name in called_names(dict.fromkeys(tools), "").items():
        if called in offered:
            raise RequestError(f"an agent and a tool are both called {called}; offer one of them", param="tools")
        offered[called] = _tool_offer(called, fleet.tools[name])
    return offered


def _agent_offer(called: str, agent: Agent) -> Offer:
    kind = arguments_type(agent)
    fields: list[Any] = [("task", _TASK)]
    if kind is not None:
        fields.append(("arguments", kind | None, None))
    made = msgspec.defstruct("AgentCall", fields, forbid_unknown_fields=True)
    form = FleetTool(called, agent.description, made, _never)
    return Offer(_tool(called, form), agent.name, form, is_agent=True)


def _tool_offer(called: str, tool: FleetTool) -> Offer:
    hints = ToolAnnotations(read_only_hint=tool.effect == "none", idempotent_hint=tool.effect != "once")
    return Offer(_tool(called, tool, hints), NAME, tool, is_agent=False)


def _tool(called: str, form: FleetTool, hints: ToolAnnotations | None = None) -> Tool:
    schema = form.definition().function.parameters
    assert schema is not None
    return Tool(name=called, description=form.description, input_schema=dict(schema), annotations=hints)


async def _never(_: object) -> object:
    raise AssertionError("an offer's form only checks arguments")
