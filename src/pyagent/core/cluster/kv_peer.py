"""What is known of moving KV with one peer: how quickly it comes, whether it computes prompts in time, how much went.

What was measured holds for a while: a peer that was slow once is not asked, so that nothing newer would ever be known
of it. Pure, on an injected clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pyagent.core.moving_average import moving_average
from pyagent.core.resilience.breaker import Breaker, BreakerPolicy
from pyagent.core.resilience.deadline import Clock

RATE_SECONDS = 30.0
"""A rate that was measured longer ago is not known any more."""
UNMEASURED_SECONDS = 3.0
"""How long a peer may take to compute a prompt while nothing was computed here."""
_LATE_SECONDS = 1.0
_NEWEST_WEIGHT = 0.3
_LATE = BreakerPolicy(num_failures=1)
"""A node that was late once is asked again after 5 seconds, then after 10, up to 300."""


@dataclass(slots=True)
class KvPeer:
    """KV of a peer. `num_loads` prompts came from it, `loaded_bytes` in all; `sent_bytes` were read for it here.

    `num_loading` are on their way now. `prefill` tells whether it computes prompts for this node in time.
    """

    clock: Clock = time.monotonic
    num_loads: int = 0
    loaded_bytes: int = 0
    sent_bytes: int = 0
    num_loading: int = 0
    prefill: Breaker = field(init=False)
    _byte_seconds: float | None = field(default=None, init=False)
    _measured_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.prefill = Breaker(_LATE, self.clock)

    def renew(self) -> None:
        """Forget what was measured: the peer was started anew."""
        self._byte_seconds = None
        self.prefill.renew()

    @property
    def _is_measured(self) -> bool:
        return self._byte_seconds is not None and self.clock() < self._measured_at + RATE_SECONDS

    def move_seconds(self, num_bytes: float) -> float | None:
        """Return how long so many bytes take beside what comes already; None where that was not measured lately."""
        if self._byte_seconds is None or not self._is_measured:
            return None
        return num_bytes * self._byte_seconds * (1 + self.num_loading)

    def is_worth_asking(self, compute_seconds: float | None, num_bytes: float, round_trip_seconds: float) -> bool:
        """Return whether KV may come sooner than it is computed here, as far as both were measured."""
        move = self.move_seconds(num_bytes) or 0.0
        return compute_seconds is None or move + 2 * round_trip_seconds < compute_seconds

    def prefill_seconds(self, compute_seconds: float | None, num_bytes: float, round_trip_seconds: float) -> float:
        """Return how long the peer may take to compute a prompt: as long as computing it here, and the move."""
        if compute_seconds is None:
            return UNMEASURED_SECONDS
        return compute_seconds + (self.move_seconds(num_bytes) or 0.0) + 2 * round_trip_seconds

    def note_move(self, num_bytes: int, seconds: float) -> None:
        """Note how long bytes took; where next to none came, nothing is learnt of a wait that was short."""
        if not num_bytes and seconds < _LATE_SECONDS:
            return
        before = self._byte_seconds if self._is_measured else None
        self._byte_seconds = moving_average(before, max(seconds, 1e-6) / max(num_bytes, 1), _NEWEST_WEIGHT)
        self._measured_at = self.clock()
