"""The prompts of POST /v1/completions: one or several, as text or as token ids, and their answers as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import cast

import msgspec

from pyagent.core.emulation.fulfil import summed
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, Usage

MAX_PROMPTS = 64
MAX_PROMPT_LOGPROBS = 300_000
"""Of all prompts of a request: each takes some hundred bytes until the last prompt is answered."""
_KINDS = "prompt takes a text, token ids, or a list of either"


def read_prompts(prompt: str | list[object]) -> list[str | tuple[int, ...]]:
    """The prompts of a body. Raises `RequestError` for what is none, or for too many."""
    given: list[object] = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise RequestError(f"prompt takes 1 to {MAX_PROMPTS} prompts, got {len(given)}", param="prompt")
    return [_read_prompt(one) for one in given]


def _read_prompt(given: object) -> str | tuple[int, ...]:
    if isinstance(given, str) and given:
        return given
    if _is_ids(given):
        return tuple(cast("list[int]", given))
    is_empty = isinstance(given, str | list) and not given
    raise RequestError("prompt is empty; send some text" if is_empty else _KINDS, param="prompt")


def _is_ids(given: object) -> bool:
    if not isinstance(given, list) or not given:
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) for one in cast("list[object]", given))


def asking(request: ChatRequest, prompt: str | tuple[int, ...]) -> ChatRequest:
    """The request with one of the prompts."""
    if isinstance(prompt, str):
        return msgspec.structs.replace(request, prompt=prompt)
    return msgspec.structs.replace(request, prompt_token_ids=prompt)


async def side_by_side(answers: Sequence[AsyncIterator[ChatDelta]], n: int) -> AsyncGenerator[ChatDelta, None]:
    """The deltas of several prompts' answers, `n` of each, as they come; the last one has the usage of all.

    What fails in one fails the whole; who leaves aborts them all.
    """
    deltas: asyncio.Queue[tuple[int, ChatDelta | BaseException | None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_read(index, answer, deltas)) for index, answer in enumerate(answers)]
    usage: list[Usage | None] = []
    num_open, num_logprobs = len(tasks), 0
    held: ChatDelta | None = None  # an end, until it is known whether it is the last one
    try:
        while num_open:
            index, delta = await deltas.get()
            if isinstance(delta, BaseException):
                raise delta
            if delta is None:
                num_open -= 1
                continue
            if held is not None:
                yield held
                held = None
            num_logprobs += _num_of_prompt(delta)
            if num_logprobs > MAX_PROMPT_LOGPROBS:
                text = (
                    f"these prompts have more than {MAX_PROMPT_LOGPROBS} log probabilities together; send fewer at once"
                )
                raise RequestError(text, param="prompt")
            delta = msgspec.structs.replace(delta, index=index * n + delta.index)
            if delta.finish_reason:
                usage.append(delta.usage)
                held = msgspec.structs.replace(delta, usage=None)
            else:
                yield delta
        if held is not None:
            yield msgspec.structs.replace(held, usage=summed([one for one in usage if one is not None]))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _num_of_prompt(delta: ChatDelta) -> int:
    """Return about how many log probabilities of a prompt a delta has: only an answer's first one has any."""
    entries = sum(len(entry) for entry in delta.prompt_logprobs if entry)
    is_echo = bool(delta.logprobs) and delta.logprobs[0].logprob is None
    return entries + (sum(1 + len(entry.top_logprobs) for entry in delta.logprobs) if is_echo else 0)


async def _read(
    index: int, answer: AsyncIterator[ChatDelta], deltas: asyncio.Queue[tuple[int, ChatDelta | BaseException | None]]
) -> None:
    try:
        async with aclosing(cast("AsyncGenerator[ChatDelta, None]", answer)) as stream:
            async for delta in stream:
                deltas.put_nowait((index, delta))
        deltas.put_nowait((index, None))
    except Exception as error:  # noqa: BLE001 - raised again by the one who reads them all
        deltas.put_nowait((index, error))
