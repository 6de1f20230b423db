"""Rate limits: a token bucket or an exact sliding window, for everybody together or for each client.

Pure rules on an injected clock: nothing here waits. `wait_seconds` asks, `take` takes; a caller with several limits
asks them all before it takes from any. The number of clients remembered is bounded; the longest unseen go first, and a
client that comes again starts with a full allowance.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Literal

from pyagent.core.resilience.deadline import Clock

_MAX_CLIENTS = 10_000
_ROUNDING = 1e-9


@dataclass(slots=True)
class TokenBucket:
    """Holds up to `burst` units (requests or tokens), is full at first, and gets `count` more in `seconds`, evenly."""

    count: int
    seconds: float
    burst: int
    clock: Clock = time.monotonic
    _level: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._filled_at = float(self.burst), self.clock()

    @property
    def level(self) -> float:
        """What is left now; below zero when more was taken than there was."""
        now = self.clock()
        self._level = min(self.burst, self._level + (now - self._filled_at) * self.count / self.seconds)
        self._filled_at = now
        return self._level

    def wait_seconds(self, level: float = 1) -> float:
        """Return the seconds until so much is left; 0 is now."""
        lacking = level - self.level
        return 0.0 if lacking <= _ROUNDING else lacking * self.seconds / self.count

    def take(self, num_units: float = 1) -> None:
        """Take so much, even more than there is."""
        self._level = self.level - num_units


@dataclass(slots=True)
class SlidingWindow:
    """At most `count` requests in any `seconds`."""

    count: int
    seconds: float
    clock: Clock = time.monotonic
    _taken: deque[float] = field(default_factory=deque[float])

    def wait_seconds(self) -> float:
        """Seconds until a request may go; 0 is now."""
        now = self.clock()
        while self._taken and self._taken[0] + self.seconds <= now:
            self._taken.popleft()
        return 0.0 if len(self._taken) < self.count else self._taken[0] + self.seconds - now

    def take(self) -> None:
        """A request goes."""
        self._taken.append(self.clock())


@dataclass(slots=True)
class RateLimit:
    """One limit as settings state it; with `is_per_client` each client has one of its own."""

    count: int
    seconds: float
    burst: int
    kind: Literal["bucket", "window"] = "bucket"
    is_per_client: bool = False
    clock: Clock = time.monotonic
    _client_to_limit: OrderedDict[str, TokenBucket | SlidingWindow] = field(
        default_factory=OrderedDict[str, "TokenBucket | SlidingWindow"]
    )

    def wait_seconds(self, client: str) -> float:
        """Seconds until this client's next request may go; 0 is now."""
        return self._limit(client).wait_seconds()

    def take(self, client: str) -> None:
        """A request of this client goes."""
        self._limit(client).take()

    def _limit(self, client: str) -> TokenBucket | SlidingWindow:
        key = client if self.is_per_client else ""
        limit = self._client_to_limit.get(key)
        if limit is None:
            limit = self._client_to_limit[key] = self._new()
            if len(self._client_to_limit) > _MAX_CLIENTS:
                self._client_to_limit.popitem(last=False)
        elif self.is_per_client:
            self._client_to_limit.move_to_end(key)
        return limit

    def _new(self) -> TokenBucket | SlidingWindow:
        if self.kind == "window":
            return SlidingWindow(self.count, self.seconds, self.clock)
        return TokenBucket(self.count, self.seconds, self.burst, self.clock)
