"""What comes from a server, before the package's session has it: notifications and requests that are too many are
dropped.

The session begins a task for each. A server that sends nothing else would have the event loop to itself; one that asks
and never reads an answer would have tasks wait until the memory is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared._stream_protocols import ReadStream, WriteStream

MAX_NOTIFICATIONS = 1_000
"""Notifications a second that are looked at. Each that is dropped costs a turn of the event loop."""
MAX_REQUESTS = 100
"""Requests of a server, such as pings, that are under way at once. Those beyond are dropped."""
_CANCELLED = "notifications/cancelled"


class Wire(Protocol):
    """A server's connection: a program's pipes, or a URL. `fault` is what is known of why it ended."""

    fault: str

    def streams(self) -> AbstractAsyncContextManager[TransportStreams]:
        """Return the connection's two streams."""
        ...

    def explain(self) -> str:
        """Return why the connection ended."""
        ...


@asynccontextmanager
async def limited(wire: Wire, on_end: Callable[[], None]) -> AsyncGenerator[TransportStreams]:
    """Yield a connection's streams, the incoming one limited; `on_end` is called when that ends."""
    async with wire.streams() as (incoming, outgoing):
        answering = Answering(outgoing)
        yield cast("ReadStream[SessionMessage | Exception]", Limited(incoming, on_end, answering)), answering


@dataclass(slots=True)
class Answering:
    """A stream of messages to a server, which knows the requests of the server that are not answered yet."""

    inner: WriteStream[SessionMessage]
    _under_way: set[str] = field(default_factory=set[str])

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        await self.inner.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._under_way.discard(str(item.message.id))

    def takes(self, request: JSONRPCRequest) -> bool:
        """Return whether a request is to be answered; one with an id that waits already is not: no id counts twice."""
        key = str(request.id)
        is_taken = key not in self._under_way and len(self._under_way) < MAX_REQUESTS
        if is_taken:
            self._under_way.add(key)
        return is_taken

    def note(self, notification: JSONRPCNotification) -> None:
        """Hear that a request was cancelled: the package's session ends its work and answers nothing."""
        if notification.method == _CANCELLED:
            self._under_way.discard(str((notification.params or {}).get("requestId")))

    async def aclose(self) -> None:
        """Close the stream."""
        await self.inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(slots=True)
class Limited:
    """A stream of messages without the notifications and requests that are too many."""

    inner: ReadStream[SessionMessage | Exception]
    on_end: Callable[[], None]
    answering: Answering
    _second: int = 0
    _count: int = 0

    @property
    def last_context(self) -> Context | None:
        """The context of what sent the last message, where the stream knows it."""
        return getattr(self.inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        while True:
            try:
                message = await self.inner.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                self.on_end()
                raise
            if not self._is_too_many(message):
                return message
            await asyncio.sleep(0)

    def _is_too_many(self, message: SessionMessage | Exception) -> bool:
        inner = message.message if isinstance(message, SessionMessage) else None
        if isinstance(inner, JSONRPCRequest):
            return not self.answering.takes(inner)
        if isinstance(inner, JSONRPCResponse | JSONRPCError):
            return False
        second = int(asyncio.get_running_loop().time())
        self._count = self._count + 1 if second == self._second else 1
        self._second = second
        if self._count > MAX_NOTIFICATIONS:
            return True
        if isinstance(inner, JSONRPCNotification):
            self.answering.note(inner)
        return False

    async def aclose(self) -> None:
        """Close the stream."""
        self.on_end()
        await self.inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
