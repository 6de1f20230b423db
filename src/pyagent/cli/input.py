"""What a command reads: files, named and checked before anything starts, and standard input.

A pipe can be read once, from its beginning, so `-`, `/dev/stdin` and named pipes are copied into a file that goes when
the command ends. That happens in the main thread with nothing running yet: Ctrl+C there ends the program at once.
"""

from __future__ import annotations

import shutil
import stat
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyagent.core.errors import RequestError

_STANDARD_INPUT = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}


@contextmanager
def readable_files(names: Iterable[str]) -> Generator[list[str]]:
    """Give the files' absolute paths, pipes as copies; raises `RequestError` for the first that cannot be read."""
    with ExitStack() as stack:
        yield [_readable(name, stack) for name in names]


def _readable(name: str, stack: ExitStack) -> str:
    path = Path(name).expanduser()
    if name in _STANDARD_INPUT:
        return _copied("/dev/stdin", "stdin.txt", stack)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise RequestError(f"there is no file {name}", param="file") from error
        raise RequestError(f"{name} cannot be read: {error.strerror}", param="file") from error
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return str(path.resolve())
    if stat.S_ISFIFO(mode):
        return _copied(str(path), f"{path.name}.txt", stack)
    raise RequestError(f"{name} is neither a file nor a pipe", param="file")


def _copied(source: str, name: str, stack: ExitStack) -> str:
    """Copy what comes from a pipe, up to its end, into a file of its own."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pyagent-"))
    copy = Path(folder) / name
    try:
        with Path(source).open("rb") as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file)
    except OSError as error:
        raise RequestError(f"{source} cannot be read: {error.strerror}", param="file") from error
    return str(copy)


def text_or_input(text: str, *, has_more: bool) -> str:
    """Return the text; standard input where it is `-`, and a pipe's where nothing (`has_more`) says what to do.

    A terminal is not waited for without `-`: there the command says what it needs.
    """
    is_piped = sys.stdin is not None and not sys.stdin.isatty()
    if text.strip() == "-" or (is_piped and not text.strip() and not has_more):
        return _standard_input()
    return text.encode(errors="surrogateescape").decode(errors="replace")  # bytes of another encoding


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode().strip() if sys.stdin else ""
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text: {error.reason}", param="task") from error
