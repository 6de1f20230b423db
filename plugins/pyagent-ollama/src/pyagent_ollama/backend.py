"""Ollama's REST interface as a `Backend`: NDJSON in a stream; closing the iterator closes the connection.

A stream that ends without `done` is a failure, whatever its status said. The pool belongs to one event loop and is made
on first use.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlsplit

import httpx

from pyagent.plugin import (
    BackendError,
    ChatDelta,
    ChatRequest,
    ConfigError,
    Deadline,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    PyAgentError,
    RequestError,
)
from pyagent_ollama.wire import (
    Chunk,
    decode_chunk,
    decode_tags,
    delta_of,
    encode_chat,
    error_of,
    last_delta,
    read_choice,
)

_HEALTH_SECONDS = 5.0
_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024


class OllamaBackend:
    """One Ollama server. `read_seconds` bounds the silence between two pieces of an answer."""

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        name: str = "ollama",
        connect_seconds: float = 5.0,
        read_seconds: float = 120.0,
    ) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.port is None or parts.port else ""
        except ValueError:
            host = ""
        if not host:
            raise ConfigError(f"ollama: takes ollama:MODEL or ollama:URL#MODEL, got the URL {url!r}", key="chain")
        self.name = name
        self._url = url.rstrip("/")
        self._model = model
        self._seconds = (connect_seconds, read_seconds)
        self._is_loopback = _is_loopback(host)
        self._client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None

    async def models(self) -> list[ModelInfo]:
        """What Ollama has on disk."""
        async with self._errors_mapped():
            response = await self._http().get(f"{self._url}/api/tags")
        if response.status_code != 200:
            raise error_of(response.status_code, response.content, self.name)
        return decode_tags(response.content, self.name)

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta]:
        """Stream the answer; closing the iterator closes the connection, which stops Ollama's work."""
        deadline = Deadline.after(request.timeout_seconds)
        model = await deadline.bound(self._pick_model(request), self.name)
        wanted = request.response_format
        choices = (wanted.choice or []) if wanted and wanted.type == "choice" else None
        held: list[str] = []
        has_calls = False
        async with aclosing(self._chunks(encode_chat(request, model, self.name))) as chunks:
            while (chunk := await deadline.bound(anext(chunks, None), self.name)) is not None:
                delta = delta_of(chunk, model, self.name)
                has_calls = has_calls or bool(chunk.message.tool_calls)
                if delta and choices is not None:
                    held.append(delta.content)
                elif delta:
                    yield delta
                if chunk.done:
                    break
            else:
                raise BackendError(f"{self.name} ended its answer without saying it was done", backend=self.name)
        if choices is not None:
            yield ChatDelta(content=read_choice("".join(held), choices, self.name), model=model, backend=self.name)
        yield last_delta(chunk, model, self.name, has_calls=has_calls)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Not in this version."""
        raise RequestError(f"{self.name} does not embed in this version; use an embedding backend", param="model")

    async def health(self) -> Health:
        """Ready when Ollama lists its models, and the one this link names is among them."""
        try:
            found = [model.id for model in await Deadline.after(_HEALTH_SECONDS).bound(self.models(), "its models")]
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error).removeprefix(f"{self.name}: "))
        if self._model and _full(self._model) not in found:
            detail = f"has no model {self._model!r}; get it with: ollama pull {self._model}"
            return Health(is_ready=False, detail=detail, models=found)
        return Health(is_ready=True, models=found)

    async def close(self) -> None:
        """Close the pool of the running event loop; a pool of an ended loop died with it."""
        if self._client and self._client[0] is asyncio.get_running_loop():
            await self._client[1].aclose()
        self._client = None

    async def _pick_model(self, request: ChatRequest) -> str:
        """The model to ask for: the request's, the link's, or the first that Ollama lists."""
        if request.model and self._model and _full(request.model) != _full(self._model):
            text = f"{self.name} serves {self._model!r}, not {request.model!r}"
            raise RequestError(text, param="model", code="model_not_found")
        if request.model or self._model:
            return request.model or self._model
        found = await self.models()
        if not found:
            raise BackendError(
                f"{self.name} has no model; try: ollama pull llama3.2", backend=self.name, retryable=False
            )
        return found[0].id

    async def _chunks(self, body: bytes) -> AsyncGenerator[Chunk]:
        headers = {"content-type": "application/json"}
        async with (
            self._errors_mapped(),
            self._http().stream("POST", f"{self._url}/api/chat", content=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise error_of(response.status_code, await _head(response), self.name)
            pending = b""
            async for piece in response.aiter_bytes():
                *lines, pending = (pending + piece).split(b"\n")
                if len(pending) > _MAX_LINE_BYTES:
                    raise BackendError(f"{self.name} sent a line of over 16 MiB", backend=self.name, retryable=False)
                for line in filter(None, map(bytes.strip, lines)):
                    yield decode_chunk(line, self.name)
            if pending.strip():
                yield decode_chunk(pending, self.name)

    def _http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            connect, read = self._seconds
            client = httpx.AsyncClient(
                timeout=httpx.Timeout(connect=connect, read=read, write=read, pool=connect),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                trust_env=not self._is_loopback,  # a proxy from the environment must not see what stays on this machine
            )
            self._client = (loop, client)
        return self._client[1]

    @asynccontextmanager
    async def _errors_mapped(self) -> AsyncGenerator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            raise BackendError(f"{self.name}: {self._why(error)}", backend=self.name) from error

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


def _full(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"


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
