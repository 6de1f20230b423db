"""A loopback server that sends exactly the bytes a test gives it, and an OpenAI-compatible client to ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pyagent.core.backends import Answer, collect
from pyagent.core.messages import (
    ChatRequest,
    Message,
)
from pyagent.infrastructure.backends.openai import (
    OpenAIBackend,
)

Piece = bytes | float
Play = Callable[[Any], Sequence[Piece]]


class WireServer:
    """Plays one script for every request: bytes go out as they are, numbers are seconds of silence; hangs up.

    With `play` the script follows from the request's body.
    """

    def __init__(self, *script: Piece, play: Play | None = None) -> None:
        self.script = script
        self.play = play
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.num_left_early = 0
        self.left = asyncio.Event()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in rest if h)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((line, headers, json.loads(body) if body else None))
            script = self.script if self.play is None else self.play(self.requests[-1][2])
            for piece in script:
                if isinstance(piece, bytes):
                    writer.write(piece)
                    await writer.drain()
                elif await self._is_gone(reader, piece):
                    self.num_left_early += 1
                    self.left.set()
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _is_gone(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(reader.read(1), seconds) == b""
        except TimeoutError:
            return False


@asynccontextmanager
async def serving(*script: Piece, play: Play | None = None) -> AsyncIterator[WireServer]:
    wire = WireServer(*script, play=play)
    server = await asyncio.start_server(wire.handle, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield wire
    finally:
        server.close()
        await server.wait_closed()


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", "connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def token(text: str, finish: str | None = None) -> bytes:
    return event(model="served", choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
)


DONE = b"data: [DONE]\n\n"


WHOLE: tuple[Piece, ...] = (head(), token("Hel"), token("lo"), token("", "stop"), USAGE, DONE)


def ask(
    script: tuple[Piece, ...], request: ChatRequest | None = None, *, play: Play | None = None, **options: Any
) -> tuple[Answer, WireServer]:
    async def main() -> tuple[Answer, WireServer]:
        async with serving(*script, play=play) as wire:
            backend = OpenAIBackend(wire.url, **({"model": "m"} | options))
            try:
                return await collect(backend.chat(request or chat())), wire
            finally:
                await backend.close()

    return asyncio.run(main())


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=[Message("user", "hi")], **fields)


def answered(body: object, status: str = "200 OK") -> tuple[Piece, ...]:
    return (head(status, "application/json"), json.dumps(body).encode())
