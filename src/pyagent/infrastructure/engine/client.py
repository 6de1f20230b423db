"""The embedded engine as its users see it: ask for a stream, whatever models there are and wherever it runs.

Requests are rendered and checked at the door; the engine's news become deltas. Closing a stream aborts its request.
Which names are offered, and which model answers a request that names none, is the backend's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from pyagent.core.errors import BackendError, DeadlineError
from pyagent.core.messages import ChatDelta, ChatRequest
from pyagent.infrastructure.engine.model import LoadedModel, usage_of
from pyagent.infrastructure.engine.model_pool import ModelPool
from pyagent.infrastructure.engine.request import Output, Request

_T = TypeVar("_T")

# Longer texts are tokenised in a thread, so that the event loop goes on.
_LONG_TEXT = 20_000


class LocalEngine:
    """An engine in this process."""

    def __init__(self, models: ModelPool) -> None:
        self.models = models
        self._num_owners = 1

    @property
    def is_closed(self) -> bool:
        """Whether its last owner closed it."""
        return self._num_owners <= 0

    def share(self) -> LocalEngine:
        """The engine with one owner more: each closes it once, and the last to do so ends it."""
        self._num_owners += 1
        return self

    async def load(self, model: str) -> LoadedModel:
        """The model, loaded when it is not. Raises `ModelError` naming what is wrong with its file."""
        async with self.models.using(model) as loaded:
            return loaded

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer with the model the request names; closing the stream aborts the request."""
        name = f"native:{request.model}"
        deadline = None if request.timeout_seconds is None else time.perf_counter() + request.timeout_seconds
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Output] = asyncio.Queue()

        def tell(output: Output) -> None:
            loop.call_soon_threadsafe(news.put_nowait, output)

        async with AsyncExitStack() as stack:
            model = await _within(deadline, stack.enter_async_context(self.models.using(request.model)), name)
            prepared = await _prepare(model, request, tell)
            model.engine.submit(prepared)
            try:
                while True:
                    output = await _within(deadline, news.get(), name)
                    yield _delta(output, prepared, name)
                    if output.finish_reason is not None:
                        return
            finally:
                if prepared.finish_reason is None:
                    model.engine.abort(prepared)

    async def close(self) -> None:
        """Give up a share of the engine; with the last one, what runs is aborted and the models are unloaded."""
        self._num_owners -= 1
        if not self.is_closed:
            return
        await asyncio.to_thread(self.models.close)


async def _prepare(model: LoadedModel, request: ChatRequest, sink: Callable[[Output], None]) -> Request:
    length = len(request.prompt or "") + sum(len(message.text) for message in request.messages)
    has_form = request.response_format is not None and request.response_format.type != "text"
    if length > _LONG_TEXT or has_form:  # a schema may take long to compile
        return await asyncio.to_thread(model.prepare, request, sink)
    return model.prepare(request, sink)


async def _within(deadline: float | None, waiting: Awaitable[_T], name: str) -> _T:
    try:
        async with asyncio.timeout(None if deadline is None else deadline - time.perf_counter()):
            return await waiting
    except TimeoutError as error:
        raise DeadlineError(f"{name} did not finish before the deadline") from error


def _delta(output: Output, request: Request, name: str) -> ChatDelta:
    if output.finish_reason in {"error", "abort"}:
        reason = output.error or "the engine stopped"
        raise BackendError(f"{name}: {reason}", backend=name, retryable=False)
    return ChatDelta(
        content=output.text,
        logprobs=list(output.logprobs),
        finish_reason=output.finish_reason,
        usage=usage_of(request) if output.finish_reason else None,
        model=name.removeprefix("native:"),
        backend=name,
    )
