"""Slots: how many model and tool calls of a run, or runs of a fleet, are under way at once; the most urgent first.

A stream that is not being read does not need its slot. It keeps the slot until another call wants it, and takes a new
one when it is read again. So a call that holds a slot for good is waiting for a backend or a
tool, never for another slot, and no nesting of calls can lock up.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pyagent.core.fleet.urgency import FIRST_COME, Rank
from pyagent.core.resilience.deadline import Deadline

NO_DEADLINE = Deadline()
_Waiting = tuple[Rank, int, asyncio.Future[None]]


@dataclass(slots=True)
class Slots:
    """`num_free` slots, given by rank, and among equals in the order they are asked for."""

    num_free: int
    _num_asked: int = 0
    _waiting: list[_Waiting] = field(default_factory=list[_Waiting])  # a heap
    _idle: dict[Slot, None] = field(default_factory=dict["Slot", None])

    def slot(self, rank: Rank = FIRST_COME, deadline: Deadline = NO_DEADLINE) -> Slot:
        """Return a slot to be taken with `async with`, which waits no longer than until the deadline."""
        return Slot(self, rank, deadline)

    async def take(self, rank: Rank = FIRST_COME) -> None:
        """Wait for a slot: a free one, or one that is held idle."""
        if self.num_free:
            self.num_free -= 1
        elif self._idle:
            idle = next(iter(self._idle))
            del self._idle[idle]
            idle.is_held = False
        else:
            await self._wait(rank)

    def give(self) -> None:
        """Hand a slot to the first who waits, or keep it for the next."""
        while self._waiting:
            waiting = heapq.heappop(self._waiting)[2]
            if not waiting.done():
                waiting.set_result(None)
                return
        self.num_free += 1

    async def _wait(self, rank: Rank) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_asked += 1
        heapq.heappush(self._waiting, (rank, self._num_asked, waiting))
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.give()  # it came, but too late
            raise

    def lend(self, slot: Slot) -> None:
        """A slot is held without being used: the first who waits gets it, else the next who comes."""
        if any(not waiting.done() for _, _, waiting in self._waiting):
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
    rank: Rank = FIRST_COME
    deadline: Deadline = NO_DEADLINE
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
            await self.deadline.bound(self.slots.take(self.rank), "its turn")
            self.is_held = True
