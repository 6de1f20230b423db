"""Recent times of one thing, and their percentiles: what "late" means is learnt from the thing itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_NUM_KEPT = 200
_LEAST = 20
"""Fewer times than this say nothing of a tail."""
_SORT_EVERY = 16


@dataclass(slots=True)
class RecentTimes:
    """The last times; percentiles are worked out anew after some more have come."""

    _times: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NUM_KEPT))
    _sorted: list[float] = field(default_factory=list[float])
    _num_new: int = 0

    def add(self, seconds: float) -> None:
        """One more."""
        self._times.append(seconds)
        self._num_new += 1

    def percentile(self, part: float, least: int = _LEAST) -> float | None:
        """Return the time that `part` of them do not exceed; None while there are fewer than `least`."""
        if len(self._times) < least:
            return None
        if self._num_new >= _SORT_EVERY or len(self._sorted) < min(len(self._times), _LEAST):
            self._sorted, self._num_new = sorted(self._times), 0
        return self._sorted[min(len(self._sorted) - 1, int(part * len(self._sorted)))]
