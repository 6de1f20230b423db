"""One Ollama server's HTTP: a pool for each event loop, requests whole or as lines, its failures as our errors.

Closing a stream closes its connection, which stops Ollama's work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlsplit

import httpx

from pyagent.plugin import (
    BackendError,
    ConfigError,
    HttpPool,
    LineReader,
    LineTooLongError,
    PyAgentError,
    error_body,
    trace_headers,
)
from pyagent_ollama.wire import error_of


class Transport:
    """Sends requests to one server; `name` is what errors call it."""

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        url: str,
        name: str,
        *,
        api_key: str,
        connect_seconds: float,
        read_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.port is None or parts.port else ""
        except ValueError:
            host = ""
        if not host:
            raise ConfigError(f"ollama: takes ollama:MODEL or ollama:URL#MODEL, got the URL {url!r}", key="chain")
        self._url = url.rstrip("/")
        self._name = name
        self._pool = HttpPool(
            url, api_key=api_key, headers=headers, connect_seconds=connect_seconds, read_seconds=read_seconds
        )

    async def get(self, path: str) -> bytes:
        """The body of an answer to GET."""
        async with self._errors_mapped():
            response = await self._pool.client().get(f"{self._url}{path}")
        if response.status_code != 200:
            raise self._error_of(response, response.content)
        return response.content

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of an answer to POST."""
        async with self._errors_mapped():
            response = await self._pool.client().post(
                f"{self._url}{path}", content=body, headers=_JSON | trace_headers()
            )
        if response.status_code != 200:
            raise self._error_of(response, response.content)
        return response.content

    async def lines(self, path: str, body: bytes) -> AsyncGenerator[bytes]:
        """The lines of a streamed answer to POST."""
        headers = _JSON | trace_headers()
        async with (
            self._errors_mapped(),
            self._pool.client().stream("POST", f"{self._url}{path}", content=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise self._error_of(response, await error_body(response))
            reader = LineReader()
            read = self._pool.pieces(response, lambda chunk: [*filter(bytes.strip, reader.feed(chunk))])
            async with aclosing(read) as lines:
                async for line in lines:
                    yield self._pool.without_secrets(line) if b'"error"' in line else line
            if (rest := reader.rest()).strip():
                yield self._pool.without_secrets(rest) if b'"error"' in rest else rest

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._pool.close()

    def _error_of(self, response: httpx.Response, body: bytes) -> PyAgentError:
        return error_of(response.status_code, self._pool.without_secrets(body), self._name)

    @asynccontextmanager
    async def _errors_mapped(self) -> AsyncGenerator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, LineTooLongError, OSError) as error:
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
