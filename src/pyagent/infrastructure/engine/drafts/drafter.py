"""What drafts token after token: a draft model, or heads of a model; and a request's drafts while they are made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.drafts.step_seconds import StepSeconds
    from pyagent.infrastructure.engine.request import Request


ANY_NUMBER = sys.maxsize
"""What drafts on and on."""


class Drafter(Protocol):
    """Drafts for requests. It knows nothing of what drafting is worth."""

    seconds: StepSeconds
    weight_ratio: float
    """Until one was measured, its steps are expected to take this part of its target's."""
    most_drafts: int
    """Drafts of a request in a step at most."""
    num_tokens: int
    """Drafts made so far."""
    busy_seconds: float
    """What it has computed for."""
    clock: Callable[[], float]

    def num_behind(self, request: Request) -> int:
        """Return how many tokens of a request's log are to be computed, the last one included."""
        ...

    def seconds_of(self, num_rows: int) -> float:
        """Return the seconds to expect of a step of so many rows, slow ones included."""
        ...

    def can_follow(self, request: Request) -> bool:
        """Whether it can draft for a request."""
        ...

    def catch_up(self, requests: Sequence[Request], running: Collection[int]) -> None:
        """Compute of logs what lacks but for their last tokens."""
        ...

    def draft(
        self,
        asked: Sequence[tuple[Request, int]],
        running: Collection[int],
        goes_on: Callable[[Request, Sequence[float]], bool],
    ) -> list[tuple[Request, list[int], list[float]]]:
        """Return for requests up to so many drafts each, with the probability that it gives each."""
        ...

    def end(self, request: Request) -> None:
        """Forget a request."""
        ...


@dataclass(slots=True)
class Drafting:
    """A request's drafts while they are made."""

    request: Request
    most: int
    tokens: list[int] = field(default_factory=list[int])
    probabilities: list[float] = field(default_factory=list[float])
    is_over: bool = False

    def take(self, token: int, probability: float) -> None:
        """Take a token, unless it ends the answer."""
        self.is_over = token in self.request.end_ids
        if not self.is_over:
            self.tokens.append(token)
            self.probabilities.append(probability)
            self.is_over = len(self.tokens) >= self.most

    def goes_on(self, is_worth: Callable[[Request, Sequence[float]], bool]) -> bool:
        """Whether a further one is drafted."""
        return not self.is_over and is_worth(self.request, self.probabilities)
