"""Speculative decoding that verifies all it can think of, right or wrong, whatever that costs."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from support.native import assert_idle, at_once, options, running
from support.requests_of_all_kinds import told

from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.proposals import Proposal
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.step_plan import Plan


class Eager(Speculation):
    """Verifies every proposal, of some only a part, and of some with a token changed; guesses where there is none."""

    def __init__(self, engine: Engine, options: DraftOptions) -> None:
        limits = engine.scheduler.limits
        most_rows = options.most_rows(limits.most_running, limits.max_num_batched_tokens)
        super().__init__(options, most_rows, engine.scheduler.reserve_drafts)
        self.random = random.Random(3)
        self.vocab_size = engine.runner.vocab_size
        self.num_beside_prompts = self.num_put_off = 0

    def _propose(self, request: Request) -> Proposal | None:
        proposal = super()._propose(request)
        if request.drafts is None:
            return None
        left = min(self._options.num_speculative_tokens, request.max_tokens - request.num_output_tokens - 1)
        tokens = list(proposal.tokens) if proposal else [self.random.randrange(self.vocab_size)]
        if self.random.random() < 0.2:
            tokens[self.random.randrange(len(tokens))] = self.random.randrange(self.vocab_size)
        tokens = tokens[: max(0, left)]
        return Proposal(tokens, [0.9] * len(tokens), "test", 0)

    def awaits(self, plan: Plan) -> bool:
        return self.random.random() < 0.7

    def lengths(self, proposals: list[tuple[int, Proposal]], num_rows: int) -> dict[int, int]:
        return self._lengths(proposals, self._most_rows - num_rows)

    def lengths_beside_prompts(self, proposals: list[tuple[int, Proposal]], plan: Plan) -> dict[int, int]:
        lengths = self._lengths(proposals, min(self._most_rows - len(plan.sampled), plan.draft_room))
        self.num_beside_prompts += sum(lengths.values())
        self.num_put_off += max(0, sum(lengths.values()) - plan.num_free)
        return lengths

    def _lengths(self, proposals: list[tuple[int, Proposal]], left: int) -> dict[int, int]:
        lengths: dict[int, int] = {}
        for row, proposal in proposals:
            length = min(left, self.random.choice([len(proposal.tokens)] * 3 + [len(proposal.tokens) // 2]))
            left -= length
            if length:
                lengths[row] = length
        return lengths


@asynccontextmanager
async def drafting(path: Path, chosen: EngineOptions | None = None) -> AsyncIterator[tuple[NativeBackend, Eager]]:
    """A backend whose engine drafts so."""
    drafts = DraftOptions()
    async with running(path, replace(chosen or options(), drafts=drafts)) as backend:
        engine = (await backend.load()).engine
        engine.speculation = eager = Eager(engine, drafts)
        yield backend, eager


async def same_answers(
    path: Path,
    asked: list[ChatRequest],
    drafting: AbstractAsyncContextManager[tuple[NativeBackend, Speculation]],
    warm_up: Sequence[ChatRequest] = (),
) -> Speculation:
    """Ask a backend that drafts twice, and one that does not; return how it drafted. With a warm-up, requests yield."""
    async with running(path, options(threads=2)) as backend:
        expected = [told(answer) for answer in await at_once(backend, asked)]
    async with drafting as (backend, speculation):
        await at_once(backend, list(warm_up))
        model = await backend.load()
        model.runner.swap_seconds = lambda num_tokens: 0.0 if num_tokens % 2 else math.inf
        for _ in range(2):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
        if warm_up:
            assert model.engine.scheduler.num_preemptions.total() > 0
        await assert_idle(backend)
        model.runner.pool.check()
    return speculation
