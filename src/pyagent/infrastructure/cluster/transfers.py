"""Long messages: announced among the other messages, granted by the receiver, sent in chunks beside them.

A receiver grants what it has room for, so that its memory is bounded by itself, and follows what has arrived rather
than what was announced. What a message says is the caller's.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from pyagent.core.errors import ClusterError, WireError
from pyagent.infrastructure.cluster.frames import (
    MAX_BUFFERS,
    Abandon,
    Begin,
    Call,
    Chunk,
    Grant,
    Item,
    Limits,
    Long,
    Message,
    Received,
    Reject,
    Returned,
    Stream,
    shown,
)
from pyagent.infrastructure.cluster.peer import Path, Peer, lost

_STUCK_SECONDS = 30.0
"""A sender that has leave to send and sends nothing for this time is given up."""


@dataclass(slots=True)
class _Outgoing:
    path: Path
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    bulk: Path | None = None
    granted: int = 0
    is_received: bool = False
    error: ClusterError | None = None


@dataclass(slots=True)
class _Incoming:
    path: Path
    transfer: int
    message: Long
    sizes: tuple[int, ...]
    num_bytes: int
    parts: list[memoryview] = field(default_factory=list[memoryview])
    filled: int = 0
    """Bytes of the last part that have arrived; a part begins with its first chunk."""
    received: int = 0
    granted: int = 0
    touched_at: float = field(default_factory=time.monotonic)


class Transfers:
    """The long messages on their way to peers and from them."""

    def __init__(
        self,
        limits: Limits,
        bulk_path: Callable[[Peer, Path], Awaitable[Path]],
        refusal: Callable[[Path, Long], str | None],
        has_room: Callable[[Path, Long], bool],
        deliver: Callable[[Path, Long, list[memoryview], int], None],
    ) -> None:
        """`refusal` says why a message is not taken, `has_room` whether it may begin to arrive.

        `deliver` gets what has arrived and the number of bytes to `release` when it is dealt with.
        """
        self._limits = limits
        self._bulk_path = bulk_path
        self._refusal = refusal
        self._has_room = has_room
        self._deliver = deliver
        self._ids = itertools.count(1)
        self._outgoing: dict[tuple[str, int], _Outgoing] = {}
        self._incoming: dict[tuple[str, int], _Incoming] = {}
        self._peer_to_held: dict[str, int] = {}
        self._peer_to_slots: dict[str, asyncio.Semaphore] = {}

    async def send(self, path: Path, message: Long, parts: Sequence[memoryview]) -> None:
        """Send a message whose payload and buffers are `parts`, and return when all of it has arrived.

        Raises `ClusterError` when the receiver refuses it or a connection is lost.
        """
        peer = path.peer
        slots = self._peer_to_slots.setdefault(peer.id, asyncio.Semaphore(self._limits.max_transfers))
        async with slots:
            transfer, outgoing = next(self._ids), _Outgoing(path)
            self._outgoing[peer.id, transfer] = outgoing
            try:
                sizes = tuple(part.nbytes for part in parts)
                path.push(Begin(transfer, peer.codec.encode(message), sizes))
                await self._send_chunks(outgoing, transfer, parts)
                while not outgoing.is_received:
                    await self._change(outgoing)
            except BaseException:
                path.push(Abandon(transfer))
                raise
            finally:
                del self._outgoing[peer.id, transfer]

    async def _send_chunks(self, outgoing: _Outgoing, transfer: int, parts: Sequence[memoryview]) -> None:
        while not outgoing.granted:
            await self._change(outgoing)
        outgoing.bulk = bulk = await self._bulk_path(outgoing.path.peer, outgoing.path)
        sent = 0
        for piece in _pieces(parts, self._limits.chunk_bytes):
            while outgoing.granted <= sent:
                await self._change(outgoing)
            await bulk.room()
            bulk.push(Chunk(transfer, sent), (piece,))
            sent += piece.nbytes

    async def _change(self, outgoing: _Outgoing) -> None:
        """Wait until the receiver has said something, or a connection is lost."""
        if outgoing.error is None and outgoing.path.is_open:
            await outgoing.changed.wait()
            outgoing.changed.clear()
        if outgoing.error or not outgoing.path.is_open:
            raise outgoing.error or lost(outgoing.path.peer.id)

    def receive(self, path: Path, message: Message, buffers: list[memoryview]) -> None:
        """Take a message about a long one. Raises `WireError` for any other, and one that breaks the protocol."""
        match message:
            case Begin():
                self._begin(path, message)
            case Chunk() if len(buffers) == 1:
                self._take_chunk(path, message, buffers[0])
            case Abandon():
                if incoming := self._incoming.get((path.peer.id, message.transfer)):
                    self._forget(incoming)
            case Grant() | Received() | Reject():
                if outgoing := self._outgoing.get((path.peer.id, message.transfer)):
                    _answered(outgoing, message)
            case _:
                raise WireError(f"node {path.peer.id} sends a message out of place", peer=path.peer.id)

    def _begin(self, path: Path, begin: Begin) -> None:
        """Take a long message's announcement. Raises `WireError` for one that is none."""
        peer = path.peer
        key = peer.id, begin.transfer
        message = peer.codec.decode(begin.message)
        if not isinstance(message, Call | Stream | Returned | Item):
            raise WireError(f"node {peer.id} announces a message that cannot be long", peer=peer.id)
        if not 1 <= len(begin.sizes) <= MAX_BUFFERS + 1 or min(begin.sizes) < 0 or not any(begin.sizes):
            raise WireError(f"node {peer.id} announces a message of impossible sizes", peer=peer.id)
        if key in self._incoming or sum(one == peer.id for one, _ in self._incoming) >= self._limits.max_transfers:
            raise WireError(f"node {peer.id} announces a message twice, or too many of them", peer=peer.id)
        incoming = _Incoming(path, begin.transfer, message, begin.sizes, sum(begin.sizes))
        if reason := self._reason_against(incoming):
            path.push(Reject(begin.transfer, reason))
        else:
            self._incoming[key] = incoming
            self.admit(peer)

    def _reason_against(self, incoming: _Incoming) -> str | None:
        if incoming.num_bytes > self._limits.max_message_bytes:
            return f"it has {incoming.num_bytes} bytes, the most is {self._limits.max_message_bytes}"
        return self._refusal(incoming.path, incoming.message)

    def admit(self, peer: Peer) -> None:
        """Let those that wait begin to arrive, as far as there is room."""
        for (peer_id, _), incoming in list(self._incoming.items()):
            if peer_id == peer.id and not incoming.granted:
                held = self._peer_to_held.get(peer_id, 0)
                if held and held + incoming.num_bytes > self._limits.max_held_bytes:
                    return
                if self._has_room(incoming.path, incoming.message):
                    self._peer_to_held[peer_id] = held + incoming.num_bytes
                    self._grant(incoming)

    def _grant(self, incoming: _Incoming) -> None:
        incoming.granted = incoming.received + self._limits.window_bytes
        incoming.touched_at = time.monotonic()
        incoming.path.push(Grant(incoming.transfer, incoming.granted))

    def release(self, peer: Peer, num_bytes: int) -> None:
        """Take note that so many bytes of long messages are dealt with."""
        if num_bytes:
            left = self._peer_to_held.get(peer.id, 0) - num_bytes
            self._peer_to_held[peer.id] = left
            if left <= 0:
                del self._peer_to_held[peer.id]
            self.admit(peer)

    def _take_chunk(self, path: Path, chunk: Chunk, data: memoryview) -> None:
        """Take a piece of a long message. Raises `WireError` for one that was not granted, or not the next."""
        peer_id = path.peer.id
        incoming = self._incoming.get((peer_id, chunk.transfer))
        if incoming is None:
            return  # rejected or abandoned in the meantime
        if chunk.offset != incoming.received or incoming.received >= incoming.granted or not data.nbytes:
            raise WireError(f"node {peer_id} sends a piece of a message that is not the next", peer=peer_id)
        _store(incoming, data)
        incoming.received += data.nbytes
        incoming.touched_at = time.monotonic()
        if incoming.received == incoming.num_bytes:
            self._finish(incoming)
        elif incoming.granted - incoming.received <= self._limits.window_bytes // 2:
            self._grant(incoming)

    def _finish(self, incoming: _Incoming) -> None:
        path = incoming.path
        del self._incoming[path.peer.id, incoming.transfer]
        path.push(Received(incoming.transfer))
        full = iter(incoming.parts)
        payload, *buffers = [next(full) if size else memoryview(b"") for size in incoming.sizes]
        message = msgspec.structs.replace(incoming.message, payload=bytes(payload))
        self._deliver(path, message, buffers, incoming.num_bytes)

    def drop_unwanted(self, path: Path, is_unwanted: Callable[[Long], bool]) -> None:
        """Refuse the rest of messages that have lost their reader."""
        for incoming in [one for one in self._incoming.values() if one.path is path and is_unwanted(one.message)]:
            path.push(Reject(incoming.transfer, "it is no longer wanted"))
            self._forget(incoming)

    def path_closed(self, path: Path) -> None:
        """End what depended on a connection."""
        for outgoing in self._outgoing.values():
            if path in (outgoing.path, outgoing.bulk):
                outgoing.error = lost(path.peer.id)
                outgoing.changed.set()
        for incoming in [one for one in self._incoming.values() if one.path is path]:
            self._forget(incoming)

    def are_outgoing(self, peer: Peer) -> bool:
        """Whether long messages are on their way to a peer."""
        return any(peer_id == peer.id for peer_id, _ in self._outgoing)

    @property
    def is_empty(self) -> bool:
        """Whether no long message is on its way, or held."""
        return not (self._outgoing or self._incoming or self._peer_to_held)

    def stuck(self) -> list[Path]:
        """Return the connections of senders that have leave to send and do not."""
        since = time.monotonic() - _STUCK_SECONDS
        return [one.path for one in self._incoming.values() if one.granted and one.touched_at < since]

    def _forget(self, incoming: _Incoming) -> None:
        peer = incoming.path.peer
        del self._incoming[peer.id, incoming.transfer]
        self.release(peer, incoming.num_bytes if incoming.granted else 0)


