"""Asks an isolated plugin something, in a process that is made for it and killed after it.

Nothing of one question is left for the next. What the process writes is read as hostile: bounded, typed, and refused
where it is no message. One that computes for ever, takes too much memory or dies fails its question alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from pyagent.core.errors import AgentError, WireError
from pyagent.core.one_line import printable
from pyagent.infrastructure.isolation.capabilities import Capabilities
from pyagent.infrastructure.isolation.messages import (
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
    ToPlugin,
    from_plugin,
    to_plugin,
)
from pyagent.infrastructure.processes import describe_exit
from pyagent.infrastructure.wire.codec import with_length
from pyagent.infrastructure.wire.fault import Fault

Make = Callable[[Asked], Awaitable[bytes]]
"""Makes a call of the plugin's with its run's context, and returns what came of it by msgpack."""
_DESCRIBE_SECONDS = 60.0
_MOST_CALLS = 256
"""Calls of one agent that are under way at the same time."""
_END_SECONDS = 0.2
_MAX_FRAME = 64 << 20
_MOST_FAULT_CHARACTERS = 2_000
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class IsolatedPlugin:
    """A plugin, what it declared, and how long a question to it and how much its process may take."""

    name: str
    target: str
    source: str
    allowed: Capabilities
    seconds: float
    memory_bytes: int

    async def describe(self) -> Described:
        """Return what it brings."""
        answer = await self._ask(Describe(), _no_calls, _DESCRIBE_SECONDS)
        assert isinstance(answer, Described)
        return answer

    async def score(self, asked: ScoreTask) -> bytes:
        """Return how well a task fits an agent, by msgpack, within `seconds`. Raises as `run` does."""
        answer = await self._ask(asked, _no_calls, self.seconds)
        assert isinstance(answer, Done)
        return answer.value

    async def run(self, asked: RunAgent | CallTool, make: Make) -> bytes:
        """Return what an agent or a tool returns, by msgpack. Raises what it raises, and `AgentError` past a bound."""
        answer = await self._ask(asked, make, self.seconds)
        assert isinstance(answer, Done)
        return answer.value

    async def _ask(self, asked: ToPlugin, make: Make, seconds: float) -> Described | Done:
        expected = Described if isinstance(asked, Describe) else Done
        async with self._process() as process:
            try:
                async with asyncio.timeout(seconds):
                    answer = await self._converse(process, asked, make)
            except TimeoutError as error:
                text = f"the plugin {self.name} has not ended within {seconds:g} s; plugins.isolated_seconds"
                raise AgentError(f"{text} is the bound", agent=self.name) from error
            except (WireError, OSError) as error:
                raise AgentError(await self._why_it_ended(process, error), agent=self.name) from error
        if isinstance(answer, Failed):
            told = printable(answer.fault.text[:_MOST_FAULT_CHARACTERS])[:_MOST_FAULT_CHARACTERS]
            raise msgspec.structs.replace(answer.fault, text=told).error(self.name)
        if not isinstance(answer, expected):
            raise AgentError(f"the plugin {self.name} answers something else than it was asked", agent=self.name)
        return answer

    async def _why_it_ended(self, process: asyncio.subprocess.Process, error: Exception) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                return f"the process of the plugin {self.name} died: {describe_exit(await process.wait())}"
        return f"the plugin {self.name}: {error}"

    async def _converse(self, process: asyncio.subprocess.Process, asked: ToPlugin, make: Make) -> FromPlugin:
        assert process.stdin
        known = {name: getattr(self, name) for name in ("target", "source", "allowed", "memory_bytes")}
        await _write(process.stdin, Start(plugin=self.name, **known))
        await _write(process.stdin, asked)
        codec = from_plugin(self.name)
        calls: set[asyncio.Task[None]] = set()
        try:
            while True:
                message = codec.decode(await _read(process, codec.peer))
                if not isinstance(message, Asked):
                    return message
                if len(calls) >= _MOST_CALLS:
                    raise WireError(f"{codec.peer} asks for more than {_MOST_CALLS} things at once", peer=codec.peer)
                call = asyncio.create_task(_answer(process.stdin, message, make))
                calls.add(call)
                call.add_done_callback(calls.discard)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[asyncio.subprocess.Process]:
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "pyagent.infrastructure.isolation.child",
            stdin=pipe,
            stdout=pipe,
            stderr=nothing,
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
        try:
            yield process
            with contextlib.suppress(TimeoutError):  # it ends by itself; to kill it then would reap it twice
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()


def _environment() -> dict[str, str]:
    """Return the variables of the process: where code and the home are, and the language; no key."""
    kept = {name: value for name in ("HOME", "LANG", "LC_ALL", "TZ") if (value := os.environ.get(name)) is not None}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1"}


async def _no_calls(asked: Asked) -> bytes:
    raise AgentError(f"there is no run to ask for {asked.name!r:.40}", agent="plugin")


async def _answer(stdin: asyncio.StreamWriter, asked: Asked, make: Make) -> None:
    try:
        answer = Answered(asked.index, await make(asked))
    except Exception as error:  # noqa: BLE001 - the plugin waits for an answer, whatever the error is
        answer = Answered(asked.index, fault=Fault.of(error, "the run"))
    with contextlib.suppress(OSError):  # it has ended meanwhile
        await _write(stdin, answer)


async def _write(stdin: asyncio.StreamWriter, message: ToPlugin) -> None:
    stdin.write(with_length(to_plugin().encode(message)))
    await stdin.drain()


async def _read(process: asyncio.subprocess.Process, peer: str) -> bytes:
    assert process.stdout
    try:
        (num_bytes,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
        if num_bytes > _MAX_FRAME:
            raise WireError(f"{peer} announced a message of {num_bytes} bytes, the most is {_MAX_FRAME}", peer=peer)
        return await process.stdout.readexactly(num_bytes)
    except asyncio.IncompleteReadError as error:
        raise WireError(f"{peer} hung up", peer=peer) from error
