"""How far a node may trust its own sense of time, before it blames others for silence.

Two measures: Lifeguard's score, which rises when probes fail that others' would not, and a clock that stops while the
node stands still. A laptop that slept for a night wakes with its deadlines as they were.
"""

from __future__ import annotations

from pyagent.core.cluster.timing import Timing


class LocalHealth:
    """The score: 0 is healthy; each point stretches the times of probes by one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.score = 0

    @property
    def factor(self) -> int:
        """By what a probe's times are multiplied."""
        return 1 + self.score

    def note(self, change: int) -> None:
        """Add to the score: positive for signs of being slow."""
        self.score = min(self._most - 1, max(0, self.score + change))


class OwnClock:
    """A node's own time: that of the events, less the time in which it stood still."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._lost: float | None = None
        self._time = 0.0
        self._forgiven: float | None = None
        self.stood_still = False

    def read(self, now: float, due: float) -> float:
        """Return the own time; `due` is when the node asked to be woken next.

        After a late wake-up, the own time is shortly before `due`: messages that waited meanwhile come first. Each
        `due` is put off once at most, so that time goes on for a node that is always late.
        """
        if self._lost is None:
            self._lost = now
        late = now - self._lost - due
        self.stood_still = late > self._timing.late_seconds and due != self._forgiven
        if self.stood_still:
            self._forgiven = due
            self._lost += late + self._timing.grace_seconds
        self._time = max(self._time, now - self._lost)
        return self._time

    def wall(self, time: float) -> float:
        """Return an own time as the events count it."""
        return time + (self._lost or 0.0)
