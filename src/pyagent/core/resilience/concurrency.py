"""How many calls may be under way at once: a fixed bulkhead, or one that finds its size.

The adaptive limit grows by one for each full round of calls that went well while it was in use, and shrinks by a third
when the other side is overloaded: it said so, or its first token took far longer than it usually does (additive
increase, multiplicative decrease; Chiu and Jain, 1989). Calls begun before the last cut cannot cut again: they were
sent under the limit that was found too large. A full bulkhead refuses at once; nothing queues here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from pyagent.core.moving_average import moving_average
from pyagent.core.resilience.deadline import Clock

_FIRST = 8.0
_MOST = 1000.0
_CUT = 0.7
_SLOW_FACTOR = 3.0
_SLOW_SECONDS = 0.1
"""A first token is late when it takes three times the usual and a tenth of a second more: noise is neither."""
_NEWEST_WEIGHT = 0.05


class Slot(msgspec.Struct, frozen=True):
    """Room for one call; give it back once."""

    begun: float
    num_in_flight: int


@dataclass(slots=True)
class Concurrency:
    """The calls under way at one link. `fixed` is its limit; None finds it, or with `is_adaptive` off there is none."""

    fixed: int | None = None
    is_adaptive: bool = False
    clock: Clock = time.monotonic
    num_in_flight: int = field(default=0, init=False)
    _found: float = field(default=_FIRST, init=False)
    _cut_at: float = field(default=float("-inf"), init=False)
    _usual_seconds: float | None = field(default=None, init=False)

    @property
    def limit(self) -> int | None:
        """Calls that may be under way; None is any number."""
        return int(self._found) if self.is_adaptive else self.fixed

    def enter(self) -> Slot | None:
        """Room for a call, or None when it is full."""
        limit = self.limit
        if limit is not None and self.num_in_flight >= limit:
            return None
        self.num_in_flight += 1
        return Slot(self.clock(), self.num_in_flight)

    def leave(self) -> None:
        """A call is over."""
        self.num_in_flight -= 1

    def answered(self, slot: Slot, first_token_seconds: float) -> None:
        """A call had its first token after so long."""
        if not self.is_adaptive:
            return
        usual = self._usual_seconds
        self._usual_seconds = moving_average(usual, first_token_seconds, _NEWEST_WEIGHT)
        if usual is not None and first_token_seconds > _SLOW_FACTOR * usual + _SLOW_SECONDS:
            self.overloaded(slot)
        elif slot.num_in_flight * 2 >= self._found:
            self._found = min(_MOST, self._found + 1 / self._found)

    def overloaded(self, slot: Slot) -> None:
        """The other side had no room for a call, or hardly."""
        if self.is_adaptive and slot.begun >= self._cut_at:
            self._found = max(1.0, self._found * _CUT)
            self._cut_at = self.clock()
