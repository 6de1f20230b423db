"""What calls used, added up as they come: a run of many steps holds one sum, not a list."""

from __future__ import annotations

from dataclasses import dataclass

from pyagent.core.fleet.events import Totals


@dataclass(slots=True)
class Tally:
    """The sum of what was used so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    usd: float = 0.0

    def add(self, part: Totals | Tally) -> None:
        """Count a part, or all of another tally."""
        self.prompt_tokens += part.prompt_tokens
        self.cached_tokens += part.cached_tokens
        self.completion_tokens += part.completion_tokens
        self.model_calls += part.model_calls
        self.tool_calls += part.tool_calls
        self.usd += part.usd

    def totals(self, seconds: float) -> Totals:
        """Return the sum, of calls that together took `seconds`."""
        return Totals(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            model_calls=self.model_calls,
            tool_calls=self.tool_calls,
            usd=self.usd,
            seconds=seconds,
            tokens_per_second=self.completion_tokens / seconds if seconds > 0 else 0.0,
        )
