"""A moment until which a caller waits, carried through everything done on the caller's behalf.

A deadline is a point on a monotonic clock, so time spent in one place is missing in the next without anybody
subtracting. It knows nothing of backends or sockets.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pyagent.core.errors import DeadlineError, RequestError

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is in the clock's seconds; infinity means that the caller set none."""

    at: float = math.inf
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, seconds: float | None, clock: Clock = time.monotonic) -> Deadline:
        """Return the deadline that lies `seconds` from now; None means never. Raises `RequestError` for a bad time."""
        if seconds is None:
            return cls(math.inf, clock)
        if math.isnan(seconds) or seconds < 0:
            raise RequestError(f"timeout_seconds must be 0 or more, got {seconds}", param="timeout_seconds")
        return cls(clock() + seconds, clock)

    @property
    def remaining_seconds(self) -> float:
        """Seconds left, never below zero; infinite when there is no deadline."""
        return max(0.0, self.at - self.clock())

    @property
    def is_past(self) -> bool:
        """Whether the moment has come."""
        return self.at <= self.clock()

    @property
    def is_set(self) -> bool:
        """Whether there is one at all."""
        return not math.isinf(self.at)

    def sooner(self, seconds: float) -> Deadline:
        """This deadline, or the moment `seconds` from now if that comes first. Raises `RequestError` for NaN."""
        if math.isnan(seconds):
            raise RequestError("timeout_seconds must be 0 or more, got nan", param="timeout_seconds")
        return Deadline(min(self.at, self.clock() + seconds), self.clock)

    def later(self, seconds: float, most: Deadline) -> Deadline:
        """This deadline put off, at most until that of `most`."""
        return Deadline(min(self.at + seconds, most.at), self.clock)

    async def bound(self, work: Awaitable[T], what: str) -> T:
        """Await `work` until the deadline; past it, cancel it and raise `DeadlineError` naming `what` took too long."""
        if math.isinf(self.at):
            return await work
        timer = asyncio.timeout(self.remaining_seconds)
        try:
            async with timer:
                return await work
        except TimeoutError as error:
            if timer.expired():
                raise DeadlineError(f"the deadline passed while waiting for {what}") from error
            raise
