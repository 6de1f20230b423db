"""What the program logs, as a test reads it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from pyagent.infrastructure.observability.logging import configure_logging


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Everything that is logged, as `pyagent serve` writes it."""
    stream, root, ours = io.StringIO(), logging.getLogger(), logging.getLogger("pyagent")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    root.handlers.clear()  # a command run in this process may have left one that waits for the first record
    configure_logging("debug", "json", stream)
    root.setLevel("DEBUG")
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        structlog.reset_defaults()
