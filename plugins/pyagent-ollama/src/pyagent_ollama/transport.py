"""One Ollama server's HTTP: a pool for each event loop, requests whole or as lines, its failures as our errors.

Closing a stream closes its connection, which stops Ollama's work.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx

from pyagent.plugin import BackendError, ConfigError, trace_headers
from pyagent_ollama.wire import error_of

_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024


class Transport:
    """Sends requests to one server; `name` is what errors call it."""

    def __init__(self, url: str, name: str, api_key: str, connect_seconds: float, read_seconds: float) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.port is None or parts.port else ""
        except ValueError:
            host = ""
        if not host:
            raise ConfigError(f"ollama: takes ollama:MODEL or ollama:URL#MODEL, got the URL {url!r}", key="chain")
        self._url = url.rstrip("/")
        self._name = name
        self._api_key = api_key
        self._seconds = (connect_seconds, read_seconds)
        self._is_loopback = _is_loopback(host)
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def get(self, path: str) -> bytes:
        """The body of an answer to GET."""
        async with self._errors_mapped():
            response = await self._http().get(f"{self._url}{path}")
        if response.status_code != 200:
            raise error_of(response.status_code, response.content, self._name)
        return response.content

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of an answer to POST."""
        async with self._errors_mapped():
            response = await self._http().post(f"{self._url}{path}", content=body, headers=_JSON | trace_headers())
        if response.status_code != 200:
            raise error_of(response.status_code, response.content, self._name)
        return response.content

    async def lines(self, path: str, body: bytes) -> AsyncGenerator[bytes]:
        """The lines of a streamed answer to POST."""
        headers = _JSON | trace_headers()
        async with (
            self._errors_mapped(),
            self._http().stream("POST", f"{self._url}{path}", content=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise error_of(response.status_code, await _head(response), self._name)
            pending = b""
            async for piece in response.aiter_bytes():
                *lines, pending = (pending + piece).split(b"\n")
                if len(pending) > _MAX_LINE_BYTES:
                    raise BackendError(f"{self._name} sent a line of over 16 MiB", backend=self._name, retryable=False)
                for line in filter(None, map(bytes.strip, lines)):
                    yield line
            if pending.strip():
                yield pending

    async def close(self) -> None:
        """Close the pool of the running event loop; a pool of an ended loop died with it."""
        if self._client and self._client[0] is asyncio.get_running_loop():
            await self._client[1].aclose()
        self._client = None

    def _http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            connect, read = self._seconds
            client = httpx.AsyncClient(
                headers={"authorization": f"Bearer {self._api_key}"} if self._api_key else None,
                timeout=httpx.Timeout(connect=connect, read=read, write=read, pool=connect),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                # reading the certificates takes 50 ms
                verify=self._url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                trust_env=not self._is_loopback,  # a proxy from the environment must not see what stays on this machine
            )
            self._client = (loop, client)
        return self._client[1]

    @asynccontextmanager
    async def _errors_mapped(self) -> AsyncGenerator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            raise BackendError(f"{self._name}: {self._why(error)}", backend=self._name) from error

    def _why(self, error: Exception) -> str:
        match error:
            case httpx.ConnectTimeout() | httpx.ConnectError():
                return f"Ollama is not reachable at {self._url}; start it with: ollama serve"
            case httpx.ReadTimeout():
                return "sent nothing for too long (backends.timeout_seconds)"
            case httpx.RemoteProtocolError() | httpx.ReadError():
                return "closed the connection in mid-answer"
            case _:
                return str(error) or type(error).__name__


_JSON = {"content-type": "application/json"}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _head(response: httpx.Response) -> bytes:
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > _MAX_ERROR_BYTES:
            break
    return body
