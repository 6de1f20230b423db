"""How long a model may think: after so many tokens of reasoning, the tokens that end it are forced, one a step.

Forced tokens are sampled under a mask that allows nothing else, so that KV, log probabilities, penalties and usage are
those of any token; by a sampler of their own, since what a request excludes elsewhere must not keep its thoughts open.
The bound is one answer's: reasoning that begins again after it is spent is ended at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent._rust import SamplerState
    from pyagent.core.dialects.output import Parsed
    from pyagent.infrastructure.engine.answer_text import AnswerText


@dataclass(slots=True)
class ThinkingBudget:
    """A bound of `num_tokens`, and the tokens that are forced when it is reached, the tag that ends reasoning last.

    `sampler` excludes nothing. Where reasoning stands in messages of its own (`is_in_messages`), it has begun when
    there is text of it.
    """

    num_tokens: int
    ending: tuple[int, ...]
    sampler: SamplerState
    is_in_messages: bool = False
    _num_forced: int | None = field(default=None, init=False)

    @property
    def forced_token(self) -> int | None:
        """The only token that may come next; None where the model is free."""
        return None if self._num_forced is None else self.ending[self._num_forced]

    def begin(self, text: AnswerText) -> None:
        """See whether an answer that begins within its reasoning may think at all."""
        self._look(text, has_text=False)

    def follow(self, other: ThinkingBudget) -> None:
        """Go on from where another answer's bound is."""
        self._num_forced = other._num_forced

    def note(self, text: AnswerText, parsed: Parsed) -> None:
        """Take note of a token that the answer's text has read, with what it brought."""
        if self._num_forced is not None:
            self._num_forced += 1
            if self._num_forced < len(self.ending):
                return
            self._num_forced = None
        self._look(text, has_text=bool(parsed.reasoning))

    def _look(self, text: AnswerText, *, has_text: bool) -> None:
        is_spent = text.is_reasoning and text.num_reasoning_tokens >= self.num_tokens
        if is_spent and (has_text or not self.is_in_messages) and not text.is_inside_character:
            self._num_forced = 0
