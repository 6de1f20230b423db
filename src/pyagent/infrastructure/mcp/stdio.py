"""A server that is a program of ours: its lines bounded, its environment small, its processes ended with us.

Not the package's own transport, which grows its buffer until a line ends: a program that never ends one took 19 GB. The
order of the end is the specification's: standard input closes, then SIGTERM, then SIGKILL, to the whole process group.
Where this process is killed a small one beside each program does that (`outlived`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from pyagent.core.errors import BackendError
from pyagent.core.secrets import strike_text
from pyagent.infrastructure.mcp import outlived
from pyagent.infrastructure.mcp.nesting import shallow
from pyagent.infrastructure.processes import describe_exit

logger = logging.getLogger("pyagent.mcp")
MAX_LINE_BYTES = 8 << 20
"""Longest message: a line of JSON, images in base64 included. Twice that is held while a line is read."""
_MAX_LOGGED_CHARACTERS = 500
_MAX_LOGGED_LINES = 2_000
_GRACE_SECONDS = 1.0
_NOISE_SECONDS = 0.001
"""Pause after a line that is no message, and after a piece of standard error: a program that writes nothing else would
have the event loop to itself."""

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass(slots=True)
class Program:
    """A server's program. `fault` says why its connection ended, where that is known."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    secrets: Sequence[str]
    fault: str = ""
    _said: deque[str] = field(default_factory=lambda: deque[str](maxlen=1))
    _process: asyncio.subprocess.Process | None = None

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Start the program and yield what reads its messages and what sends it some; end it afterwards.

        Raises `BackendError` when it cannot be started.
        """
        async with _guard() as guard:
            process = self._process = await self._started()
            assert guard.stdin is not None
            guard.stdin.write(b"%d" % process.pid)
            async with self._piped(process) as streams:
                yield streams

    @asynccontextmanager
    async def _piped(self, process: asyncio.subprocess.Process) -> AsyncGenerator[Streams]:
        to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        pipes = [
            asyncio.create_task(self._read(process, to_session)),
            asyncio.create_task(self._write(process, from_session)),
            asyncio.create_task(self._log(process)),
        ]
        try:
            yield incoming, outgoing
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await self._end(process)
            finally:
                _signal_group(process, signal.SIGKILL)  # also what its end left behind
                for pipe in pipes:
                    pipe.cancel()
                for stream in (to_session, incoming, outgoing, from_session):
                    stream.close()
                with anyio.CancelScope(shield=True):
                    await _reap(process)  # here, as its end may have been cancelled: it is never reaped else
                    await asyncio.wait(pipes)

    def explain(self) -> str:
        """Return why the program's connection ended: what is known of its end, and its last words."""
        code = None if self._process is None else self._process.returncode
        ended = self.fault or ("its connection ended" if code is None else f"it ended with {describe_exit(code)}")
        return f"{ended}; it said: {self._said[-1]}" if self._said else ended

    async def _started(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.folder,
                env=dict(self.environment),
                limit=MAX_LINE_BYTES,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            is_folder = self.folder is not None and not os.path.isdir(self.folder)  # noqa: ASYNC240 - a look, once
            why = f"its folder {self.folder} is not there" if is_folder else _start_fault(self.command[0], error)
            raise BackendError(why, backend=f"mcp:{self.name}") from error

    async def _read(self, process: asyncio.subprocess.Process, to_session: Incoming) -> None:
        assert process.stdout is not None
        with to_session, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while line := await self._line(process.stdout):
                if message := _parsed(line):
                    await to_session.send(message)
                else:
                    await asyncio.sleep(_NOISE_SECONDS)

    async def _line(self, stdout: asyncio.StreamReader) -> bytes:
        """Return the next line; empty at the end, which a line that is too long is."""
        try:
            return await stdout.readuntil()
        except asyncio.IncompleteReadError:
            return b""
        except asyncio.LimitOverrunError:
            self.fault = f"it sent a line of more than {MAX_LINE_BYTES >> 20} MiB, and was ended"
            return b""

    async def _write(
        self, process: asyncio.subprocess.Process, from_session: MemoryObjectReceiveStream[SessionMessage]
    ) -> None:
        assert process.stdin is not None
        with suppress(OSError, RuntimeError):  # it closed its end, or has ended
            async with from_session:
                async for message in from_session:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(line.encode() + b"\n")
                    await process.stdin.drain()

    async def _log(self, process: asyncio.subprocess.Process) -> None:
        """Log what it writes to standard error, some of it, and keep its last words for what is said of its end."""
        assert process.stderr is not None
        num_lines = 0
        while piece := await process.stderr.read(65_536):
            lines = [line for line in piece.decode(errors="replace").splitlines() if line.strip()]
            num_logged = min(len(lines), _MAX_LOGGED_LINES - num_lines)
            num_lines += num_logged
            for line in lines[:num_logged]:
                logger.debug("the MCP server %s: %s", self.name, self._struck(line))
            for line in lines[-1:]:
                self._said.append(self._struck(line))
            await asyncio.sleep(_NOISE_SECONDS)

    def _struck(self, line: str) -> str:
        return _plain(strike_text(line, self.secrets))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """End the program's process group; it has a second to end by itself, and another after SIGTERM."""
        assert process.stdin is not None
        process.stdin.close()
        if not await _has_ended(process):
            _signal_group(process, signal.SIGTERM)
            if not await _has_ended(process):
                _signal_group(process, signal.SIGKILL)
                await _has_ended(process)


@asynccontextmanager
async def _guard() -> AsyncGenerator[asyncio.subprocess.Process]:
    """Start what ends a program's group should this process die before the block ends; it is told the group's id."""
    guard = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", outlived.__file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield guard
    finally:
        _signal_group(guard, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await _reap(guard)


def _start_fault(command: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"its command {command!r} is not found"
    return f"its command {command!r} cannot be started: {strike_text(str(error))}"


def _parsed(line: bytes) -> SessionMessage | None:
    """Return a line's message; None for one that is none, such as what a program prints besides."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(shallow(line), by_name=False))
    except ValueError:
        return None


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_LOGGED_CHARACTERS]).strip()


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Whether the program ends soon. By looking: `wait` also waits for its pipes, which a child of it may hold."""
    for _ in range(int(_GRACE_SECONDS / 0.01)):
        if process.returncode is not None:
            return True
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Take in the end of a program that was killed, and let go of its pipes."""
    try:
        await _has_ended(process)
    finally:
        _close_pipes(process)


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close our ends, which stay open while a process that left the group holds the others."""
    transport: object = getattr(process, "_transport", None)
    if callable(close := getattr(transport, "close", None)):
        with suppress(PermissionError, ProcessLookupError):
            close()
