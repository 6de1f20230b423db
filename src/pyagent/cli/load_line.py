"""How far models are on their way into memory: a line on a terminal's standard error, gone when they are there.

Where standard error is no terminal the log says it. Knows no engine: loads come as records of the log, from whichever
thread or process loads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, cast

from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.load_progress import LoadProgress

_LOGGER = "pyagent.loads"
_CLEAR = "\x1b[2K"
_COLUMNS = 80
"""Columns of a terminal that does not say how many it has."""


@contextlib.contextmanager
def loads_shown(show: Callable[[LoadProgress], None]) -> Generator[None]:
    """Tell `show`, in place of the log or of who was told before, how far models are that load meanwhile."""
    logger = logging.getLogger(_LOGGER)

    class _Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(cast("LoadProgress", record.__dict__["load"]))

    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [_Shown()], False
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1:]


@contextlib.contextmanager
def loads_on_terminal() -> Generator[None]:
    """Show them on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    line = _LoadLine()
    try:
        with loads_shown(line.show):
            yield
    finally:
        line.clear()


class _LoadLine:
    """The line. The cursor is left at its beginning, so that whatever is written next takes its place."""

    def __init__(self) -> None:
        self._loads: dict[str, LoadProgress] = {}

    def show(self, load: LoadProgress) -> None:
        """Take in how far a load is."""
        self._loads.pop(load.name, None)
        if load.is_over:
            self._write(f"\r{_CLEAR}")
        else:
            self._loads[load.name] = load
        if self._loads:
            told = " · ".join(load_text(self._loads[name]) for name in sorted(self._loads))
            self._write(f"\r{_CLEAR}{told[: _columns() - 1]}\r")

    def clear(self) -> None:
        """Take the line away."""
        if self._loads:
            self._loads.clear()
            self._write(f"\r{_CLEAR}")

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone: the load goes on
            sys.stderr.write(text)
            sys.stderr.flush()


def load_text(load: LoadProgress) -> str:
    """Return what is shown of a load."""
    return f"loading {printable(load.name)}: {load.told}"


def _columns() -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS
    return _COLUMNS
