"""Calls, streams and casts between two nodes, at both ends.

A caller that goes away cancels its handlers; a deadline travels as the seconds that are left. A stream's reader grants
items, so that a slow one holds up its own stream and nothing else. Errors cross as `wire.fault`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from pyagent.core.errors import CapacityError, ClusterError, DeadlineError, PyAgentError, WireError
from pyagent.infrastructure.cluster.frames import (
    MAX_BUFFERS,
    MAX_HEADER_BYTES,
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
from pyagent.infrastructure.cluster.transfers import Transfers
from pyagent.infrastructure.wire.fault import Fault

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_LONGEST_SECONDS = 86_400.0
_LONGEST_METHOD = 200
_MAX_FAULT_CHARS = 8_000
_REFUSALS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers, and what a caller gets: a payload, and buffers that cross without being copied.

    A caller's buffers are read-only or its own; those of at least a chunk are aligned to pages.
    """

    payload: bytes = b""
    buffers: Sequence[Buffer] = ()


Handler = Callable[[str, bytes, Sequence[memoryview]], Awaitable[Reply] | AsyncIterator[Reply] | None]
"""Called with the peer's id, payload and buffers: answers a call, yields a stream, or takes a cast."""


class _Answer:
    """A call that waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def returned(self, reply: Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def retire(self) -> bool:
        """Take no answer any more; return whether there was none."""
        if self.reply.cancel() or self.reply.cancelled():
            return True
        self.reply.exception()  # seen: nothing is logged
        return False


class _Inbox:
    """A stream that is read: the items that have arrived and were not taken."""

    def __init__(self, path: Path, window: int) -> None:
        self.path = path
        self.items = deque[tuple[Reply, int]]()
        self.is_over = False
        self.error: Exception | None = None
        self.credit = window
        self.held_bytes = 0
        self._arrival = asyncio.Event()

    def fail(self, error: Exception) -> None:
        self.error = self.error or error
        self.finish()

    def finish(self) -> None:
        self.is_over = True
        self._arrival.set()

    def put(self, reply: Reply, num_held: int) -> None:
        """Take an item. Raises `WireError` for one that was not granted."""
        self.credit -= 1
        if self.credit < 0:
            peer_id = self.path.peer.id
            raise WireError(f"node {peer_id} sends more of a stream than was granted", peer=peer_id)
        self.held_bytes += num_held
        self.items.append((reply, num_held))
        self._arrival.set()

    async def take(self) -> tuple[Reply, int] | None:
        """Return the next item; None at the end. Raises what the stream failed with, after its last item."""
        while not self.items:
            if self.error:
                raise self.error
            if self.is_over:
                return None
            self._arrival.clear()
            await self._arrival.wait()
        reply, num_held = self.items.popleft()
        self.held_bytes -= num_held
        return reply, num_held


class _Flow:
    """How many items of a stream this node may send."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._more = asyncio.Event()

    def add(self, num: int) -> None:
        self._credit += num
        self._more.set()

    async def take(self) -> None:
        while self._credit <= 0:
            self._more.clear()
            await self._more.wait()
        self._credit -= 1


