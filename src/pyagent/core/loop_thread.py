"""An event loop in a thread of its own, for programs that wait for each result."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Self, TypeVar

T = TypeVar("T")
_MAX_AHEAD = 64
"""Items that a source may be ahead of its reader."""
_CLOSE_SECONDS = 1.0


class LoopThread:
    """A running event loop, until `close`. Its methods are for other threads than its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return not self._loop.is_closed()

    def start(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Begin `work` there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Return what `work` returns there; Ctrl+C cancels it."""
        running = self.start(work)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield what a source yields there; Ctrl+C or the generator's close closes the source first."""
        arrived: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
        room = asyncio.Semaphore(_MAX_AHEAD)
        pumping = self.start(_pump(source, arrived, room))
        is_over = False
        try:
            while not isinstance(item := arrived.get(), _End):
                self._loop.call_soon_threadsafe(room.release)
                yield item
            is_over = True
        finally:
            if not is_over:
                pumping.cancel()
                with suppress(queue.Empty):
                    while not isinstance(arrived.get(timeout=_CLOSE_SECONDS), _End):
                        pass
        pumping.result()

    def close(self) -> None:
        """End the loop; what runs in it is dropped. Safe to call twice."""
        if not self.is_open:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class _End:
    """Stands after the last item."""


async def _pump(source: AsyncGenerator[T, None], arrived: queue.SimpleQueue[T | _End], room: asyncio.Semaphore) -> None:
    try:
        try:
            async for item in source:
                await room.acquire()
                arrived.put(item)
        finally:
            await source.aclose()
    finally:
        arrived.put(_End())
