"""How large a step may be now: smaller for a while after one for which the runner lacked memory."""

from __future__ import annotations

from pyagent.infrastructure.engine.options import SchedulerLimits

_CALM_STEPS = 256
"""After so many steps for which there was memory they may grow again."""


class StepSize:
    """The tokens of a step, and the requests that run, at most."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.num_tokens = limits.max_num_batched_tokens
        self.num_running = limits.most_running
        self._limits = limits
        self._num_calm = 0  # steps since it changed

    def note_step(self) -> None:
        """Count a step for which there was memory; allow more after many of them."""
        if self.num_tokens < self._limits.max_num_batched_tokens:
            self._num_calm += 1
            if self._num_calm == _CALM_STEPS:
                self._allow(self.num_tokens + 1 + self.num_tokens // 8)

    def shrink(self, num_tokens: int) -> None:
        """Allow half of a step of so many tokens, for which memory was short."""
        self._allow(num_tokens // 2)

    def _allow(self, num_tokens: int) -> None:
        self._num_calm = 0
        self.num_tokens = min(num_tokens, self._limits.max_num_batched_tokens)
        self.num_running = min(self._limits.most_running, num_tokens)
