"""Tools that run programs: a shell, and Python. Off unless the settings allow them, and a person allows each call.

A program has bounded time, memory, files and output, an environment without this program's variables (which may hold
keys), and no network, where the system can separate it; where it cannot, the result says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.tools import limited

_MAX_OUTPUT_BYTES = 200_000
_NO_FILES = 0
_LEFT_BYTES = 65_536
_NOT_APART = "[this system could not separate the program from the network and from other programs' environments]"


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one program may use. `seconds` bound its time and its processor's."""

    seconds: float = 60.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 100_000_000
    uses_network: bool = False


class Ended(msgspec.Struct, frozen=True):
    """How a program ended; `code` is None when its time was up."""

    code: int | None
    output: str
    is_apart: bool

    def __str__(self) -> str:
        end = {0: "", None: "[it was ended: its time was up]"}.get(self.code, f"[exit code {self.code}]")
        parts = [self.output.rstrip() or "[no output]", end, "" if self.is_apart else _NOT_APART]
        return "\n".join(part for part in parts if part)


def shell_tool(root: Path, limits: ProgramLimits) -> FleetTool:
    """Return a shell that begins in a folder."""

    async def shell(command: Annotated[str, msgspec.Meta(min_length=1)]) -> str:
        """Run a command by /bin/sh, and read what it writes and its exit code."""
        _refuse_clients("shell")
        return str(await run_program(["/bin/sh", "-c", command], root, limits))

    return tool(needs_approval=True)(shell)


def python_tool(limits: ProgramLimits) -> FleetTool:
    """Return Python programs in a folder of their own, which write no files."""

    async def python(code: Annotated[str, msgspec.Meta(min_length=1)]) -> str:
        """Run a Python program of the standard library; what it prints is the result. It keeps nothing."""
        _refuse_clients("python")
        without_files = ProgramLimits(limits.seconds, limits.memory_bytes, _NO_FILES, limits.uses_network)
        with tempfile.TemporaryDirectory(prefix="pyagent-python-") as folder:
            return str(await run_program([sys.executable, "-I", "-c", code], Path(folder), without_files))

    return tool(needs_approval=True)(python)


def _refuse_clients(name: str) -> None:
    if current_access().is_limited:
        raise RequestError(f"a client of a server may not use {name}", param="tool")


async def run_program(program: Sequence[str], folder: Path, limits: ProgramLimits) -> Ended:
    """Return how a program ended, and what it wrote to both outputs. When the call is cancelled it ends too."""
    status, told = os.pipe()
    script = str(Path(limited.__file__))
    bounds = [told, limits.seconds + 1, limits.memory_bytes, limits.file_bytes, limits.uses_network]
    arguments = [sys.executable, "-I", script, *(str(int(bound)) for bound in bounds), *program]
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=folder,
            env=_environment(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[told],
        )
    except (OSError, ValueError) as error:
        os.close(status)
        raise AgentError(f"the program cannot be started: {error}", agent="tools") from error
    finally:
        os.close(told)
    output = bytearray()
    code: int | None = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.seconds):
                await _read(process, output)
                code = await process.wait()
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it left running
        await process.wait()
        with os.fdopen(status, "rb") as file:
            is_apart = file.read(len(limited.NOT_APART)) == b""
    return Ended(code, _text(output), is_apart)


async def _read(process: asyncio.subprocess.Process, output: bytearray) -> None:
    """Read all that it writes, and keep the beginning."""
    assert process.stdout is not None
    while piece := await process.stdout.read(_LEFT_BYTES):
        output += piece[: max(0, _MAX_OUTPUT_BYTES - len(output))]


def _text(output: bytearray) -> str:
    cut = "\n[more output is not shown]" if len(output) >= _MAX_OUTPUT_BYTES else ""
    return output.decode(errors="replace") + cut


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    return kept | {"HOME": str(folder), "TMPDIR": str(folder)}
