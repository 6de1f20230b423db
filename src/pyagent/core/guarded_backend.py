"""A plugin's backend, contained: whatever it raises or yields, its call fails by name, and the next link is asked.

`SystemExit` in a task would end the event loop, and with it the server; a delta that is none would fail far from here.
What it says of itself in `capabilities` is passed on, the functions there being contained too.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from inspect import iscoroutine
from math import isfinite
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import msgspec

from pyagent.core.capabilities import Capabilities, capabilities_of
from pyagent.core.errors import BackendError
from pyagent.core.fleet.containment import close_all, contained
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
)

if TYPE_CHECKING:
    from pyagent.core.backends import Backend

Rank = Callable[[RankRequest], Awaitable[RankResult]]
TokenEmbed = Callable[[TokenEmbedRequest], Awaitable[TokenEmbedResult]]
Classify = Callable[[ClassifyRequest], Awaitable[ClassifyResult]]
P = ParamSpec("P")
T = TypeVar("T")


class GuardedBackend:
    """A backend whose failures are those that a backend may have."""

    def __init__(self, backend: Backend) -> None:
        """Take a backend that `core.plugin_checks` found right."""
        self.name = backend.name
        self.num_running = 0
        self._backend = backend
        self.capabilities = self._contained(cast("Capabilities", capabilities_of(backend)))

    def _contained(self, said: Capabilities) -> Capabilities:
        return msgspec.structs.replace(
            said,
            abilities_of=said.abilities_of and self._awaited(said.abilities_of),
            load=said.load and self._awaited(said.load),
            hint=said.hint and self._called(said.hint),
            query_cache=said.query_cache and self._awaited(said.query_cache),
            rank=said.rank and self._awaited(self._ranked(said.rank)),
            classify=said.classify and self._awaited(self._classified(said.classify)),
            token_embed=said.token_embed and self._awaited(self._token_embedded(said.token_embed)),
        )

    def _ranked(self, rank: Rank) -> Rank:
        async def call(request: RankRequest) -> RankResult:
            found = await rank(request)
            if not isinstance(found, RankResult) or not _are_numbers(found.scores, len(request.pairs)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._error(f"{self._what} gave no RankResult with a finite number for each pair")
            return found

        return call

    def _classified(self, classify: Classify) -> Classify:
        async def call(request: ClassifyRequest) -> ClassifyResult:
            found = await classify(request)
            if not isinstance(found, ClassifyResult) or not _are_labelled(found, len(request.input)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._error(f"{self._what} gave no ClassifyResult with a finite number for each label and text")
            return found

        return call

    def _token_embedded(self, token_embed: TokenEmbed) -> TokenEmbed:
        async def call(request: TokenEmbedRequest) -> TokenEmbedResult:
            found = await token_embed(request)
            # Millions of numbers take a second.
            if not isinstance(found, TokenEmbedResult) or not await to_thread(  # pyright: ignore[reportUnnecessaryIsInstance]
                _are_vectors, found, request.num_texts
            ):
                raise self._error(f"{self._what} gave no TokenEmbedResult with vectors of finite numbers for each text")
            return found

        return call

    def _called(self, function: Callable[P, T]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with contained(self._what, self._error):
                return function(*args, **kwargs)

        return call

    def _awaited(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with contained(self._what, self._error):
                return await function(*args, **kwargs)

        return call

    async def models(self) -> list[ModelInfo]:
        """Return the backend's models."""
        with contained(self._what, self._error):
            models = await self._backend.models()
        if not isinstance(cast("object", models), list) or not all(isinstance(m, ModelInfo) for m in models):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._error(f"{self._what} gave {models!r:.80} for its models, expected a list of ModelInfo")
        return models

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Return the backend's answer."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._counted())
            stack.enter_context(contained(self._what, self._error))
            stream = cast("object", self._backend.chat(request))
            if not hasattr(stream, "__aiter__"):
                if iscoroutine(stream):
                    stream.close()
                raise self._error(f"{self._what} gave {stream!r:.80} for an answer, expected a stream of ChatDelta")
            if isinstance(stream, AsyncGenerator):
                stack.push_async_callback(stream.aclose)
            async for delta in cast("AsyncGenerator[object, None]", stream):
                if not isinstance(delta, ChatDelta) or not isinstance(cast("object", delta.content), str):
                    raise self._error(f"{self._what} yielded {delta!r:.80}, expected a ChatDelta with text")
                yield delta

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Return the backend's vectors."""
        with self._counted(), contained(self._what, self._error):
            found = await self._backend.embed(request)
            if not isinstance(cast("object", found), EmbedResult) or len(found.vectors) != len(request.input):
                raise self._error(f"{self._what} gave no EmbedResult with a vector for each text")
            return found

    async def health(self) -> Health:
        """Return its health; a backend that fails to tell is not ready."""
        try:
            with contained(self._what, self._error):
                health = await self._backend.health()
        except Exception as error:  # noqa: BLE001 - a plugin's bug, which this is the place to tell
            return Health(is_ready=False, detail=f"{type(error).__name__}: {error}")
        if isinstance(cast("object", health), Health):
            return health
        return Health(is_ready=False, detail=f"{self._what} gave {health!r:.80} for its health")

    async def close(self) -> None:
        """Close it; a backend that fails to or hangs is named in a warning."""
        await close_all({self._what: self._backend.close})

    @contextmanager
    def _counted(self) -> Generator[None]:
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    @property
    def _what(self) -> str:
        return f"the backend {self.name}"

    def _error(self, text: str) -> BackendError:
        return BackendError(text, backend=self.name)


def _are_labelled(found: ClassifyResult, num_texts: int) -> bool:
    num_labels = len(found.labels)
    return num_labels > 0 and len(found.scores) == num_texts and all(_are_numbers(r, num_labels) for r in found.scores)


def _are_vectors(found: TokenEmbedResult, num_texts: int) -> bool:
    return len(found.vectors) == num_texts and all(
        _are_numbers(vector, len(vector)) for text in found.vectors for vector in text
    )


def _are_numbers(values: Sequence[float], count: int) -> bool:
    """Whether there are so many, all finite: others are no JSON, and have no order."""
    return len(values) == count and all(isinstance(value, int | float) and isfinite(value) for value in values)  # pyright: ignore[reportUnnecessaryIsInstance]
