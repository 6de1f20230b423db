"""Answers what peers ask: begins their calls and streams, hands casts on, tells each its end.

A caller that goes away cancels its handlers. A stream's reader grants items: a slow one holds up its own stream alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.errors import CapacityError, ClusterError, DeadlineError, PyAgentError, WireError
from pyagent.infrastructure.cluster.frames import (
    MAX_HEADER_BYTES,
    Call,
    Cast,
    End,
    Item,
    Limits,
    Long,
    Raised,
    Returned,
    Stream,
)
from pyagent.infrastructure.cluster.peer import Path, Peer
from pyagent.infrastructure.cluster.waiting import Reply
from pyagent.infrastructure.wire.fault import Fault

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

MAX_METHOD_CHARS = 200
_LONGEST_SECONDS = 86_400.0
_MAX_FAULT_CHARS = 8_000
_REFUSALS_SECONDS = 60.0

Handler = Callable[[str, bytes, Sequence[memoryview]], Awaitable[Reply] | AsyncIterator[Reply] | None]
"""Called with the peer's id, payload and buffers: answers a call, yields a stream, or takes a cast."""


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


class Serving:
    """The calls and streams of peers that are answered here."""

    def __init__(
        self,
        node_id: str,
        limits: Limits,
        send: Callable[[Path, Long, Sequence[Buffer]], Awaitable[None]],
        release: Callable[[Peer, int], None],
    ) -> None:
        """`release` lets go of bytes that a peer's message held."""
        self.node_id = node_id
        self.handlers: dict[str, Handler] = {}
        self._limits = limits
        self._send = send
        self._release = release
        self._flows: dict[tuple[Path, int], _Flow] = {}
        self._tasks = set[asyncio.Task[None]]()

    def refusal(self, method: str) -> str | None:
        """Return why a method is not answered; None where it is."""
        if method in self.handlers:
            return None
        return f"node {self.node_id} has no method {method[:MAX_METHOD_CHARS]!r}; it may run another version of PyAgent"

    def credited(self, path: Path, call_id: int, num: int) -> None:
        """Take what a stream's reader grants."""
        if not 0 < num <= MAX_HEADER_BYTES:
            raise WireError(f"node {path.peer.id} grants {num} items of a stream", peer=path.peer.id)
        if flow := self._flows.get((path, call_id)):
            flow.add(num)

    def take_cast(self, path: Path, message: Cast, buffers: list[memoryview]) -> None:
        """Hand a cast on; one that is refused is told now and then."""
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

    def serve(self, path: Path, message: Call | Stream, buffers: list[memoryview], num_held: int) -> None:
        """Begin to answer a call or stream."""
        peer = path.peer
        if message.id in path.serving:
            raise WireError(f"node {peer.id} repeats the id of a call", peer=peer.id)
        error: PyAgentError | None
        if refusal := self.refusal(message.method):
            error = ClusterError(refusal, peer=self.node_id)
        elif peer.num_serving >= self._limits.max_in_flight:
            text = f"node {self.node_id} serves {peer.num_serving} calls of this node already; try again later"
            error = CapacityError(text, retry_after_seconds=1.0)
        else:
            error = None
        if error:
            self._raise(path, message.id, error)
            return self._release(peer, num_held)
        task = asyncio.get_running_loop().create_task(self._answer(path, message, buffers))
        path.serving[message.id] = task
        peer.num_serving += 1
        self._tasks.add(task)

        def done(_: asyncio.Task[None]) -> None:
            del path.serving[message.id]
            peer.num_serving -= 1
            self._tasks.discard(task)
            self._release(peer, num_held)

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

    async def stop(self) -> None:
        """Cancel all handlers, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _leave_unused(result: object) -> None:
    if isinstance(result, Coroutine):
        result.close()  # else the interpreter warns that it was never awaited
