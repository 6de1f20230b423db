"""Limits on money: what a call may cost is reserved before it, and settled with its usage after.

A reservation counts against the hour until it is settled, so that calls under way at once cannot overspend together.
The hour slides by the minute. Knows no prices and no backends.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from pyagent.core.errors import BudgetError
from pyagent.core.resilience.deadline import Clock

_HOUR = 3600.0
_MINUTE = 60.0


@dataclass(slots=True)
class SpendLimit:
    """USD that one request, and all requests of an hour, may cost; None is no limit."""

    per_request: float | None = None
    per_hour: float | None = None
    clock: Clock = time.monotonic
    reserved: float = field(default=0.0, init=False)
    _minutes: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]], init=False)

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return self.per_request is not None or self.per_hour is not None

    @property
    def spent_in_hour(self) -> float:
        """USD spent in the last hour."""
        oldest = self.clock() - _HOUR
        while self._minutes and self._minutes[0][0] + _MINUTE <= oldest:
            self._minutes.popleft()
        return sum(usd for _, usd in self._minutes)

    def reserve(self, usd: float, spent: float = 0.0) -> None:
        """Set `usd` aside for a call of a request that has cost `spent`; raises `BudgetError` naming the limit."""
        if self.per_request is not None and spent + usd > self.per_request:
            raise BudgetError(
                f"it may cost ${spent + usd:.4f}, and rules.usd_per_request is ${self.per_request:g}; "
                "send less, lower max_tokens or raise the limit",
                resource="usd",
            )
        if self.per_hour is not None:
            left = self.per_hour - self.spent_in_hour - self.reserved
            if usd > left:
                raise BudgetError(
                    f"it may cost ${usd:.4f}, and ${max(0.0, left):.4f} are left of rules.usd_per_hour "
                    f"(${self.per_hour:g})",
                    resource="usd",
                )
        self.reserved += usd

    def settle(self, reserved: float, used: float) -> None:
        """Give a reservation back and count what was really used."""
        self.reserved = max(0.0, self.reserved - reserved)
        if used <= 0 or self.per_hour is None:
            return
        minute = self.clock() // _MINUTE * _MINUTE
        if self._minutes and self._minutes[-1][0] == minute:
            used += self._minutes.pop()[1]
        self._minutes.append((minute, used))
