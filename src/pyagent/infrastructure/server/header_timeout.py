"""Connections bounded in number and in time: one that sends nothing, or reads nothing, holds no place for long.

A connection waits while it has no whole request; when there are too many, the one that waits longest goes, so that
idle ones, however many, cannot keep a client out. One whose request is being answered never goes; when all are, a new
one is told 503. The time for a request's body is `bodies`' affair, since that is read while a request is under way.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pyagent.infrastructure.server.errors import refusal

KEEP_ALIVE_SECONDS = 75
"""How long an answered connection stays open, as nginx has it: longer than clients keep theirs (httpx: 5 s), as a
request sent in the moment in which the server closes is lost."""
MAX_HEAD_BYTES = 65_536
"""Longest request line and headers together."""
_MOMENT_SECONDS = 1.0
_UNREAD_SECONDS = 60.0
"""Longest that an answer's next piece may wait for its client to read."""
_FULL = refusal(503, "the server has as many connections as it takes; try again", "overloaded", "server_error")


@dataclass(slots=True)
class Waiting:
    """The connections that have no whole request, in the order in which they began to wait: heads and bodies."""

    heads: dict[H11Protocol, float] = field(default_factory=dict[H11Protocol, float])
    bodies: dict[H11Protocol, float] = field(default_factory=dict[H11Protocol, float])

    def note(self, connection: H11Protocol) -> bool:
        """Put a connection where it belongs now; returns whether it waits for a head."""
        cycle = connection.cycle
        is_asked = bool(cycle) and not cycle.response_complete
        if not is_asked:
            self.bodies.pop(connection, None)
            self.heads.setdefault(connection, time.monotonic())
            return True
        self.heads.pop(connection, None)
        if cycle.more_body:
            self.bodies.setdefault(connection, time.monotonic())
        else:
            self.bodies.pop(connection, None)
        return False

    def forget(self, connection: H11Protocol) -> None:
        """It is gone."""
        self.heads.pop(connection, None)
        self.bodies.pop(connection, None)

    def longest(self) -> H11Protocol | None:
        """Return the one to close for another: it waits longest, and rather for a head than for a body.

        A head that waits a moment only may lie unread in its socket, and is a client's own.
        """
        head, since = next(iter(self.heads.items()), (None, 0.0))
        is_idle = time.monotonic() - since > _MOMENT_SECONDS
        return head if head is not None and is_idle else next(iter(self.bodies), head)


class _CheckedHttp(h11.Connection):
    """h11, which passes over a length beside chunks (a way to smuggle requests) and long heads that come at once."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; raises `RemoteProtocolError` for a head that is refused."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("Content-Length with Transfer-Encoding")
            if sum(len(name) + len(value) + 4 for name, value in event.headers) > MAX_HEAD_BYTES:
                raise h11.RemoteProtocolError("head too long", error_status_hint=431)
        return event


class _Connection(H11Protocol):
    """uvicorn's connection; `bounded` sets what all connections of a server share."""

    seconds: ClassVar[float]
    max_connections: ClassVar[int]
    waiting: ClassVar[Waiting]
    _patience: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _CheckedHttp(h11.SERVER, MAX_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._make_room()
        if not transport.is_closing():
            self._watch()

    def _make_room(self) -> None:
        other = self.waiting.longest()
        if other is not None:
            self.waiting.forget(other)
            _close(other.transport)
            return
        body = _FULL.body_at("/")
        head = f"HTTP/1.1 503 \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}retry-after: 1\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.waiting.forget(self)
        for timer in (self._patience, self._unread):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer is on its way already
            self.transport.abort()

    def _watch(self) -> None:
        """Count the time while no request is under way."""
        if self.transport.is_closing():
            return
        is_waiting = self.waiting.note(self)
        if not is_waiting and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif is_waiting and self._patience is None and not self._is_kept_alive():
            self._patience = self.loop.call_later(self.seconds, self.transport.close)

    def _is_kept_alive(self) -> bool:
        """Whether uvicorn's own timer closes it: it was answered, and nothing of another request has come."""
        return self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]


def bounded(seconds: float, max_connections: int = 1000) -> type[H11Protocol]:
    """uvicorn's connection: closed when a request's head is not there within `seconds`, or for another's sake."""
    shared = {"seconds": seconds, "max_connections": max_connections, "waiting": Waiting()}
    return type("Connection", (_Connection,), shared)


def _close(transport: asyncio.Transport) -> None:
    """Close it now: what its client does not read must not keep it."""
    if transport.get_write_buffer_size():
        transport.abort()
    else:
        transport.close()
