"""Speculative decoding in the engine's loop: which drafts a planned step verifies, and what came of them.

Proposals are copied from texts, or written by a draft model (`model_drafts`). A step's drafts are those by which it
gives the most tokens a second, by the measured seconds of steps of so many rows and by how often such proposals were
right before; none where that is not more than without. What they may lose is bounded by a balance
(`step_seconds.Balance`). Only the engine's thread calls. The tokens of an answer do not depend on it: the sampler of
each draft's row samples as in a step of its own (decision 69).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pyagent.infrastructure.engine.drafts.acceptance import Acceptance
from pyagent.infrastructure.engine.drafts.ahead import Ahead, follow
from pyagent.infrastructure.engine.drafts.beside_prompts import BesidePrompts
from pyagent.infrastructure.engine.drafts.model_drafts import DraftRow, ModelDrafts
from pyagent.infrastructure.engine.drafts.proposals import Proposal, RequestDrafts
from pyagent.infrastructure.engine.drafts.step_seconds import LEAST_GAIN, Balance, StepSeconds
from pyagent.infrastructure.engine.drafts.texts import OwnText, SharedTexts, TextMemory
from pyagent.infrastructure.engine.stats import DraftCounts

if TYPE_CHECKING:
    from pyagent.core.runners.batch import StepOutput
    from pyagent.infrastructure.engine.drafts.drafter import Drafter
    from pyagent.infrastructure.engine.drafts.options import DraftOptions
    from pyagent.infrastructure.engine.memory.ledger import Reservation
    from pyagent.infrastructure.engine.request import Request
    from pyagent.infrastructure.engine.scheduler.step_plan import Plan

_LEAST_CHANCE = 0.05
"""What is less likely to be accepted is not considered."""
_REMEASURE_STEPS = 128
"""A step goes without drafts where none has for so long: what steps take changes with the machine."""


class Speculation:
    """Chooses and counts the drafts of one model's steps."""

    def __init__(
        self,
        options: DraftOptions,
        most_rows: int,
        reserve: Callable[[Request, int], int],
        memory: Reservation | None = None,
        model: Drafter | None = None,
    ) -> None:
        """A step has `most_rows` at most; `reserve` makes room for drafts of a request, and returns for how many.

        Where texts give none, they are the `model`'s.
        """
        self._options = options
        self._most_rows = most_rows
        self._reserve = reserve
        self._memory = TextMemory(options.most_bytes, memory)
        self._shared = SharedTexts(options.prompt_lookup_min, self._memory) if options.shares_texts else None
        self._acceptance = Acceptance()
        self.seconds = StepSeconds()
        self._beside_prompts = BesidePrompts(self.seconds)
        self.model = None if model is None else ModelDrafts(model, self.seconds)
        self._balance = Balance()
        self.counts = DraftCounts()

    def choose(self, plan: Plan) -> dict[int, Ahead]:
        """Return the drafts of a planned step by row; of one that computes prompts too, copies of texts alone."""
        if self.model is not None:
            self.model.begin()
        num_rows = plan.num_decoding
        if not num_rows:
            return {}
        proposals = [self._propose(request) for request in plan.sampled[:num_rows]]
        if self.model is not None and not plan.chunks:
            self._ask(self.model, plan.sampled[:num_rows], proposals)
        found = [(row, one) for row, one in enumerate(proposals) if one is not None]
        lengths = self.lengths_beside_prompts(found, plan) if plan.chunks else self.lengths(found, num_rows)
        return dict(self._drafts(plan, proposals, lengths))

    def awaits(self, plan: Plan) -> bool:
        """Whether a step is to wait for the tokens before it, which are being sampled, as it may have drafts then.

        It depends on what is proposed to follow them. A step that is launched before they are known has no drafts, and
        computes no prompts.
        """
        num_rows = plan.num_decoding
        if num_rows >= self._most_rows or not self._is_due(num_rows) or self._balance.seconds < 0:
            return False
        proposals = [self._propose(request) for request in plan.sampled]
        after = [(row, one.after_first()) for row, one in enumerate(proposals) if one is not None]
        if self.lengths([(row, one) for row, one in after if one.tokens], num_rows):
            return True
        if self.model is None:
            return False
        rows = self._rows_of(plan.sampled, proposals)
        return self.model.is_wanted(rows, num_rows, self._most_rows - num_rows, self._plain_rate(num_rows))

    def _ask(self, model: ModelDrafts, requests: Sequence[Request], proposals: list[Proposal | None]) -> None:
        """Put what a draft model proposes in place of what texts do, where it pays."""
        num_rows = len(requests)
        if not self._is_due(num_rows):
            return
        rows = self._rows_of(requests, proposals)
        _, rate = self._likeliest([(row, one) for row, one in enumerate(proposals) if one is not None], num_rows)
        found = model.propose(rows, num_rows, max(0, self._most_rows - num_rows), rate)
        for row, request in enumerate(requests):
            if request.drafts is not None and (proposal := found.get(request.id)) is not None:
                request.drafts.expect(proposal, len(request.tokens))
                proposals[row] = proposal

    def _rows_of(self, requests: Sequence[Request], proposals: Sequence[Proposal | None]) -> dict[int, DraftRow]:
        """Return the rows that a draft model may draft for, by request."""
        return {
            request.id: DraftRow(request, request.drafts.acceptance, self._most(request), proposal)
            for request, proposal in zip(requests, proposals, strict=True)
            if request.drafts is not None and self._most(request) > 0
        }

    def _drafts(
        self, plan: Plan, proposals: list[Proposal | None], lengths: dict[int, int]
    ) -> Iterator[tuple[int, Ahead]]:
        for row, length in lengths.items():
            request, proposal = plan.sampled[row], proposals[row]
            tokens = [] if proposal is None else _before_end(proposal.tokens[:length], request)
            after = follow(request, tokens) if request.has_mask else []
            tokens = tokens[: len(after)] if request.has_mask else tokens
            num_drafts = self._reserve(request, len(tokens)) if tokens else 0
            if num_drafts and request.drafts is not None and proposal is not None:
                request.drafts.source = proposal.source
                yield row, Ahead(tokens[:num_drafts], after[:num_drafts])

    def _propose(self, request: Request) -> Proposal | None:
        most = self._most(request)
        if most <= 0:
            return None
        drafts = request.drafts
        if drafts is None:
            drafts = request.drafts = self._begin(request)
        shared = None if self._shared is None else self._shared.of(_owner(request))
        return drafts.propose(request.tokens, request.num_prompt_tokens, most, shared)

    def _most(self, request: Request) -> int:
        """Return how many drafts a request takes."""
        if request.search is not None or request.processors or request.forced_token is not None:
            return 0
        return min(self._options.num_speculative_tokens, request.max_tokens - request.num_output_tokens - 1)

    def _begin(self, request: Request) -> RequestDrafts:
        least, most_more = self._options.prompt_lookup_min, request.max_tokens - request.num_output_tokens
        begin = partial(OwnText.begin, request.tokens, request.predicted, most_more, least, self._memory)
        text = begin()
        while text is None and self._shared is not None and self._shared.forget_oldest():
            text = begin()
        return RequestDrafts(text, Acceptance(self._acceptance), request.predicted)

    def lengths(self, proposals: list[tuple[int, Proposal]], num_rows: int) -> dict[int, int]:
        """Return by row how many drafts give a step the most tokens a second; nothing for none."""
        lengths: dict[int, int] = {}
        if proposals and self._is_due(num_rows) and (self._balance.seconds >= 0 or self.draft_seconds):
            for row in self._likeliest(proposals, num_rows)[0]:
                lengths[row] = lengths.get(row, 0) + 1
        return lengths

    def lengths_beside_prompts(self, proposals: list[tuple[int, Proposal]], plan: Plan) -> dict[int, int]:
        """Return by row how many drafts save the most seconds in a step that computes prompts too."""
        num_rows, num_requests = plan.num_tokens, plan.num_decoding
        room = min(self._most_rows - len(plan.sampled), plan.draft_room, self._beside_prompts.most(num_rows))
        lengths: dict[int, int] = {}
        if proposals and room > 0 and self._balance.seconds >= 0:
            likeliest = _likeliest_first(proposals)[:room]
            num_worth = self._beside_prompts.num_worth([chance for chance, _ in likeliest], num_requests, num_rows)
            for _, row in likeliest[:num_worth]:
                lengths[row] = lengths.get(row, 0) + 1
        return lengths

    def _is_due(self, num_rows: int) -> bool:
        """Whether a step of so many requests without drafts was measured, and not too long ago."""
        return self.seconds.is_known(num_rows) and self.seconds.age(num_rows) < _REMEASURE_STEPS

    def _likeliest(self, proposals: list[tuple[int, Proposal]], num_rows: int) -> tuple[list[int], float]:
        """Return the rows of those drafts that give the most tokens a second, once for each draft; and how many."""
        likeliest = _likeliest_first(proposals)[: max(0, self._most_rows - num_rows)]
        best, num_best, expected = self._plain_rate(num_rows), 0, float(num_rows)
        for num_drafts, (chance, _) in enumerate(likeliest, 1):
            expected += chance
            rate = expected / self.seconds.at(num_rows + num_drafts)
            if rate > best:
                best, num_best = rate, num_drafts
        return [row for _, row in likeliest[:num_best]], best

    def _plain_rate(self, num_rows: int) -> float:
        """Return the tokens a second that drafts are to exceed."""
        return LEAST_GAIN * num_rows / self.seconds.at(num_rows)

    def note(self, plan: Plan, output: StepOutput, seconds: float, *, has_waited: bool = False) -> None:
        """Record a computed step and what came of its drafts; whether it waited for the sake of drafts."""
        num_accepted = self._count(plan, output)
        if plan.chunks or not plan.num_decoding:
            if self.model is not None:
                self.model.note_prompts(seconds)
            if plan.num_decoding:
                self._book_beside_prompts(plan, seconds, num_accepted)
            return
        num_rows, has_drafts = plan.num_tokens, bool(plan.batch.num_drafts)
        has_waited = has_waited and not has_drafts and self.seconds.is_known(num_rows)
        self._book(plan.num_decoding, seconds, num_accepted, has_drafts=has_drafts, has_waited=has_waited)
        if not has_waited:  # what a step without drafts takes is what it takes where it need not wait
            self.seconds.note(num_rows, seconds)

    def _count(self, plan: Plan, output: StepOutput) -> int:
        """Count a step's drafts; return how many were right."""
        num_accepted = 0
        for row, num_drafts in plan.batch.num_drafts.items():
            num_right = len(output.more.get(row, ()))
            num_accepted += num_right
            if (of_request := plan.sampled[row].drafts) is not None:
                self.counts.note(num_drafts, num_right, of_request.source)
                of_request.num_drafted += num_drafts
                of_request.num_accepted += num_right
        return num_accepted

    @property
    def draft_seconds(self) -> float:
        """What a draft model took for the step in flight; 0 once that is noted."""
        return 0.0 if self.model is None else self.model.draft_seconds

    def _book(
        self, num_requests: int, seconds: float, num_accepted: int, *, has_drafts: bool, has_waited: bool
    ) -> None:
        plain = self.seconds.at(num_requests)
        if (has_drafts or has_waited) and not self.draft_seconds:
            self._balance.note(seconds, plain, num_requests, num_accepted)
        else:
            self._balance.earn(seconds)
        if has_drafts:
            self.counts.note_step(seconds, plain * (num_requests + num_accepted) / num_requests)
        if self.model is not None:
            self.model.note(seconds, plain, num_requests, num_accepted)
            self.counts.note_model(self.model.model.num_tokens, self.model.model.busy_seconds)

    def _book_beside_prompts(self, plan: Plan, seconds: float, num_accepted: int) -> None:
        """Book what drafts beside prompts took of their step, and what decode-only steps save by them later."""
        num_requests, num_drafts = plan.num_decoding, sum(plan.batch.num_drafts.values())
        self._beside_prompts.note(plan.num_tokens, seconds, has_drafts=num_drafts > 0)
        plain = self.seconds.at(num_requests)
        saved = 0.0
        if num_drafts:
            worth = plain * num_accepted / num_requests
            cost = self._beside_prompts.cost(num_drafts, num_requests, plan.num_tokens)
            self.counts.note_step(cost, worth)
            saved = worth - cost
        if plain:
            self._balance.book(saved, seconds, plain)

    def end(self, request: Request) -> None:
        """Forget a request's texts; keep its answer for later ones, where it came to its end."""
        if self.model is not None:
            self.model.end(request)
        drafts = request.drafts
        if drafts is None or drafts.text is None:
            return
        self._memory.give(drafts.text.num_bytes)
        drafts.text = None
        if self._shared is not None and request.finish_reason in {"stop", "length", "tool_calls"}:
            prompt, answer = request.tokens[: request.num_prompt_tokens], request.tokens[request.num_prompt_tokens :]
            self._shared.remember(_owner(request), prompt, answer)


def _likeliest_first(proposals: list[tuple[int, Proposal]]) -> list[tuple[float, int]]:
    """Return each proposed token that may be right: how likely it is, with those before it, and its row."""
    of_rows = ([(chance, row) for chance in one.chances if chance >= _LEAST_CHANCE] for row, one in proposals)
    return sorted(chain.from_iterable(of_rows), reverse=True)


def _owner(request: Request) -> str:
    """Return whose answers a request's may be like: its tenant's, of the same adapter."""
    key = request.key
    return f"{key.tenant}\0{key.adapter_id}" if key.adapter_id else key.tenant


def _before_end(tokens: list[int], request: Request) -> list[int]:
    """Return drafts up to the first token that would end the answer."""
    end = next((place for place, token in enumerate(tokens) if token in request.end_ids), len(tokens))
    return tokens[:end]
