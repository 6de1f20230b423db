"""Starts `pyagent` from a process that has imported what others wrote: that is half of what a command takes to start.

PyAgent's own modules are imported by each command, as a user's are. A command is a process of its own, with its own
environment, folder, streams and exit code.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_OTHERS = ("asyncio", "concurrent.futures", "email.message", "httpx", "importlib.metadata", "msgspec", "platformdirs")
_OTHERS += ("pluggy", "pydantic.main", "pydantic.networks", "pydantic_core", "rich.console", "rich.live", "typer.main")
_PIPE_BYTES = 60_000
"""A pipe holds a little more, so that nobody has to write while the command runs."""
_PROGRAM = (
    "import sys; sys.path.insert(0, {folder!r}); from support import warm_start; del sys.path[0]; "
    "warm_start.serve({control}); from pyagent.cli.main import main; main()"
)


def fits(env: dict[str, str], text: str) -> bool:
    """Whether a command can be started so: what an interpreter has read when it starts, and inherited, is the same."""
    names = {name for name in env.keys() | os.environ.keys() if name.startswith(("PYTHON", "COVERAGE", "LD_"))}
    is_alike = all(env.get(name) == os.environ.get(name) for name in names)
    return is_alike and len(text.encode()) <= _PIPE_BYTES and _starter()[1] == _inherited()


def _inherited() -> tuple[object, ...]:
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return (cores, *map(resource.getrlimit, kinds))


def run(arguments: Sequence[str], env: dict[str, str], text: str, cwd: str, seconds: float) -> tuple[int, str, str]:
    """Return the exit code of a command, and what it wrote to its output and its errors."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        reading, writing = os.pipe()
        with open(reading, "rb") as given, open(writing, "wb") as giving:
            giving.write(text.encode())
            giving.flush()
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    streams = [given.fileno(), out.fileno(), errors.fileno()]
                    socket.send_fds(_starter()[0], [b"."], [*streams, theirs.fileno()])
                giving.close()
                ours.sendall(json.dumps([["-c", *arguments], env, cwd]).encode())
                ours.shutdown(socket.SHUT_WR)
                code = _code(ours, seconds)
        out.seek(0)
        errors.seek(0)
        return code, *(stream.read().decode().replace("\r\n", "\n") for stream in (out, errors))


def _code(link: socket.socket, seconds: float) -> int:
    """Wait for the exit code that follows the command's process id; kill the process where that takes too long."""
    link.settimeout(seconds)
    told = b""
    try:
        while piece := link.recv(100):
            told += piece
    except TimeoutError as error:
        os.kill(int(told.split()[0]), signal.SIGKILL)
        raise subprocess.TimeoutExpired("pyagent", seconds) from error
    return int(told.split()[1])


@cache
def _starter() -> tuple[socket.socket, tuple[object, ...]]:
    """The way to the process that starts commands, and what it inherited; it ends when this end is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = _PROGRAM.format(folder=str(Path(__file__).parents[1]), control=theirs.fileno())
        starter = subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()], start_new_session=True)
    atexit.register(_end, ours, starter)
    return ours, _inherited()


def _end(control: socket.socket, starter: subprocess.Popen[bytes]) -> None:
    control.close()
    starter.wait()


def serve(descriptor: int) -> None:
    """Start a process for each command asked for; it returns in that process, which then is to run the command."""
    for name in _OTHERS:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for commands
    control = socket.socket(fileno=descriptor)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if not descriptors:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return _start(descriptors)
        for opened in descriptors:
            os.close(opened)


def _start(descriptors: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, last = descriptors
    link = socket.socket(fileno=last)
    arguments, env, cwd = json.loads(b"".join(iter(lambda: link.recv(65536), b"")))
    if (command := os.fork()) == 0:
        link.close()
        for place, opened in enumerate(streams):
            os.dup2(opened, place)
            os.close(opened)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = arguments
        return
    for opened in streams:
        os.close(opened)
    link.sendall(b"%d " % command)
    link.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))
    os._exit(0)
