"""The prefill budget of a step: how many prompt tokens it may take in while other requests decode, by measured cost.

A step that carries a prefill chunk makes every decoding request wait for it. The budget is what fits into the longest
inter-token latency wanted: `engine.decode_latency_ms`, or on `auto` ten times a decode-only step, and no less than
100 ms, so that prefill keeps at least nine tenths of its own throughput.
"""

from __future__ import annotations

from pyagent.core.moving_average import moving_average
from pyagent.core.runners.batch import BLOCK_TOKENS

_WEIGHT = 0.2
"""Weight of the newest measurement in a moving average."""
_AUTO_SECONDS = 0.1
_AUTO_STEPS = 10


class StepCosts:
    """Exponential moving averages of step times."""

    def __init__(self, decode_latency: float | None = None) -> None:
        """Set `decode_latency`: the longest inter-token latency wanted, in seconds; None is `auto`."""
        self._wanted = decode_latency
        self.decode_seconds: float | None = None
        """Seconds of a decode-only step."""
        self.prompt_token_seconds: float | None = None
        """Seconds that each prefill token adds to a step."""

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that a second of a step has room for; 0 before there are any."""
        return 1 / self.prompt_token_seconds if self.prompt_token_seconds else 0.0

    def note(self, seconds: float, num_prompt: int, num_decoding: int) -> None:
        """Record a step's seconds, with its prefill tokens and decoding requests."""
        if num_prompt == 0:
            self.decode_seconds = moving_average(self.decode_seconds, seconds, _WEIGHT)
        elif num_prompt >= BLOCK_TOKENS:
            base = (self.decode_seconds or 0.0) if num_decoding else 0.0
            added = max(0.0, seconds - base) / num_prompt
            self.prompt_token_seconds = moving_average(self.prompt_token_seconds, added, _WEIGHT)

    def expected_seconds(self, num_prompt: int, num_decoding: int) -> float:
        """Return what a step with so many prefill tokens and decoding requests takes, by the steps so far."""
        base = (self.decode_seconds or 0.0) if num_decoding else 0.0
        return base + num_prompt * (self.prompt_token_seconds or 0.0)

    def prefill_budget(self, max_num_batched_tokens: int, num_decoding: int) -> int:
        """Return the prefill tokens that the next step may take in, at least one block."""
        if num_decoding == 0 or not self.prompt_token_seconds:
            return max_num_batched_tokens
        base = self.decode_seconds or 0.0
        wanted = max(_AUTO_SECONDS, _AUTO_STEPS * base) if self._wanted is None else self._wanted
        fitting = int((wanted - base) / self.prompt_token_seconds) // BLOCK_TOKENS * BLOCK_TOKENS
        return min(max_num_batched_tokens, max(BLOCK_TOKENS, fitting))
