"""A small model that proposes what a larger one may sample next; its KV keeps up with the requests' logs.

It has a runner, pages and sequences of its own, whose ids are the requests'. Its pool learns only of tokens that were
sampled; what it computes of its own drafts lies ahead of them in reserved room. Drafts that turn out right are
committed without computing them again, the others are written over: nothing is rolled back. It knows nothing of what
drafting is worth. Only the engine's thread calls, between steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from math import exp
from typing import TYPE_CHECKING

from pyagent._rust import SamplerState
from pyagent.core.runners.batch import Batch, PrefixKey, StepOutput
from pyagent.core.runners.factory import LargestStep
from pyagent.infrastructure.engine.drafts.drafter import ANY_NUMBER, Drafting
from pyagent.infrastructure.engine.drafts.step_seconds import Overrun, StepSeconds

if TYPE_CHECKING:
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger(__name__)

CATCH_UP_TOKENS = 256
"""Tokens of logs that are computed in one go, while the requests' own step waits."""
NEAR_TOKENS = 16
"""A log with no more tokens to compute is caught up with by the first step that drafts."""


def largest_step(most_running: int, num_positions: int | None) -> LargestStep:
    """Return the bounds of its steps for a target with so many requests at once."""
    return LargestStep(max(CATCH_UP_TOKENS, most_running * (NEAR_TOKENS + 1)), most_running, num_positions)


