"""What every runner must do: the CPU's, the documentation's example, and one that answers by what is in its pages."""

from __future__ import annotations

import asyncio
import runpy
from array import array
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest

from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.plugin import (
    BLOCK_TOKENS,
    Batch,
    KvReservation,
    LargestStep,
    ModelNeeds,
    ModelRunner,
    PagedRunner,
    RunnerInfo,
    RunnerOptions,
    StepOutput,
    describe_model,
)
from pyagent.testing import RunnerConformance

PARROT = Path(__file__).parents[2] / "examples/pyagent-parrot/pyagent_parrot.py"


class TestCpuRunner(RunnerConformance):
    factory = CPU

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path


class TestParrotRunner(RunnerConformance):
    factory = runpy.run_path(str(PARROT))["Parrot"]()

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path


PAGE_BYTES = 4096


def after(tokens: Sequence[int]) -> int:
    """A token that depends on every one before it, and its place."""
    return 40 + crc32(array("I", tokens).tobytes()) % 80


class PagesRunner(PagedRunner):
    """Keeps tokens in pages, as a model keeps keys and values, and samples by what it reads there."""

    def __init__(self, info: RunnerInfo, options: RunnerOptions, kv: KvReservation | None) -> None:
        super().__init__(info, options, kv)
        self.pages = [[0] * BLOCK_TOKENS for _ in range(info.num_pages)]

    def execute(self, batch: Batch) -> StepOutput:
        logits = array("f", bytes(4 * self.vocab_size * len(batch.samplers)))
        start = 0
        for row, (sequence_id, length) in enumerate(zip(batch.sequence_ids, batch.lengths, strict=True)):
            first = self.pool.num_tokens(sequence_id)
            (table,) = self.pool.tables(sequence_id)
            for place, token in enumerate(batch.tokens[start : start + length], first):
                self.pages[table[place // BLOCK_TOKENS]][place % BLOCK_TOKENS] = token
            start += length
            if row < len(batch.samplers):
                places = range(first + length)
                found = [self.pages[table[place // BLOCK_TOKENS]][place % BLOCK_TOKENS] for place in places]
                logits[row * self.vocab_size + after(found)] = 20.0
        return self.finish_step(batch, logits)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.pages[target] = list(self.pages[source])

    def empty_pages(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.pages[page] = [0] * BLOCK_TOKENS


class PagesFactory:
    name = "pages"

    def unavailable_reason(self) -> str | None:
        return None

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        about = describe_model(path)
        return ModelNeeds(about.vocab_size, about.context_length, 0, 0, PAGE_BYTES)

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        about, num_pages = describe_model(path), (options.kv_bytes or 1 << 20) // PAGE_BYTES
        return PagesRunner(
            RunnerInfo("pages", about.vocab_size, about.context_length, 0, num_pages, PAGE_BYTES), options, kv
        )


class TestPagesRunner(RunnerConformance):
    factory = PagesFactory()

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path


@pytest.mark.parametrize("num_pages", [40, 1000])
@pytest.mark.parametrize("max_num_batched_tokens", [24, 512])
def test_every_token_follows_from_what_is_in_the_pages(
    tiny_model_path: Path, num_pages: int, max_num_batched_tokens: int
) -> None:
    """Chunks, shared prefixes, eviction, forks of several answers: each token is right by all tokens before it."""
    options = EngineOptions(
        RunnerOptions(kv_bytes=num_pages * PAGE_BYTES),
        SchedulerLimits(max_num_batched_tokens=max_num_batched_tokens),
        runners=RunnerChoice((PagesFactory(),)),
    )

    async def check(engine: LocalEngine, number: int) -> None:
        text = "the same beginning for many of them, " * (number % 4) + f"and {number % 5} at the end" * (number % 3)
        sampling = SamplingParams(temperature=0, max_tokens=20 + number, ignore_eos=True)
        request = ChatRequest(model="m", prompt=text or "x", n=1 + number % 3, sampling=sampling)
        prompt, answers = [], [[] for _ in range(request.n)]
        async for piece in engine.pieces(request):
            prompt = prompt or array("I", piece.prompt).tolist()
            answers[piece.delta.index] += piece.tokens
        for tokens in answers:
            assert len(tokens) == 20 + number
            assert tokens == [after([*prompt, *tokens[:place]]) for place in range(len(tokens))]

    async def work() -> None:
        engine = LocalEngine(ModelPool(lambda _: tiny_model_path, options, Ledger(1 << 30)))
        for _ in range(2):
            await asyncio.gather(*(check(engine, number) for number in range(16)))
        model = await engine.load("m")
        stats = model.engine.stats()
        assert (sum(stats.pool.evictions.values()) > 0) == (num_pages == 40)
        assert stats.pool.hits_tokens > 0
        await engine.close()

    asyncio.run(work())
