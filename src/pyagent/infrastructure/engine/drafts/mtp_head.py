"""A model's own head that drafts further tokens (MTP), or what is attached to it: steps keep it up to date.

It is to `ModelDrafts` what a draft model is, and never behind. Its drafts lie in room that is reserved for the
sequences of the requests, and the step that verifies them writes it again. Only the engine's thread calls, between
steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from math import exp
from typing import TYPE_CHECKING

from pyagent.infrastructure.engine.drafts.drafter import ANY_NUMBER, Drafting
from pyagent.infrastructure.engine.drafts.step_seconds import Overrun, StepSeconds

if TYPE_CHECKING:
    from pyagent.core.runners.runner import DraftingRunner
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger(__name__)

_COST = 0.2
"""What a draft is expected to take of a step of its model, until one was measured: a layer, and the output matrix."""


class MtpHead:
    """Drafts for the requests of the model that it is a part of, or attached to."""

    def __init__(
        self,
        runner: DraftingRunner,
        most_rows: int,
        reserve: Callable[[Request, int], int] | None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        most_drafts: int = ANY_NUMBER,
    ) -> None:
        """A pass has `most_rows` at most; `reserve` makes room for drafts of a request, and returns for how many.

        Without, it drafts nothing until the engine has said how. A request has `most_drafts` in a step at most.
        """
        self.runner = runner
        self.weight_ratio = _COST
        self.clock = clock
        self.seconds = StepSeconds()
        self.overrun = Overrun()
        self.most_drafts = most_drafts
        self.num_tokens = 0
        """Drafts made so far."""
        self.busy_seconds = 0.0
        """What it has computed for."""
        self._most_rows = most_rows
        self.reserve = reserve
        self._refused: set[int] = set()

    def num_behind(self, request: Request) -> int:
        """Return how many tokens of a request's log are to be computed: the last one, as in every step."""
        return 1

    def seconds_of(self, num_rows: int) -> float:
        """Return the seconds to expect of a pass of so many rows, slow ones included."""
        return self.seconds.at(num_rows) * self.overrun.ratio

    def can_follow(self, request: Request) -> bool:
        """Whether all tokens of a request's log but the last are computed, and a draft more is within the context."""
        num_tokens = len(request.tokens)
        is_within = 1 < num_tokens < self.runner.context_length and request.id not in self._refused
        return is_within and self.runner.pool.num_tokens(request.id) == num_tokens - 1

    def catch_up(self, requests: Sequence[Request], running: Collection[int]) -> None:
        """Do nothing: steps do."""

    def draft(
        self,
        asked: Sequence[tuple[Request, int]],
        running: Collection[int],
        goes_on: Callable[[Request, Sequence[float]], bool],
    ) -> list[tuple[Request, list[int], list[float]]]:
        """Return for requests up to so many drafts each, with the probability that it gives each.

        A request `goes_on` to a further one by the probabilities so far.
        """
        drafting: list[Drafting] = []
        for request, wanted in asked[: self._most_rows]:
            most = min(wanted, self.most_drafts, self.runner.context_length - len(request.tokens))
            most = self._reserved(request, most) if most > 0 and self.can_follow(request) else 0
            if most > 0:
                drafting.append(Drafting(request, most))
        rows, before = drafting, list[int | None]([None] * len(drafting))
        while rows:
            self._compute(rows, before)
            places = [place for place, row in enumerate(rows) if row.goes_on(goes_on)]
            rows, before = [rows[place] for place in places], list[int | None](places)
        self.num_tokens += sum(len(row.tokens) for row in drafting)
        return [(row.request, row.tokens, row.probabilities) for row in drafting if row.tokens]

    def end(self, request: Request) -> None:
        """Forget a request."""
        self._refused.discard(request.id)

    def _reserved(self, request: Request, most: int) -> int:
        return 0 if self.reserve is None else self.reserve(request, most)

    def _compute(self, rows: Sequence[Drafting], before: Sequence[int | None]) -> None:
        """Compute a pass, and take each row's likeliest token."""
        start = self.clock()
        drafted = self.runner.draft(
            [row.request.id for row in rows],
            [(row.tokens or row.request.tokens)[-1] for row in rows],
            [len(row.tokens) for row in rows],
            before,
        )
        self._note(len(rows), self.clock() - start)
        for place, row in enumerate(rows):
            if (reason := drafted.errors.get(place)) is not None:
                logger.warning("request %d is not drafted for: %s", row.request.id, reason)
                self._refused.add(row.request.id)
                row.is_over = True
            elif (likeliest := drafted.tokens[place]) is None:
                row.is_over = True  # the last step did not have it
            else:
                token, logprob = likeliest
                row.take(token, exp(logprob))
        if drafted.errors:
            # A pass counts its rows without those that it refused: a further one could not name what it goes on from.
            for row in rows:
                row.is_over = True

    def _note(self, num_rows: int, seconds: float) -> None:
        if self.seconds.is_known(num_rows):
            self.overrun.note(seconds, self.seconds.at(num_rows))
        self.seconds.note(num_rows, seconds)
        self.busy_seconds += seconds
