"""A stream read ahead by a task of its own. Knows nothing of links and attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

from pyagent.core.messages import ChatDelta

_NUM_AHEAD = 64


class Pump:
    """A stream read by a task of its own, some deltas ahead, so that any task may take them.

    Streams are often bound to the task that reads them first; a hedged one is begun in one and told in another.
    """

    def __init__(self, stream: AsyncIterator[ChatDelta]) -> None:
        self._queue: asyncio.Queue[ChatDelta | Exception | None] = asyncio.Queue(_NUM_AHEAD)
        self._task = asyncio.ensure_future(self._read(stream))
        self._is_over = False

    def __aiter__(self) -> Pump:
        return self

    async def __anext__(self) -> ChatDelta:
        item = None if self._is_over else await self._queue.get()
        if isinstance(item, ChatDelta):
            return item
        self._is_over = True
        if item is None:
            raise StopAsyncIteration
        raise item

    async def aclose(self) -> None:
        """Stop reading, and close the stream in the task that read it."""
        self._is_over = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, stream: AsyncIterator[ChatDelta]) -> None:
        end: Exception | None = None
        try:
            async for delta in stream:
                await self._queue.put(delta)
        except Exception as error:  # noqa: BLE001 - raised where it is read
            end = error
        finally:
            if isinstance(stream, AsyncGenerator):
                await cast("AsyncGenerator[ChatDelta, None]", stream).aclose()
        await self._queue.put(end)
