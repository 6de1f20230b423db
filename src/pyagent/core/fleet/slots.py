"""A run's slots: how many of its model and tool calls are under way at once.

A stream that is not being read does not need its slot. It keeps the slot until another call wants it, and takes a new
one when it is read again. So a call that holds a slot for good is waiting for a backend or a
tool, never for another slot, and no nesting of calls can lock up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(slots=True)
class Slots:
    """`num_free` slots, given in the order they are asked for."""

    num_free: int
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])
    _idle: dict[Slot, None] = field(default_factory=dict["Slot", None])

    def slot(self) -> Slot:
        """Return a slot to be taken with `async with`."""
        return Slot(self)

    async def take(self) -> None:
        """Wait for a slot: a free one, or one that is held idle."""
        if self.num_free:
            self.num_free -= 1
        elif self._idle:
            idle = next(iter(self._idle))
            del self._idle[idle]
            idle.is_held = False
        else:
            await self._wait()

    def give(self) -> None:
        """Hand a slot to the first who waits, or keep it for the next."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self.num_free += 1

    async def _wait(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.give()  # it came, but too late
            raise

    def lend(self, slot: Slot) -> None:
        """A slot is held without being used: the first who waits gets it, else the next who comes."""
        if any(not waiting.done() for waiting in self._waiting):
            slot.is_held = False
            self.give()
        else:
            self._idle[slot] = None

    def reclaim(self, slot: Slot) -> None:
        """Use the slot again, unless another call took it."""
        self._idle.pop(slot, None)


@dataclass(slots=True, eq=False)
class Slot:
    """One call's slot."""

    slots: Slots
    is_held: bool = False

    async def __aenter__(self) -> Self:
        await self.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.slots.reclaim(self)
        if self.is_held:
            self.is_held = False
            self.slots.give()

    def suspend(self) -> None:
        """What is done with it waits for its reader."""
        self.slots.lend(self)

    async def resume(self) -> None:
        """Go on, with the slot kept or another one."""
        self.slots.reclaim(self)
        if not self.is_held:
            await self.slots.take()
            self.is_held = True
