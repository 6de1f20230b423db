"""How long steps take, measured; and from that, how many prompt tokens a step may take in while others decode.

A step that carries a chunk of a prompt makes every decoding request wait for it. The chunk is what fits into the wait
they are to have at most: a time from the settings, or on `auto` ten times a step without prompts, and no less than a
tenth of a second, so that prompts go at nine tenths of their own speed at least.
"""

from __future__ import annotations

from pyagent.infrastructure.engine.runners.batch import BLOCK_TOKENS

_WEIGHT = 0.2
"""Of the newest measurement in an average."""
_AUTO_SECONDS = 0.1
_AUTO_STEPS = 10


class StepCosts:
    """Averages of what steps took, the newest counting most."""

    def __init__(self, decode_latency: float | None = None) -> None:
        """`decode_latency`: seconds between two tokens of a decoding request, at most; None is `auto`."""
        self._wanted = decode_latency
        self.decode_seconds: float | None = None
        """A step in which requests only decode."""
        self.prompt_token_seconds: float | None = None
        """What each prompt token adds to a step."""

    def note(self, seconds: float, num_prompt: int, num_decoding: int) -> None:
        """A step took so long, with so many prompt tokens and decoding requests."""
        if num_prompt == 0:
            self.decode_seconds = _average(self.decode_seconds, seconds)
        elif num_prompt >= BLOCK_TOKENS:
            base = (self.decode_seconds or 0.0) if num_decoding else 0.0
            self.prompt_token_seconds = _average(self.prompt_token_seconds, max(0.0, seconds - base) / num_prompt)

    def prefill_budget(self, max_num_batched_tokens: int, num_decoding: int) -> int:
        """Prompt tokens that the next step may take in, a block at least."""
        if num_decoding == 0 or not self.prompt_token_seconds:
            return max_num_batched_tokens
        base = self.decode_seconds or 0.0
        wanted = max(_AUTO_SECONDS, _AUTO_STEPS * base) if self._wanted is None else self._wanted
        fitting = int((wanted - base) / self.prompt_token_seconds) // BLOCK_TOKENS * BLOCK_TOKENS
        return min(max_num_batched_tokens, max(BLOCK_TOKENS, fitting))


def _average(before: float | None, value: float) -> float:
    return value if before is None else before + _WEIGHT * (value - before)
