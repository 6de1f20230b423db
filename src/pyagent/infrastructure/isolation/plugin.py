"""An isolated plugin as the host sees it: hooks that bring its agents and tools, each of which runs in a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from pyagent.core.errors import AgentError, PluginError, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.remote.calls import RunCalls
from pyagent.core.fleet.remote.messages import AgentCall
from pyagent.core.fleet.tools import Effect, FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import JsonObject
from pyagent.infrastructure.isolation.capabilities import declared, source_of_plugin
from pyagent.infrastructure.isolation.jail import kinds
from pyagent.infrastructure.isolation.messages import ARGUMENTS, AgentTold, Asked, CallTool, RunAgent, ToolTold, View
from pyagent.infrastructure.isolation.process import IsolatedPlugin
from pyagent.infrastructure.isolation.scores import Scorer

_NO_VALUE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises for bytes of a process that speaks for itself."""
_MOST_NESTED = 8
logger = logging.getLogger("pyagent.plugins")
NOUNS = frozenset({"agents", "tools"})
"""What an isolated plugin can bring; the rest is called too often, or needs the program's memory."""


def isolated(name: str, targets: Mapping[str, str], seconds: float, memory_bytes: int) -> object:
    """Return the plugin's hooks, after asking its process what it brings. Raises `PluginError` saying why not."""
    if others := sorted(set(targets) - NOUNS):
        what = others[0] or "anything (its entry point names no hook)"
        raise PluginError(f"plugin {name!r} brings {what}, and only agents and tools can be isolated", plugin=name)
    target, *more = dict.fromkeys(targets.values())
    if more:
        raise PluginError(f"plugin {name!r} has several modules, and only one can be isolated", plugin=name)
    source = source_of_plugin(name, target)
    plugin = IsolatedPlugin(name, target, str(source), declared(name, source), seconds, memory_bytes)
    if missing := [kind for kind in ("landlock", "seccomp") if kind not in kinds()]:
        text = "plugin %s is isolated without %s, which this system lacks: native code gets around Python's audit hooks"
        logger.warning(text, name, " and ".join(missing))
    return _Hooks(plugin)


class _Hooks:
    def __init__(self, plugin: IsolatedPlugin) -> None:
        self._plugin = plugin
        with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
            told = thread.submit(asyncio.run, plugin.describe()).result()
        nested = _Nested(plugin.name)
        self._agents = [_Agent(plugin, agent, nested) for agent in told.agents]
        self._tools = [_tool(plugin, tool) for tool in told.tools]

    @hookimpl
    def pyagent_register_agents(self) -> Sequence[Agent]:
        """Bring its agents."""
        return self._agents

    @hookimpl
    def pyagent_register_tools(self) -> Sequence[FleetTool]:
        """Bring its tools."""
        return self._tools


@dataclass
class _Nested:
    """The processes of a plugin's agents that isolated agents spawned, directly or through others: a bounded number.

    Each holds a process until it ends, and each may spawn more.
    """

    plugin: str
    num: int = 0

    @contextmanager
    def one_more(self, context: Context) -> Generator[None]:
        """Count an agent while it runs. Raises `AgentError` where there are too many."""
        is_nested = _is_below_isolated(context)
        if is_nested and self.num >= _MOST_NESTED:
            text = f"isolated agents have spawned {_MOST_NESTED} agents of the plugin {self.plugin} that run now"
            raise AgentError(f"{text}, and may spawn no more", agent=context.agent)
        self.num += is_nested
        try:
            yield
        finally:
            self.num -= is_nested


def _is_below_isolated(context: Context) -> bool:
    above = context.parent
    while above is not None and not isinstance(above.run.agents.get(above.agent), _Agent):
        above = above.parent
    return above is not None


