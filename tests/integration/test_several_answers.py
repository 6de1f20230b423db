"""`n` and `best_of` on the tiny model: each answer is the one its seed gives alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.tiny_model import CONTEXT

from pyagent.core.backends import collect
from pyagent.core.messages import ChatDelta, ChatRequest, Message, SamplingParams
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.model import EngineOptions
from pyagent.infrastructure.engine.runners.cpu import CpuOptions

KV_BYTES_A_BLOCK = 256 * 16  # of the tiny model, in f16
PROMPT = [Message("user", "the user is at ease, and there is more to say " * 2)]


def asked(seed: int = 5, **fields: object) -> ChatRequest:
    sampling = SamplingParams(max_tokens=40, seed=seed, temperature=1.0, ignore_eos=True, top_logprobs=0)
    return ChatRequest(messages=PROMPT, sampling=sampling, **fields)  # type: ignore[arg-type]


async def alone(path: Path, count: int) -> list[tuple[str, float]]:
    """The text each seed gives, and the log probability a token."""
    answers: list[tuple[str, float]] = []
    backend = NativeBackend.of("tiny", lambda: path)
    for index in range(count):
        answer = await collect(backend.chat(asked(5 + index)))
        logprobs = [logprob.logprob for delta in answer.deltas for logprob in delta.logprobs]
        answers.append((answer.text, sum(logprobs) / len(logprobs)))
    await backend.close()
    return answers


def texts(deltas: list[ChatDelta], count: int) -> list[str]:
    return ["".join(delta.content for delta in deltas if delta.index == index) for index in range(count)]


@pytest.mark.parametrize("blocks", [CONTEXT, 20])
def test_each_of_n_answers_is_the_one_its_seed_gives_alone(tiny_model_path: Path, blocks: int) -> None:
    """Forked or, in little memory, computed again: the i-th text is that of seed + i; the last delta has the usage."""

    async def main() -> None:
        expected = [text for text, _ in await alone(tiny_model_path, 4)]
        options = EngineOptions(CpuOptions(kv_bytes=blocks * KV_BYTES_A_BLOCK))
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options)
        deltas = [delta async for delta in backend.chat(asked(n=4))]
        assert texts(deltas, 4) == expected
        assert [delta.usage for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].usage is not None
        assert deltas[-1].usage.completion_tokens == 160
        await backend.close()

    asyncio.run(main())


def test_best_of_tells_the_likeliest_first(tiny_model_path: Path) -> None:
    """Of six answers the two with the highest log probability a token are told, whole, the likelier first."""

    async def main() -> None:
        ranked = sorted(await alone(tiny_model_path, 6), key=lambda answer: -answer[1])
        backend = NativeBackend.of("tiny", lambda: tiny_model_path)
        deltas = [delta async for delta in backend.chat(asked(n=2, best_of=6))]
        assert texts(deltas, 2) == [text for text, _ in ranked[:2]]
        assert [delta.finish_reason for delta in deltas] == ["length", "length"]
        await backend.close()

    asyncio.run(main())
