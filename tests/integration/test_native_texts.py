"""Texts of the embedded engine depend on nothing but the request: batches, memory, seats, KV formats, seeds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.native import (
    SUM,
    alone,
    assert_idle,
    at_once,
    chat,
    mixed_requests,
    one_by_one,
    options,
    run,
    running,
)

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.messages import (
    ChatRequest,
)
from pyagent.core.runners.factory import KvDtype
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues

VARIANTS: dict[str, Callable[[], EngineOptions]] = {
    "one thread": options,
    "two threads": lambda: options(threads=2),
    "seven tokens a step": lambda: options(max_num_batched_tokens=7),
    "planned ahead": lambda: replace(options(), async_scheduling="on"),
    "little memory": lambda: options(blocks=28, max_num_batched_tokens=64),
    **{f"isa {isa}": (lambda isa=isa: options(isa=isa, threads=2)) for isa in _rust.cpu_features()["isas"]},
}


@pytest.fixture(scope="module")
def expected(tiny_model_path: Path) -> list[str]:
    """What sixteen mixed requests are answered, each alone."""
    return asyncio.run(alone(tiny_model_path, mixed_requests(16)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_in_a_batch_are_those_given_alone(tiny_model_path: Path, variant: str, expected: list[str]) -> None:
    """Sixteen mixed requests at once give, bit for bit, what each gives alone: in chunks, preempted, on any isa."""

    async def work() -> None:
        requests = mixed_requests(16)
        async with running(tiny_model_path, VARIANTS[variant]()) as backend:
            for _ in range(2):  # the second time prefixes are cached
                assert [answer.text for answer in await at_once(backend, requests)] == expected
            await assert_idle(backend)
        assert len(set(expected)) > 12

    run(work())


@pytest.mark.parametrize(("kv_type", "eighths"), [("f32", 16), ("f16", 8), ("int8", 5)])
def test_answers_of_every_kv_format_are_those_given_alone(
    tiny_model_path: Path, kv_type: KvDtype, eighths: int, expected: list[str]
) -> None:
    """However keys and values are kept, chunks, cached prefixes, preemption and neighbours change no bit."""

    async def work() -> None:
        requests = mixed_requests(16)
        answers = await alone(tiny_model_path, requests, kv_type)
        for blocks, max_num_batched_tokens in ((1024, 7), (28, 64)):
            chosen = options(
                blocks=(blocks * eighths) // 8,
                max_num_batched_tokens=max_num_batched_tokens,
                threads=2,
                kv_type=kv_type,
            )
            async with running(tiny_model_path, chosen) as backend:
                for _ in range(2):
                    assert [answer.text for answer in await at_once(backend, requests)] == answers
                await assert_idle(backend)
        if kv_type == "int8":
            assert answers != expected

    run(work())


@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_preempted_answers_are_unchanged(tiny_model_path: Path, kind: str) -> None:
    """Four long answers in memory for one and a bit: requests yield, their KV is computed again or swapped, and their
    texts are the same."""

    async def work() -> None:
        sampling: dict[str, object] = {"ignore_eos": True, "max_tokens": 440, "frequency_penalty": 1}
        seeded = [chat(f"{seed} the", seed=seed, **sampling) for seed in range(4)]
        expected = await alone(tiny_model_path, seeded)
        async with running(tiny_model_path, options(blocks=32)) as backend:
            await at_once(backend, [chat("the", max_tokens=1)] * 4)  # so that short answers are expected
            model = await backend.load()
            model.runner.swap_seconds = lambda num_tokens: 0.0 if kind == "swap" else math.inf
            assert [answer.text for answer in await at_once(backend, seeded)] == expected
            assert model.engine.scheduler.num_preemptions[kind] > 0
            await assert_idle(backend)

    run(work())


def test_answers_that_lose_their_seats_are_unchanged(tiny_model_path: Path) -> None:
    """Two seats, levels of 4 draws: requests of all kinds take each other's seats, and their texts are the same."""

    async def work() -> None:
        requests = mixed_requests(24)
        expected = await alone(tiny_model_path, requests)
        queue = QueueOptions("mlfq", {"quantum": 4, "levels": 4})
        chosen = replace(options(), queues=lambda: make_queues({"default": queue}))
        chosen = replace(chosen, limits=replace(chosen.limits, max_num_seqs=2))
        async with running(tiny_model_path, chosen) as backend:
            model = await backend.load()
            assert [answer.text for answer in await at_once(backend, requests)] == expected
            assert model.engine.scheduler.num_preemptions["recompute"] > 0
            await assert_idle(backend)

    run(work())


@pytest.mark.slow
def test_greedy_answer_is_the_same_a_hundred_times(smollm2_path: Path) -> None:
    """The real model answers one question with the same bytes a hundred times, alone and among sixteen others."""

    async def work() -> None:
        async with running(smollm2_path, EngineOptions()) as backend:
            asked = chat(SUM, temperature=0, max_tokens=16)
            texts = {answer.text for answer in await one_by_one(backend, [asked] * 80)}
            for start in range(20):
                others = [chat(f"{start} {number}. Tell me of the sea.", max_tokens=8) for number in range(15)]
                texts.add((await at_once(backend, [*others[:7], asked, *others[7:]]))[7].text)
            assert len(texts) == 1

    run(work())


def test_seed_decides_what_is_drawn(tiny_model_path: Path) -> None:
    """With a seed an answer is the same every time; without one, and with another, it is not."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:

            def ask(seed: int | None) -> ChatRequest:
                return chat("the", ignore_eos=True, max_tokens=30, seed=seed)

            texts = [answer.text for answer in await at_once(backend, [ask(1), ask(1), ask(2), ask(None), ask(None)])]
            assert texts[0] == texts[1]
            assert len(set(texts)) == 4

    run(work())


def test_logprobs_come_with_their_tokens(tiny_model_path: Path) -> None:
    """Each drawn token has its log probability and its rivals', best first, and greedy draws the best."""

    async def work() -> None:
        async with running(tiny_model_path) as backend:
            answer = await collect(
                backend.chat(chat("the", temperature=0, ignore_eos=True, max_tokens=6, top_logprobs=3))
            )
            drawn = [entry for delta in answer.deltas for entry in delta.logprobs]
            assert len(drawn) == 6
            for entry in drawn:
                assert [value for _, value in entry.top_logprobs] == sorted(
                    (v for _, v in entry.top_logprobs), reverse=True
                )
                assert entry.top_logprobs[0] == (entry.token, entry.logprob)
                assert len(entry.top_logprobs) == 3
                assert entry.logprob < 0

    run(work())
