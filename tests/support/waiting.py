"""Waits for a condition, a minute at most: what comes at once on an idle machine does not where the cores are taken."""

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
