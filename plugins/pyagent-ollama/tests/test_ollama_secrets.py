"""Keys that an Ollama server, or a gateway before it, quotes in its errors: callers never read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pyagent_ollama.backend import OllamaBackend

from pyagent.plugin import ChatRequest, Message, PyAgentError, collect

KEY, GATEWAY_KEY = "my-own-long-word", "another-long-word"
QUOTING = f'{{"error": "no access with {KEY} and {GATEWAY_KEY}"}}'.encode()
PIECE = b'{"model": "m", "message": {"role": "assistant", "content": "a"}, "done": false}\n'


@asynccontextmanager
async def serving(response: bytes) -> AsyncIterator[str]:
    """A server on loopback that answers each request with these bytes, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert KEY in head.decode()
        writer.write(response)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def responded(status: str, body: bytes, kind: str = "application/x-ndjson") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "response",
    [
        responded("401 Unauthorized", QUOTING),
        responded("400 Bad Request", QUOTING),
        responded("500 Internal Server Error", QUOTING),
        responded("502 Bad Gateway", QUOTING.replace(b'"error"', b'"detail"')),
        responded("403 Forbidden", f"<html>{KEY} {GATEWAY_KEY}</html>".encode(), "text/html"),
        responded("200 OK", QUOTING + b"\n"),
        responded("200 OK", PIECE + QUOTING + b"\n"),
        responded("200 OK", PIECE + QUOTING),
    ],
)
def test_key_that_the_server_quotes_is_struck_out(response: bytes) -> None:
    """Neither the API key nor a header's value is in an error, whatever the status and wherever in the stream it is."""

    async def ask() -> None:
        async with serving(response) as url:
            backend = OllamaBackend(url, model="m", api_key=KEY, headers={"x-gateway": GATEWAY_KEY}, read_seconds=5.0)
            try:
                await collect(backend.chat(ChatRequest(messages=[Message("user", "hi")])))
            finally:
                await backend.close()

    with pytest.raises(PyAgentError) as caught:
        asyncio.run(ask())
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    assert KEY not in shown
    assert GATEWAY_KEY not in shown
