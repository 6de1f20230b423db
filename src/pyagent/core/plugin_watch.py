"""Names the plugin that the program waits for: nothing else would say why it stands still."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager

SLOW_SECONDS = 5.0
"""Importing torch takes two or three."""
logger = logging.getLogger("pyagent.plugins")


@contextmanager
def named_when_slow(plugin: str, doing: str) -> Generator[None]:
    """Log a warning with the plugin's name when what happens within takes long. It is not ended: no thread can be."""
    text = "plugin %s has been at it for %g s (%s), and the program waits for it; plugins.disable leaves it out"
    timer = threading.Timer(SLOW_SECONDS, logger.warning, (text, plugin, SLOW_SECONDS, doing))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
