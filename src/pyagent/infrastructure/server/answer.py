"""One answer on its way from a backend to a client: whole or as events, counted, and closed whoever ends it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from starlette.datastructures import State

from pyagent.core.errors import BackendError, PyAgentError
from pyagent.core.messages import ChatDelta
from pyagent.infrastructure.observability.metrics import AnswerWatch
from pyagent.infrastructure.server.replies import DONE, HttpError, Reply, http_error

logger = logging.getLogger("pyagent.server")


@dataclass(slots=True)
class Answer:
    """A backend's answer under way, counted as it comes."""

    stream: AsyncIterator[ChatDelta]
    backend: str
    state: State
    watch: AnswerWatch

    async def first(self) -> ChatDelta:
        """The first delta, before any status is sent, so that failures up to here have the right one."""
        delta = await anext(self.stream, None)
        if delta is None:
            raise BackendError(f"{self.backend} ended its answer before it began", backend=self.backend)
        self.watch.saw(delta)
        self.state.model = self.watch.model
        return delta

    async def rest(self) -> AsyncGenerator[ChatDelta, None]:
        """The other deltas."""
        async for delta in self.stream:
            self.watch.saw(delta)
            yield delta

    async def close(self) -> None:
        """End it, wherever it is."""
        if isinstance(self.stream, AsyncGenerator):
            async with aclosing(cast("AsyncGenerator[ChatDelta, None]", self.stream)):
                pass

    async def whole(self, reply: Reply) -> bytes:
        """The body of an answer that is not streamed."""
        try:
            return reply.whole([await self.first(), *[delta async for delta in self.rest()]])
        finally:
            await self.close()

    async def events(self, first: ChatDelta, reply: Reply, request_id: str) -> AsyncGenerator[bytes, None]:
        """A streamed answer; what fails now is told as an event, since the status is out."""
        last, begun = first, {first.index}
        try:
            yield reply.chunk(first, is_first=True)
            async for delta in self.rest():
                last = delta
                yield reply.chunk(delta, is_first=delta.index not in begun)
                begun.add(delta.index)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must be told before the stream ends
            self.state.outcome = "broken_off"
            yield logged_error(error, request_id).event
            yield DONE
            return
        finally:
            await self.close()
        if reply.has_usage_chunk:
            yield reply.usage_chunk(last.usage)
        yield DONE


def logged_error(error: Exception, request_id: str) -> HttpError:
    """The error as a client sees it; one that is not ours is logged, under the request's id."""
    if not isinstance(error, PyAgentError):
        logger.error("request %s failed", request_id, exc_info=error)
    return http_error(error)
