"""Ask models from a program: through a fallback `Chain`, or the embedded `Engine` alone. Only puts things together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, overload

import msgspec

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Answer, accumulate, classify_by, collect, rank_by, token_embed_by
from pyagent.core.errors import InvalidOutputError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    EmbedRequest,
    JsonObject,
    Message,
    RankRequest,
    SamplingParams,
    TokenEmbedRequest,
)
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structured_output.wanted import Schema, Wanted
from pyagent.sync import SyncChain, SyncEngine

if TYPE_CHECKING:
    from pyagent.core.chain.chain import Chain as BackendChain
    from pyagent.core.load_progress import LoadProgress
    from pyagent.core.settings import Settings

__all__ = ["Chain", "Engine"]

_WATCH_SECONDS = 0.25

T = TypeVar("T")
Asked = str | Sequence[Message] | ChatRequest


class Chain:
    """A fallback chain: `async with pyagent.Chain(["lmstudio", "native"]) as chain: answer = await chain.chat("Hi")`.

    A program without an event loop says `with` and no `await`: it gets the same words as a `SyncChain`.
    Without links it is the chain of the settings. Models load and sockets open on first use. `backend` is what
    `pyagent.Fleet(backend=...)` takes.
    """

    def __init__(self, links: Sequence[str] | None = None, *, settings: Settings | None = None) -> None:
        """Make the links; raises `ConfigError` naming one that no plugin brings."""
        self.settings = _loaded({}) if settings is None else settings
        self.backend: BackendChain = make_chain(self.settings, make_host(self.settings), links)
        self._sync: SyncChain | None = None

    async def chat(self, asked: Asked, sampling: SamplingParams | None = None) -> Answer:
        """Return a whole answer: to a text, to messages, or to a request with all that it may say."""
        return await collect(self.stream(asked, sampling))

    async def chat_all(self, asked: Sequence[Asked], sampling: SamplingParams | None = None) -> list[Answer]:
        """Return the answers to several requests that run at the same time, in their order.

        Raises the first error, and aborts the others.
        """
        tasks = [asyncio.create_task(self.chat(one, sampling)) for one in asked]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stream(self, asked: Asked, sampling: SamplingParams | None = None) -> AsyncIterator[ChatDelta]:
        """Return an answer as a stream of deltas; closing the stream aborts the request."""
        return self.backend.chat(_request(asked, sampling))

    def stream_answers(self, asked: Asked, sampling: SamplingParams | None = None) -> AsyncGenerator[Answer, None]:
        """Return the answer so far with each delta, where `stream` has the deltas alone (vLLM's cumulative outputs).

        Of several answers (`n`) each is told for itself, that of `last.index`. Closing the stream aborts the request.
        """
        return accumulate(self.stream(asked, sampling))

    @overload
    async def generate(self, asked: Asked, *, schema: type[T], sampling: SamplingParams | None = None) -> T: ...

    @overload
    async def generate(self, asked: Asked, *, schema: JsonObject, sampling: SamplingParams | None = None) -> object: ...

    @overload
    async def generate(
        self,
        asked: Asked,
        *,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        grammar: str | GrammarFormat | None = None,
        sampling: SamplingParams | None = None,
    ) -> str: ...

    async def generate(  # noqa: PLR0913 - ways to say what is wanted
        self,
        asked: Asked,
        *,
        schema: Schema | None = None,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        grammar: str | GrammarFormat | None = None,
        sampling: SamplingParams | None = None,
    ) -> object:
        """Return an answer as what was asked for: text of a choice, a regex or a grammar, or an instance of `schema`.

        A schema is a Pydantic model, a msgspec struct, or JSON schema, whose values come as plain dicts and lists.
        Raises `InvalidOutputError` for an answer that does not fit, such as one that was cut at `max_tokens`.
        """
        return await self.answer_as(Wanted(schema, choice, regex, grammar), asked, sampling)

    async def answer_as(self, wanted: Wanted, asked: Asked, sampling: SamplingParams | None = None) -> object:
        """Return an answer as `wanted` reads it. Raises `InvalidOutputError` for one that does not fit."""
        request = _request(asked, sampling)
        if (wanted_format := wanted.response_format) is not None:
            request = msgspec.structs.replace(request, response_format=wanted_format, whole=True)
        answer = await collect(self.stream(request))
        try:
            deadline, stop = Deadline.after(request.timeout_seconds), request.sampling.stop
            return await wanted.read_aside(answer.text, deadline, request.origin.tenant, stop=stop)
        except ValueError as error:
            limit = "; it was cut at max_tokens" if answer.last.finish_reason == "length" else ""
            raise InvalidOutputError(f"the answer does not fit: {error}{limit}", param="response_format") from error

    async def rerank(
        self, query: str, documents: Sequence[str], model: str = "", *, truncate: bool = True
    ) -> list[tuple[int, float]]:
        """Return the documents' numbers and relevances, the most relevant first, from the first link that ranks.

        A ranking model's relevances are most often between 0 and 1; those of an embedding model are cosines. A document
        longer than the model takes is cut, and refused without `truncate`. Raises `RequestError` when no link ranks.
        """
        pairs = [(query, document) for document in documents]
        scores = (await rank_by(self.backend, RankRequest(model=model, pairs=pairs, truncate=truncate))).scores
        return sorted(enumerate(scores), key=lambda one: -one[1])

    async def classify(
        self, texts: Sequence[str], model: str = "", *, truncate: bool = False
    ) -> list[dict[str, float]]:
        """Return each text's labels with their probabilities, from the first link that classifies.

        A text longer than the model takes is refused, and cut with `truncate`. Raises `RequestError` when no link
        classifies, `ContextOverflowError` for a text that is too long.
        """
        found = await classify_by(self.backend, ClassifyRequest(model=model, input=list(texts), truncate=truncate))
        return [dict(zip(found.labels, row, strict=True)) for row in found.scores]

    async def embed(
        self, texts: Sequence[str], model: str = "", *, truncate: bool = False, task: str = ""
    ) -> list[list[float]]:
        """Return a vector for each text, from the first link that embeds. Raises `RequestError` when none does.

        With `truncate` the embedded engine cuts a text longer than its model takes, and refuses it without. `task` is
        one of the model's, where it has tasks.
        """
        asked = EmbedRequest(input=list(texts), model=model, truncate=truncate, task=task)
        return (await self.backend.embed(asked)).vectors

    async def token_embed(
        self, texts: Sequence[str], model: str = "", *, is_query: bool = False, truncate: bool = False
    ) -> list[list[list[float]]]:
        """Return a vector for each token of each text, from the first link that gives some.

        A model of late interaction reads the texts as documents, or with `is_query` as queries. Raises `RequestError`
        when no link has such vectors.
        """
        asked = TokenEmbedRequest(input=list(texts), model=model, is_query=is_query, truncate=truncate)
        return (await token_embed_by(self.backend, asked)).vectors

    async def token_classify(
        self, texts: Sequence[str], model: str = "", *, truncate: bool = False
    ) -> list[list[dict[str, float]]]:
        """Return a table of labels and probabilities for each token of each text, from the first link that has some.

        A process reward model gives one for each step: for each `<extra_0>` in the text, in order. Raises
        `RequestError` when no link labels tokens.
        """
        asked = TokenEmbedRequest(input=list(texts), model=model, task="token_classify", truncate=truncate)
        found = await token_embed_by(self.backend, asked)
        return [[dict(zip(found.labels, row, strict=True)) for row in text] for text in found.vectors]

    async def close(self) -> None:
        """Close the links: models are unloaded, connections closed."""
        await self.backend.close()

    def __enter__(self) -> SyncChain:
        """Return the chain for a program without an event loop: its methods wait."""
        self._sync = SyncChain(self)
        return self._sync

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Engine(Chain):
    """The embedded engine with one model: `async with pyagent.Engine("smollm2:135m") as engine: ...`.

    The model is a name of the store (`pyagent models list`) or a path of a GGUF file or a safetensors folder; without
    one it is `engine.models` of the settings. `options` are settings of the engine: `threads=2`, `memory="2GB"`.
    """

    def __init__(self, model: str | Path | None = None, **options: object) -> None:
        """Check the options; raises `ConfigError` naming a wrong one. The model loads on first use, or by `load`."""
        overrides = {f"engine.{name}": value for name, value in options.items()}
        if model is not None:
            overrides["engine.models"] = [str(model)]
        super().__init__(["native"], settings=_loaded(overrides))

    def __enter__(self) -> SyncEngine:
        """Return the engine for a program without an event loop: its methods wait."""
        self._sync = sync = SyncEngine(self)
        return sync

    async def load(self, watch: Callable[[LoadProgress], None] | None = None) -> None:
        """Load the model now, telling `watch` again and again how far it is, and once more when that is over.

        Raises `ModelError` saying what is wrong with its file.
        """
        for link in self.backend.links:
            if (load := link.capabilities.load) is None:
                continue
            loading = asyncio.ensure_future(load())
            try:
                if watch is not None:
                    await self._watch(loading, watch)
                await loading
            finally:
                loading.cancel()

    async def _watch(self, loading: asyncio.Future[object], watch: Callable[[LoadProgress], None]) -> None:
        told: dict[str, LoadProgress] = {}
        while not (await asyncio.wait([loading], timeout=_WATCH_SECONDS))[0]:
            for progress in await self.loading():
                told[progress.name] = progress
                watch(progress)
        for progress in told.values():
            watch(_ended(progress, is_whole=loading.exception() is None))

    async def loading(self) -> list[LoadProgress]:
        """Return how far each model is that is on its way into memory now."""
        from pyagent.infrastructure.engine.backend import NativeBackend

        states = [await link.engine_state() for link in self.backend.links if isinstance(link, NativeBackend)]
        return [progress for state in states for progress in state.load_progress.values()]


def _ended(load: LoadProgress, *, is_whole: bool) -> LoadProgress:
    if is_whole:
        load = msgspec.structs.replace(load, bytes_done=load.bytes_total, seconds_left=0.0)
    return msgspec.structs.replace(load, is_over=True)


def _loaded(overrides: dict[str, object]) -> Settings:
    from pyagent.core.config import load_settings

    return load_settings(overrides=overrides).settings


def _request(asked: Asked, sampling: SamplingParams | None) -> ChatRequest:
    if not isinstance(asked, ChatRequest):
        asked = ChatRequest(messages=[Message("user", asked)] if isinstance(asked, str) else list(asked))
    return asked if sampling is None else msgspec.structs.replace(asked, sampling=sampling)
