"""Keep one connection with a peer: one socket at a time, a new one when it ends, after pauses that grow.

A socket that reconnected by itself would send what was queued before the peer's hello, and to a peer that has been
restarted. What a connection carries is the transport's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import zmq

from pyagent.infrastructure.cluster.frames import HELLO, Channel, Limits, Open
from pyagent.infrastructure.cluster.peer import Path, Peer
from pyagent.infrastructure.cluster.sockets import LoopSocket, Part, watch_events

_EVENTS = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_EVENT_TO_REASON = {
    zmq.Event.CLOSED: "it refuses connections, or cannot be reached",
    zmq.Event.DISCONNECTED: "it hung up",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "it does not let this node in",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "it does not prove the key that it showed",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "it does not prove the key that it showed",
}
_MAX_DOUBLINGS = 10


class Dialer:
    """One connection with a peer for one purpose, kept up until `close`."""

    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        open_socket: Callable[[Peer, Channel], zmq.Socket[bytes]],
        receive: Callable[[Path, list[zmq.Frame]], None],
        on_change: Callable[[Dialer, Path | None, str], None],
    ) -> None:
        """`on_change` is called with a path that ended, or with None when an attempt at each endpoint has failed."""
        self.peer = peer
        self.channel: Channel = channel
        self.failure = "no attempt to connect has ended yet"
        self.is_closed = False
        self._open_socket = open_socket
        self._receive = receive
        self._on_change = on_change
        self.endpoints: list[str] = []
        self._next = self._num_failed = 0
        self._path: Path | None = None
        self._socket: LoopSocket | None = None
        self._events: LoopSocket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def _limits(self) -> Limits:
        return self.peer.limits

    @property
    def path(self) -> Path | None:
        """The connection, while both ends have said hello on it."""
        return self._path if self._path and self._path.is_open and self._path.version is not None else None

    async def first_outcome(self) -> None:
        """Wait until the connection is there, or until an attempt at each endpoint has failed."""
        await asyncio.shield(self._outcome)

    def dial(self, endpoints: Sequence[str]) -> None:
        """Connect to one of these; a connection that is there stays, an attempt begins anew where they differ."""
        if list(endpoints) != self.endpoints:
            self.endpoints, self._next, self._num_failed = list(endpoints), 0, 0
            if self.path is None:
                self._hang_up()
                self._attempt()

    def welcomed(self) -> None:
        """Take note that the peer has said hello."""
        self._num_failed = 0
        self._stop_timer()
        self._settle()

    def close(self) -> None:
        """Hang up for good."""
        self.is_closed = True
        self._end("this node hung up")
        self._settle()

    def _attempt(self) -> None:
        self._stop_timer()
        if not self.endpoints:
            self._fail("none of its endpoints is a TCP address")
            return
        socket = self._open_socket(self.peer, self.channel)
        self._path = path = Path(self.peer, self._send, self._path_closed, is_incoming=False)
        path.channel = self.channel
        self._events = watch_events(socket, _EVENTS, self._note)
        try:
            socket.connect(self.endpoints[self._next])
        except zmq.ZMQError as error:
            socket.close(0)
            self._end(f"cannot connect: {error}")
            return
        self._socket = LoopSocket(socket, lambda frames: self._receive(path, frames), path.flush)
        path.push(HELLO)
        path.push(Open(self.channel))
        self._again_in(self._limits.connect_seconds + self._limits.handshake_seconds, self._no_answer)

    def _send(self, parts: Sequence[Part]) -> bool:
        return self._socket.send(parts) if self._socket else False

    def _note(self, event: zmq.Event, _value: int) -> None:
        if self._socket:
            self._socket.drain()  # the peer's last words
        self._end(_EVENT_TO_REASON[event])

    def _no_answer(self) -> None:
        self._end("it does not answer")

    def _end(self, reason: str) -> None:
        """End the connection or the attempt."""
        if self._path and self._path.is_open:
            self._path.close(reason)  # comes back as `_path_closed`

    def _path_closed(self, path: Path, reason: str) -> None:
        was_up = path.version is not None
        self._hang_up()
        if was_up:
            self.failure = reason
            self._outcome = asyncio.get_running_loop().create_future()
            if not self.is_closed:
                self._again_in(_jitter(0, self._limits.first_pause_seconds), self._attempt)
            self._on_change(self, path, reason)
        elif not self.is_closed:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        """Try the next endpoint; after the last one pause, and say so."""
        self._next += 1
        if self._next < len(self.endpoints):
            return self._again_in(0, self._attempt)
        self._next = 0
        self.failure = reason
        self._num_failed += 1
        pause = self._limits.first_pause_seconds * 2 ** min(self._num_failed, _MAX_DOUBLINGS)
        self._again_in(min(pause, self._limits.longest_pause_seconds) * _jitter(0.5, 1), self._attempt)
        self._settle()
        return self._on_change(self, None, reason)

    def _settle(self) -> None:
        if not self._outcome.done():
            self._outcome.set_result(None)

    def _hang_up(self) -> None:
        self._stop_timer()
        path, self._path = self._path, None
        for socket in (self._socket, self._events):  # in this order: events with no reader would block ZMQ's thread
            if socket:
                socket.close(self._limits.linger_seconds if path and path.version is not None else 0)
        self._events = self._socket = None
        if path:
            path.is_open = False

    def _again_in(self, seconds: float, action: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def _jitter(low: float, high: float) -> float:
    return random.uniform(low, high)  # noqa: S311 - it spreads load, and protects nothing
