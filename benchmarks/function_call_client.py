"""Asks for function calls as a user does: by the `openai` client, whole or streamed, and again with results."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from bfcl_cases import Case
from openai import AsyncOpenAI, OpenAIError

_TIMEOUT_SECONDS = 600.0
_SECOND_TURN_TOKENS = 32


@dataclass(slots=True)
class Reply:
    """An answer: text, calls as names and arguments as they were written, or what went wrong."""

    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    finish_reason: str = ""
    error: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether `max_tokens` ended it."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Asked:
    """The replies to cases, in their order, and how long all of them took."""

    replies: list[Reply]
    seconds: float


class Client:
    """Asks one server, some cases at once; shows how far it is."""

    def __init__(self, url: str, max_tokens: int, num_at_once: int, dry_multiplier: float = 0.0) -> None:
        self._url = url
        self._num_at_once = num_at_once
        self._fields: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": max_tokens}
        if dry_multiplier:  # by the names that PyAgent and llama.cpp's server share
            self._fields["extra_body"] = {"dry_multiplier": dry_multiplier}

    async def ask(self, cases: Sequence[Case], *, stream: bool = False, **fields: Any) -> Asked:
        """Ask all cases; `fields` are further ones of each request."""
        one = self._streamed if stream else self._whole
        return await self._all(
            f"{fields.get('tool_choice')}{', streamed' if stream else ''}",
            [lambda api, case=case: one(api, case, case.messages, fields) for case in cases],
        )

    async def ask_again(self, cases: Sequence[Case], first: Asked) -> Asked:
        """Ask each case a second time, with its calls of the first and a result of each."""
        return await self._all(
            "second turn",
            [
                lambda api, case=case, reply=reply: self._whole(
                    api, case, _continued(case, reply), {"max_tokens": _SECOND_TURN_TOKENS}
                )
                for case, reply in zip(cases, first.replies, strict=True)
                if reply.calls and not reply.is_cut
            ],
        )

    async def _all(self, name: str, asks: Sequence[Callable[[AsyncOpenAI], Coroutine[Any, Any, Reply]]]) -> Asked:
        gate, num_done, start = asyncio.Semaphore(self._num_at_once), 0, time.perf_counter()

        async def one(ask: Callable[[AsyncOpenAI], Coroutine[Any, Any, Reply]]) -> Reply:
            nonlocal num_done
            async with gate:
                try:
                    return await ask(api)
                except OpenAIError as error:
                    return Reply(error=f"{type(error).__name__}: {error}")
                finally:
                    num_done += 1
                    print(f"\r{self._url} {name}: {num_done} of {len(asks)} ", end="", file=sys.stderr, flush=True)

        async with AsyncOpenAI(
            base_url=f"{self._url}/v1", api_key="none", timeout=_TIMEOUT_SECONDS, max_retries=0
        ) as api:
            replies = await asyncio.gather(*map(one, asks))
        print(file=sys.stderr)
        return Asked(list(replies), time.perf_counter() - start)

    async def _whole(self, api: AsyncOpenAI, case: Case, messages: list[Any], fields: dict[str, Any]) -> Reply:
        tools: Any = case.tools
        answer = await api.chat.completions.create(messages=messages, tools=tools, **(self._fields | fields))
        choice = answer.choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        return Reply(choice.message.content or "", calls, choice.finish_reason)

    async def _streamed(self, api: AsyncOpenAI, case: Case, messages: list[Any], fields: dict[str, Any]) -> Reply:
        tools: Any = case.tools
        reply, calls = Reply(), dict[int, list[str]]()
        async for chunk in await api.chat.completions.create(
            messages=messages, tools=tools, stream=True, **(self._fields | fields)
        ):
            for choice in chunk.choices:
                reply.content += choice.delta.content or ""
                reply.finish_reason = choice.finish_reason or reply.finish_reason
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(piece.index, ["", ""])
                    call[0] += piece.function.name or ""
                    call[1] += piece.function.arguments or ""
        reply.calls = [(name, arguments) for name, arguments in calls.values()]
        return reply


def _continued(case: Case, reply: Reply) -> list[dict[str, Any]]:
    """The conversation with the calls made, and a result of each."""
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(reply.calls)
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"result": "done"})} for call in calls
    ]
    return [*case.messages, {"role": "assistant", "content": reply.content or None, "tool_calls": calls}, *results]
