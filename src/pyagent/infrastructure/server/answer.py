"""One answer on its way from a backend to a client: whole or as events, counted, and closed whichever end leaves first.

Knows no API: an `AnswerEncoder` writes deltas as the API that was called has them.
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
    from pyagent.infrastructure.observability.answer_spans import AnswerTrace


class AnswerEncoder(Protocol):
    """Write one answer in an API's form. It serves one answer only, since it may count what it wrote."""

    media_type: str
    """Of the answer when it is streamed; whole it is JSON."""

    def whole(self, deltas: list[ChatDelta]) -> bytes:
        """Return the body of an answer that is not streamed, from all of its deltas."""
        ...

    def piece(self, delta: ChatDelta) -> bytes:
        """Return the bytes of one delta of a streamed answer."""
        ...

    def end(self) -> bytes:
        """Return the bytes that follow the last delta."""
        ...

    def failed(self, error: HttpError) -> bytes:
        """Return the bytes of an error after the status was sent."""
        ...


@dataclass(slots=True)
class AnswerStream:
    """A backend's answer while it is streamed, counted delta by delta."""

    stream: AsyncIterator[ChatDelta]
    backend: str
    state: State
    watch: AnswerWatch
    trace: AnswerTrace | None = None

    async def first(self) -> ChatDelta:
        """Return the first delta, before any status is sent, so that failures up to here have their own status."""
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
        """Yield the other deltas."""
        async for delta in self.stream:
            self._saw(delta)
            yield delta

    async def close(self) -> None:
        """Close the stream, wherever it is."""
        if isinstance(self.stream, AsyncGenerator):
            async with aclosing(cast("AsyncGenerator[ChatDelta, None]", self.stream)):
                pass

    async def whole(self, encoder: AnswerEncoder) -> bytes:
        """Return the body of an answer that is not streamed."""
        try:
            return encoder.whole(without_void([await self.first(), *[delta async for delta in self.rest()]]))
        finally:
            await self.close()

    async def events(self, first: ChatDelta, encoder: AnswerEncoder, request_id: str) -> AsyncGenerator[bytes, None]:
        """Yield a streamed answer; a failure from now on is sent in the stream, as the status is out."""
        try:
            yield encoder.piece(first)
            async for delta in self.rest():
                yield encoder.piece(delta)
            yield encoder.end()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must get it before the stream ends
            self.state.outcome = "broken_off"
            yield encoder.failed(logged_error(error, request_id))
        finally:
            await self.close()
