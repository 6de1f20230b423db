"""What a model is offered to call: the fleet's tools, other agents, and a question to a person.

`agent:NAME` gives an agent a task and has its result; `handoff:NAME` gives it the conversation, and its result is the
answer; `ask_user` asks a person; `*` is every tool of the fleet, and `ask_user` where an answer can come; `files__*`
is every tool whose name begins so, as those of an MCP server do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from pyagent.core.backends import AGENT_PREFIX
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task, describe
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.people import ALL_TOOLS
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import Message

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

ALL = "*"
ASK_USER = "ask_user"
HANDOFF_PREFIX = "handoff:"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class AgentTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent that is called as a tool is given."""

    task: Annotated[str, msgspec.Meta(description="What the agent is to do, with all it needs to know.")]


class UserQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person is asked."""

    question: Annotated[str, msgspec.Meta(description="What the user is asked.", min_length=1)]
    options: Annotated[list[str], msgspec.Meta(description="The answers to choose from, if not any will do.")] = []


async def _ask_user(arguments: UserQuestion, context: Context) -> str:
    return await context.ask(arguments.question, options=arguments.options)


def offered_tools(
    context: Context, names: Iterable[str], history: Callable[[], Sequence[Message]]
) -> dict[str, FleetTool]:
    """Return the tools named, by the names that the model calls them by; `history` gives what was said so far.

    Raises `RequestError` for a name that is none, and for two that the model could not tell apart.
    """
    offered: dict[str, FleetTool] = {}
    for tool in (_tool(context, name, history) for name in dict.fromkeys(_all_named(context, names))):
        if tool.name in offered:
            raise RequestError(f"two of the tools offered are called {tool.name}", param="tools")
        offered[tool.name] = tool
    return offered


def _all_named(context: Context, names: Iterable[str]) -> list[str]:
    listed: list[str] = []
    for name in names:
        beginning = name.removesuffix(ALL)
        found = [name] if beginning == name else [each for each in _all(context) if each.startswith(beginning)]
        if not found and name != ALL:
            text = f"no tool begins with {beginning!r}; there are {', '.join(context.tools)}"
            raise RequestError(text, param="tools", code="no_such_tools")
        listed += found
    return listed


def _all(context: Context) -> list[str]:
    """Return all tools that can be called: a server's client has no person here who could allow an unsafe one."""
    questions, is_client = context.run.questions, current_access().is_limited
    names = [
        name
        for name, tool in context.run.tools.items()
        if not is_client or (tool.for_clients and (not tool.needs_approval or questions.approved & {name, ALL_TOOLS}))
    ]
    return [*names, *([ASK_USER] if questions.offered else [])]


def _tool(context: Context, name: str, history: Callable[[], Sequence[Message]]) -> FleetTool:
    if name.startswith(AGENT_PREFIX):
        return _agent_tool(context, name.removeprefix(AGENT_PREFIX))
    if name.startswith(HANDOFF_PREFIX):
        return _handoff_tool(context, name.removeprefix(HANDOFF_PREFIX), history)
    if name == ASK_USER and name not in context.tools:
        text = "Ask the user, and wait for the answer. Only for what you cannot find out yourself."
        return FleetTool(ASK_USER, text, UserQuestion, _ask_user, effect="idempotent", takes_context=True)
    return context.tool(name)


def names_for_models(agent: str) -> tuple[str, str]:
    """Return the names by which models give an agent a task, and hand over to it."""
    plain = _NOT_IN_NAMES.sub("_", agent)
    return f"agent_{plain}", f"transfer_to_{plain}"


def _agent_tool(context: Context, name: str) -> FleetTool:
    about = describe(context.run.agent(name)).description

    async def run(arguments: AgentTask, caller: Context) -> object:
        return await caller.spawn(name, arguments.task)

    text = f"Give a task to the agent {name}, and have its result. {about}"
    return FleetTool(names_for_models(name)[0], text, AgentTask, run, effect="none", takes_context=True)


def _handoff_tool(context: Context, name: str, history: Callable[[], Sequence[Message]]) -> FleetTool:
    about = describe(context.run.agent(name)).description

    async def hand_over(arguments: AgentTask, caller: Context) -> object:
        said = tuple(each for each in history() if each.role in {"user", "assistant"} and each.text.strip())
        plain = tuple(msgspec.structs.replace(each, tool_calls=None) for each in said)
        return await caller.spawn(name, Task(text=arguments.task, history=plain))

    text = f"Hand the conversation over to the agent {name}, whose answer is the last one. {about}"
    return FleetTool(
        names_for_models(name)[1], text, AgentTask, hand_over, effect="idempotent", takes_context=True, is_last=True
    )
