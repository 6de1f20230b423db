"""Ollama's REST interface as a `Backend`.

A stream that ends without `done` is a failure, whatever its status said. A prompt is never cut in silence: the context
is set from its length and what the model allows, and what Ollama counted is compared afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Literal

import msgspec

from pyagent.plugin import (
    Abilities,
    BackendError,
    Capabilities,
    ChatDelta,
    ChatRequest,
    ContextOverflowError,
    Deadline,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    PyAgentError,
    RequestError,
    Unsupported,
    UnsupportedError,
    fulfil,
)
from pyagent_ollama.context import PromptSize, Room, room_for
from pyagent_ollama.options import LinkOptions
from pyagent_ollama.transport import Transport
from pyagent_ollama.wire import (
    Chunk,
    PullProgress,
    RunningModel,
    ShownModel,
    answer_format,
    decode_chunk,
    decode_embeddings,
    decode_progress,
    decode_running,
    decode_shown,
    decode_tags,
    delta_of,
    encode_request,
    last_delta,
)

_HEALTH_SECONDS = 5.0
_ABILITIES: Abilities = frozenset(
    {
        *("prompt", "images", "tools", "reasoning_effort"),
        *("json_object", "json_schema"),
        *("max_tokens", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "typical_p"),
        *("repetition_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n"),
        "top_logprobs",
    }
)
_MODEL_ABILITIES = {"tools": "tools", "images": "vision", "reasoning_effort": "thinking"}


class OllamaBackend:
    """One Ollama server. `read_seconds` bounds the silence between two pieces of an answer."""

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        url: str,
        *,
        model: str = "",
        name: str = "ollama",
        api_key: str = "",
        options: LinkOptions = LinkOptions(),  # noqa: B008 - frozen
        connect_seconds: float = 5.0,
        read_seconds: float = 120.0,
        unsupported: Unsupported = "emulate",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(
            abilities=_ABILITIES, gives_several=True, sends_headers=True, url=url, abilities_of=self.abilities_of
        )
        self._model = model
        self._options = options
        self._unsupported: Unsupported = unsupported
        self._wire = Transport(
            url, name, api_key=api_key, connect_seconds=connect_seconds, read_seconds=read_seconds, headers=headers
        )
        self._shown: dict[str, ShownModel] = {}
        self._contexts: dict[str, int] = {}

    # -- answers ---------------------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta]:
        """Stream the answer; closing the iterator closes the connection, which stops Ollama's work."""
        deadline = Deadline.after(request.timeout_seconds)
        model = await deadline.bound(self._pick_model(request.model), self.name)
        shown = await deadline.bound(self._show(model), self.name)
        if request.timeout_seconds is not None:
            request = msgspec.structs.replace(request, timeout_seconds=deadline.remaining_seconds)
        named = msgspec.structs.replace(request, model=model)
        can = self._abilities_of(shown)
        if answer_format(request.response_format) is not None:
            can -= {"reasoning_effort"}  # a grammar holds for the thoughts too, and they are all that comes
        answer = fulfil(named, self._answer, can, backend=self.name, unsupported=self._unsupported)
        async with aclosing(answer) as deltas:
            async for delta in deltas:
                yield delta

    async def abilities_of(self, model: str) -> Abilities:
        """What a model can be asked for, by what Ollama shows of it."""
        return self._abilities_of(await self._show(await self._pick_model(model)))

    def _abilities_of(self, shown: ShownModel) -> Abilities:
        return _ABILITIES - {field for field, ability in _MODEL_ABILITIES.items() if not shown.can(ability)}

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """The answer in a context that the prompt fits; held back until its end where it may not fit any."""
        deadline = Deadline.after(request.timeout_seconds)
        shown = await deadline.bound(self._show(request.model), self.name)
        room = await deadline.bound(self._room(request, shown), self.name)
        if room.size.least > room.num_ctx:
            raise room.overflow(self.name)
        path, body = encode_request(request, shown, room.num_ctx, self._options, self.name)
        held: list[ChatDelta] = []
        num_calls = 0
        async with aclosing(self._chunks(path, body, room)) as chunks:
            while (chunk := await deadline.bound(anext(chunks, None), self.name)) is not None:
                delta = delta_of(chunk, request, self.name, num_calls)
                num_calls += len(chunk.message.tool_calls)
                if delta is not None and room.is_sure:
                    yield delta
                elif delta is not None:
                    held.append(delta)
                if chunk.done:
                    break
            else:
                raise BackendError(f"{self.name} ended its answer without saying it was done", backend=self.name)
        self._contexts[request.model] = room.num_ctx
        if room.was_cut(chunk.prompt_eval_count):
            raise room.overflow(self.name)
        for delta in held:
            yield delta
        yield last_delta(chunk, request.model, self.name, has_calls=num_calls > 0)

    async def _chunks(self, path: str, body: bytes, room: Room) -> AsyncGenerator[Chunk]:
        try:
            async with aclosing(self._wire.lines(path, body)) as lines:
                async for line in lines:
                    yield decode_chunk(line, self.name)
        except ContextOverflowError as error:
            raise room.overflow(self.name) from error

    async def _room(self, request: ChatRequest, shown: ShownModel) -> Room:
        """The context to ask for. A model that runs already is not loaded anew when its context is enough."""
        if request.model not in self._contexts:
            self._contexts[request.model] = 0
            if self._options.num_ctx is None:
                running = {model.name: model.context_length for model in await self._running()}
                self._contexts[request.model] = running.get(_full(request.model), 0)
        size = PromptSize.of(request, msgspec.json.encode(request.tools).decode() if request.tools else "")
        return room_for(request, size, shown.context_length, self._contexts[request.model], self._options.num_ctx)

    # -- embeddings ------------------------------------------------------------------------------------------------

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """One vector a text; a text that is too long is refused, not cut, and so is a task."""
        if request.task:
            text = f"{self.name} knows no tasks of embedding models; leave out task"
            raise UnsupportedError(text, backend=self.name, fields=["task"])
        model = await self._pick_model(request.model, "embedding")
        if not request.input:
            return EmbedResult(vectors=[], model=model)
        shown = await self._show(model)
        if not shown.can("embedding") and shown.can("completion"):
            text = f"{self.name} does not embed with {model!r}, which is no embedding model; try: nomic-embed-text"
            raise RequestError(text, param="model", code="model_not_found")
        body: dict[str, object] = {"model": model, "input": request.input, "truncate": False}
        if self._options.keep_alive is not None:
            body["keep_alive"] = self._options.keep_alive
        answer = await self._wire.post("/api/embed", msgspec.json.encode(body))
        return decode_embeddings(answer, self.name, len(request.input))

    # -- models ----------------------------------------------------------------------------------------------------

    async def models(self) -> list[ModelInfo]:
        """What Ollama has on disk, and whether it is loaded."""
        listed = await self._listed()
        running = {model.name for model in await self._running()}
        return [msgspec.structs.replace(model, is_loaded=model.id in running) for model in listed]

    async def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        """Fetch a model, telling how far it is; raises `BackendError` when it cannot be had."""
        async with aclosing(self._wire.lines("/api/pull", msgspec.json.encode({"model": model}))) as lines:
            async for line in lines:
                progress = decode_progress(line, self.name)
                yield progress
                if progress.status == "success":
                    return
        raise BackendError(f"{self.name} ended the download of {model} without saying it was done", backend=self.name)

    async def health(self) -> Health:
        """Ready when Ollama lists its models, and the one this link names is among them, or may be fetched."""
        try:
            found = [model.id for model in await Deadline.after(_HEALTH_SECONDS).bound(self.models(), "its models")]
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error).removeprefix(f"{self.name}: "))
        if self._model and _full(self._model) not in found:
            if self._options.pulls:
                return Health(is_ready=True, detail=f"{self._model} is fetched on first use", models=found)
            detail = f"has no model {self._model!r}; get it with: ollama pull {self._model}"
            return Health(is_ready=False, detail=detail, models=found)
        return Health(is_ready=True, models=found)

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    async def _listed(self) -> list[ModelInfo]:
        return decode_tags(await self._wire.get("/api/tags"), self.name)

    async def _running(self) -> list[RunningModel]:
        return decode_running(await self._wire.get("/api/ps"), self.name)

    async def _show(self, model: str) -> ShownModel:
        """What Ollama says of a model, asked once; one that is missing is fetched if the link says so."""
        if (known := self._shown.get(model)) is not None:
            return known
        body = msgspec.json.encode({"model": model})
        try:
            answer = await self._wire.post("/api/show", body)
        except RequestError as error:
            if error.code != "model_not_found" or not self._options.pulls:
                raise
            async for _ in self.pull(model):
                pass  # how far it is nothing shows here; the request waits for the end
            answer = await self._wire.post("/api/show", body)
        self._shown[model] = decode_shown(answer, self.name)
        return self._shown[model]

    async def _pick_model(self, asked: str, ability: Literal["completion", "embedding"] = "completion") -> str:
        """The model to ask for: the request's, the link's, or the first of Ollama's list that has the ability."""
        if asked and self._model and _full(asked) != _full(self._model):
            raise RequestError(
                f"{self.name} serves {self._model!r}, not {asked!r}", param="model", code="model_not_found"
            )
        if asked or self._model:
            return asked or self._model
        for model in await self._listed():
            if (await self._show(model.id)).can(ability):
                return model.id
        if ability == "embedding":
            text = f"{self.name} does not embed: it has no embedding model; try: ollama pull nomic-embed-text"
            raise RequestError(text, param="model", code="model_not_found")
        text = f"{self.name} has no model that chats; try: ollama pull llama3.2"
        raise BackendError(text, backend=self.name, retryable=False)


def _full(model: str) -> str:
    return model if ":" in model.rpartition("/")[2] else f"{model}:latest"
