"""Where the levels of rates are kept: turns are taken there, by every fleet that shares the place, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pyagent.core.rates import Rate, full_at_after, wait_seconds


class RateStore(Protocol):
    """Levels of rates by name. On disk it is `infrastructure.storage.rates`'s business."""

    def take(self, name: str, rate: Rate) -> float:
        """Take a turn and return 0; or return the seconds until there may be one, and take nothing."""
        ...

    def wait_seconds(self, name: str, rate: Rate, place: int = 1) -> float:
        """Return the seconds until the turn of who is at this place of the queue."""
        ...


class RatesInMemory:
    """Keeps levels as long as the program runs, those that are not full."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, name: str, rate: Rate) -> float:
        """Take a turn, or say when."""
        now = self._clock()
        if wait := wait_seconds(rate, self._full_at.get(name, 0.0), now):
            return wait
        full_at = full_at_after(rate, self._full_at.get(name, 0.0), now)
        self._full_at = {each: at for each, at in self._full_at.items() if at > now} | {name: full_at}
        return 0.0

    def wait_seconds(self, name: str, rate: Rate, place: int = 1) -> float:
        """Return the seconds until a turn."""
        return wait_seconds(rate, self._full_at.get(name, 0.0), self._clock(), place)