class _Agent:
    """An agent whose code runs in a process of its own for each task; its result is what JSON has."""

    def __init__(self, plugin: IsolatedPlugin, told: AgentTold, nested: _Nested) -> None:
        self.plugin, self._nested = plugin, nested
        self.name, self.description, self.needs = told.name, told.description, told.needs
        if told.has_score:
            self.score = Scorer(plugin, told.name).score
        for needed in told.needs:
            if needed not in plugin.allowed.agents:
                text = f"its agent {told.name!r:.80} needs the agent {needed!r:.80}, which it does not declare"
                raise PluginError(text, plugin=plugin.name)

    async def run(self, context: Context, task: Task) -> object:
        """Do the task."""
        calls = RunCalls(context, is_repeatable=False, spawned_access=FileAccess.below(None))
        try:
            asked = RunAgent(self.name, task, _view(calls, self.plugin.allowed.tools))
            made = _Made(calls, self.plugin, asked.view.attempt)
            with self._nested.one_more(context):
                return _value(self.plugin, await self.plugin.run(asked, made.make))
        finally:
            await calls.close()


def _value(plugin: IsolatedPlugin, data: bytes) -> object:
    """Return what an agent or a tool returned. Raises `AgentError` for bytes that are no value."""
    try:
        return msgspec.msgpack.decode(data)
    except _NO_VALUE as error:
        raise AgentError(f"the plugin {plugin.name} returned what is no value: {error}", agent=plugin.name) from error


@dataclass
class _Made:
    """Makes an agent's calls with its run's context, those that it may make."""

    calls: RunCalls
    plugin: IsolatedPlugin
    attempt: int

    async def make(self, asked: Asked) -> bytes:
        """Return what came of a call. Raises `RequestError` for one that an isolated plugin may not make."""
        try:
            arguments = self._arguments(asked)
        except RequestError:
            await self.calls.skip(self.attempt, asked.index)
            raise
        call = AgentCall(self.attempt, asked.index, asked.name, arguments)
        return msgspec.msgpack.encode(await self.calls.make(call), enc_hook=str)

    def _arguments(self, asked: Asked) -> tuple[object, ...]:
        if asked.name not in ARGUMENTS:
            text = f"the plugin {self.plugin.name} is isolated, and may not ask its run for {asked.name!r:.40}"
            raise RequestError(text, param=asked.name)
        try:
            decode: Any = msgspec.msgpack.decode
            args = cast("tuple[object, ...]", decode(asked.args, type=ARGUMENTS[asked.name]))
        except _NO_VALUE as error:
            raise RequestError(f"the plugin {self.plugin.name} asks wrongly: {error}", param=asked.name) from error
        self._check_declared("tool", _tools_named(asked.name, args), self.plugin.allowed.tools)
        if asked.name == "spawn":
            self._check_declared("agent", args[:1], self.plugin.allowed.agents)
            self._check_spawned(args[1])
        return args

    def _check_declared(self, what: str, names: Sequence[object], declared: Sequence[str]) -> None:
        for name in names:
            if name not in declared:
                text = f"the plugin {self.plugin.name} did not declare the {what} {name!r:.80}"
                text = f"{text} among the {what}s of its pyagent_capabilities"
                raise RequestError(text, param=f"{what}s")

    def _check_spawned(self, task: object) -> None:
        """Raise `RequestError` for a task with files: the agent would read them for a plugin that may not."""
        if isinstance(task, Task) and task.files:
            text = f"the plugin {self.plugin.name} is isolated: the agents it spawns read no files; give them text"
            raise RequestError(text, param="files")


def _tools_named(call: str, args: tuple[object, ...]) -> Sequence[object]:
    """Return the tools that a call would have called."""
    if call == "call_tool":
        return args[:1]
    return cast("Sequence[object]", args[2]) if call == "complete" else ()


def _view(calls: RunCalls, tools: Sequence[str]) -> View:
    view = calls.begin()
    known = {name: getattr(view, name) for name in View.__struct_fields__ if name != "tools"}
    return View(**known, tools=tuple(tool for tool in view.tools if tool.name in tools))


def _tool(plugin: IsolatedPlugin, told: ToolTold) -> FleetTool:
    async def refuse(asked: Asked) -> bytes:
        raise RequestError(f"a tool has no run to ask for {asked.name!r:.40}", param="tools")

    async def call(arguments: JsonObject) -> object:
        return _value(plugin, await plugin.run(CallTool(told.name, arguments), refuse))

    function: Callable[..., Awaitable[object]] = call
    effect = cast("Effect", told.effect)
    return FleetTool(told.name, told.description, told.parameters, function, effect, told.needs_approval)
