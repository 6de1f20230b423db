"""Waiting for conditions, a minute at most, as busy machines are slow; and a clock that goes when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_MOST_SECONDS = 60.0


async def until(is_so: Callable[[], bool]) -> None:
    """Wait while the event loop goes on; raises `TimeoutError`."""
    async with asyncio.timeout(_MOST_SECONDS):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait in this thread; raises `TimeoutError`."""
    end = time.monotonic() + _MOST_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
