"""The prompts that are pinned in every process of an engine, and are pinned again in one that starts anew.

Knows no process: it is given what sends a command to one. A pin that cannot be made again, or in whose making the
process ends, is dropped: it may be what ended it. Safe from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from pyagent.core.errors import BackendError, PyAgentError
from pyagent.core.prompt_cache import CacheQuery, PinPrompt, UnpinPrompt
from pyagent.infrastructure.engine.subprocess.protocol import Command, QueryCache

logger = logging.getLogger(__name__)

Call = Callable[[Command], Future[msgspec.Raw]]


class Pins:
    """The pins by tenant and name."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, str], PinPrompt] = {}
        self._lock = threading.Lock()

    def note(self, query: CacheQuery) -> None:
        """Note that every process has taken a query."""
        with self._lock:
            if isinstance(query, PinPrompt):
                self._pins[_key(query)] = query
            elif isinstance(query, UnpinPrompt):
                self._pins.pop((query.tenant, query.name), None)

    def forget(self) -> None:
        """Note that the processes gave their KV memory back, and the pins with it."""
        with self._lock:
            self._pins.clear()

    def restore(self, call: Call) -> None:
        """Pin all prompts in a process that has none, one after the other."""
        with self._lock:
            left = list(self._pins.values())
        self._next(left, call)

    def _next(self, left: list[PinPrompt], call: Call) -> None:
        if left:
            pin = left.pop(0)
            if (making := _send(pin, call)) is not None:
                making.add_done_callback(lambda made: self._made(pin, made.exception(), left, call))

    def _made(self, pin: PinPrompt, error: BaseException | None, left: list[PinPrompt], call: Call) -> None:
        with self._lock:
            present = self._pins.get(_key(pin))
            is_lost = error is not None and present is pin
            if is_lost:
                del self._pins[_key(pin)]
        if is_lost:
            logger.warning("the pin %r is lost: it could not be made again in a new process: %s", pin.name, error)
        if isinstance(error, BackendError):
            return  # the process is gone; the next one begins with those that are left
        if error is None and present is None:  # unpinned meanwhile, perhaps before it was there
            _send(UnpinPrompt(pin.name, pin.request.origin.tenant), call)
        self._next(left, call)


def _send(query: CacheQuery, call: Call) -> Future[msgspec.Raw] | None:
    try:
        return call(QueryCache(query))
    except PyAgentError:  # the engine is being closed
        return None


def _key(pin: PinPrompt) -> tuple[str, str]:
    return pin.request.origin.tenant, pin.name
