"""Names the plugin that the program waits for, and ends the wait: nothing else would say why it stands still.

What a plugin does at import, and in hooks that need nothing of the host, runs in a thread of its own, which is left
behind when it does not end. A backend's factory runs where it is called: it is named when it is slow, and not ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

SLOW_SECONDS = 5.0
"""Importing torch takes two or three."""
logger = logging.getLogger("pyagent.plugins")
_TEXT = "plugin %s has been at it for %g s (%s), and the program waits for it; plugins.disable leaves it out"


@contextmanager
def named_when_slow(plugin: str, doing: str) -> Generator[None]:
    """Log a warning with the plugin's name when what happens within takes long. It is not ended: no thread can be."""
    timer = threading.Timer(SLOW_SECONDS, logger.warning, (_TEXT, plugin, SLOW_SECONDS, doing))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def in_time(plugin: str, doing: str, limit_seconds: float, work: Callable[[], T]) -> T:
    """Return what a plugin's code returns, or raise what it raises; `TimeoutError` when it does not end in time.

    What is left behind is asked to end: a loop in Python does, at once, and a call that sleeps when it returns.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            returned.append(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            raised.append(error)

    context = copy_context()
    thread = threading.Thread(target=run, name=f"pyagent-plugin-{plugin}", daemon=True)
    thread.start()
    thread.join(min(SLOW_SECONDS, limit_seconds))
    if thread.is_alive() and limit_seconds > SLOW_SECONDS:
        logger.warning(_TEXT, plugin, SLOW_SECONDS, doing)
        thread.join(limit_seconds - SLOW_SECONDS)
    if raised:
        raise raised[0]
    if returned:
        return returned[0]
    _ask_to_end(thread)
    text = f"{doing} had not ended after {limit_seconds:g} s, and is left behind; plugins.load_seconds gives it longer"
    raise TimeoutError(text)


def _ask_to_end(thread: threading.Thread) -> None:
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
