"""When a draft model is asked, for which requests of a step and how far, and what that may cost.

A draft of text costs nothing until it is verified; one of a model costs a step of the model. So a step asks it where
that gives more tokens a second, by the measured seconds of both models and by how often its drafts were right. What
drafting takes is booked with the step that verifies, in a balance of its own (`step_seconds.Balance`): what a model
loses keeps no copy of a text from being verified. To compute a log for the first time is an
outlay: a `Fund` bounds it, which holds what drafts have won, and a part of all steps' time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyagent.infrastructure.engine.drafts.acceptance import (
    ANY_PROBABILITY,
    MODEL,
    Acceptance,
    bucket_of_probability,
)
from pyagent.infrastructure.engine.drafts.draft_model import CATCH_UP_TOKENS, NEAR_TOKENS
from pyagent.infrastructure.engine.drafts.model_choice import (
    AnswerLengths,
    Candidate,
    Choice,
    Costs,
    Trials,
    choose,
    least_chance,
    pays,
)
from pyagent.infrastructure.engine.drafts.proposals import DraftedTokens, Proposal
from pyagent.infrastructure.engine.drafts.step_seconds import MODEL_ALLOWANCE, Balance, Fund, StepSeconds

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.drafts.drafter import Drafter
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger(__name__)


class DraftRow(NamedTuple):
    """A row of the step that may be drafted for: its request and record, its drafts at most, what its text gives."""

    request: Request
    acceptance: Acceptance
    most: int
    from_text: Proposal | None

    @property
    def rate(self) -> float:
        """How likely a draft of the model is right, before it is made."""
        return self.acceptance.rate(MODEL, ANY_PROBABILITY)

    def chances(self, probabilities: Sequence[float]) -> list[float]:
        """Return how likely each draft is right with those before it, by the probability that the model gives it."""
        chances: list[float] = []
        for probability in probabilities:
            rate = self.acceptance.rate(MODEL, bucket_of_probability(probability))
            chances.append(rate * (chances[-1] if chances else 1.0))
        return chances


class ModelDrafts:
    """Asks one draft model, or a model's own head, for the steps of its target."""

    def __init__(self, model: Drafter, target: StepSeconds) -> None:
        """Steps of the target take as long as `target` says."""
        self.model = model
        self.draft_seconds = 0.0
        """What drafts took that were not booked yet; 0 where the model was not asked."""
        self.is_lost = False
        self._target = target
        self._fund = Fund()
        self._balance = Balance(MODEL_ALLOWANCE)
        self._costs = Costs(target.at, model.seconds_of)
        self._trials = Trials()
        self._lengths = AnswerLengths()
        self._tried: tuple[Request, int, int] | None = None  # a log's length at the last trial, and what was drafted

    def propose(self, rows: Mapping[int, DraftRow], num_rows: int, room: int, rate: float) -> dict[int, DraftedTokens]:
        """Return the model's proposals by row for a step of `num_rows` requests, with room for so many drafts in all.

        Without the model, it gives `rate` tokens a second. Steps of so many rows must be known.
        """
        self._trials.begin()
        if self.is_lost or room <= 0 or not rows or self._balance.seconds < 0:
            return {}
        try:
            return self._propose(rows, num_rows, room, rate)
        except BaseException:  # native code that panics is no `Exception`
            logger.exception("the draft model failed, answers go on without it")
            self.is_lost = True
            return {}

    def is_wanted(self, rows: Mapping[int, DraftRow], num_rows: int, room: int, rate: float) -> bool:
        """Whether the model may be asked, as `propose` has it, in a step that is to wait for that."""
        if self.is_lost or room <= 0 or self._balance.seconds < 0 or not self._ordered(rows):
            return False
        is_wanted = self._choice(self._ordered(rows), num_rows, room, rate) is not None
        if not is_wanted:
            self._trials.begin()
        return is_wanted

    def begin(self) -> None:
        """Begin with a step."""
        self.draft_seconds = 0.0

    def note_prompts(self, seconds: float) -> None:
        """Record a step that computed prompts."""
        self._fund.note(seconds, 0.0, 0.0)

    def note(self, seconds: float, plain_seconds: float, num_requests: int, num_accepted: int) -> None:
        """Record a step of decoding, in which `num_accepted` drafts were right; one without takes `plain_seconds`."""
        saved = 0.0
        if self.draft_seconds:
            saved = self._balance.note(seconds + self.draft_seconds, plain_seconds, num_requests, num_accepted)
        else:
            self._balance.earn(seconds)
        self._fund.note(seconds, plain_seconds, saved)
        self.draft_seconds = 0.0  # a step that is launched ahead is not begun with

    def end(self, request: Request) -> None:
        """Forget a request."""
        if request.num_output_tokens < request.max_tokens:
            self._lengths.note(request.num_output_tokens)
        if not self.is_lost:
            self.model.end(request)

    def _propose(self, rows: Mapping[int, DraftRow], num_rows: int, room: int, rate: float) -> dict[int, DraftedTokens]:
        ordered = self._ordered(rows)
        choice = self._choice(ordered, num_rows, room, rate)
        if choice is None or not ordered:
            return {}
        chosen, running = ordered[: choice.num_rows], {row.request.id for row in rows.values()}
        far = [row for row in chosen if self.model.num_behind(row.request) > NEAR_TOKENS]
        if far:
            self._catch_up(far, choice, num_rows, running)
        near = [row for row in chosen if self.model.num_behind(row.request) <= NEAR_TOKENS]
        return self._draft(near, choice.num_drafts, num_rows, running) if near else {}

    def _ordered(self, rows: Mapping[int, DraftRow]) -> list[DraftRow]:
        return sorted(filter(self._is_open, rows.values()), key=lambda row: -row.rate)

    def _choice(self, ordered: Sequence[DraftRow], num_rows: int, room: int, rate: float) -> Choice | None:
        """Return for how many rows the model drafts, and how far; None for none."""
        if not self.model.seconds.is_known(1):
            self.model.seconds.note(1, self.model.weight_ratio * self._target.at(1))
        candidates = [Candidate(row.rate, min(row.most, self.model.most_drafts)) for row in ordered]
        return choose(candidates, num_rows, room, rate, self._costs) or self._trials.choice(self._was_right)

    def _is_open(self, row: DraftRow) -> bool:
        """Whether the model may do better than what the request's text gives."""
        is_better = row.from_text is None or row.from_text.chances[0] < row.rate
        return is_better and self.model.can_follow(row.request)

    def _was_right(self) -> bool:
        """Whether the first draft that was made last was sampled."""
        if self._tried is None:
            return False
        request, length, token = self._tried
        return request.tokens[length : length + 1] == [token]

    def _catch_up(self, far: Sequence[DraftRow], choice: Choice, num_rows: int, running: set[int]) -> None:
        """Compute what lacks of logs where it is to pay within the answer, and the fund has enough for all of it."""
        paying: list[Request] = []
        funded = self._fund.seconds
        for row in far:
            request, cost = row.request, self._seconds_behind(row.request)
            left = self._lengths.left(request.num_output_tokens, request.max_tokens - request.num_output_tokens)
            if funded >= cost and pays(cost, left, choice, num_rows, self._costs):
                funded -= cost
                paying.append(request)
        start = self.model.clock()
        if paying:
            self.model.catch_up(paying, running)
            self._fund.seconds -= self.model.clock() - start

    def _seconds_behind(self, request: Request) -> float:
        chunks, rest = divmod(self.model.num_behind(request), CATCH_UP_TOKENS)
        seconds = self.model.seconds_of
        return chunks * seconds(CATCH_UP_TOKENS) + (seconds(rest) if rest else 0.0)

    def _draft(
        self, near: Sequence[DraftRow], num_drafts: int, num_rows: int, running: set[int]
    ) -> dict[int, DraftedTokens]:
        self._trials.note_asked()
        of_request = {row.request: row for row in near}
        least = least_chance(len(near), num_rows, self._costs)

        def goes_on(request: Request, probabilities: Sequence[float]) -> bool:
            row = of_request[request]
            return row.chances(probabilities)[-1] * row.rate >= least

        start = self.model.clock()
        limits = [(row.request, min(num_drafts, row.most)) for row in near]
        drafted = self.model.draft(limits, running, goes_on)
        self._tried = next(((request, len(request.tokens), tokens[0]) for request, tokens, _ in drafted), None)
        self.draft_seconds = self.model.clock() - start
        proposals: dict[int, DraftedTokens] = {}
        for request, tokens, probabilities in drafted:
            chances = of_request[request].chances(probabilities)
            buckets = [*map(bucket_of_probability, probabilities)]
            proposals[request.id] = DraftedTokens(tokens, chances, MODEL, ANY_PROBABILITY, buckets)
        return proposals
