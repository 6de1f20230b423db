"""One answer in flight, shared by equal requests (request coalescing).

Each listener gets every delta from the beginning, at its own pace. When the last one leaves, the stream is closed,
which aborts the request. An error goes to all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatDelta
from pyagent.core.resilience.deadline import Deadline

End = Callable[["CoalescedResponse", bool], Awaitable[None]]
_WHAT = "an answer that an equal request began"


@dataclass(slots=True, eq=False)
class CoalescedResponse:
    """An answer as far as it has been computed. `deadline` and `tenant` are those of the request that began it.

    `is_over`: all of it is there, and `ended` is set when it is known whether it is kept.
    """

    deadline: Deadline
    tenant: str = ""
    deltas: list[ChatDelta] = field(default_factory=list[ChatDelta])
    num_listeners: int = 0
    is_over: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _error: Exception | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def begin(self, stream: AsyncGenerator[ChatDelta, None], end: End) -> None:
        """Start reading `stream`; at its end await `end` with whether the answer is whole."""
        self._task = asyncio.create_task(self._read(stream, end))

    async def listen(self, deadline: Deadline) -> AsyncGenerator[ChatDelta, None]:
        """Yield the answer from its beginning; raise its error, or `DeadlineError` past the listener's deadline."""
        self.num_listeners += 1
        try:
            num_sent = 0
            while True:
                while num_sent < len(self.deltas):
                    yield self.deltas[num_sent]
                    num_sent += 1
                if self.is_over:
                    break
                await deadline.bound(self._changed.wait(), _WHAT)
            if self._error is not None:
                raise self._error
        finally:
            self.num_listeners -= 1
            if self.num_listeners == 0 and not self.is_over:
                await self._abort()

    @property
    def is_aborting(self) -> bool:
        """Whether all listeners have left, so that none may join any more."""
        return self._task is not None and self._task.cancelling() > 0

    async def _abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # the request has been aborted when the caller's `aclose` returns

    async def _read(self, stream: AsyncGenerator[ChatDelta, None], end: End) -> None:
        self._error = BackendError("an answer that an equal request began was broken off", backend="answers")
        is_whole = False
        try:
            async with aclosing(stream):
                async for delta in stream:
                    self.deltas.append(delta)
                    self._notify()
            self._error, is_whole = None, True
        except Exception as error:  # noqa: BLE001 - it is the listeners', whatever it is
            self._error = error
        finally:
            self.is_over = True
            self._notify()
            try:
                await end(self, is_whole)
            finally:
                self.ended.set()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
