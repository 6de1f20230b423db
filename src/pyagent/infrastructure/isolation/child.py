"""The process of an isolated plugin: shuts itself in, imports the plugin, and does the one thing it is asked.

Standard input and output are the pipes to the program; what the plugin prints goes nowhere. It ends with the program.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import msgspec

from pyagent.core.errors import AgentError, PluginError, RequestError, WireError
from pyagent.core.fleet.agent import Agent, Task, needs
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.remote.context import run_remote
from pyagent.core.fleet.remote.messages import AgentCall, AgentView
from pyagent.core.fleet.scores import checked_score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.plugin_checks import import_target
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.isolation.jail import enter
from pyagent.infrastructure.isolation.messages import (
    RESULTS,
    AgentTold,
    Answered,
    Asked,
    CallTool,
    Describe,
    Described,
    Done,
    Failed,
    FromPlugin,
    RunAgent,
    ScoreTask,
    Start,
    ToolTold,
    ToPlugin,
    from_plugin,
    to_plugin,
)
from pyagent.infrastructure.wire.codec import read_frame, with_length
from pyagent.infrastructure.wire.fault import Fault


@dataclass
class Pipe:
    """The way to the program and back. Reading is one thread's, writing any one's."""

    source: int
    sink: int
    plugin: str = "plugin"
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> ToPlugin:
        """Return the next message; raises `WireError` at the program's end."""
        return to_plugin().decode(read_frame(self._read_some, "the program"))

    def _read_some(self, num_bytes: int) -> bytes:
        return os.read(self.source, num_bytes)

    def write(self, message: FromPlugin) -> None:
        """Send a message."""
        data = with_length(from_plugin(self.plugin).encode(message))
        with self.lock:
            while data:
                data = data[os.write(self.sink, data) :]


class Calls:
    """The agent's calls that are under way, by number."""

    def __init__(self, pipe: Pipe, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe, self._loop = pipe, loop
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count()

    async def ask(self, call: AgentCall) -> object:
        """Return what came of a call; raises how it failed."""
        number = next(self._numbers)
        waiting = self._waiting[number] = self._loop.create_future()
        args = msgspec.msgpack.encode((*call.args, *call.unlike), enc_hook=_plain)
        self._pipe.write(Asked(number, call.name, args))
        value: object = msgspec.msgpack.decode(await waiting)
        return msgspec.convert(value, RESULTS[call.name]) if call.name in RESULTS else value

    def listen(self) -> None:
        """Hand answers on until the program ends, and then end."""
        while True:
            try:
                message = self._pipe.read()
            except Exception:  # noqa: BLE001 - the program has ended, or speaks otherwise: there is no more to do
                os._exit(0)
            if isinstance(message, Answered):
                self._loop.call_soon_threadsafe(self._settle, message)

    def _settle(self, message: Answered) -> None:
        waiting = self._waiting.pop(message.index, None)
        if waiting is None or waiting.done():
            return
        if message.fault is None:
            waiting.set_result(message.value)
        else:
            waiting.set_exception(message.fault.error("run"))


def _plain(value: object) -> object:
    """Return a value as messages have it: an array of numbers, or any other sequence, as a list."""
    if isinstance(value, Sequence):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"a {type(value).__name__} cannot be told to the program")


def main() -> None:
    """Serve one question."""
    pipe = Pipe(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    start, asked = pipe.read(), pipe.read()
    assert isinstance(start, Start)
    pipe.plugin = start.plugin
    try:
        enter(start.plugin, start.allowed, start.source, start.memory_bytes)
        answer = _answer(_loaded(start), asked, pipe)
    except MemoryError:
        fault = AgentError(f"the plugin {start.plugin} needs more memory than it may use", agent=start.plugin)
        pipe.write(Failed(Fault.of(fault, start.plugin)))
    except BaseException as error:  # noqa: BLE001 - told to the program, whatever it is
        pipe.write(Failed(_fault(start.plugin, error)))
    else:
        pipe.write(answer)
    os._exit(0)  # whatever threads the plugin began


def _fault(plugin: str, error: BaseException) -> Fault:
    told = Fault.of(error, plugin)
    if told.kind != "BackendError" or type(error).__name__ == "BackendError":
        return told
    text = f"the plugin {plugin} failed: {type(error).__name__}: {error}"
    return Fault.of(AgentError(text, agent=plugin), plugin)


def _loaded(start: Start) -> PluginHost:
    """Return a host that has the plugin's module alone."""
    host = PluginHost()
    host.register(import_target(start.target), start.plugin)
    return host


def _answer(host: PluginHost, asked: ToPlugin, pipe: Pipe) -> FromPlugin:
    agents, tools = host.agents_alone(), host.tools()
    for info in host.plugins():
        if info.state == "quarantined":
            raise PluginError(info.reason, plugin=pipe.plugin)
    match asked:
        case Describe():
            return Described(tuple(map(_agent_told, agents.values())), tuple(map(_tool_told, tools.values())))
        case RunAgent(name=name):
            return Done(_encoded(pipe.plugin, asyncio.run(_run(agents[name], asked, pipe))))
        case ScoreTask(name=name, task=task):
            end_with_program(pipe)
            return Done(_encoded(pipe.plugin, _scored(agents[name], task)))
        case CallTool(name=name, arguments=arguments):
            end_with_program(pipe)
            return Done(_encoded(pipe.plugin, asyncio.run(tools[name].call(arguments))))
        case _:
            raise RequestError("the program asks for nothing that a plugin does", param="message")


def end_with_program(pipe: Pipe) -> None:
    """End this process when the program does, which says nothing more to it: what runs here may never come back."""

    def wait() -> None:
        with suppress(WireError, OSError):
            pipe.read()
        os._exit(0)

    threading.Thread(target=wait, name="pyagent-program", daemon=True).start()


def _scored(agent: Agent, task: Task) -> tuple[float, str] | None:
    """Return an agent's score with its reason. Raises `ValueError` for what is no score."""
    score = cast("Callable[[Task], object]", getattr(agent, "score"))  # noqa: B009 - not every agent has it
    found = checked_score(score(task))
    return None if found is None else (float(found), found.reason)


async def _run(agent: Agent, asked: RunAgent, pipe: Pipe) -> object:
    calls = Calls(pipe, asyncio.get_running_loop())
    threading.Thread(target=calls.listen, name="pyagent-program", daemon=True).start()
    told = msgspec.structs.asdict(asked.view)
    view = AgentView(**told, tenant="", trace={}, file_access=FileAccess())
    return await run_remote(agent, asked.task, view, calls.ask)


def _agent_told(agent: Agent) -> AgentTold:
    return AgentTold(agent.name, agent.description, needs(agent), callable(getattr(agent, "score", None)))


def _tool_told(tool: FleetTool) -> ToolTold:
    if tool.takes_context:
        text = f"its tool {tool.name!r} takes an agent's context, which a tool of an isolated plugin does not get"
        raise PluginError(text, plugin=tool.name)
    function = tool.definition().function
    parameters = function.parameters or {}
    return ToolTold(tool.name, tool.description, parameters, tool.effect, tool.needs_approval)


def _encoded(plugin: str, value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        text = f"the plugin {plugin} returned what cannot be told to the program: {error}"
        raise AgentError(text, agent=plugin) from error


if __name__ == "__main__":
    main()