class Rpc:
    """The calls, streams and casts of one node."""

    def __init__(self, node_id: str, limits: Limits, bulk_path: Callable[[Peer, Path], Awaitable[Path]]) -> None:
        self.node_id = node_id
        self.handlers: dict[str, Handler] = {}
        self.transfers = Transfers(limits, bulk_path, self._refusal, self._has_room, self._receive_long)
        self._limits = limits
        self._flows: dict[tuple[Path, int], _Flow] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def call(self, peer: Peer, method: str, payload: bytes, buffers: Sequence[Buffer], seconds: float) -> Reply:
        """Return the answer of a peer's handler, or raise what it raised."""
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                path = await peer.connected()
                call_id, answer = next(peer.ids), _Answer(path)
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
        call_id, inbox = next(peer.ids), _Inbox(path, self._limits.stream_window)
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

    def _retire(self, path: Path, call_id: int, inbox: _Inbox) -> None:
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
                self._serve(path, message, buffers, 0)
            case Returned() | Item():
                self._answered(path, message, buffers, 0)
            case End(call_id):
                if isinstance(inbox := path.peer.waiting.get(call_id), _Inbox):
                    inbox.finish()
            case Raised(call_id, fault):
                if waiting := path.peer.waiting.get(call_id):
                    waiting.fail(fault.error(f"node {path.peer.id}"))
            case Credit(call_id, num):
                self._credited(path, call_id, num)
            case Cancel(call_id):
                if task := path.serving.get(call_id):
                    task.cancel()
            case Cast():
                self._take_cast(path, message, buffers)
            case _:
                self.transfers.receive(path, message, buffers)

    def _receive_long(self, path: Path, message: Long, buffers: list[memoryview], num_held: int) -> None:
        if isinstance(message, Call | Stream):
            self._serve(path, message, buffers, num_held)
        else:
            self._answered(path, message, buffers, num_held)

    def _refusal(self, path: Path, message: Long) -> str | None:
        if isinstance(message, Call | Stream):
            return None if message.method in self.handlers else _no_method(self.node_id, message.method)
        return None if message.id in path.peer.waiting else "its call is over"

    def _has_room(self, path: Path, message: Long) -> bool:
        """Whether a long message may arrive: an item of a stream when the reader has taken the long one before it."""
        inbox = path.peer.waiting.get(message.id) if isinstance(message, Item) else None
        return not isinstance(inbox, _Inbox) or inbox.held_bytes < self._limits.window_bytes

    def _answered(self, path: Path, message: Returned | Item, buffers: list[memoryview], num_held: int) -> None:
        waiting = path.peer.waiting.get(message.id)
        if isinstance(waiting, _Inbox) and isinstance(message, Item):
            waiting.put(Reply(message.payload, buffers), num_held)
            return
        if isinstance(waiting, _Answer) and isinstance(message, Returned):
            waiting.returned(Reply(message.payload, buffers))
        self.transfers.release(path.peer, num_held)

    def _credited(self, path: Path, call_id: int, num: int) -> None:
        if not 0 < num <= MAX_HEADER_BYTES:
            raise WireError(f"node {path.peer.id} grants {num} items of a stream", peer=path.peer.id)
        if flow := self._flows.get((path, call_id)):
            flow.add(num)

    def _take_cast(self, path: Path, message: Cast, buffers: list[memoryview]) -> None:
        if handler := self.handlers.get(message.method):
            try:
                result = handler(path.peer.id, message.payload, buffers)
            except PyAgentError as error:
                self._warn_of_cast(path.peer, message.method, error)
            except Exception:
                logger.exception("a handler of %r failed", message.method)
            else:
                _leave_unused(result)

    def _warn_of_cast(self, peer: Peer, method: str, error: PyAgentError) -> None:
        """Tell of a cast that was refused: in one line, and of one peer not more often than once a minute."""
        peer.num_refused_casts += 1
        now = asyncio.get_running_loop().time()
        if now >= peer.refusals_told_at + _REFUSALS_SECONDS:
            told = "node %s: %s of its casts refused since last told; the last was %r: %s"
            logger.warning(told, peer.id, peer.num_refused_casts, method, error)
            peer.num_refused_casts, peer.refusals_told_at = 0, now

    def _serve(self, path: Path, message: Call | Stream, buffers: list[memoryview], num_held: int) -> None:
        """Begin to answer a call or stream."""
        peer = path.peer
        if message.id in path.serving:
            raise WireError(f"node {peer.id} repeats the id of a call", peer=peer.id)
        if message.method not in self.handlers:
            error: PyAgentError | None = ClusterError(_no_method(self.node_id, message.method), peer=self.node_id)
        elif peer.num_serving >= self._limits.max_in_flight:
            text = f"node {self.node_id} serves {peer.num_serving} calls of this node already; try again later"
            error = CapacityError(text, retry_after_seconds=1.0)
        else:
            error = None
        if error:
            self._raise(path, message.id, error)
            return self.transfers.release(peer, num_held)
        task = asyncio.get_running_loop().create_task(self._answer(path, message, buffers))
        path.serving[message.id] = task
        peer.num_serving += 1
        self._tasks.add(task)

        def done(_: asyncio.Task[None]) -> None:
            del path.serving[message.id]
            peer.num_serving -= 1
            self._tasks.discard(task)
            self.transfers.release(peer, num_held)

        return task.add_done_callback(done)

    async def _answer(self, path: Path, message: Call | Stream, buffers: list[memoryview]) -> None:
        seconds = message.seconds
        if seconds is not None and not 0 <= seconds <= _LONGEST_SECONDS:  # not a number, too
            seconds = _LONGEST_SECONDS
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._run_handler(path, message, buffers)
        except Exception as error:
            if limit.expired():
                text = f"node {self.node_id} did not finish {message.method!r} before the deadline"
                return self._raise(path, message.id, DeadlineError(text))
            if not isinstance(error, PyAgentError):
                logger.warning("a handler of %r failed", message.method, exc_info=error)
            self._raise(path, message.id, error)

    async def _run_handler(self, path: Path, message: Call | Stream, buffers: list[memoryview]) -> None:
        result = self.handlers[message.method](path.peer.id, message.payload, buffers)
        if isinstance(message, Stream):
            await self._send_items(path, message, result)
        elif isinstance(result, Awaitable):
            reply = await result
            await self._send(path, Returned(message.id, reply.payload), reply.buffers)
        else:
            raise ClusterError(f"{message.method!r} answers no calls", peer=self.node_id)

    async def _send_items(
        self, path: Path, message: Stream, result: Awaitable[Reply] | AsyncIterator[Reply] | None
    ) -> None:
        if not isinstance(result, AsyncIterator):
            _leave_unused(result)
            raise ClusterError(f"{message.method!r} answers no streams", peer=self.node_id)
        flow = self._flows[path, message.id] = _Flow(message.credit)
        try:
            async for reply in result:
                await flow.take()
                await self._send(path, Item(message.id, reply.payload), reply.buffers)
            path.push(End(message.id))
        finally:
            del self._flows[path, message.id]
            if isinstance(result, AsyncGenerator):
                await result.aclose()

    def _raise(self, path: Path, call_id: int, error: BaseException) -> None:
        fault = Fault.of(error, f"node {self.node_id}")
        if len(fault.text) > _MAX_FAULT_CHARS:
            fault = msgspec.structs.replace(fault, text=fault.text[:_MAX_FAULT_CHARS] + " ...")
        try:
            path.push(Raised(call_id, fault))
        except WireError:  # its facts are too long
            bare = ClusterError(fault.text, peer=self.node_id)
            path.push(Raised(call_id, Fault.of(bare, self.node_id)))

    def path_closed(self, path: Path) -> None:
        """End what depended on a connection: calls by an error, handlers by being cancelled."""
        for waiting in [one for one in path.peer.waiting.values() if one.path is path]:
            waiting.fail(lost(path.peer.id))
        for task in list(path.serving.values()):
            task.cancel()
        self.transfers.path_closed(path)

    async def stop(self) -> None:
        """Cancel all handlers, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _cast_on(path: Path, method: str, payload: bytes) -> bool:
    if path.is_full:
        return False
    path.push(Cast(_checked(method), payload))
    return path.is_open


def _leave_unused(result: object) -> None:
    if isinstance(result, Coroutine):
        result.close()  # else the interpreter warns that it was never awaited


def _no_method(node_id: str, method: str) -> str:
    return f"node {node_id} has no method {method[:_LONGEST_METHOD]!r}; it may run another version of PyAgent"


def _checked(method: str) -> str:
    if len(method) > _LONGEST_METHOD:
        raise ClusterError(f"a method's name has {len(method)} characters, the most is {_LONGEST_METHOD}")
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
