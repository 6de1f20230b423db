"""The ROUTER that hears all peers: which connection is whose, and what arrives on the connections that they made.

A peer is who its key says it is. What it says is for its owner to judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

import zmq

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.frames import Limits
from pyagent.infrastructure.cluster.guests import Guests
from pyagent.infrastructure.cluster.peer import Path, Peer
from pyagent.infrastructure.cluster.sockets import Connection, LoopSocket, watch_events
from pyagent.infrastructure.cluster.zap import AllowList

logger = logging.getLogger(__name__)

_MAX_INCOMING = 8
"""Connections of one peer; one more closes the oldest."""
_LAST_WORDS_TRIES = 100
"""So many batches of messages are read before a connection that has ended is taken as such."""


class Owner(Protocol):
    """What the listener asks, and tells."""

    def peer(self, peer_id: str) -> Peer:
        """Return a peer by its id."""
        ...

    def received(self, path: Path, frames: list[zmq.Frame]) -> None:
        """Take a message of a peer's."""
        ...

    def give_up(self, path: Path, reason: str) -> None:
        """Close a connection and tell the peer why."""
        ...

    def path_closed(self, path: Path) -> None:
        """Note that a connection has ended."""
        ...


class Listener:
    """The connections that peers made; `routes` are those that have said something, by the ROUTER's name for them."""

    def __init__(self, owner: Owner, limits: Limits, allowed: AllowList) -> None:
        self.routes: dict[bytes, Path] = {}
        self._owner = owner
        self._allowed = allowed
        self._guests = Guests(limits)
        self._fd_to_route: dict[int, bytes] = {}
        self._socket: LoopSocket | None = None
        self._events: LoopSocket | None = None

    def start(self, socket: zmq.Socket[bytes], bind: Sequence[str]) -> list[str]:
        """Listen at these endpoints, and return them with their ports. Raises `ClusterError` where none is there."""
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._events = watch_events(socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED, self._note_incoming)
        self._socket = LoopSocket(socket, self._take)
        endpoints, failures = list[str](), list[str]()
        for endpoint in bind:
            socket.setsockopt(zmq.IPV6, int("[" in endpoint))
            try:
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                failures.append(f"cannot listen at {endpoint}: {error}")
                continue
            endpoints.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        if failures and not endpoints:
            raise ClusterError("; ".join(failures))
        for failure in failures:
            logger.warning("this node %s", failure)
        return endpoints

    def close(self, linger_seconds: float) -> None:
        """Hear no peer any more."""
        for socket in (self._socket, self._events):
            if socket:
                socket.close(linger_seconds)

    def endless(self, max_bytes: int) -> list[Path]:
        """Return the connections on which more bytes arrived than any message has, and no message."""
        read = [(path, path.connection.num_read()) for path in self.routes.values() if path.connection]
        is_drained = self._socket is not None and self._socket.drain()
        return [
            path
            for path, num_read in (read if is_drained else [])
            if path.is_open and num_read is not None and path.is_endless(num_read, max_bytes)
        ]

    def _take(self, frames: list[zmq.Frame]) -> None:
        """Take a message at the ROUTER, where the first frame is the connection's name."""
        route, *parts = frames
        path = self.routes.get(route.bytes)
        if path is None and parts:
            path = self._welcome(route.bytes, parts[0])
        if path and path.is_open and parts:
            if _user(parts[0]) == path.peer.id:
                self._owner.received(path, parts)
            else:
                self._owner.give_up(path, "its key has changed")

    def _welcome(self, route: bytes, frame: zmq.Frame) -> Path | None:
        """Return a new connection that a peer made; None for one that is no longer let in."""
        assert self._socket
        assert self._events
        self._events.drain()  # the end of an earlier connection with this file descriptor
        fd, peer_id = int(frame.get(zmq.SRCFD)), _user(frame)
        connection = Connection(fd)
        self._guests.leave(fd)
        if peer_id not in self._allowed:
            connection.end()
            return None
        peer = self._owner.peer(peer_id)
        socket = self._socket
        path = Path(peer, lambda parts: socket.send([route, *parts]), self._incoming_closed, is_incoming=True)
        path.connection = connection
        self.routes[route] = path
        self._fd_to_route[fd] = route
        peer.incoming.append(path)
        if len(peer.incoming) > _MAX_INCOMING:
            self._owner.give_up(peer.incoming[0], "it has newer connections")
        return path

    def _note_incoming(self, event: zmq.Event, fd: int) -> None:
        """Take note of a connection that was accepted, or has ended."""
        if event == zmq.EVENT_ACCEPTED:
            self._guests.enter(fd)
            return
        self._guests.leave(fd)
        if (route := self._fd_to_route.pop(fd, None)) is not None:
            self._end_route(route)

    def _end_route(self, route: bytes, num_tries: int = _LAST_WORDS_TRIES) -> None:
        """Take a connection as ended once the peer's last words are taken: also those in a queue that is being read."""
        if self._socket and not self._socket.drain() and num_tries:
            asyncio.get_running_loop().call_soon(self._end_route, route, num_tries - 1)
        elif path := self.routes.pop(route, None):
            path.close("it hung up")

    def _incoming_closed(self, path: Path, reason: str) -> None:
        path.peer.incoming.remove(path)
        logger.debug("node %s: a connection it made has ended: %s", path.peer.id, reason)
        self._owner.path_closed(path)


def end_connection(path: Path) -> None:
    """End the TCP connection of a path that the peer made, if it still stands."""
    if path.connection:
        path.connection.end()


def _user(frame: zmq.Frame) -> str:
    """Return the peer whose key a message's connection has proved to own."""
    with contextlib.suppress(zmq.ZMQError):
        return str(frame.get("User-Id"))
    return ""
