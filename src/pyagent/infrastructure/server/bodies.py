"""Bodies of JSON requests, bounded in length and time, and what HTTP's own rules turn away."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from pyagent.core.settings import Server
from pyagent.infrastructure.server.errors import refusal

_MAX_DROPPED_BYTES = 8_000_000


class RefusedError(Exception):
    """A request that HTTP's own rules turn away."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.error = refusal(status, message, code)


async def read_body(request: Request, settings: Server) -> bytes:
    """The body of a JSON request, never more of it than the settings allow, and no later."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not _is_plain_client(request):
        raise RefusedError(415, f"send Content-Type: application/json, got {kind or 'none'}", "wrong_content_type")
    try:
        async with asyncio.timeout(settings.request_seconds):
            body = await _read(request, settings.max_body_bytes)
    except TimeoutError:
        text = f"the body was not there within {settings.request_seconds:g} s (server.request_seconds)"
        raise RefusedError(408, text, "request_timeout") from None
    if body is None:
        text = f"the body is larger than {settings.max_body_bytes} bytes (server.max_body_bytes)"
        raise RefusedError(413, text, "body_too_large")
    return body


async def _read(request: Request, limit: int) -> bytes | None:
    """The body, None when it is longer. Some of the rest is read and dropped, so that the client hears the answer."""
    body, num_bytes, has_more = bytearray(), 0, True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        num_bytes += len(chunk)
        if num_bytes <= limit:
            body += chunk
        elif num_bytes > limit + _MAX_DROPPED_BYTES:
            break
    return bytes(body) if num_bytes <= limit else None


def _is_plain_client(request: Request) -> bool:
    """Whether what a body is declared as may be passed over.

    A page in a browser must declare JSON, since browsers then ask first; they name its origin with every POST. Ollama's
    clients, curl among them, are used to a server that does not look.
    """
    return request.url.path.startswith("/api/") and "origin" not in request.headers
