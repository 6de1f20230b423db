"""One run of a program: text in, lines out, bounded in time and size, ended with everything it started.

Knows nothing of Copilot. The program gets no shell and an empty folder to work in.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyagent.plugin import BackendError

_MAX_LINE_BYTES = 4 * 1024 * 1024
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_GRACE_SECONDS = 1.0
_END_SECONDS = 10.0


@dataclass(slots=True)
class Run:
    """A program that is about to run. After its lines were read, `code` and `stderr` say how it ended."""

    words: Sequence[str]
    environment: Mapping[str, str]
    name: str
    silence_seconds: float
    code: int = 0
    stderr: str = ""
    _errors: bytearray = field(default_factory=bytearray)

    async def lines(self, text: str) -> AsyncGenerator[bytes, None]:
        """The lines that the program writes when it reads `text`. Closing the iterator ends the program."""
        with tempfile.TemporaryDirectory(prefix="pyagent-copilot-", ignore_cleanup_errors=True) as folder:
            process = await self._started(folder)
            feeding = asyncio.create_task(_feed(process, text))
            listening = asyncio.create_task(self._listen(process))
            try:
                num_bytes = 0
                while line := await self._line(process):
                    num_bytes += len(line)
                    if num_bytes > _MAX_OUTPUT_BYTES:
                        raise BackendError(f"{self.name} wrote over 64 MiB", backend=self.name, retryable=False)
                    yield line
                async with asyncio.timeout(_END_SECONDS):
                    await listening
                    self.code = await process.wait()
            except TimeoutError as error:
                raise BackendError(f"{self.name} closed its output and did not end", backend=self.name) from error
            finally:
                feeding.cancel()
                listening.cancel()
                await _end(process)
                await asyncio.gather(feeding, listening, return_exceptions=True)
                self.stderr = self._errors.decode(errors="replace")

    async def _started(self, folder: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *self.words,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd=folder,
                env=dict(self.environment),
                limit=_MAX_LINE_BYTES,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.name} cannot start: {error}", backend=self.name, retryable=False) from error

    async def _line(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout
        timer = asyncio.timeout(self.silence_seconds)
        try:
            async with timer:
                return await process.stdout.readline()
        except TimeoutError as error:
            text = f"{self.name} wrote nothing for too long (backends.timeout_seconds)"
            raise BackendError(text, backend=self.name) from error
        except ValueError as error:
            raise BackendError(f"{self.name} wrote a line of over 4 MiB", backend=self.name, retryable=False) from error

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep the beginning of what it says went wrong, and read the rest so that it is not held up."""
        assert process.stderr
        while piece := await process.stderr.read(8192):
            self._errors += piece[: max(0, _MAX_ERROR_BYTES - len(self._errors))]


async def _feed(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdin
    with suppress(ConnectionError, BrokenPipeError):
        process.stdin.write(text.encode(errors="replace"))
        await process.stdin.drain()
    process.stdin.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the program and all it started: asked first, then killed."""
    for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _END_SECONDS)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
            if not _is_alive(process.pid):
                return


def _is_alive(group: int) -> bool:
    """Whether somebody of a process group is left."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
