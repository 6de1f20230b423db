"""A peer as the transport sees it: its connections, what they carry, and what was counted on them."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import zmq

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.frames import Channel, Limits, Message, codec_for
from pyagent.infrastructure.cluster.sockets import Connection, Part

if TYPE_CHECKING:
    from pyagent.infrastructure.cluster.dialer import Dialer

_RETRY_SECONDS = 0.002
"""How soon a full queue of the ROUTER is tried again: it cannot tell when one peer's queue has room."""


class PeerStats(msgspec.Struct, frozen=True):
    """What was counted on the connections with a peer; `in_flight` calls wait for it, `serving` are its own.

    `failure` is why the last try to connect failed, while it is not up.
    """

    is_up: bool
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    in_flight: int
    serving: int
    round_trip_seconds: float | None
    failure: str = ""


class Waiting(Protocol):
    """A call or stream of this node that waits for a peer: `path` is where it was sent."""

    path: Path

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        ...


class Peer:
    """All that is known of a peer and shared with it."""

    def __init__(self, peer_id: str, limits: Limits) -> None:
        self.id = peer_id
        self.limits = limits
        self.codec = codec_for(peer_id)
        self.key: str | None = None
        self.calls: Dialer | None = None
        self.bulk: Dialer | None = None
        self.incoming: list[Path] = []
        """Connections that the peer made, oldest first."""
        self.bulk_used_at = 0.0
        self.is_up = False
        self.ids = itertools.count(1)
        self.waiting: dict[int, Waiting] = {}
        self.num_serving = 0
        self.num_refused_casts = 0
        self.refusals_told_at = -math.inf
        self.bytes_sent = self.bytes_received = self.messages_sent = self.messages_received = 0
        self.round_trip_seconds: float | None = None

    def stats(self) -> PeerStats:
        """Return what was counted."""
        return PeerStats(
            self.is_up,
            self.bytes_sent,
            self.bytes_received,
            self.messages_sent,
            self.messages_received,
            len(self.waiting),
            self.num_serving,
            self.round_trip_seconds,
            self.calls.failure if self.calls and not self.is_up else "",
        )

    @property
    def path(self) -> Path | None:
        """The connection for small messages: this node's own, or else the newest that the peer made."""
        if self.calls and self.calls.path:
            return self.calls.path
        return next((path for path in reversed(self.incoming) if path.channel == "calls"), None)

    @property
    def paths(self) -> list[Path]:
        """All connections for small messages: of two nodes, where a disk was cloned."""
        own = [self.calls.path] if self.calls and self.calls.path else []
        return [*own, *(path for path in self.incoming if path.channel == "calls")]

    async def connected(self) -> Path:
        """Return the connection for small messages; a first attempt to connect is waited for.

        Raises `ClusterError` where there is none and none is coming.
        """
        if (path := self.path) is None and self.calls is not None:
            await self.calls.first_outcome()
            path = self.path
        if path is None:
            why = self.calls.failure if self.calls else "it was not met yet"
            raise ClusterError(f"node {self.id} is not connected: {why}", peer=self.id)
        return path


class Path:
    """One connection with a peer, usable both ways once both ends have said hello.

    Messages that find no room wait in a bounded queue; a peer that lets it overflow is given up.
    """

    def __init__(
        self,
        peer: Peer,
        send: Callable[[Sequence[Part]], bool],
        on_closed: Callable[[Path, str], None],
        *,
        is_incoming: bool,
    ) -> None:
        """`send` returns False when there is no room; `on_closed` is called once, with the reason."""
        self.peer = peer
        self.is_incoming = is_incoming
        self.channel: Channel | None = None
        self.version: int | None = None
        """The protocol's version both ends understand; None until the peer has said hello."""
        self.is_open = True
        self.serving: dict[int, asyncio.Task[None]] = {}
        self.last_call_id = 0
        self.ping: tuple[int, float] | None = None
        self.connection: Connection | None = None
        self.num_messages = 0
        self._watched = 0, 0
        self._send = send
        self._on_closed = on_closed
        self._queue = deque[Sequence[Part]]()
        self._room: asyncio.Future[None] | None = None

    def is_endless(self, num_read: int, max_bytes: int) -> bool:
        """Whether more was read from the connection since the last whole message than a message can have.

        ZMQ keeps the frames of a message until its last one, whatever their number. `num_read` was counted before the
        messages that were whole then have been taken.
        """
        num_messages, num_before = self._watched
        if num_messages != self.num_messages:
            self._watched = self.num_messages, num_read
            return False
        return num_read - num_before > max_bytes

    def push(self, message: Message, buffers: Sequence[Part] = ()) -> None:
        """Send a message, or queue it. One for a closed connection is dropped."""
        if self.is_open:
            self._push([self.peer.codec.encode(message), *buffers])

    def _push(self, parts: Sequence[Part]) -> None:
        if self._queue or not self._try(parts):
            if len(self._queue) >= 2 * self.peer.limits.max_queued:
                self.close("it does not read what it is sent")
            if self.is_open:
                self._queue.append(parts)

    def _try(self, parts: Sequence[Part]) -> bool:
        try:
            is_sent = self._send(parts)
        except zmq.ZMQError as error:
            self.close(f"the connection is gone ({error})")
            return True
        if is_sent:
            self.peer.messages_sent += 1
            self.peer.bytes_sent += sum(map(_num_bytes, parts))
        elif self.is_incoming:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.flush)
        return is_sent

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._queue and self.is_open and self._try(self._queue[0]):
            if self._queue:
                self._queue.popleft()
        if self._room and not self.is_full:
            self._wake()

    @property
    def is_full(self) -> bool:
        """Whether a message would wait behind too many others."""
        return len(self._queue) >= (1 if self.channel == "bulk" else self.peer.limits.max_queued)

    async def room(self) -> None:
        """Wait until there is room. Raises `ClusterError` when the connection is closed."""
        while self.is_open and self.is_full:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)
        if not self.is_open:
            raise lost(self.peer.id)

    def close(self, reason: str) -> None:
        """Take this connection as ended; harmless when it is."""
        if self.is_open:
            self.is_open = False
            self._queue.clear()
            self._wake()
            self._on_closed(self, reason)

    def _wake(self) -> None:
        if self._room and not self._room.done():
            self._room.set_result(None)
        self._room = None


def lost(peer_id: str) -> ClusterError:
    """Return the error of what was on its way when a connection ended."""
    return ClusterError(f"the connection with node {peer_id} was lost", peer=peer_id)


def _num_bytes(part: Part) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)
