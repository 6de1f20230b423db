"""Bodies of JSON requests, bounded in length and time, and what HTTP's own rules turn away."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from pyagent.core.settings import Server
from pyagent.infrastructure.server.errors import refusal

_MAX_DROPPED_BYTES = 8_000_000
_MAX_SMALL_BYTES = 2_000_000
"""Of the bodies of PyAgent's own routes, which hold one prompt at most."""
_LINGER_SECONDS = 0.5
"""How long the body of a request that is refused by its length is read on: a client that still sends hears nothing."""


class RefusedError(Exception):
    """A request that HTTP's own rules turn away."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.error = refusal(status, message, code)


async def read_body(request: Request, settings: Server) -> bytes:
    """The body of a JSON request that is read on the event loop: never more of it than that takes, and no later."""
    return b"".join(await read_pieces(request, settings, _MAX_SMALL_BYTES))


async def read_pieces(request: Request, settings: Server, max_bytes: int | None = None) -> list[bytes]:
    """Return the body as `read_body` has it, as it came: to put a large one together takes its time."""
    _check_encoding(request.headers)
    kind = _content_type(request.headers)
    if kind != "application/json" and not request.url.path.startswith("/api/"):
        raise _wrong_type(kind)
    most = min(settings.max_body_bytes, max_bytes or settings.max_body_bytes)
    which = " (server.max_body_bytes)" if most == settings.max_body_bytes else ""
    too_large = RefusedError(413, f"the body is larger than {most} bytes{which}", "body_too_large")
    if int(request.headers.get("content-length", "0")) > most:
        await _linger(request)
        raise too_large
    try:
        async with asyncio.timeout(settings.request_seconds):
            pieces = await _read(request, most)
    except TimeoutError:
        text = f"the body was not there within {settings.request_seconds:g} s (server.request_seconds)"
        raise RefusedError(408, text, "request_timeout") from None
    if pieces is None:
        raise too_large
    return pieces


def check_page(method: str, headers: Headers) -> None:
    """Raise `RefusedError` for what a page of another origin can have a browser send without asking first.

    Browsers ask before they send JSON; they name a page's origin, or where it stands, with every other POST.
    """
    is_cross = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or "origin" in headers
    if method not in {"GET", "HEAD", "OPTIONS"} and is_cross and _content_type(headers) != "application/json":
        raise _wrong_type(_content_type(headers))


def _check_encoding(headers: Headers) -> None:
    """Raise `RefusedError` for a body that is compressed, or not in UTF-8: it is read as it comes."""
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in {"", "identity"}:
        text = f"send the body uncompressed, without Content-Encoding, got {coding:.40}"
        raise RefusedError(415, text, "wrong_content_encoding")
    parameters = headers.get("content-type", "").lower().split(";")[1:]
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        charset = value.strip().strip('"')
        if name.strip() == "charset" and charset not in {"utf-8", "utf8", "us-ascii"}:
            raise RefusedError(415, f"send JSON in UTF-8, got charset={charset:.40}", "wrong_charset")


def _content_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _wrong_type(kind: str) -> RefusedError:
    return RefusedError(415, f"send Content-Type: application/json, got {kind or 'none'}", "wrong_content_type")


async def _linger(request: Request) -> None:
    """Read some of a body that is not wanted and drop it, unless the client waits to be told to send it."""
    if "expect" not in request.headers:
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_LINGER_SECONDS):
                await _read(request, 0)


async def _read(request: Request, limit: int) -> list[bytes] | None:
    """Return the body's pieces, None when it is longer.

    Some of the rest is read and dropped, so that the client hears the answer.
    """
    pieces, num_bytes, has_more = list[bytes](), 0, True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        num_bytes += len(chunk)
        if num_bytes <= limit:
            pieces.append(chunk)
        elif num_bytes > limit + _MAX_DROPPED_BYTES:
            break
    return pieces if num_bytes <= limit else None
