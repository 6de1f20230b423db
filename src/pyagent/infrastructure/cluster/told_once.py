"""What a log is told once, though it happens again and again, as long as its cause lasts."""

from __future__ import annotations

import time
from collections.abc import Callable

_MAX_TOLD = 256
_AGAIN_SECONDS = 600.0


class ToldOnce:
    """What was told: the same again only after ten minutes. Holds few things, as peers may say ever new ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: dict[object, float] = {}

    def is_new(self, told: object) -> bool:
        """Whether it is to be told now; it counts as told then."""
        now = self._clock()
        told_at = self._told_at.get(told)
        if told_at is not None and now - told_at < _AGAIN_SECONDS:
            return False
        self._told_at.pop(told, None)
        if len(self._told_at) >= _MAX_TOLD:
            del self._told_at[next(iter(self._told_at))]
        self._told_at[told] = now
        return True
