"""A server behind a URL: the transport of the package, with bounded answers and the last refusal remembered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client

from pyagent.infrastructure.mcp.nesting import shallow

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_ANSWER_BYTES = 8 << 20
"""Longest answer that is one JSON document, and longest event of a stream of them."""
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 300.0
_REFUSAL = 400
_DATA = b"data:"


@dataclass(slots=True)
class Site:
    """A server's URL. `fault` says why its connection ended, where that is known."""

    url: str
    headers: Mapping[str, str]
    fault: str = ""

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[TransportStreams]:
        """Yield what reads the server's messages and what sends it some."""
        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
        headers = {"accept-encoding": "identity", **self.headers}
        try:
            async with (
                httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [self._look]}) as client,
                streamable_http_client(self.url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
            ):
                yield streams
        except BaseExceptionGroup as errors:
            if errors.subgroup(httpx2.ConnectError) is not None:
                parts = urlsplit(self.url)  # without its query, which may hold a key
                self.fault = f"nothing answers at {parts.scheme}://{parts.netloc}{parts.path}"
            raise

    def explain(self) -> str:
        """Return why the connection ended."""
        return self.fault or "its connection ended"

    async def _look(self, response: httpx2.Response) -> None:
        """Remember a refusal, and bound the answer."""
        if response.status_code >= _REFUSAL:
            self.fault = f"it answers {response.status_code} {response.reason_phrase}".rstrip()
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            self.fault = "it packs its answers, which it was asked not to"  # a megabyte may unpack to a gigabyte
            raise httpx2.StreamError(self.fault)
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = (_Events if is_events else _Document)(response.stream)


class _Document(httpx2.AsyncByteStream):
    """One JSON document: no longer than the bound, and nested no deeper than the package reads."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        document = bytearray()
        async for piece in self._inner:
            document += piece
            if len(document) > MAX_ANSWER_BYTES:
                raise httpx2.StreamError(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        yield shallow(bytes(document))

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()


class _Events(_Document):
    """A stream of events, a whole line at a time, of which those with data are such documents."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        begun = bytearray()
        async for piece in self._inner:
            end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            begun += piece[:end]
            if end:
                yield b"".join(map(_shallow_line, bytes(begun).splitlines(keepends=True)))
                begun.clear()
            begun += piece[end:]
            if len(begun) > MAX_ANSWER_BYTES:
                raise httpx2.StreamError(f"an event of more than {MAX_ANSWER_BYTES >> 20} MiB")
        yield bytes(begun)


def _shallow_line(line: bytes) -> bytes:
    return _DATA + shallow(line[len(_DATA) :]) if line.startswith(_DATA) else line
