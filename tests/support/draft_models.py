"""A target with a draft model that is asked in every step, whatever that costs; all its drafts are verified."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.drafts import same_answers
from support.native import at_once, chat, options, running
from support.requests_of_all_kinds import told

from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.drafts.draft_model import DraftModel
from pyagent.infrastructure.engine.drafts.model_drafts import DraftRow, ModelDrafts
from pyagent.infrastructure.engine.drafts.mtp_head import MtpHead
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.proposals import DraftedTokens, Proposal
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.kv_moves.moves import KvMoves
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.scheduler.step_plan import Plan

BY_MODEL = DraftOptions(method="draft_model", models={"": "draft"})


class Asking(ModelDrafts):
    """Asks for all rows, each for as many drafts as it may have or fewer."""

    def __init__(self, model: DraftModel, seed: int = 3) -> None:
        super().__init__(model, Speculation(BY_MODEL, 1, lambda _, count: count).seconds)
        self.random = random.Random(seed)

    def begin(self) -> None:
        self.draft_seconds = 1e-9  # whatever copies of texts may still cost

    def propose(self, rows: Mapping[int, DraftRow], num_rows: int, room: int, rate: float) -> dict[int, DraftedTokens]:
        open_to = [one for one in rows.values() if one.from_text is None and self.model.can_follow(one.request)]
        open_to = self.random.sample(open_to, min(8, len(open_to)))
        running = {one.request.id for one in rows.values()}
        while any(self.model.num_behind(one.request) > 16 for one in open_to):
            before = sum(self.model.num_behind(one.request) for one in open_to)
            self.model.catch_up([one.request for one in open_to], running)
            if sum(self.model.num_behind(one.request) for one in open_to) == before:
                break
        wanted = [(one.request, min(one.most, max(1, room // len(open_to)))) for one in open_to]
        drafted = self.model.draft(wanted, running, lambda _, told: self.random.random() < 0.9)
        return {
            request.id: DraftedTokens(tokens, [0.9] * len(tokens), "model", 7, [0] * len(tokens))
            for request, tokens, _ in drafted
        }


class EagerlyDrafted(Speculation):
    """Verifies all that the model drafts; copies from a request's text only now and then."""

    def __init__(self, engine: Engine, model: DraftModel, copies: float) -> None:
        limits = engine.scheduler.limits
        most_rows = BY_MODEL.most_rows(limits.most_running, limits.max_num_batched_tokens)
        super().__init__(BY_MODEL, most_rows, engine.scheduler.reserve_drafts, model=model)
        self.model = Asking(model)
        self.random, self.copies = random.Random(5), copies
        self.num_beside_prompts = 0

    def _is_due(self, num_rows: int) -> bool:
        return True

    def awaits(self, plan: Plan) -> bool:
        return self.random.random() < 0.7

    def _likeliest(self, proposals: Sequence[tuple[int, Proposal]], num_rows: int) -> tuple[list[int], float]:
        places = [row for row, one in proposals for _ in one.tokens]
        return places[: max(0, self._most_rows - num_rows)], 0.0

    def lengths_beside_prompts(self, proposals: list[tuple[int, Proposal]], plan: Plan) -> dict[int, int]:
        left = min(self._most_rows - len(plan.sampled), plan.draft_room)
        self.num_beside_prompts += min(left, len(proposals))
        return dict.fromkeys([row for row, _ in proposals][: max(0, left)], 1)

    def _propose(self, request: object) -> Proposal | None:
        found = super()._propose(request)  # type: ignore[arg-type]
        return found if self.random.random() < self.copies else None


@asynccontextmanager
async def with_draft_model(
    path: Path, draft: Path, chosen: EngineOptions | None = None, ledger_bytes: int = 1 << 32
) -> AsyncIterator[NativeBackend]:
    """A backend of the model `tiny`, for which `draft` drafts."""
    chosen = replace(chosen or options(), drafts=BY_MODEL)
    pool = ModelPool({"tiny": path, "draft": draft}.__getitem__, chosen, Ledger(ledger_bytes))
    backend = NativeBackend(["tiny"], LocalEngine(pool, KvMoves.of(chosen)), look=lambda _: "loads on first use")
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def eagerly_drafted(
    path: Path, draft: Path, chosen: EngineOptions | None = None, copies: float = 0.2
) -> AsyncIterator[tuple[NativeBackend, EagerlyDrafted]]:
    """One that drafts all the time."""
    async with with_draft_model(path, draft, chosen) as backend:
        model = await backend.load()
        engine = model.engine  # type: ignore[attr-defined]
        drafting = engine.speculation.model.model
        engine.speculation = eager = EagerlyDrafted(engine, drafting, copies)
        yield backend, eager


async def same_with_head(
    folder: Path, head: str, asked: list[ChatRequest], chosen: EngineOptions, warm_up: Sequence[ChatRequest] = ()
) -> None:
    """Ask `model.gguf` of a folder with a head or an assistant beside it, which is wrong at times, and without."""
    path = folder / "model.gguf"
    eager = await same_answers(path, asked, eagerly_drafted(path, folder / head, chosen), warm_up)
    assert eager.counts.num_draft_tokens > eager.counts.num_accepted_tokens
    assert eager.model is not None
    assert isinstance(eager.model.model, MtpHead)
    assert eager.model.model.num_tokens > 100
    assert isinstance(eager, EagerlyDrafted)
    assert eager.num_beside_prompts > 0 or warm_up


async def same_while_preempted(folder: Path, head: str, blocks: int) -> None:
    """Likewise with memory for one answer and a bit."""
    short = [chat("the", max_tokens=1)] * 4  # so that short answers are expected
    asked = [chat(f"{seed} the", max_tokens=120, seed=seed, ignore_eos=True, temperature=0.4) for seed in range(4)]
    await same_with_head(folder, head, asked, options(blocks=blocks, max_num_batched_tokens=40), short)


async def has_no_draft_refused(path: Path, head: Path) -> None:
    """Ask a model with a head or an assistant that is right: all drafts are accepted, and it is asked of itself."""
    asked = [chat(f"{seed} the", max_tokens=60, ignore_eos=True, temperature=0.0) for seed in range(3)]
    async with running(path) as backend:
        expected = [told(answer) for answer in await at_once(backend, asked)]
    async with eagerly_drafted(path, head, copies=0.0) as (backend, eager):
        assert [told(answer) for answer in await at_once(backend, asked)] == expected
    assert eager.counts.num_accepted_tokens == eager.counts.num_draft_tokens > 60
    async with with_draft_model(path, head) as backend:
        await at_once(backend, [chat("a the", max_tokens=200, ignore_eos=True, temperature=1.5, seed=3)])
        model: Any = await backend.load()
        assert model.engine.speculation.model.model.num_tokens > 0
