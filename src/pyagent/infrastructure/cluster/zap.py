"""Who may connect: ZMQ asks here about each public key that a connection has proved to own (ZAP, RFC 27).

An answer names the peer by its id, and ZMQ attaches that name to each message of the connection: what a message says
about its sender is never looked at.
"""

from __future__ import annotations

import asyncio

import zmq

from pyagent.core.cluster.cluster_state import decode_key
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.sockets import LoopSocket

_ENDPOINT = "inproc://zeromq.zap.01"
_DOMAIN = b"pyagent-cluster"


class AllowList:
    """The public keys of peers, and ZMQ's questions about them."""

    def __init__(self) -> None:
        self._key_to_peer: dict[bytes, str] = {}
        self._peer_to_key: dict[str, bytes] = {}
        self._peer_to_return: dict[str, float] = {}
        self._socket: LoopSocket | None = None

    def start(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Answer ZMQ's questions in this event loop, for all sockets of a context."""
        socket = context.socket(zmq.REP)
        socket.bind(_ENDPOINT)
        self._socket = LoopSocket(socket, self._answer)

    def stop(self) -> None:
        """Answer no more; ZMQ refuses each connection then."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def allow(self, peer_id: str, public_key: str) -> bool:
        """Let a peer connect with this key and no other; return whether it had another one.

        Raises `ClusterError` for a text that is no key, and for the key of another peer.
        """
        try:
            key = decode_key(public_key)
        except ValueError as error:
            raise ClusterError(f"the public key of node {peer_id} is none: {error}", peer=peer_id) from error
        if self._key_to_peer.get(key, peer_id) != peer_id:
            raise ClusterError(f"node {peer_id} shows the key of node {self._key_to_peer[key]}", peer=peer_id)
        had_another = self._peer_to_key.get(peer_id, key) != key
        self.remove(peer_id)
        self._key_to_peer[key] = peer_id
        self._peer_to_key[peer_id] = key
        return had_another

    def remove(self, peer_id: str) -> None:
        """Let a peer no longer connect."""
        if (key := self._peer_to_key.pop(peer_id, None)) is not None:
            del self._key_to_peer[key]
            self._peer_to_return.pop(peer_id, None)

    def shut_out(self, peer_id: str, seconds: float) -> None:
        """Refuse a peer for some time: one that breaks the protocol would do it again at once."""
        self._peer_to_return[peer_id] = asyncio.get_running_loop().time() + seconds

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self._peer_to_key

    def _answer(self, frames: list[zmq.Frame]) -> None:
        assert self._socket
        _, request_id, domain, _, _, mechanism, *credentials = (frame.bytes for frame in frames)
        is_curve = mechanism == b"CURVE" and domain == _DOMAIN and len(credentials) == 1
        peer_id = self._key_to_peer.get(credentials[0]) if is_curve else None
        if peer_id is None or self._peer_to_return.get(peer_id, 0.0) > asyncio.get_running_loop().time():
            self._socket.send([b"1.0", request_id, b"400", b"refused", b"", b""])
        else:
            self._socket.send([b"1.0", request_id, b"200", b"", peer_id.encode(), b""])


def guard(socket: zmq.Socket[bytes], public: str, secret: str) -> None:
    """Make a socket take connections of allowed keys only; none at all where no allow list answers."""
    socket.curve_server = 1
    socket.curve_publickey = public.encode()
    socket.curve_secretkey = secret.encode()
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def present(socket: zmq.Socket[bytes], public: str, secret: str, server_key: str) -> None:
    """Make a socket connect with this node's keys, and only to the owner of `server_key`."""
    socket.curve_publickey = public.encode()
    socket.curve_secretkey = secret.encode()
    socket.curve_serverkey = server_key.encode()
