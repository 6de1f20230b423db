"""The circuit breaker: something that keeps failing is left alone, probed by one call, then used again.

    closed ──failures in a row──▶ open ──time passes──▶ half-open ──probe succeeds──▶ closed
                                   ▲                        │
                                   └──── probe fails, opens for longer ────┘

A pure state machine on an injected clock: it starts no timer, writes no log and is fed by the calls' own code, so
the state always follows from what the transport saw. When no other link is left, a few calls may be forced through an
open one: a success closes it, a failure keeps it open for as long again, no longer. A call holds a `Permit`; verdicts
of calls that were admitted before the last change of state are ignored, so that a slow answer from before an outage
cannot close the breaker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from pyagent.core.resilience.deadline import Clock

State = Literal["closed", "open", "half-open"]
_MAX_FORCED = 4


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """How many failures in a row open it, and for how long; each failed probe multiplies that time by `growth`."""

    num_failures: int = 3
    open_seconds: float = 5.0
    growth: float = 2.0
    max_open_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to make one call; give it back with exactly one verdict. A forced one is a probe among several."""

    generation: int
    is_probe: bool
    is_forced: bool = False


@dataclass(slots=True)
class Breaker:
    """The breaker of one backend. Use it from one event loop."""

    policy: BreakerPolicy = BreakerPolicy()
    clock: Clock = time.monotonic
    reason: str = ""
    _failures: int = field(default=0, init=False)
    _open_until: float | None = field(default=None, init=False)
    _open_seconds: float = field(default=0.0, init=False)
    _generation: int = field(default=0, init=False)
    _is_probing: bool = field(default=False, init=False)
    _num_forced: int = field(default=0, init=False)

    @property
    def state(self) -> State:
        """Where it stands now; `open` becomes `half-open` by the clock alone."""
        if self._open_until is None:
            return "closed"
        return "open" if self.clock() < self._open_until else "half-open"

    @property
    def retry_in_seconds(self) -> float:
        """Seconds until a probe may go out; 0 unless open."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self.clock())

    def acquire(self) -> Permit | None:
        """Leave to call, or None while it is open or its one probe is out."""
        state = self.state
        if state == "closed":
            return Permit(self._generation, is_probe=False)
        if state == "open" or self._is_probing:
            return None
        self._is_probing = True
        return Permit(self._generation, is_probe=True)

    def force(self) -> Permit | None:
        """Leave to call though it is open; None while enough such calls are out."""
        if self.state == "closed" or self._num_forced >= _MAX_FORCED:
            return self.acquire()
        self._num_forced += 1
        return Permit(self._generation, is_probe=True, is_forced=True)

    def succeed(self, permit: Permit) -> None:
        """The call went through."""
        if permit.generation != self._generation:
            return
        self._failures = 0
        if permit.is_probe:
            self._open_seconds = 0.0
            self._turn(open_until=None)
            self.reason = ""

    def fail(self, permit: Permit, reason: str) -> None:
        """The call failed; `reason` is what everybody is shown while the breaker is open."""
        if permit.generation != self._generation:
            return
        self._failures += 1
        self.reason = reason
        if permit.is_forced:
            self._open_until = self.clock() + self._open_seconds
            return
        if permit.is_probe or self._failures >= self.policy.num_failures:
            grown = self._open_seconds * self.policy.growth or self.policy.open_seconds
            self._open_seconds = min(grown, self.policy.max_open_seconds)
            self._turn(open_until=self.clock() + self._open_seconds)

    def recall(self, seconds: float, reason: str) -> None:
        """Begin open, for at most the policy's longest time, as what is called failed before this process began."""
        if self._open_until is None:
            self.reason = reason
            self._open_seconds = self.policy.open_seconds
            self._turn(open_until=self.clock() + min(seconds, self.policy.max_open_seconds))

    def renew(self) -> None:
        """Close it: what is called was started anew, and what failed before says nothing of it."""
        self._open_seconds = 0.0
        self.reason = ""
        self._turn(open_until=None)

    def release(self, permit: Permit) -> None:
        """The call is over, with a verdict or, say because its caller left, without. Its place becomes free again."""
        if permit.is_forced:
            self._num_forced -= 1
        elif permit.generation == self._generation and permit.is_probe:
            self._is_probing = False

    def _turn(self, open_until: float | None) -> None:
        self._open_until = open_until
        self._generation += 1
        self._failures = 0
        self._is_probing = False