def _answered(outgoing: _Outgoing, message: Grant | Received | Reject) -> None:
    match message:
        case Grant(_, num_bytes):
            outgoing.granted = max(outgoing.granted, num_bytes)
        case Received():
            outgoing.is_received = True
        case Reject(_, reason):
            peer_id = outgoing.path.peer.id
            outgoing.error = ClusterError(f"node {peer_id} refuses a message: {shown(reason)}", peer=peer_id)
    outgoing.changed.set()


def _pieces(parts: Sequence[memoryview], num_bytes: int) -> Iterator[memoryview]:
    for part in parts:
        for start in range(0, part.nbytes, num_bytes):
            yield part[start : start + num_bytes]


def _store(incoming: _Incoming, data: memoryview) -> None:
    """Put a chunk where it belongs. Raises `WireError` for one that reaches beyond its part.

    A part of one chunk stays where ZMQ has received it; a longer one is put together in pages that the system provides
    as they are written to, so that an announced size alone costs nothing.
    """
    sizes = [size for size in incoming.sizes if size]
    if not incoming.parts or incoming.filled == sizes[len(incoming.parts) - 1]:
        size = sizes[len(incoming.parts)]
        incoming.parts.append(data if data.nbytes == size else _pages(size))
        incoming.filled = 0
        if data.nbytes == size:
            incoming.filled = size
            return
    part, end = incoming.parts[-1], incoming.filled + data.nbytes
    if end > part.nbytes:
        peer_id = incoming.path.peer.id
        raise WireError(f"node {peer_id} sends more of a message than it announced", peer=peer_id)
    part[incoming.filled : end] = data
    incoming.filled = end


def _pages(num_bytes: int) -> memoryview:
    """Return memory that the system provides as it is written to.

    Private: filling such pages takes 0.5 s of processor time a GB, shared ones (the default) 0.85. Huge ones take 0.15,
    but on a machine in use the system stops now and then to make some, and calls beside a tensor waited for seconds.
    """
    if sys.platform == "win32":
        return memoryview(mmap.mmap(-1, num_bytes))
    return memoryview(mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
