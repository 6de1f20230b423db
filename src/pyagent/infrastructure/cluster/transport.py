"""What a node says to its peers, and hears from them: calls, streams, casts and tensors, encrypted by CURVE.

One ROUTER hears all peers; each peer is called on a connection for small messages, and on one for chunks of long ones
while there are any. A peer is who its key says it is. What passed the door is told here by `allow`; nothing else is
heard. Knows no membership: a connection that ends is told, and what it means is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import zmq

from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster.dialer import Dialer
from pyagent.infrastructure.cluster.frames import (
    HELLO,
    MAX_BUFFERS,
    MAX_HEADER_BYTES,
    Channel,
    Limits,
    Message,
    Open,
    Ping,
    Pong,
    Refused,
    agree,
    shown,
)
from pyagent.infrastructure.cluster.listener import Listener, end_connection
from pyagent.infrastructure.cluster.peer import Path, Peer, PeerStats
from pyagent.infrastructure.cluster.rpc import Rpc
from pyagent.infrastructure.cluster.serving import Handler
from pyagent.infrastructure.cluster.sockets import is_endpoint
from pyagent.infrastructure.cluster.told_once import ToldOnce
from pyagent.infrastructure.cluster.waiting import Reply
from pyagent.infrastructure.cluster.zap import AllowList, guard, present
from pyagent.infrastructure.wire.hello import Hello

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Handler", "Limits", "LinkChange", "PeerStats", "Reply", "Transport"]

logger = logging.getLogger(__name__)
LinkChange = Literal["up", "down", "refused"]

_RECEIVE_QUEUE = 128
"""Messages of a connection that ZMQ reads ahead; the longest of them are chunks."""
_BULK_QUEUE = 8
"""Chunks that wait in ZMQ."""
_LAST_WORDS_SECONDS = 0.2
_BULK_IDLE_SECONDS = 30.0
_SHUT_OUT_SECONDS = 2.0
_WATCHES_PER_PING = 8
_MESSAGES_UNSEEN = 4
"""So many of the longest frames may arrive before a message is whole."""
_IO_THREADS = 2
_MAX_SOCKETS = 1 << 15
_FRAME_SLACK_BYTES = 1 << 10


class Transport:
    """The connections of one node, in one event loop."""

    def __init__(self, node_id: str, public: str, secret: str, *, limits: Limits | None = None) -> None:
        """`public` and `secret` are the node's CURVE keys as Z85 text."""
        self.node_id = node_id
        self.limits = limits or Limits()
        self._max_frame_bytes = (
            max(self.limits.chunk_bytes, self.limits.inline_bytes, MAX_HEADER_BYTES) + _FRAME_SLACK_BYTES
        )
        self._public, self._secret = public, secret
        self._peers: dict[str, Peer] = {}
        self._allowed = AllowList()
        self._rpc = Rpc(node_id, self.limits, self._bulk_path)
        self._link_callbacks: list[Callable[[str, LinkChange], None]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._listener = Listener(self, self.limits, self._allowed)
        self._told = ToldOnce()
        self._upkeep: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Transport({self.node_id!r})"

    async def start(self, bind: Sequence[str]) -> list[str]:
        """Listen at these endpoints (`tcp://127.0.0.1:0` picks a port), and return them with their ports.

        Those that this machine lacks are told and left out. Raises `ClusterError` where none is left.
        """
        assert self._context is None
        self._context = context = zmq.Context(_IO_THREADS)
        context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        try:
            self._allowed.start(context)
            return self._listen(context, bind)
        except zmq.ZMQError as error:
            await self.stop()
            raise ClusterError(f"this node cannot open its sockets: {error} (see `ulimit -n`)") from error
        except BaseException:
            await self.stop()
            raise

    def _listen(self, context: zmq.Context[zmq.Socket[bytes]], bind: Sequence[str]) -> list[str]:
        socket = self._configured(context.socket(zmq.ROUTER))
        guard(socket, self._public, self._secret)
        endpoints = self._listener.start(socket, bind)
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())
        return endpoints

    def _configured(self, socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Return a socket with the bounds that all of them have."""
        limits = self.limits
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self._max_frame_bytes)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(limits.handshake_seconds * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(limits.heartbeat_seconds * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(limits.silence_seconds * 1000))
        socket.setsockopt(zmq.SNDHWM, limits.max_queued)
        socket.setsockopt(zmq.RCVHWM, _RECEIVE_QUEUE)
        return socket

    async def stop(self) -> None:
        """Close every connection, cancel every handler. Safe at any time, twice, and when cancelled."""
        context, self._context = self._context, None
        if context is None:
            return
        if self._upkeep:
            self._upkeep.cancel()
        try:
            for peer_id in list(self._peers):
                self.disconnect(peer_id)
            await self._rpc.serving.stop()
        finally:
            self._listener.close(self.limits.linger_seconds)
            self._allowed.stop()
            # In a thread: it waits until what was sent has left, or the time for that is over.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, context.destroy, 0))

    def allow(self, peer_id: str, public_key: str) -> None:
        """Let a peer in that has this key. Connections under another key that it had are closed."""
        if self._allowed.allow(peer_id, public_key) and (peer := self._peers.get(peer_id)):
            self._hang_up(peer)
        self.peer(peer_id).key = public_key

    def revoke(self, peer_id: str) -> None:
        """Let a peer in no more, and close its connections at once."""
        self._allowed.remove(peer_id)
        if peer := self._peers.pop(peer_id, None):
            self._hang_up(peer)

    def connect(self, peer_id: str, public_key: str, endpoints: Sequence[str]) -> None:
        """Keep a connection with a peer, at the first of these endpoints that answers as the owner of the key.

        Endpoints with a host name or another transport than TCP are passed over. Does nothing once stopped.
        """
        if self._context is None:
            return
        peer = self.peer(peer_id)
        if peer.key not in (None, public_key):
            self.disconnect(peer_id)
        peer.key = public_key
        if peer.calls is None:
            peer.calls = self._dialer(peer, "calls")
        for dialer in (peer.calls, peer.bulk):
            if dialer:
                dialer.dial([endpoint for endpoint in endpoints if is_endpoint(endpoint)])

    def disconnect(self, peer_id: str) -> None:
        """Close the connections with a peer, and make none any more. It may connect again."""
        if peer := self._peers.get(peer_id):
            self._hang_up(peer)

    def _hang_up(self, peer: Peer) -> None:
        for dialer in (peer.calls, peer.bulk):
            if dialer:
                dialer.close()
        peer.calls = peer.bulk = None
        for path in list(peer.incoming):
            path.close("this node hung up")
            end_connection(path)
        self._note_link(peer)

    async def call(
        self,
        peer_id: str,
        method: str,
        payload: bytes,
        *,
        buffers: Sequence[Buffer] = (),
        timeout: float,  # noqa: ASYNC109 - it crosses
    ) -> Reply:
        """Return a peer's answer. `buffers` must stay as they are until then.

        Raises what the handler raised, `DeadlineError`, and `ClusterError` when the peer cannot be reached or the
        connection is lost, after which the handler may have run or not.
        """
        return await self._rpc.call(self._known(peer_id), method, payload, buffers, timeout)

    def stream(
        self,
        peer_id: str,
        method: str,
        payload: bytes,
        *,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> AsyncGenerator[Reply, None]:
        """Yield a peer's answers; closing the iterator cancels the handler. Raises as `call` does."""
        return self._rpc.stream(self._known(peer_id), method, payload, buffers, timeout)

    def cast(self, peer_id: str, method: str, payload: bytes) -> bool:
        """Tell a peer something; return whether it is on its way. Never waits."""
        peer = self._peers.get(peer_id)
        return peer is not None and self._rpc.cast(peer, method, payload)

    def cast_everywhere(self, peer_id: str, method: str, payload: bytes) -> None:
        """Tell something to all that are connected under a peer's id: two nodes, where a disk was cloned."""
        if peer := self._peers.get(peer_id):
            self._rpc.cast_everywhere(peer, method, payload)

    def handle(self, method: str, handler: Handler) -> None:
        """Answer a method. A cast's handler returns None, and must be quick."""
        self._rpc.serving.handlers[method] = handler

    def on_link(self, callback: Callable[[str, LinkChange], None]) -> None:
        """Call back when a peer is connected, no longer connected, or refuses each attempt to connect."""
        self._link_callbacks.append(callback)

    def stats(self) -> Mapping[str, PeerStats]:
        """Return what was counted, by the peer's id."""
        return {peer_id: peer.stats() for peer_id, peer in self._peers.items()}

    def peer(self, peer_id: str) -> Peer:
        """Return a peer by its id, known from now on."""
        return self._peers.setdefault(peer_id, Peer(peer_id, self.limits))

    def _known(self, peer_id: str) -> Peer:
        if (peer := self._peers.get(peer_id)) is None:
            raise ClusterError(f"node {peer_id} is not a peer of this node", peer=peer_id)
        return peer

    def _dialer(self, peer: Peer, channel: Channel) -> Dialer:
        return Dialer(peer, channel, self._open_socket, self.received, self._note_dialer)

    def _open_socket(self, peer: Peer, channel: Channel) -> zmq.Socket[bytes]:
        assert self._context
        assert peer.key
        socket = self._configured(self._context.socket(zmq.DEALER))
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, int(self.limits.connect_seconds * 1000))
        socket.setsockopt(zmq.IPV6, 1)
        if channel == "bulk":
            socket.setsockopt(zmq.SNDHWM, _BULK_QUEUE)
        present(socket, self._public, self._secret, peer.key)
        return socket

    async def _bulk_path(self, peer: Peer, path: Path) -> Path:
        """Return the connection for chunks to a peer; `path` where it cannot be reached from here."""
        if peer.calls is None or peer.calls.path is None:
            return path
        if peer.bulk is None:
            peer.bulk = self._dialer(peer, "bulk")
            peer.bulk.dial(peer.calls.endpoints)
        peer.bulk_used_at = asyncio.get_running_loop().time()
        await peer.bulk.first_outcome()
        return peer.bulk.path if peer.bulk and peer.bulk.path else path

    def _note_dialer(self, dialer: Dialer, path: Path | None, reason: str) -> None:
        """Take note that a connection has ended (`path`), or could not be made."""
        if path:
            self._rpc.path_closed(path)
        if dialer.channel == "calls":
            logger.debug("node %s: %s", dialer.peer.id, reason)
            self._note_link(dialer.peer, is_refused=path is None)

    def path_closed(self, path: Path) -> None:
        """Note that a connection has ended that a peer made."""
        self._rpc.path_closed(path)
        self._note_link(path.peer)
        if self._context:
            asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, end_connection, path)

    def _note_link(self, peer: Peer, *, is_refused: bool = False) -> None:
        was_up, peer.is_up = peer.is_up, peer.path is not None
        if was_up != peer.is_up:
            self._tell(peer.id, "up" if peer.is_up else "down")
        elif is_refused and not peer.is_up:
            self._tell(peer.id, "refused")

    def _tell(self, peer_id: str, change: LinkChange) -> None:
        for callback in self._link_callbacks:
            try:
                callback(peer_id, change)
            except Exception:
                logger.exception("a callback failed that was told of a link")

    def received(self, path: Path, frames: list[zmq.Frame]) -> None:
        """Take a message of a peer's; one that breaks the protocol ends the connection."""
        peer = path.peer
        peer.messages_received += 1
        path.num_messages += 1
        peer.bytes_received += sum(map(len, frames))
        try:
            self._dispatch(path, _message(peer, frames), [frame.buffer for frame in frames[1:]])
        except WireError as error:
            (self.give_up if path.version is None else self._shut_out)(path, str(error))

    def _dispatch(self, path: Path, message: Message, buffers: list[memoryview]) -> None:
        match message:
            case Refused(reason):
                self._warn_once("node %s gives up the connection: %s", path.peer.id, shown(reason))
                path.close(shown(reason))
            case Hello():
                self._greet(path, message)
            case _ if path.version is None:
                raise WireError(f"node {path.peer.id} says no hello first", peer=path.peer.id)
            case Open(channel) if path.is_incoming and path.channel is None:
                path.channel = channel
                self._note_link(path.peer)
            case Ping(token):
                path.push(Pong(token))
            case Pong(token):
                self._note_pong(path, token)
            case _:
                self._rpc.receive(path, message, buffers)

    def _greet(self, path: Path, hello: Hello) -> None:
        peer = path.peer
        if path.version is not None:
            raise WireError(f"node {peer.id} says hello twice", peer=peer.id)
        version = agree(HELLO, hello, f"node {peer.id}")
        if path.is_incoming:
            path.push(HELLO)
        path.version = version
        for dialer in (peer.calls, peer.bulk):
            if dialer:
                dialer.welcomed(path)
        if path.channel == "calls":
            self._ping(path)
            self._note_link(peer)

    def give_up(self, path: Path, reason: str) -> None:
        """Close a connection and tell the peer why."""
        if path.is_open:
            self._warn_once("gives up a connection with node %s: %s", path.peer.id, shown(reason))
            path.push(Refused(shown(reason)))
            path.close(shown(reason))

    def _warn_once(self, text: str, *facts: str) -> None:
        """Warn, once of what happens again with each try to connect."""
        logger.log(logging.WARNING if self._told.is_new((text, *facts)) else logging.DEBUG, text, *facts)

    def _ping(self, path: Path) -> None:
        token = random.getrandbits(32)
        path.ping = token, asyncio.get_running_loop().time()
        path.push(Ping(token))

    def _note_pong(self, path: Path, token: int) -> None:
        if path.ping and path.ping[0] == token:
            path.peer.round_trip_seconds = asyncio.get_running_loop().time() - path.ping[1]
            path.ping = None

    async def _keep_up(self) -> None:
        """Measure round trips, and give up senders that hold room and send nothing."""
        for number in itertools.count(1):
            await asyncio.sleep(self.limits.ping_seconds / _WATCHES_PER_PING)
            self._watch()
            if number % _WATCHES_PER_PING == 0:
                for peer in list(self._peers.values()):
                    if path := peer.path:
                        self._ping(path)
                    self._close_unused(peer)

    def _watch(self) -> None:
        """Give up connections that fill memory, or hold room for what they do not send."""
        for path in self._listener.endless(_MESSAGES_UNSEEN * self._max_frame_bytes):
            self._shut_out(path, "it sends a message that has no end")
        for path in self._rpc.transfers.stuck():
            self._shut_out(path, "it does not send what it announced")

    def _shut_out(self, path: Path, reason: str) -> None:
        """Close a connection of a peer that breaks the protocol, and take no other from it for a while."""
        if path.is_incoming:
            self._allowed.shut_out(path.peer.id, _SHUT_OUT_SECONDS)
        self.give_up(path, reason)

    def _close_unused(self, peer: Peer) -> None:
        """Close the connection for long messages when none was sent for a while."""
        is_unused = asyncio.get_running_loop().time() > peer.bulk_used_at + _BULK_IDLE_SECONDS
        if peer.bulk and is_unused and not self._rpc.transfers.are_outgoing(peer):
            peer.bulk.close()
            peer.bulk = None


def _message(peer: Peer, frames: list[zmq.Frame]) -> Message:
    if len(frames) > 1 + MAX_BUFFERS or len(frames[0]) > MAX_HEADER_BYTES:
        raise WireError(f"node {peer.id} sends a message without bounds", peer=peer.id)
    return peer.codec.decode(frames[0].bytes)
