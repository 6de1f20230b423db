"""How a program gets an answer of `Engine`: cumulatively, and its log probabilities in arrays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from pyagent import Answer, ChatDelta, ChatRequest, Engine, RequestError, SamplingParams
from pyagent.core.backends import accumulate
from pyagent.core.messages import Resumption

PROMPT = "the user is at the system and on"


@pytest.mark.parametrize("process", [True, False])
def test_flat_logprobs_are_the_others_in_arrays(tiny_model_path: Path, process: bool) -> None:
    """By id and unchanged, also of several answers and of none of the likeliest; what cannot be flat is refused."""

    async def work() -> None:
        async with Engine(tiny_model_path, threads=1, process=process) as engine:
            asked = ChatRequest(prompt=PROMPT, n=2)
            sampling = SamplingParams(seed=3, max_tokens=12, ignore_eos=True, top_logprobs=20, return_token_ids=True)
            plain = await engine.chat(asked, sampling)
            flat = await engine.chat(asked, replace(sampling, flat_logprobs=True))
            for index in range(2):
                told = flat.flat_logprobs(index)
                entries = [entry for delta in plain.deltas if delta.index == index for entry in delta.logprobs]
                ids = [token for delta in plain.deltas if delta.index == index for token in delta.token_ids]
                assert len(told) == len(entries) == 12
                assert [told[place][0][0] for place in range(12)] == ids
                assert [told[place][0][1] for place in range(12)] == [entry.logprob for entry in entries]
                for place, entry in enumerate(entries):
                    assert [logprob for _, logprob in told[place][1:]] == [value for _, value in entry.top_logprobs]
                assert told[-1] == told[11]
                assert len(told.token_ids) == len(told.logprobs) == told.starts[-1] == 12 * 21
            own = await engine.chat(asked, replace(sampling, flat_logprobs=True, top_logprobs=0))
            assert {len(own.flat_logprobs()[place]) for place in range(12)} == {1}
            with pytest.raises(ValueError, match="are not flat"):
                plain.flat_logprobs()
            with pytest.raises(IndexError):
                own.flat_logprobs()[12]
            for wrong in ({"top_logprobs": None}, {"echo": True}):
                with pytest.raises(RequestError, match="flat_logprobs"):
                    await engine.chat(asked, replace(sampling, flat_logprobs=True, **wrong))

    asyncio.run(work())


def test_answers_so_far_grow_to_the_whole_one(tiny_model_path: Path) -> None:
    """Each begins with the one before, and the last is what `chat` returns; two answers do not mix."""

    async def work() -> None:
        async with Engine(tiny_model_path, threads=1, process=False) as engine:
            asked = ChatRequest(prompt=PROMPT, n=2)
            sampling = SamplingParams(seed=3, max_tokens=12, ignore_eos=True)
            texts: dict[int, list[str]] = {0: [], 1: []}
            ends: dict[int, int] = {}
            async for answer in engine.stream_answers(asked, sampling):
                texts[answer.last.index].append(answer.text)
                ends[answer.last.index] = len(answer.deltas)
            whole = await engine.chat(asked, sampling)
            for index, told in texts.items():
                assert len(told) == ends[index] > 5
                assert all(longer.startswith(shorter) for shorter, longer in pairwise(told))
                assert told[-1] == "".join(delta.content for delta in whole.deltas if delta.index == index)

    asyncio.run(work())


def test_answers_so_far_begin_anew_and_close_their_stream() -> None:
    """What an answer said before it was begun anew is void; leaving early closes the stream of deltas."""
    closed: list[bool] = []

    async def deltas() -> AsyncIterator[ChatDelta]:
        try:
            yield ChatDelta(content="wrong ")
            yield ChatDelta(content="right", resumed=Resumption("restart", "other", "it broke off"))
            yield ChatDelta(content=" and on", resumed=Resumption("continue", "third", "it broke off too"))
            yield ChatDelta(content=", never read")
        finally:
            closed.append(True)

    async def work() -> list[str]:
        async with aclosing(accumulate(deltas())) as answers:
            return [answer.text async for answer in limited(answers)]

    async def limited(answers: AsyncGenerator[Answer, None]) -> AsyncIterator[Answer]:
        for _ in range(3):
            yield await anext(answers)

    assert asyncio.run(work()) == ["wrong ", "right", "right and on"]
    assert closed == [True]
