"""LM Studio as a `Backend`, by its official SDK: one client for an event loop, checked before each answer.

The SDK has no time limits and hands out dead sockets; here every wait has a limit and a client that does not reply is
replaced once. Closing the iterator cancels the prediction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import lmstudio

from pyagent.plugin import (
    Abilities,
    BackendError,
    Capabilities,
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
    Unsupported,
    UnsupportedError,
    Usage,
    fulfil,
)
from pyagent_lmstudio.options import LinkOptions
from pyagent_lmstudio.own_models import OwnModels
from pyagent_lmstudio.prediction import (
    config_of,
    delta_of,
    history_of,
    image_bytes,
    image_urls,
    last_delta,
    schema_of,
)

REST_HOST = "127.0.0.1:1234"
"""Where the OpenAI-style server listens; it answers the websockets too. The SDK knows the app's own ports."""
logging.getLogger("_AsyncLMStudioWebsocket").setLevel(logging.INFO)  # at debug, the SDK logs whole conversations
logging.getLogger("AsyncWebsocketHandler").setLevel(logging.CRITICAL)  # the SDK logs what it raises; once is enough

_ABILITIES: Abilities = frozenset(
    {
        *("prompt", "images", "tools"),
        *("json_object", "json_schema"),
        *("max_tokens", "stop", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    }
)
_HEALTH_SECONDS = 5.0
_CLOSE_SECONDS = 2.0


class LMStudioBackend:
    """One LM Studio. `read_seconds` bounds the silence between two pieces of an answer, or of a model's loading."""

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        url: str = "",
        *,
        model: str = "",
        name: str = "lmstudio",
        options: LinkOptions = LinkOptions(),  # noqa: B008 - frozen
        connect_seconds: float = 5.0,
        read_seconds: float = 120.0,
        unsupported: Unsupported = "emulate",
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(abilities=_ABILITIES, gives_several=True, url=url)
        self._options = options
        self._unsupported: Unsupported = unsupported
        self._own = OwnModels()
        self._host = _host_of(url) if url else None
        self._model = model
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._client: tuple[asyncio.AbstractEventLoop, lmstudio.AsyncClient] | None = None
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def models(self) -> list[ModelInfo]:
        """What LM Studio has on disk, and whether it is loaded."""
        async with self._errors_mapped():
            client, _ = await self._connected()
            async with asyncio.timeout(self._connect_seconds):
                downloaded = await client.list_downloaded_models()
                loaded = {model.identifier for model in await client.list_loaded_models()}
        return [
            ModelInfo(
                id=model.model_key,
                backend=self.name,
                context_length=model.info.max_context_length,
                architecture=model.info.architecture,
                size_bytes=model.info.size_bytes,
                is_loaded=model.model_key in loaded,
                reads_images=getattr(model.info, "vision", False),  # an embedding model's has no such field
            )
            for model in downloaded
        ]

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Stream the answer, loading the model first when need be; closing the iterator cancels the prediction."""
        return fulfil(request, self._answer, _ABILITIES, backend=self.name, unsupported=self._unsupported)

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        deadline = Deadline.after(request.timeout_seconds)
        num_calls = 0
        async with self._errors_mapped():
            client, loaded = await deadline.bound(self._connected(), self.name)
            key = await deadline.bound(self._pick_model(client, request.model, loaded), self.name)
            model = loaded.get(key) or await deadline.bound(self._load(client, client.llm, key), self.name)
            with self._own.in_use(model.identifier):
                stream = await deadline.bound(self._start(client, model, request), self.name)
                # the SDK hands tool calls out in `act` alone, which would run them here
                events = stream._iter_events()  # pyright: ignore[reportPrivateUsage]
                try:
                    while (event := await deadline.bound(self._next(events), self.name)) is not None:
                        delta = delta_of(event, model.identifier, self.name, num_calls)
                        if delta is not None:
                            num_calls += len(delta.tool_calls)
                            yield delta
                    stats = self._stats(stream)
                finally:
                    await _finish(stream, events)
        yield last_delta(stats, model.identifier, self.name, has_calls=num_calls > 0)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """One vector a text, by the model named, a loaded embedding model, or the first downloaded one.

        Refuses a task.
        """
        if request.task:
            text = f"{self.name} knows no tasks of embedding models; leave out task"
            raise UnsupportedError(text, backend=self.name, fields=["task"])
        async with self._errors_mapped():
            client, _ = await self._connected()
            loaded = await _loaded(client.embedding, self._connect_seconds)
            key = request.model or await self._any_model(client.embedding, loaded)
            if not key:
                text = f"{self.name} does not embed: it has no embedding model; get one with: lms get MODEL"
                raise RequestError(text, param="model", code="model_not_found")
            model = loaded.get(key) or await self._load(client, client.embedding, key)
            async with asyncio.timeout(self._read_seconds):
                vectors = await model.embed(request.input)
                counts = [await model.count_tokens(text) for text in request.input]
        usage = Usage(prompt_tokens=sum(counts), total_tokens=sum(counts))
        return EmbedResult(
            vectors=[list(vector) for vector in cast("list[list[float]]", vectors)], model=model.identifier, usage=usage
        )

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
            if self._options.unloads:
                await self._unload(held[1], self._own.keys())
            await _close(held[1])

    async def _unload(self, client: lmstudio.AsyncClient, keys: list[str]) -> None:
        """Unload models that were loaded here; one that is gone already is no loss."""
        for key in keys:
            self._own.discard(key)
            with suppress(lmstudio.LMStudioError, OSError, RuntimeError):
                async with asyncio.timeout(self._connect_seconds):
                    await client.llm.unload(key)

    # -- connection --------------------------------------------------------------------------------------------------

    async def _connected(self) -> tuple[lmstudio.AsyncClient, dict[str, Any]]:
        """A client that has just answered, the one held or a new one, and the handles of its loaded LLMs."""
        async with self._lock():
            loop = asyncio.get_running_loop()
            if self._client and self._client[0] is loop:
                client = self._client[1]
                with suppress(lmstudio.LMStudioError, OSError, RuntimeError):
                    return client, await _loaded(client.llm, self._connect_seconds)
                self._client = None
                await _close(client)
            client = await self._open()
            self._client = (loop, client)
            return client, await _loaded(client.llm, self._connect_seconds)

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

    async def _pick_model(self, client: lmstudio.AsyncClient, asked: str, loaded: Mapping[str, object]) -> str:
        if asked and self._model and asked != self._model:
            text = f"{self.name} serves {self._model!r}, not {asked!r}"
            raise RequestError(text, param="model", code="model_not_found")
        key = asked or self._model or await self._any_model(client.llm, loaded)
        if not key:
            text = f"{self.name} has no model; get one with: lms get MODEL"
            raise BackendError(text, backend=self.name, retryable=False)
        return key

    async def _load(self, client: lmstudio.AsyncClient, session: Any, key: str) -> Any:
        """Load a model of the session's kind; the limit counts anew with each sign of progress."""
        loop = asyncio.get_running_loop()
        if not self._options.loads:
            text = f"{self.name}: {key!r} is not loaded, and the link says jit=no; load it with: lms load {key}"
            raise BackendError(text, backend=self.name)
        if self._options.keeps and session is client.llm:
            await self._unload(client, self._own.surplus(self._options.keeps - 1))
        config = {"contextLength": self._options.context} if self._options.context else None
        ttl = {"ttl": self._options.ttl} if self._options.ttl else {}
        async with asyncio.timeout(self._read_seconds) as timer:

            def has_moved(_: float) -> None:
                timer.reschedule(loop.time() + self._read_seconds)

            model = await session.model(
                key,
                config=config,
                on_load_progress=has_moved,
                **ttl,
            )
        if session is client.llm:
            self._own.add(model.identifier)
        return model

    async def _any_model(self, session: Any, loaded: Mapping[str, object]) -> str:
        """A loaded model of the session's kind, else the first downloaded one, else nothing."""
        if loaded:
            return next(iter(loaded))
        async with asyncio.timeout(self._connect_seconds):
            keys = [model.model_key for model in await session.list_downloaded()]
        return keys[0] if keys else ""

    async def _start(
        self, client: lmstudio.AsyncClient, model: lmstudio.AsyncLLM, request: ChatRequest
    ) -> lmstudio.AsyncPredictionStream:
        """Hand images over and ask: a conversation, or the continuation of a plain text."""
        config, schema = cast("Any", config_of(request)), schema_of(request.response_format)
        async with asyncio.timeout(self._read_seconds):
            if not request.messages:
                return await model.complete_stream(request.prompt or "", response_format=schema, config=config)
            images: dict[str, dict[str, object]] = {}
            urls = [url for message in request.messages for url in image_urls(message)]
            if urls and not cast("lmstudio.LlmInstanceInfo", await model.get_info()).vision:
                text = f"{self.name} cannot do images: {model.identifier} reads text only"
                raise UnsupportedError(text, backend=self.name, fields=["images"])
            for url in urls:
                handle = await client.prepare_image(image_bytes(url, self.name), f"image-{len(images)}")
                images[url] = cast("dict[str, object]", handle.to_dict())
            history = cast("Any", history_of(request, images))
            return await model.respond_stream(history, response_format=schema, config=config)

    async def _next(self, events: AsyncIterator[object]) -> object | None:
        async with asyncio.timeout(self._read_seconds):
            try:
                return await anext(events, None)
            except lmstudio.LMStudioRuntimeError as error:  # the channel was closed before its last message
                raise self._ended_early() from error

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
    """What happened, and the cause where LM Studio gives one."""
    lines = (line.strip() for line in str(error).splitlines())
    text = ": ".join(line.removesuffix(":") for line in list(filter(None, lines))[:2]) or type(error).__name__
    told = error.server_error if isinstance(error, lmstudio.LMStudioServerError) else None
    return f"{text}: {told.cause.strip().partition(chr(10))[0]}" if told and told.cause else text


async def _loaded(session: Any, seconds: float) -> dict[str, Any]:
    """The handles of the session's loaded models by identifier: each answer uses one instead of asking for another."""
    async with asyncio.timeout(seconds):
        return {model.identifier: model for model in await session.list_loaded()}


async def _finish(stream: lmstudio.AsyncPredictionStream, events: AsyncIterator[object]) -> None:
    """Cancel the prediction unless it is over, and give its channel back."""
    with suppress(lmstudio.LMStudioError, OSError, RuntimeError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await stream.cancel()
            await cast("AsyncGenerator[object]", events).aclose()
            await stream.aclose()


async def _close(client: lmstudio.AsyncClient) -> None:
    with suppress(lmstudio.LMStudioError, OSError, RuntimeError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.aclose()
