"""The server over the embedded engine: many clients at once, clients that vanish, and the blocks they held."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import Choice
from support.server import connected, serving
from support.waiting import until

from pyagent._rust import PoolStats
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions


@asynccontextmanager
async def asked(path: Path) -> AsyncIterator[tuple[NativeBackend, openai.AsyncOpenAI]]:
    """The embedded engine behind a server, and a client of it."""
    backend = NativeBackend.of("tiny", lambda: path, EngineOptions(RunnerOptions(threads=2, kv_bytes=1 << 24)))
    try:
        async with serving(backend) as url, connected(url) as client:
            yield backend, client
    finally:
        await backend.close()


def asking(number: int) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": f"count from {number} " + "and on " * (number % 9)}]


async def normalized(backend: NativeBackend) -> PoolStats:
    """The pool's counts once nothing is held."""
    pool = (await backend.load()).runner.pool
    await until(lambda: pool.stats().active == 0)
    pool.check()
    return pool.stats()


def test_native_server_answers_60_clients_at_once(tiny_model_path: Path) -> None:
    """60 concurrent requests, half of them streamed, are all answered; then every block is free."""

    async def work() -> None:
        async with asked(tiny_model_path) as (backend, client):

            async def one(number: int) -> str:
                if number % 2:
                    stream = await client.chat.completions.create(
                        model="tiny", messages=asking(number), max_tokens=12, stream=True
                    )
                    reasons = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
                    return str(reasons[-1])
                whole = await client.chat.completions.create(model="tiny", messages=asking(number), max_tokens=12)
                return whole.choices[0].finish_reason

            reasons = await asyncio.gather(*(one(number) for number in range(60)))
            assert len(reasons) == 60
            assert set(reasons) <= {"stop", "length"}
            stats = await normalized(backend)
            assert stats.free == stats.num_pages

    asyncio.run(work())


def test_native_server_killing_clients_at_random_leaks_no_block(tiny_model_path: Path) -> None:
    """Clients cut off at random moments abort their requests: the pool's count returns to full, others are answered."""
    chooser = random.Random(5)

    async def work() -> None:
        async with asked(tiny_model_path) as (backend, client):
            await client.chat.completions.create(model="tiny", messages=asking(0), max_tokens=1)

            async def one(number: int) -> bool:
                patience = chooser.random() * 0.3 if number % 2 else None
                try:
                    async with asyncio.timeout(patience):
                        stream = await client.chat.completions.create(
                            model="tiny",
                            messages=asking(number),
                            max_tokens=200,
                            stream=True,
                            extra_body={"ignore_eos": True},
                        )
                        async for _ in stream:
                            pass
                except (TimeoutError, openai.APIConnectionError):
                    return False
                return True

            answered = await asyncio.gather(*(one(number) for number in range(60)))
            assert sum(answered) >= 30
            stats = await normalized(backend)
            assert stats.free == stats.num_pages
            model = await backend.load()
            assert not model.engine.scheduler.has_work

    asyncio.run(work())


def test_native_server_gives_several_answers(tiny_model_path: Path) -> None:
    """`n` answers come as choices, whole and streamed alike, each what its seed gives alone; a search finds its own."""

    async def work() -> None:
        async with asked(tiny_model_path) as (_, client):
            fields: dict[str, Any] = {"model": "tiny", "messages": asking(1), "max_tokens": 12, "seed": 3}
            alone = [await client.chat.completions.create(**fields | {"seed": 3 + index}) for index in range(3)]
            texts = [answer.choices[0].message.content for answer in alone]
            whole = await client.chat.completions.create(**fields, n=3)
            assert [choice.index for choice in whole.choices] == [0, 1, 2]
            assert [choice.message.content for choice in whole.choices] == texts
            assert whole.usage
            assert whole.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone if a.usage)
            stream = await client.chat.completions.create(**fields, n=3, stream=True)
            told: dict[int, list[Choice]] = {}
            async for chunk in stream:
                told.setdefault(chunk.choices[0].index, []).append(chunk.choices[0])
            assert ["".join(c.delta.content or "" for c in told[index]) for index in range(3)] == texts
            assert all(choices[0].delta.role == "assistant" and choices[-1].finish_reason for choices in told.values())
            found = await client.completions.create(
                model="tiny",
                prompt="the user",
                max_tokens=6,
                n=2,
                extra_body={"use_beam_search": True, "beam_width": 4},
            )
            assert len({choice.text for choice in found.choices}) == 2
            with pytest.raises(openai.BadRequestError, match="between 1 and 16"):
                await client.chat.completions.create(**fields, n=99)

    asyncio.run(work())
