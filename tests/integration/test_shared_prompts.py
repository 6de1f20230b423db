"""Agents of one run that share a prompt: it is computed once, whenever they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.tiny_model import write_tiny_model

from pyagent.core.backends import Answer, collect
from pyagent.core.messages import ChatRequest, Message, Origin, SamplingParams
from pyagent.core.runners.batch import BLOCK_TOKENS, Batch, StepOutput
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions, LoadedModel
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits

NUM_SIBLINGS = 8
SHARED = "You are one of the agents of this run, and there is more to say: " * 12
MAX_TOKENS = 6


class Computed:
    """Tokens that steps computed, and a place to wait for the first of them."""

    def __init__(self, model: LoadedModel) -> None:
        self.num_tokens = 0
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._execute = model.runner.execute
        model.runner.execute = self.execute

    def execute(self, batch: Batch) -> StepOutput:
        self.num_tokens += len(batch.tokens)
        self._loop.call_soon_threadsafe(self.begun.set)
        return self._execute(batch)


@asynccontextmanager
async def watched(folder: Path, max_num_batched_tokens: int) -> AsyncIterator[tuple[NativeBackend, Computed]]:
    path = write_tiny_model(folder / "long.gguf", llama__context_length=2048)
    chosen = EngineOptions(RunnerOptions(threads=1), SchedulerLimits(max_num_batched_tokens=max_num_batched_tokens))
    backend = NativeBackend.of("tiny", lambda: path, chosen)
    try:
        yield backend, Computed(await backend.load())
    finally:
        await backend.close()


def sibling(number: int) -> ChatRequest:
    return ChatRequest(
        messages=[Message("system", SHARED), Message("user", f"{number} is your number, agent {number}")],
        sampling=SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True),
        origin=Origin(agent=f"agent {number}", run="r-1"),
    )


def most_tokens(answers: list[Answer]) -> int:
    """One whole prompt, for each other agent its own turn and the block it begins in, and the draws."""
    longest = max(answer.usage.prompt_tokens for answer in answers)
    assert longest > 500
    return longest + (NUM_SIBLINGS - 1) * 3 * BLOCK_TOKENS + NUM_SIBLINGS * (MAX_TOKENS - 1)


@pytest.mark.parametrize("max_num_batched_tokens", [64, 1024])
def test_siblings_that_come_together_compute_their_prompt_once(tmp_path: Path, max_num_batched_tokens: int) -> None:
    """Eight agents with more than 450 tokens in common ask a cold engine at once: these are computed once."""

    async def main() -> None:
        async with watched(tmp_path, max_num_batched_tokens) as (backend, computed):
            answers = await asyncio.gather(*(collect(backend.chat(sibling(number))) for number in range(NUM_SIBLINGS)))
            assert computed.num_tokens <= most_tokens(answers)

    asyncio.run(main())


def test_siblings_that_come_while_the_first_is_half_done_compute_nothing_twice(tmp_path: Path) -> None:
    """The first agent's prompt is under way, 32 tokens a step, when seven more come: they wait for it."""

    async def main() -> None:
        async with watched(tmp_path, 32) as (backend, computed):
            first = asyncio.create_task(collect(backend.chat(sibling(0))))
            await computed.begun.wait()
            assert computed.num_tokens < 450
            others = await asyncio.gather(
                *(collect(backend.chat(sibling(number))) for number in range(1, NUM_SIBLINGS))
            )
            assert computed.num_tokens <= most_tokens([await first, *others])

    asyncio.run(main())
