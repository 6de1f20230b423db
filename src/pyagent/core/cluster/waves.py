"""Waves: the times in which copies of an engine, together, have something to do.

A wave begins with the first request sent while no copy has any, and is complete when each copy has said the end of
every request that it was sent. Requests that readers left count until their copy has said so, those of a copy that died
no longer. Knows no process and no clock. Invariant: `is_running` exactly while some copy has something.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Waves:
    """`number` counts waves since the start, the present one included."""

    number: int = 0
    _open: dict[int, set[int]] = field(default_factory=dict[int, set[int]])

    @property
    def is_running(self) -> bool:
        """Whether a copy has something to do; else all are paused."""
        return bool(self._open)

    @property
    def num_open(self) -> int:
        """Return how many requests the copies have."""
        return sum(map(len, self._open.values()))

    def sent(self, copy: int, request: int) -> None:
        """Note that a request is sent to a copy; the first one begins a wave."""
        self.number += not self._open
        self._open.setdefault(copy, set()).add(request)

    def ended(self, copy: int, request: int) -> bool:
        """Note that a copy said the end of a request; return whether the wave is complete with it.

        The end of a request that the copy is not known to have (it came from a former life) changes nothing.
        """
        return self._close(copy, {request})

    def died(self, copy: int) -> bool:
        """Note that a copy is gone, with all it had; return whether the wave is complete with it."""
        return self._close(copy, self._open.get(copy, set()))

    def _close(self, copy: int, requests: set[int]) -> bool:
        mine = self._open.get(copy)
        if mine is None:
            return False
        mine -= set(requests)
        if not mine:
            del self._open[copy]
        return not self._open
