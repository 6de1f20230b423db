"""The embedded engine over a model file, and ways to ask it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from array import array
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from support.tiny_model import vocabulary
from support.waiting import until

from pyagent import _rust
from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Answer, collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.messages import (
    ChatRequest,
    Message,
    SamplingParams,
)
from pyagent.core.runners.factory import KvDtype, RunnerFactory, RunnerOptions
from pyagent.core.sampling_schedules import PenaltySchedule, TemperatureSchedule
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits
from pyagent.infrastructure.engine.step_executor import AsyncScheduling
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

NUM_TOKENS = len(vocabulary()[0])


KV_BYTES_A_BLOCK = 256 * 16  # of the tiny model, in f16


SUM = "What is 2+2? Answer with the number only."


def options(
    *,
    blocks: int = 1024,
    threads: int = 1,
    isa: str | None = None,
    kv_type: KvDtype = "bf16",
    max_num_batched_tokens: int = 1024,
    max_model_len: int | None = None,
) -> EngineOptions:
    cpu = RunnerOptions(threads=threads, kv_bytes=blocks * KV_BYTES_A_BLOCK, isa=isa, kv_dtype=kv_type)
    return EngineOptions(cpu, SchedulerLimits(max_num_batched_tokens=max_num_batched_tokens), max_model_len)


@asynccontextmanager
async def running(path: Path, chosen: EngineOptions | None = None) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend.of("tiny", lambda: path, chosen or options())
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def engine_of(path: Path, *, process: bool = True, **more: object) -> AsyncIterator[NativeBackend]:
    """The backend of the link `native` over a model file, closed at the end."""
    overrides = {"engine.models": [str(path)], "engine.process": process, "engine.threads": 1, **more}
    settings = load_settings(overrides=overrides).settings
    (backend,) = make_chain(settings, make_host(settings), ["native"]).links
    assert isinstance(backend, NativeBackend)
    try:
        yield backend
    finally:
        await backend.close()


def engine_logits(path: Path, tokens: list[int], kv_type: KvDtype = "f32") -> list[list[float]]:
    """The engine's logits after every token, without anything around it."""
    model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22, kv_type=kv_type)
    info = model.info()
    pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
    pool.add(0, tokens)
    pool.reserve(0, len(tokens))
    model.execute(pool, [0], [len(tokens)], tokens, num_outputs=[len(tokens)])
    values, width = array("f", model.logits()), info["vocab_size"]
    return [list(values[start : start + width]) for start in range(0, len(values), width)]


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def chat(text: str, **sampling: object) -> ChatRequest:
    return ChatRequest(messages=[Message("user", text)], sampling=SamplingParams(**sampling))  # type: ignore[arg-type]


def mixed_requests(number: int) -> list[ChatRequest]:
    """Greedy and seeded requests of many lengths, some with penalties, schedules, stop texts and forms."""
    draw = random.Random(11)
    requests: list[ChatRequest] = []
    for index in range(number):
        text = "".join(draw.choices("the user is at ease, and 12 more\n", k=draw.choice([3, 20, 90, 200])))
        text = f"You are a helpful system and the user is here. {text}" if index % 3 else text
        sampling: dict[str, object] = {"max_tokens": draw.choice([1, 5, 17, 90]), "temperature": 0, "ignore_eos": True}
        if index % 2:
            sampling |= {"temperature": 1.0, "seed": index, "top_p": 0.95, "top_k": 50, "frequency_penalty": 0.5}
        if index % 4 == 3:
            sampling |= {"temperature_schedule": TemperatureSchedule(end=0, tokens=30)}
            sampling |= {"penalty_schedule": PenaltySchedule(warmup_tokens=10, decay_tokens=40)}
        if index % 5 == 0:
            sampling |= {"stop": ("the", "12"), "repetition_penalty": 1.2, "ignore_eos": False}
        requests.append(chat(text, **sampling))
    return requests


async def one_by_one(backend: NativeBackend, requests: list[ChatRequest]) -> list[Answer]:
    return [await collect(backend.chat(request)) for request in requests]


async def at_once(backend: NativeBackend, requests: list[ChatRequest]) -> list[Answer]:
    return list(await asyncio.gather(*(collect(backend.chat(request)) for request in requests)))


def answers_of(
    factory: RunnerFactory, path: Path, kv_bytes: int, scheduling: AsyncScheduling = "auto", **of_runner: Any
) -> list[list[str]]:
    """Answers of a backend of its own, as `many_answers` gives them."""

    async def work() -> list[list[str]]:
        options = dataclasses.replace(cramped(factory, kv_bytes, **of_runner), async_scheduling=scheduling)
        backend = NativeBackend.of("tiny", lambda: path, options)
        try:
            return await many_answers(backend)
        finally:
            await backend.close()

    return asyncio.run(work())


def cramped(factory: RunnerFactory, kv_bytes: int, step_tokens: int = 64, **of_runner: Any) -> EngineOptions:
    """Options for a runner with so little KV memory, and short steps."""
    return EngineOptions(
        RunnerOptions(threads=1, kv_bytes=kv_bytes, kv_dtype="f32", **of_runner),
        SchedulerLimits(max_num_batched_tokens=step_tokens),
        runners=RunnerChoice((factory,)),
    )


async def many_answers(backend: NativeBackend, number: int = 18) -> list[list[str]]:
    """One, two or three answers to each of some questions at once, and again."""
    requests = [replace(request, n=1 + at % 3) for at, request in enumerate(mixed_requests(number))] * 2
    replies = await at_once(backend, requests)
    return [
        ["".join(delta.content for delta in reply.deltas if delta.index == index) for index in range(request.n)]
        for request, reply in zip(requests, replies, strict=True)
    ]


async def alone(path: Path, requests: list[ChatRequest], kv_type: KvDtype = "bf16") -> list[str]:
    """Each answer from an engine that has seen nothing else."""
    texts: list[str] = []
    async with running(path, options(kv_type=kv_type)) as backend:
        model = await backend.load()
        for request in requests:
            model.runner.pool.clear_index()
            texts.append((await collect(backend.chat(request))).text)
    return texts


async def assert_idle(backend: NativeBackend) -> None:
    """No request is left, and no block is held."""
    model = await backend.load()
    pool = model.runner.pool
    await until(lambda: not model.engine.scheduler.has_work and pool.stats().active == 0)
    pool.check()
    assert pool.stats().free == pool.stats().num_pages


@contextmanager
def native_server(path: Path, **options: Any) -> Iterator[str]:
    """A server over the embedded engine with a model called `tiny`; gives its URL."""
    backend = NativeBackend.of("tiny", lambda: path, EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 22)))
    with serve(create_app(Chain([backend]), **options)) as url:
        yield url
    asyncio.run(backend.close())