class DraftModel:
    """Drafts for the requests of one target."""

    def __init__(
        self,
        runner: ModelRunner,
        target_vocab_size: int,
        most_rows: int,
        weight_ratio: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """A step has `most_rows` at most. Tokens from `target_vocab_size` on are none of the target's.

        Its weights are `weight_ratio` of the target's: until one was measured, its steps are expected to take as much.
        """
        self.runner = runner
        self.weight_ratio = weight_ratio
        self.clock = clock
        self.seconds = StepSeconds()
        self.overrun = Overrun()
        self.most_drafts = ANY_NUMBER
        self.num_tokens = 0
        """Drafts made so far."""
        self.busy_seconds = 0.0
        """What it has computed for, catching up included."""
        self._vocab_size = min(runner.vocab_size, target_vocab_size)
        self._most_rows = most_rows
        self._ahead: dict[int, list[int]] = {}  # by sequence, its tokens computed beyond those that the pool knows
        self._refused: set[int] = set()  # requests that it cannot follow
        self._samplers: list[SamplerState] = []

    def num_behind(self, request: Request) -> int:
        """Return how many tokens of a request's log are to be computed, the last one included.

        A sequence is begun for a request that has none, with what is cached of its log.
        """
        if request.id not in self._ahead and self._begin(request) is None:
            return len(request.tokens)
        known = self._ahead[request.id]
        return len(request.tokens) - self.runner.pool.num_tokens(request.id) - self._num_right(request, known)

    def seconds_of(self, num_rows: int) -> float:
        """Return the seconds to expect of a step of so many rows, slow ones included."""
        return self.seconds.at(num_rows) * self.overrun.ratio

    def can_follow(self, request: Request) -> bool:
        """Whether a request's log, and a draft more, is within its context and its vocabulary."""
        return request.id not in self._refused and len(request.tokens) < self.runner.context_length

    def catch_up(self, requests: Sequence[Request], running: Collection[int]) -> None:
        """Compute of logs, one after the other, what lacks but for their last tokens; `CATCH_UP_TOKENS` at most.

        `running` are the requests whose KV is not to be given up for that.
        """
        batch, room = Batch(), CATCH_UP_TOKENS
        for request in requests:
            first = self._begin(request)
            if first is None:
                continue
            tokens = request.tokens[first:-1][:room]
            if tokens and self._reserve(request.id, first + len(tokens), running):
                self._add_segment(batch, request.id, tokens)
                room -= len(tokens)
            if not room:
                break
        if batch.sequence_ids:
            self._execute(batch)

    def draft(
        self,
        asked: Sequence[tuple[Request, int]],
        running: Collection[int],
        goes_on: Callable[[Request, Sequence[float]], bool],
    ) -> list[tuple[Request, list[int], list[float]]]:
        """Return for requests up to so many drafts each, with the probability that it gives each.

        A request `goes_on` to a further one by the probabilities so far.
        """
        batch, drafting = Batch(), list[Drafting]()
        for request, wanted in asked[: self._most_rows]:
            first, num_tokens = self._begin(request), len(request.tokens)
            most = min(wanted, self.runner.context_length - num_tokens)
            if first is not None and most > 0 and self._reserve(request.id, num_tokens + most - 1, running):
                self._add_segment(batch, request.id, request.tokens[first:])
                drafting.append(Drafting(request, most))
        rows = drafting
        while rows:
            self._sample(batch, rows)
            rows = [row for row in rows if row.goes_on(goes_on)]
            batch = self._next(rows)
        self.num_tokens += sum(len(row.tokens) for row in drafting)
        return [(row.request, row.tokens, row.probabilities) for row in drafting if row.tokens]

    def end(self, request: Request) -> None:
        """Forget a request."""
        self._refused.discard(request.id)
        self._release(request.id)

    def _sample(self, batch: Batch, rows: Sequence[Drafting]) -> None:
        """Compute a step, and take each row's likeliest token."""
        while len(self._samplers) < len(rows):
            self._samplers.append(SamplerState(temperature=0.0, num_logprobs=1))
        batch.samplers, batch.steps = self._samplers[: len(rows)], [0] * len(rows)
        output = self._execute(batch)
        for place, row in enumerate(rows):
            token, likelihood = output.tokens[place], output.likelihoods.get(place)
            row.is_over = likelihood is None or token >= self._vocab_size
            if likelihood is not None and not row.is_over:
                row.take(token, exp(likelihood.logprob))

    def _next(self, rows: Sequence[Drafting]) -> Batch:
        """Return the step that computes the newest draft of each row."""
        batch = Batch()
        for row in rows:
            ahead = self._ahead[row.request.id]
            batch.num_ahead[len(batch.sequence_ids)] = len(ahead)
            self._add_segment(batch, row.request.id, row.tokens[-1:])
            ahead.append(row.tokens[-1])
        return batch

    def _add_segment(self, batch: Batch, sequence_id: int, tokens: list[int]) -> None:
        batch.sequence_ids.append(sequence_id)
        batch.lengths.append(len(tokens))
        batch.tokens += tokens

    def _begin(self, request: Request) -> int | None:
        """Have a sequence know of a request's log what is computed of it; return how much, None where it cannot."""
        tokens = request.tokens
        if not self.can_follow(request):
            return None
        known = self._ahead.get(request.id)
        if known is None:
            # Its adapters are the target's: whatever a request names, it is drafted for by the bare model.
            self._ahead[request.id] = []
            return self.runner.add(request.id, tokens, PrefixKey(tenant=request.key.tenant), is_resumed=True)
        num_right = self._num_right(request, known)
        if num_right:
            self.runner.pool.commit(request.id, known[:num_right])
        known.clear()
        first = self.runner.pool.num_tokens(request.id)
        return first if first < len(tokens) else None  # nothing was sampled since: its step was taken back

    def _num_right(self, request: Request, known: Sequence[int]) -> int:
        """Of what is computed ahead, the tokens that were sampled; not the log's last, whose logits are wanted."""
        first = self.runner.pool.num_tokens(request.id)
        pairs = enumerate(zip(known, request.tokens[first:-1], strict=False))
        num_pairs = min(len(known), len(request.tokens) - 1 - first)
        return next((place for place, (mine, sampled) in pairs if mine != sampled), num_pairs)

    def _reserve(self, sequence_id: int, num_tokens: int, running: Collection[int]) -> bool:
        """Make room, in place of sequences that do not run now if need be."""
        while not self.runner.reserve(sequence_id, num_tokens):
            idle = next((other for other in self._ahead if other not in running), None)
            if idle is None:
                return False
            self._release(idle)
        return True

    def _release(self, sequence_id: int) -> None:
        if self._ahead.pop(sequence_id, None) is not None:
            self.runner.release(sequence_id)

    def _execute(self, batch: Batch) -> StepOutput:
        start = self.clock()
        output = self.runner.execute(batch)
        seconds, num_rows = self.clock() - start, sum(batch.lengths)
        if self.seconds.is_known(num_rows):
            self.overrun.note(seconds, self.seconds.at(num_rows))
        self.seconds.note(num_rows, seconds)
        self.busy_seconds += seconds
        for row, reason in output.errors.items():
            logger.warning("request %d is not drafted for: %s", batch.sequence_ids[row], reason)
            self._refused.add(batch.sequence_ids[row])
            self._release(batch.sequence_ids[row])
        return output
