"""Calls, streams and casts between two nodes: asks peers, and hands what they ask to `serving`.

A deadline travels as the seconds that are left. Errors cross as `wire.fault`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pyagent.core.errors import ClusterError, DeadlineError, WireError
from pyagent.infrastructure.cluster.frames import (
    MAX_BUFFERS,
    Call,
    Cancel,
    Cast,
    Credit,
    End,
    Item,
    Limits,
    Long,
    Message,
    Raised,
    Returned,
    Stream,
)
from pyagent.infrastructure.cluster.peer import Path, Peer, lost
from pyagent.infrastructure.cluster.serving import MAX_METHOD_CHARS, Serving
from pyagent.infrastructure.cluster.transfers import Transfers
from pyagent.infrastructure.cluster.waiting import Answer, Inbox, Reply

if TYPE_CHECKING:
    from typing_extensions import Buffer

_T = TypeVar("_T")


class Rpc:
    """The calls, streams and casts of one node."""

    def __init__(self, node_id: str, limits: Limits, bulk_path: Callable[[Peer, Path], Awaitable[Path]]) -> None:
        self.transfers = Transfers(limits, bulk_path, self._refusal, self._has_room, self._receive_long)
        self._limits = limits
        self.serving = Serving(node_id, limits, self._send, self.transfers.release)

    async def call(self, peer: Peer, method: str, payload: bytes, buffers: Sequence[Buffer], seconds: float) -> Reply:
        """Return the answer of a peer's handler, or raise what it raised."""
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                path = await peer.connected()
                call_id, answer = next(peer.ids), Answer(path)
                peer.waiting[call_id] = answer
                try:
                    request = Call(call_id, _checked(method), _left(deadline), payload)
                    await self._send(path, request, buffers)
                    return await answer.reply
                finally:
                    del peer.waiting[call_id]
                    if answer.retire():
                        path.push(Cancel(call_id))
        except TimeoutError as error:
            raise DeadlineError(f"node {peer.id} did not answer {method!r} within {seconds:g} s") from error

    async def stream(
        self, peer: Peer, method: str, payload: bytes, buffers: Sequence[Buffer], seconds: float | None
    ) -> AsyncGenerator[Reply, None]:
        """Yield what a peer's handler yields; closing the stream cancels the handler."""
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        path = await _within(deadline, peer.connected(), peer, method)
        call_id, inbox = next(peer.ids), Inbox(path, self._limits.stream_window)
        peer.waiting[call_id] = inbox
        num_taken = 0
        try:
            request = Stream(call_id, _checked(method), self._limits.stream_window, _left(deadline), payload)
            await _within(deadline, self._send(path, request, buffers), peer, method)
            while (taken := await _within(deadline, inbox.take(), peer, method)) is not None:
                reply, num_held = taken
                yield reply
                self.transfers.release(peer, num_held)
                num_taken += 1
                if num_taken >= self._limits.stream_window // 2 and not inbox.is_over:
                    inbox.credit += num_taken
                    path.push(Credit(call_id, num_taken))
                    num_taken = 0
        finally:
            del peer.waiting[call_id]
            self._retire(path, call_id, inbox)

    def _retire(self, path: Path, call_id: int, inbox: Inbox) -> None:
        """Cancel a stream that is not over, and let go what arrived of it."""
        if not inbox.is_over:
            path.push(Cancel(call_id))
            self.transfers.drop_unwanted(path, lambda message: isinstance(message, Item) and message.id == call_id)
        self.transfers.release(path.peer, inbox.held_bytes)

    def cast(self, peer: Peer, method: str, payload: bytes) -> bool:
        """Tell a peer something; return whether it is on its way. Never waits."""
        if len(payload) > self._limits.inline_bytes:
            text = f"a cast has {len(payload)} bytes, the most is {self._limits.inline_bytes}"
            raise ClusterError(text, peer=peer.id)
        return peer.path is not None and _cast_on(peer.path, method, payload)

    @staticmethod
    def cast_everywhere(peer: Peer, method: str, payload: bytes) -> None:
        """Tell a peer something on all of its connections; those that are full are left out."""
        for path in peer.paths:
            _cast_on(path, method, payload)

    async def _send(self, path: Path, message: Long, buffers: Sequence[Buffer]) -> None:
        """Send a message as it is, or in chunks when it is long."""
        if len(buffers) > MAX_BUFFERS:
            raise ClusterError(f"a message has {len(buffers)} buffers, the most is {MAX_BUFFERS}", peer=path.peer.id)
        views = [_view(buffer, path.peer.id) for buffer in buffers]
        if len(message.payload) + sum(view.nbytes for view in views) <= self._limits.inline_bytes:
            if path.is_full or not path.is_open:
                await path.room()
            path.push(message, views)
        else:
            bare = msgspec.structs.replace(message, payload=b"")
            await self.transfers.send(path, bare, [memoryview(message.payload), *views])

    def receive(self, path: Path, message: Message, buffers: list[memoryview]) -> None:
        """Take a message of a peer's. Raises `WireError` for one that breaks the protocol."""
        match message:
            case Call() | Stream():
                if message.id <= path.last_call_id:
                    raise WireError(f"node {path.peer.id} repeats the id of a call", peer=path.peer.id)
                path.last_call_id = message.id
                self.serving.serve(path, message, buffers, 0)
            case Returned() | Item():
                self._answered(path, message, buffers, 0)
            case End(call_id):
                if isinstance(inbox := path.peer.waiting.get(call_id), Inbox):
                    inbox.finish()
            case Raised(call_id, fault):
                if waiting := path.peer.waiting.get(call_id):
                    waiting.fail(fault.error(f"node {path.peer.id}"))
            case Credit(call_id, num):
                self.serving.credited(path, call_id, num)
            case Cancel(call_id):
                if task := path.serving.get(call_id):
                    task.cancel()
            case Cast():
                self.serving.take_cast(path, message, buffers)
            case _:
                self.transfers.receive(path, message, buffers)

    def _receive_long(self, path: Path, message: Long, buffers: list[memoryview], num_held: int) -> None:
        if isinstance(message, Call | Stream):
            self.serving.serve(path, message, buffers, num_held)
        else:
            self._answered(path, message, buffers, num_held)

    def _refusal(self, path: Path, message: Long) -> str | None:
        if isinstance(message, Call | Stream):
            return self.serving.refusal(message.method)
        return None if message.id in path.peer.waiting else "its call is over"

    def _has_room(self, path: Path, message: Long) -> bool:
        """Whether a long message may arrive: an item of a stream when the reader has taken the long one before it."""
        inbox = path.peer.waiting.get(message.id) if isinstance(message, Item) else None
        return not isinstance(inbox, Inbox) or inbox.held_bytes < self._limits.window_bytes

    def _answered(self, path: Path, message: Returned | Item, buffers: list[memoryview], num_held: int) -> None:
        waiting = path.peer.waiting.get(message.id)
        if isinstance(waiting, Inbox) and isinstance(message, Item):
            waiting.put(Reply(message.payload, buffers), num_held)
            return
        if isinstance(waiting, Answer) and isinstance(message, Returned):
            waiting.returned(Reply(message.payload, buffers))
        self.transfers.release(path.peer, num_held)

    def path_closed(self, path: Path) -> None:
        """End what depended on a connection: calls by an error, handlers by being cancelled."""
        for waiting in [one for one in path.peer.waiting.values() if one.path is path]:
            waiting.fail(lost(path.peer.id))
        for task in list(path.serving.values()):
            task.cancel()
        self.transfers.path_closed(path)


def _cast_on(path: Path, method: str, payload: bytes) -> bool:
    if path.is_full:
        return False
    path.push(Cast(_checked(method), payload))
    return path.is_open


def _checked(method: str) -> str:
    if len(method) > MAX_METHOD_CHARS:
        raise ClusterError(f"a method's name has {len(method)} characters, the most is {MAX_METHOD_CHARS}")
    return method


def _view(buffer: Buffer, peer_id: str) -> memoryview:
    """Return a buffer's bytes. Raises `ClusterError` for one whose bytes do not stand one after the other."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ClusterError("a buffer is not contiguous; make a copy of it that is", peer=peer_id)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)


async def _within(deadline: float | None, waiting: Awaitable[_T], peer: Peer, method: str) -> _T:
    if deadline is None:
        return await waiting
    try:
        async with asyncio.timeout_at(deadline):
            return await waiting
    except TimeoutError as error:
        raise DeadlineError(f"node {peer.id} did not finish {method!r} before the deadline") from error
