"""One answer on its way from a backend to a client: whole or as events, counted, and closed whoever ends it.

Knows no API: a `Reply` says what deltas look like in the one that was called.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from starlette.datastructures import State

from pyagent.core.backends import check_end, without_void
from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatDelta
from pyagent.infrastructure.observability.metrics import AnswerWatch
from pyagent.infrastructure.server.errors import HttpError, logged_error

if TYPE_CHECKING:
    from pyagent.infrastructure.server.middleware.tracing import AnswerTrace


class Reply(Protocol):
    """What one answer looks like in an API; for one answer only, since it may count what went out."""

    media_type: str
    """Of the answer when it is streamed; whole it is JSON."""

    def whole(self, deltas: list[ChatDelta]) -> bytes:
        """The body of an answer that is not streamed, from all of its deltas."""
        ...

    def piece(self, delta: ChatDelta) -> bytes:
        """What goes out for one delta of a streamed answer."""
        ...

    def end(self) -> bytes:
        """What goes out after the last delta."""
        ...

    def failed(self, error: HttpError) -> bytes:
        """What goes out when a streamed answer fails after its status."""
        ...


@dataclass(slots=True)
class Answer:
    """A backend's answer under way, counted as it comes."""

    stream: AsyncIterator[ChatDelta]
    backend: str
    state: State
    watch: AnswerWatch
    trace: AnswerTrace | None = None

    async def first(self) -> ChatDelta:
        """The first delta, before any status is sent, so that failures up to here have the right one."""
        delta = await anext(self.stream, None)
        if delta is None:
            raise BackendError(f"{self.backend} ended its answer before it began", backend=self.backend)
        self._saw(delta)
        self.state.model = self.watch.model
        return delta

    def _saw(self, delta: ChatDelta) -> None:
        self.watch.saw(delta)
        if self.trace is not None:
            self.trace.saw(delta)
        self.state.backend = delta.backend or self.backend
        self.state.first_token_seconds = self.watch.first_token_seconds
        check_end(delta, self.backend)
        if delta.usage is not None:
            self.state.num_tokens, self.state.usage = delta.usage.total_tokens, delta.usage

    async def rest(self) -> AsyncGenerator[ChatDelta, None]:
        """The other deltas."""
        async for delta in self.stream:
            self._saw(delta)
            yield delta

    async def close(self) -> None:
        """End it, wherever it is."""
        if isinstance(self.stream, AsyncGenerator):
            async with aclosing(cast("AsyncGenerator[ChatDelta, None]", self.stream)):
                pass

    async def whole(self, reply: Reply) -> bytes:
        """The body of an answer that is not streamed."""
        try:
            return reply.whole(without_void([await self.first(), *[delta async for delta in self.rest()]]))
        finally:
            await self.close()

    async def events(self, first: ChatDelta, reply: Reply, request_id: str) -> AsyncGenerator[bytes, None]:
        """A streamed answer; what fails now is told in the stream, since the status is out."""
        try:
            yield reply.piece(first)
            async for delta in self.rest():
                yield reply.piece(delta)
            yield reply.end()
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must be told before the stream ends
            self.state.outcome = "broken_off"
            yield reply.failed(logged_error(error, request_id))
        finally:
            await self.close()
