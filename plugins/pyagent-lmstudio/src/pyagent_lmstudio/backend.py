"""LM Studio as a `Backend`, by its official SDK: one client for an event loop, checked before each answer.

The SDK has no time limits and hands out dead sockets; here every wait has a limit and a client that does not reply is
replaced once. Closing the iterator cancels the prediction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import lmstudio

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
from pyagent_lmstudio.prediction import (
    config_of,
    history_of,
    last_delta,
    read_choice,
    refuse_what_is_missing,
    schema_of,
)

REST_HOST = "127.0.0.1:1234"
"""Where the OpenAI-style server listens; it answers the websockets too. The SDK knows the app's own ports."""
logging.getLogger("AsyncWebsocketHandler").setLevel(logging.CRITICAL)  # the SDK logs what it raises; once is enough

_HEALTH_SECONDS = 5.0
_CLOSE_SECONDS = 2.0


class LMStudioBackend:
    """One LM Studio. `read_seconds` bounds the silence between two pieces of an answer, or of a model's loading."""

    def __init__(
        self,
        url: str = "",
        *,
        model: str = "",
        name: str = "lmstudio",
        connect_seconds: float = 5.0,
        read_seconds: float = 120.0,
    ) -> None:
        self.name = name
        self._host = _host_of(url) if url else None
        self._model = model
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._client: tuple[asyncio.AbstractEventLoop, lmstudio.AsyncClient] | None = None
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def models(self) -> list[ModelInfo]:
        """What LM Studio has on disk, and whether it is loaded."""
        async with self._errors_mapped():
            client = await self._connected()
            async with asyncio.timeout(self._connect_seconds):
                downloaded = await client.llm.list_downloaded()
                loaded = {model.identifier for model in await client.llm.list_loaded()}
        return [
            ModelInfo(
                id=model.model_key,
                backend=self.name,
                context_length=model.info.max_context_length,
                architecture=model.info.architecture,
                size_bytes=model.info.size_bytes,
                is_loaded=model.model_key in loaded,
            )
            for model in downloaded
        ]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta]:
        """Stream the answer, loading the model first when need be; closing the iterator cancels the prediction."""
        refuse_what_is_missing(request, self.name)
        deadline = Deadline.after(request.timeout_seconds)
        wanted = request.response_format
        choices = (wanted.choice or []) if wanted and wanted.type == "choice" else None
        held: list[str] = []
        async with self._errors_mapped():
            client = await deadline.bound(self._connected(), self.name)
            model = await deadline.bound(self._load(client, request.model), self.name)
            stream = await model.respond_stream(
                cast("Any", history_of(request)),
                response_format=schema_of(wanted),
                config=cast("Any", config_of(request.sampling, wanted)),
            )
            fragments = aiter(stream)
            try:
                while (fragment := await deadline.bound(self._next(fragments), self.name)) is not None:
                    delta = self._delta(fragment, model.identifier)
                    if choices is not None:
                        held.append(delta.content if delta else "")
                    elif delta:
                        yield delta
                stats = self._stats(stream)
            finally:
                await _finish(stream, fragments)
        last = last_delta(stats, model.identifier, self.name)
        if choices is not None:
            text = read_choice("".join(held), choices, self.name)
            yield ChatDelta(content=text, model=model.identifier, backend=self.name)
        yield last

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Not in this version."""
        raise RequestError(f"{self.name} does not embed in this version; use an embedding backend", param="model")

    async def health(self) -> Health:
        """Ready when LM Studio lists its models, and the one this link names is among them."""
        try:
            found = [model.id for model in await Deadline.after(_HEALTH_SECONDS).bound(self.models(), "its models")]
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error).removeprefix(f"{self.name}: "))
        if self._model and self._model not in found:
            detail = (
                f"has no model {self._model!r}, but {', '.join(found) or 'none'}; get it with: lms get {self._model}"
            )
            return Health(is_ready=False, detail=detail, models=found)
        return Health(is_ready=True, models=found)

    async def close(self) -> None:
        """Close the client of the running event loop; that of an ended loop died with it."""
        held, self._client = self._client, None
        if held and held[0] is asyncio.get_running_loop():
            await _close(held[1])

    # -- connection --------------------------------------------------------------------------------------------------

    async def _connected(self) -> lmstudio.AsyncClient:
        """A client that has just answered: the one held, or a new one when that is silent."""
        async with self._lock():
            loop = asyncio.get_running_loop()
            if self._client and self._client[0] is loop:
                client = self._client[1]
                if await _answers(client, self._connect_seconds):
                    return client
                self._client = None
                await _close(client)
            client = await self._open()
            self._client = (loop, client)
            return client

    def _lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        return self._opening[1]

    async def _open(self) -> lmstudio.AsyncClient:
        async with asyncio.timeout(self._connect_seconds):
            host = self._host or await lmstudio.AsyncClient.find_default_local_api_host() or REST_HOST
            if not await lmstudio.AsyncClient.is_valid_api_host(host):
                text = f"LM Studio is not reachable at {host}; start it with: lms server start"
                raise BackendError(f"{self.name}: {text}", backend=self.name)
            client = lmstudio.AsyncClient(host)
            try:
                return await client.__aenter__()
            except BaseException:
                await _close(client)
                raise

    @asynccontextmanager
    async def _errors_mapped(self) -> AsyncGenerator[None]:
        try:
            yield
        except lmstudio.LMStudioModelNotFoundError as error:
            text = f"{self.name}: {_first_line(error)}; get it with: lms get MODEL"
            raise RequestError(text, param="model", code="model_not_found") from error
        except lmstudio.LMStudioWebsocketError as error:
            raise BackendError(f"{self.name} closed the connection: {_first_line(error)}", backend=self.name) from error
        except (lmstudio.LMStudioError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            text = "sent nothing for too long" if isinstance(error, TimeoutError) else _first_line(error)
            raise BackendError(f"{self.name}: {text}", backend=self.name) from error

    # -- prediction --------------------------------------------------------------------------------------------------

    async def _load(self, client: lmstudio.AsyncClient, asked: str) -> lmstudio.AsyncLLM:
        """The model to ask, loaded; the limit counts anew with each sign of progress."""
        if asked and self._model and asked != self._model:
            text = f"{self.name} serves {self._model!r}, not {asked!r}"
            raise RequestError(text, param="model", code="model_not_found")
        key = asked or self._model or await self._any_model(client)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._read_seconds) as timer:
            return await client.llm.model(
                key, on_load_progress=lambda _: timer.reschedule(loop.time() + self._read_seconds)
            )

    async def _any_model(self, client: lmstudio.AsyncClient) -> str:
        async with asyncio.timeout(self._connect_seconds):
            keys = [model.identifier for model in await client.llm.list_loaded()]
            keys = keys or [model.model_key for model in await client.llm.list_downloaded()]
        if not keys:
            text = f"{self.name} has no model; get one with: lms get MODEL"
            raise BackendError(text, backend=self.name, retryable=False)
        return keys[0]

    async def _next(
        self, fragments: AsyncIterator[lmstudio.LlmPredictionFragment]
    ) -> lmstudio.LlmPredictionFragment | None:
        async with asyncio.timeout(self._read_seconds):
            try:
                return await anext(fragments, None)
            except lmstudio.LMStudioRuntimeError as error:  # the channel was closed before its last message
                raise self._ended_early() from error

    def _delta(self, fragment: lmstudio.LlmPredictionFragment, model: str) -> ChatDelta | None:
        match fragment.reasoning_type:
            case "none":
                return ChatDelta(content=fragment.content, model=model, backend=self.name)
            case "reasoning":
                return ChatDelta(reasoning=fragment.content, model=model, backend=self.name)
            case _:
                return None

    def _stats(self, stream: lmstudio.AsyncPredictionStream) -> lmstudio.LlmPredictionStats:
        try:
            return stream.result().stats
        except lmstudio.LMStudioRuntimeError as error:
            raise self._ended_early() from error

    def _ended_early(self) -> BackendError:
        return BackendError(f"{self.name} ended its answer without saying it was done", backend=self.name)


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme == "http" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_right = False
    if not is_right:
        raise ConfigError(
            f"lmstudio: takes lmstudio:MODEL or lmstudio:http://HOST:PORT#MODEL, got {url!r}", key="chain"
        )
    return urlsplit(url).netloc


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    text = ": ".join(line.removesuffix(":") for line in list(filter(None, lines))[:2])
    return text or type(error).__name__


async def _answers(client: lmstudio.AsyncClient, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await client.llm.list_loaded()
    except (lmstudio.LMStudioError, OSError, RuntimeError):
        return False
    return True


async def _finish(
    stream: lmstudio.AsyncPredictionStream, fragments: AsyncIterator[lmstudio.LlmPredictionFragment]
) -> None:
    """Cancel the prediction unless it is over, and give its channel back."""
    with suppress(lmstudio.LMStudioError, OSError, RuntimeError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await stream.cancel()
            await cast("AsyncGenerator[lmstudio.LlmPredictionFragment]", fragments).aclose()
            await stream.aclose()


async def _close(client: lmstudio.AsyncClient) -> None:
    with suppress(lmstudio.LMStudioError, OSError, RuntimeError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.aclose()
