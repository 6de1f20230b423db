"""Conversations with the embedded engine: what is taken over, what is found in the cache, what clients are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyagent.core.backends import Answer, collect
from pyagent.core.messages import CacheReport, ChatRequest, Message, SamplingParams
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def backend_of(path: Path) -> NativeBackend:
    return NativeBackend.of("tiny", lambda: path, EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 22)))


async def ask(backend: NativeBackend, messages: list[Message], session: str | None = None) -> Answer:
    return await collect(backend.chat(ChatRequest(messages=messages, sampling=GREEDY, session=session)))


def report(answer: Answer) -> CacheReport:
    assert answer.usage.cache is not None
    return answer.usage.cache


@pytest.mark.parametrize("session", [None, "a"])
def test_conversation_computes_only_its_new_turn(tiny_model_path: Path, session: str | None) -> None:
    """Each request takes over prompt and answer of the last one; all of them is cached."""

    async def work() -> None:
        backend = backend_of(tiny_model_path)
        messages = [Message("user", "what is the user at?")]
        num_log = 0
        for _ in range(4):
            answer = await ask(backend, messages, session)
            assert report(answer).log_tokens == num_log
            # The KV of the last token drawn was never needed, so it is not there.
            assert report(answer).cached_tokens == max(0, num_log - 1)
            num_log = answer.usage.total_tokens
            messages += [Message("assistant", answer.text), Message("user", "and then?")]
        await backend.close()

    asyncio.run(work())


def test_answers_to_a_log_are_the_same_after_the_cache_was_emptied(tiny_model_path: Path) -> None:
    """A conversation gives the same texts with its KV kept and with its KV computed again at each turn."""

    async def talk(backend: NativeBackend, *, is_cleared: bool) -> list[str]:
        messages, said = [Message("user", "what is the user at?")], list[str]()
        for _ in range(4):
            if is_cleared:
                (await backend.load()).runner.pool.clear_index()
            said.append((await ask(backend, messages)).text)
            messages += [Message("assistant", said[-1]), Message("user", "and then?")]
        await backend.close()
        return said

    async def work() -> None:
        kept = await talk(backend_of(tiny_model_path), is_cleared=False)
        assert await talk(backend_of(tiny_model_path), is_cleared=True) == kept

    asyncio.run(work())
