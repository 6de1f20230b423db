"""The embedded engine as a `Backend`: what agents, the server and chains talk to.

Loads its model on first use, once, off the event loop; renders and checks requests at the door; turns the engine's
news into a stream of deltas. Closing a stream aborts its request.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pyagent.core.errors import BackendError, DeadlineError, PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    ModelInfo,
)
from pyagent.infrastructure.engine.model import EngineOptions, LoadedModel, usage_of
from pyagent.infrastructure.engine.request import Output, Request

_T = TypeVar("_T")

# Longer texts are tokenised in a thread, so that the event loop goes on.
_LONG_TEXT = 20_000


class NativeBackend:
    """Answers with a model run in this process."""

    def __init__(
        self,
        model_name: str,
        locate: Callable[[], Path],
        options: EngineOptions | None = None,
        *,
        look: Callable[[], str] | None = None,
    ) -> None:
        """`locate` finds the model's file, fetching it if need be; it may block and raise `ModelError`.

        `look` says in words what loading would do; it fetches nothing, and raises `ModelError` when loading cannot
        succeed.
        """
        self.name = f"native:{model_name}"
        self.model_name = model_name
        self._locate = locate
        self._look = look or (lambda: "loads on first use")
        self._options = options or EngineOptions()
        self._model: LoadedModel | None = None
        self._lock = threading.Lock()

    async def load(self) -> LoadedModel:
        """The model, loaded on the first call. Raises `ModelError` naming what is wrong with its file."""
        return self._model or await asyncio.to_thread(self._load)

    def _load(self) -> LoadedModel:
        # A thread's lock: a caller who gives up, or whose event loop ends, must not make the next one load again.
        with self._lock:
            if self._model is None:
                self._model = LoadedModel(self._locate(), self._options)
            return self._model

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer as a stream; closing the iterator aborts the request."""
        if request.model not in {"", self.model_name, self.name}:
            raise RequestError(
                f"{self.name} does not offer model {request.model!r}", param="model", code="model_not_found"
            )
        start = time.perf_counter()
        deadline = None if request.timeout_seconds is None else start + request.timeout_seconds
        model = await self._within(deadline, self.load())
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Output] = asyncio.Queue()

        def tell(output: Output) -> None:
            loop.call_soon_threadsafe(news.put_nowait, output)

        prepared = await self._prepare(model, request, tell)
        model.engine.submit(prepared)
        try:
            while True:
                output = await self._within(deadline, news.get())
                yield self._delta(output, prepared)
                if output.finish_reason is not None:
                    return
        finally:
            if prepared.finish_reason is None:
                model.engine.abort(prepared)

    async def _prepare(self, model: LoadedModel, request: ChatRequest, sink: Callable[[Output], None]) -> Request:
        length = len(request.prompt or "") + sum(len(message.text) for message in request.messages)
        has_form = request.response_format is not None and request.response_format.type != "text"
        if length > _LONG_TEXT or has_form:  # a schema may take long to compile
            return await asyncio.to_thread(model.prepare, request, sink)
        return model.prepare(request, sink)

    async def _within(self, deadline: float | None, waiting: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.perf_counter()):
                return await waiting
        except TimeoutError as error:
            raise DeadlineError(f"{self.name} did not finish before the deadline") from error

    def _delta(self, output: Output, request: Request) -> ChatDelta:
        if output.finish_reason in {"error", "abort"}:
            reason = output.error or "the engine stopped"
            raise BackendError(f"{self.name}: {reason}", backend=self.name, retryable=False)
        return ChatDelta(
            content=output.text,
            logprobs=list(output.logprobs),
            finish_reason=output.finish_reason,
            usage=usage_of(request) if output.finish_reason else None,
            model=self.model_name,
            backend=self.name,
        )

    async def models(self) -> list[ModelInfo]:
        """The one model this backend runs."""
        info = ModelInfo(id=self.model_name, backend=self.name, is_loaded=self._model is not None)
        if self._model is None:
            return [info]
        about = self._model.runner.info
        return [
            ModelInfo(
                id=self.model_name,
                backend=self.name,
                context_length=self._model.context_length,
                architecture=about["architecture"],
                size_bytes=about["weight_bytes"],
                is_loaded=True,
            )
        ]

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Refused: this engine runs no embedding models yet."""
        raise RequestError(f"{self.name} cannot embed; use a backend with an embedding model", param="model")

    async def health(self) -> Health:
        """Ready when loaded, or when it can be loaded; fetches nothing."""
        if self._model is not None:
            return Health(is_ready=True, detail="loaded", models=[self.model_name])
        try:
            detail = await asyncio.to_thread(self._look)
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error))
        return Health(is_ready=True, detail=detail, models=[self.model_name])

    async def close(self) -> None:
        """Abort what runs and stop the engine's thread."""
        model, self._model = self._model, None
        if model is not None:
            await asyncio.to_thread(model.engine.close)
