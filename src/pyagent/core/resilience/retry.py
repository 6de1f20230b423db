"""When to try again, and for how long to wait: jitter, one shared budget, never past the deadline.

A retry storm is what turns a short outage into a long one. So all callers of one process draw their retries from one
`RetryBudget`, which only successes refill, and waits are spread (AWS Architecture Blog, "Exponential Backoff And
Jitter", 2015): `full` draws from the whole interval, `equal` from its upper half, `decorrelated` from the base to three
times the wait before. Nothing here sleeps or calls: it decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pyagent.core.errors import BackendError, CapacityError
from pyagent.core.resilience.deadline import Deadline

Jitter = Literal["full", "equal", "decorrelated"]


def is_retryable(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, BackendError):
        return error.retryable
    return isinstance(error, CapacityError) and error.retry_after_seconds is not None


@dataclass(slots=True)
class RetryBudget:
    """Retries left to everyone who shares it. Each success gives back `ratio` of a retry, up to `capacity`."""

    capacity: float = 10.0
    ratio: float = 0.2
    left: float = field(default=-1.0)

    def __post_init__(self) -> None:
        if self.left < 0:
            self.left = self.capacity

    def spend(self) -> bool:
        """Take one retry; False when none is left."""
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def succeed(self) -> None:
        """A call went through."""
        self.left = min(self.capacity, self.left + self.ratio)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast. `max_seconds` bounds the jitter, and the wait that the other side may ask for."""

    num_retries: int = 2
    base_seconds: float = 0.2
    max_seconds: float = 5.0
    jitter: Jitter = "full"

    def wait_seconds(  # noqa: PLR0913 - what it depends on
        self,
        errors: list[Exception],
        retry: int,
        budget: RetryBudget,
        deadline: Deadline,
        draw: Callable[[float, float], float] = random.uniform,
        *,
        before: float = 0.0,
    ) -> float | None:
        """Seconds to wait before retry number `retry` (from 0) of a call that ended in `errors`, or None to give up.

        `before` is the wait before the last one.

        Gives up when no error can pass by itself, when the policy, the budget or the deadline has no room, or when
        the other side asked for a longer wait than anybody should sit through. Takes one retry from `budget`.
        """
        transient = [error for error in errors if is_retryable(error)]
        if not transient or retry >= self.num_retries:
            return None
        asked = min(map(_asked_seconds, transient))
        wait = asked + self.backoff_seconds(retry, draw, before=before)
        if asked > self.max_seconds or wait >= deadline.remaining_seconds or not budget.spend():
            return None
        return wait

    def backoff_seconds(
        self, retry: int, draw: Callable[[float, float], float] = random.uniform, *, before: float = 0.0
    ) -> float:
        """Return the wait before retry number `retry` (from 0), when the last one was `before`."""
        if self.jitter == "decorrelated":
            return min(self.max_seconds, draw(self.base_seconds, max(self.base_seconds, 3 * before)))
        most = min(self.max_seconds, self.base_seconds * 2.0**retry)
        return draw(most / 2 if self.jitter == "equal" else 0.0, most)


def _asked_seconds(error: Exception) -> float:
    """Return what a Retry-After said; 0 when nothing did."""
    return (error.retry_after_seconds or 0.0) if isinstance(error, CapacityError) else 0.0
