"""An event loop in a thread of its own, for programs that wait for each result."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Self, TypeVar

from pyagent.core.errors import CapacityError, RequestError

T = TypeVar("T")
_MAX_AHEAD = 64
"""Items that a source may be ahead of its reader."""
_CLOSE_SECONDS = 1.0


class LoopThread:
    """A running event loop, until `close`. Its methods are for other threads than its own, also those with a loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_open = True
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(_cancel_others())
        finally:
            self._loop.close()

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._is_open

    def start(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Begin `work` there. Raises `CapacityError` when it is closed."""
        with self._lock:  # what begins before the close is cancelled by it; nothing begins after it
            if self._is_open:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise CapacityError(_CLOSED)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Return what `work` returns there; Ctrl+C cancels it.

        Raises `CapacityError` when the loop is closed, also meanwhile; `RequestError` in the loop's own thread.
        """
        if self._is_here:
            work.close()
            raise RequestError(_WOULD_WAIT_FOR_ITSELF)
        running = self.start(work)
        try:
            return self._result(running)
        except BaseException:
            running.cancel()
            raise

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield what a source yields there; Ctrl+C or the generator's close closes the source first."""
        if self._is_here:
            raise RequestError(_WOULD_WAIT_FOR_ITSELF)
        arrived: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
        room, source_closed = asyncio.Semaphore(_MAX_AHEAD), threading.Event()
        pumping = self.start(_pump(source, arrived, room, source_closed))
        pumping.add_done_callback(lambda _: arrived.put(_End()))  # also of one that is cancelled before it began
        is_over = False
        try:
            while not isinstance(item := arrived.get(), _End):
                with suppress(RuntimeError):  # the loop is closed: the end has arrived, too
                    self._loop.call_soon_threadsafe(room.release)
                yield item
            is_over = True
        finally:
            if not is_over:
                pumping.cancel()
                if not self._is_here:  # a generator that is dropped is closed in any thread
                    source_closed.wait(_CLOSE_SECONDS)
        self._result(pumping)

    def close(self) -> None:
        """End the loop; what runs in it is cancelled. Safe to call twice, and from several threads."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _result(self, running: Future[T]) -> T:
        try:
            return running.result()
        except concurrent.futures.CancelledError as error:
            if self._is_open:
                raise
            raise CapacityError(_CLOSED) from error


_CLOSED = "this client is closed; make a new one"
_WOULD_WAIT_FOR_ITSELF = "a client that waits cannot be asked in its own event loop; use `async with` and `await` there"


class _End:
    """Stands after the last item."""


async def _cancel_others() -> None:
    """Cancel what runs in this loop, so that who waits for it learns its end, and close what is left open."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _pump(
    source: AsyncGenerator[T, None],
    arrived: queue.SimpleQueue[T | _End],
    room: asyncio.Semaphore,
    source_closed: threading.Event,
) -> None:
    try:
        try:
            async for item in source:
                await room.acquire()
                arrived.put(item)
        finally:
            await source.aclose()
    finally:
        source_closed.set()
