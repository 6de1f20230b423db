"""The HTTP connections of one backend to one server: a pool for each event loop, opened on its first call.

Knows no API. httpx is imported when it is needed: a program whose links are asked nothing never pays for it.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from pyagent.core.addresses import is_loopback
from pyagent.core.hops import hop_headers
from pyagent.core.secrets import STRUCK

if TYPE_CHECKING:
    import httpx

_MAX_ERROR_BYTES = 64 * 1024
_LEAST_SECRET = 6
"""A header as short as `on` or `eu` is no secret, and its value may be any word."""


async def load_httpx() -> None:
    """Import httpx, in a thread: it takes 0.1 s and more, in which the event loop of a server answers others."""
    if "httpx" not in sys.modules:
        await asyncio.to_thread(import_module, "httpx")


class HttpPool:
    """Connections to the server of `url`, with its key and `headers` in each request.

    `read_seconds` bounds the silence between two pieces of an answer: bytes without one are silence too.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = 5.0,
        read_seconds: float = 120.0,
    ) -> None:
        self._is_secure = url.startswith("https:")
        self._is_loopback = is_loopback(url)
        self._headers = {**(headers or {}), **({"authorization": f"Bearer {api_key}"} if api_key else {})}
        self._secrets = [value.encode() for value in (api_key, *(headers or {}).values()) if value]
        self._seconds = (connect_seconds, read_seconds)
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    def client(self) -> httpx.AsyncClient:
        """Return the running event loop's client."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            connect, read = self._seconds
            client = httpx.AsyncClient(
                headers=self._headers,
                event_hooks={"request": [_tell_hops]},
                timeout=httpx.Timeout(connect=connect, read=read, write=read, pool=connect),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                verify=httpx.create_ssl_context()
                if self._is_secure
                else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # reading certificates takes 50 ms
                trust_env=not self._is_loopback,  # a proxy from the environment must not see what stays on this machine
            )
            self._client = (loop, client)
        return self._client[1]

    def without_secrets(self, body: bytes) -> bytes:
        """What the server said of an error, without the key and the headers that it was sent, should it quote them."""
        for secret in self._secrets:
            if len(secret) >= _LEAST_SECRET:
                body = body.replace(secret, STRUCK.encode())
        return body

    async def pieces(
        self, response: httpx.Response, read: Callable[[bytes], list[bytes]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield what `read` finds in the body of a streamed response.

        Raises `httpx.ReadTimeout` when it finds nothing for `read_seconds`, though bytes come: gateways keep a
        connection open with comments and blank lines.
        """
        import httpx

        heard_at = time.monotonic()
        async for chunk in response.aiter_bytes():
            found = read(chunk)
            now = time.monotonic()
            if not found and now - heard_at > self._seconds[1]:
                raise httpx.ReadTimeout("", request=response.request)
            for piece in found:
                yield piece
            if found:
                heard_at = time.monotonic()  # the time that the reader took is not the server's

    async def close(self) -> None:
        """Close the pool of the running event loop; a pool of an ended loop died with it. Safe to call twice."""
        if self._client and self._client[0] is asyncio.get_running_loop():
            await self._client[1].aclose()
        self._client = None


async def _tell_hops(request: httpx.Request) -> None:
    """Name the servers that a request has passed: one of them may be what it is sent to."""
    request.headers.update(hop_headers())


async def error_body(response: httpx.Response) -> bytes:
    """Return the beginning of an error's body, enough to say what it says."""
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    return body
