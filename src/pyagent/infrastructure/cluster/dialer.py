"""Keep one connection with a peer: one socket at a time, a new one when it ends, after pauses that grow.

Its endpoints are tried at once, a moment apart, and the first to say hello is kept. A socket that reconnected by itself
would send what was queued before the peer's hello, and to a peer that has been restarted. What a connection carries is
the transport's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import zmq

from pyagent.infrastructure.cluster.frames import HELLO, Channel, Limits, Open
from pyagent.infrastructure.cluster.peer import Path, Peer
from pyagent.infrastructure.cluster.sockets import Connection, LoopSocket, Part, watch_events

_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CLOSED
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
_STAGGER_SECONDS = 0.1
_QUICK_SECONDS = 1.0
"""A connection that ends sooner than this counts as a failed attempt."""
_MAX_DOUBLINGS = 10

OpenSocket = Callable[[Peer, Channel], zmq.Socket[bytes]]
Receive = Callable[[Path, list[zmq.Frame]], None]


class Dialer:
    """One connection with a peer for one purpose, kept up until `close`."""

    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        open_socket: OpenSocket,
        receive: Receive,
        on_change: Callable[[Dialer, Path | None, str], None],
    ) -> None:
        """`on_change` is called with a path that ended, or with None when an attempt at each endpoint has failed."""
        self.peer = peer
        self.channel: Channel = channel
        self.failure = "no attempt to connect has ended yet"
        self.endpoints: list[str] = []
        self._open_socket = open_socket
        self._receive = receive
        self._on_change = on_change
        self._is_closed = False
        self._untried: list[str] = []
        self._attempts: list[_Attempt] = []
        self._kept: _Attempt | None = None
        self._up_since = 0.0
        self._num_failed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._outcome = asyncio.get_running_loop().create_future()

    @property
    def path(self) -> Path | None:
        """The connection, while both ends have said hello on it."""
        return self._kept.path if self._kept else None

    async def first_outcome(self) -> None:
        """Wait until the connection is there, or until an attempt at each endpoint has failed."""
        await asyncio.shield(self._outcome)

    def dial(self, endpoints: Sequence[str]) -> None:
        """Connect to one of these; a connection that is there stays, attempts begin anew where they differ."""
        if set(endpoints) != set(self.endpoints) or not self.endpoints:
            self.endpoints, self._num_failed = list(endpoints), 0
            if self._kept is None:
                self._hang_up()
                self._begin()

    def welcomed(self, path: Path) -> None:
        """Keep the connection on which the peer has said hello, and give up the other attempts."""
        kept = next((one for one in self._attempts if one.path is path), None)
        if kept is not None:
            self._attempts.remove(kept)
            self._hang_up()
            self._kept, self._up_since = kept, asyncio.get_running_loop().time()
            kept.stop_timer()
            self.endpoints.sort(key=lambda one: one != kept.endpoint)
            self._settle()

    def close(self) -> None:
        """Hang up for good."""
        self._is_closed = True
        kept = self._kept
        self._hang_up()
        if kept:
            kept.path.close("this node hung up")
        self._settle()

    def _begin(self) -> None:
        self._untried = list(self.endpoints)
        if self._untried:
            self._try_next()
        else:
            self._note_failure("none of its endpoints is a TCP address")

    def _try_next(self) -> None:
        self._stop_timer()
        endpoint = self._untried.pop(0)
        if self._untried:
            self._again_in(_STAGGER_SECONDS, self._try_next)
        attempt = _Attempt(endpoint, self)
        self._attempts.append(attempt)
        try:
            attempt.start(self._open_socket(self.peer, self.channel), self._receive)
        except zmq.ZMQError as error:  # no descriptor is left
            attempt.path.close(f"this node cannot open a socket: {error}")

    def ended(self, attempt: _Attempt, reason: str) -> None:
        """Take note that a connection, or an attempt, has ended."""
        attempt.hang_up(self.peer.limits)
        if attempt is self._kept:
            self._lose(attempt, reason)
        elif attempt in self._attempts:
            self._attempts.remove(attempt)
            if self._untried:
                self._try_next()
            elif not self._attempts:
                self._note_failure(reason)

    def _lose(self, attempt: _Attempt, reason: str) -> None:
        self._kept, self.failure = None, reason
        if not self._is_closed:
            self._outcome = asyncio.get_running_loop().create_future()
            was_quick = asyncio.get_running_loop().time() - self._up_since < _QUICK_SECONDS
            self._num_failed = self._num_failed + 1 if was_quick else 0
            self._again_in(self._pause(), self._begin)
        self._on_change(self, attempt.path, reason)

    def _note_failure(self, reason: str) -> None:
        """Pause, and say that no endpoint could be connected to."""
        self.failure = reason
        self._num_failed += 1
        self._again_in(self._pause(), self._begin)
        self._settle()
        self._on_change(self, None, reason)

    def _pause(self) -> float:
        limits = self.peer.limits
        longest = limits.first_pause_seconds * 2 ** min(self._num_failed, _MAX_DOUBLINGS)
        return min(longest, limits.longest_pause_seconds) * random.uniform(0.5, 1)  # noqa: S311 - spreads load

    def _settle(self) -> None:
        if not self._outcome.done():
            self._outcome.set_result(None)

    def _hang_up(self) -> None:
        """Give up all attempts, and the connection."""
        self._stop_timer()
        attempts, self._attempts, self._untried = self._attempts, [], []
        for attempt in [*attempts, *([self._kept] if self._kept else [])]:
            attempt.hang_up(self.peer.limits)

    def _again_in(self, seconds: float, action: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, action)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


class _Attempt:
    """One socket, which connects to one endpoint once."""

    def __init__(self, endpoint: str, dialer: Dialer) -> None:
        self.endpoint = endpoint
        self.path = Path(dialer.peer, self._send, self._path_closed, is_incoming=False)
        self.path.channel = dialer.channel
        self._dialer = dialer
        self._socket: LoopSocket | None = None
        self._events: LoopSocket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, socket: zmq.Socket[bytes], receive: Receive) -> None:
        """Connect, and say hello once connected. Raises `zmq.ZMQError` where the system has no socket left."""
        try:
            self._events = watch_events(socket, _EVENTS, self._note)
            self._socket = LoopSocket(socket, lambda frames: receive(self.path, frames), self.path.flush)
        except zmq.ZMQError:
            socket.close(0)
            raise
        try:
            socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            self.path.close(f"cannot connect to {self.endpoint}: {error}")
            return
        self.path.push(HELLO)
        self.path.push(Open(self._dialer.channel))
        limits = self.path.peer.limits
        seconds = limits.connect_seconds + limits.handshake_seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self.path.close, "it does not answer")

    def stop_timer(self) -> None:
        """Take all the time it needs from now on."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def hang_up(self, limits: Limits) -> None:
        """Close the socket; what was sent on a connection may still leave."""
        self.stop_timer()
        linger = limits.linger_seconds if self.path.version is not None else 0.0
        for socket in (self._socket, self._events):  # in this order: unread events would stop ZMQ's thread
            if socket:
                socket.close(linger)

    def _send(self, parts: Sequence[Part]) -> bool:
        return self._socket.send(parts) if self._socket else False

    def _note(self, event: zmq.Event, value: int) -> None:
        if event == zmq.EVENT_CONNECTED:
            self.path.connection = Connection(value)
            return
        if self._socket:
            self._socket.drain()  # the peer's last words
        self.path.close(_EVENT_TO_REASON[event])

    def _path_closed(self, _path: Path, reason: str) -> None:
        self._dialer.ended(self, reason)
