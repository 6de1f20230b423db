"""Slots: how many model and tool calls of a run, or runs of a fleet, are under way at once; the most urgent first.

A stream that is not being read does not need its slot. It keeps the slot until another call wants it, and takes a new
one when it is read again. So a call that holds a slot for good is waiting for a backend or a
tool, never for another slot, and no nesting of calls can lock up.

Owners (the tenants of runs) take turns: who holds least is next, and of those the one who was served longest ago. So
neither many that wait nor a high rank of one owner's keeps the others out. Calls of a run have one owner.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pyagent.core.fleet.urgency import FIRST_COME, Rank
from pyagent.core.resilience.deadline import Deadline

NO_DEADLINE = Deadline()
_Waiting = tuple[Rank, int, asyncio.Future[None]]


@dataclass(slots=True)
class Slots:
    """`num_free` slots, given to owners in turn; of one owner by rank, and among equals in the order of asking."""

    num_free: int
    _num_asked: int = 0
    _num_served: int = 0
    _waiting: dict[str, list[_Waiting]] = field(default_factory=dict[str, list[_Waiting]])  # heaps, by owner
    _num_held: Counter[str] = field(default_factory=Counter[str])
    _served_at: dict[str, int] = field(default_factory=dict[str, int])
    _idle: dict[Slot, None] = field(default_factory=dict["Slot", None])

    def slot(self, rank: Rank = FIRST_COME, deadline: Deadline = NO_DEADLINE, owner: str = "") -> Slot:
        """Return a slot to be taken with `async with`, which waits no longer than until the deadline."""
        return Slot(self, rank, deadline, owner)

    async def take(self, rank: Rank = FIRST_COME, owner: str = "") -> None:
        """Wait for a slot: a free one, or one that is held idle."""
        if self.num_free:
            self.num_free -= 1
            self._serve(owner)
        elif self._idle:
            idle = next(iter(self._idle))
            del self._idle[idle]
            idle.is_held = False
            self._leave(idle.owner)
            self._serve(owner)
        else:
            await self._wait(rank, owner)

    def give(self, owner: str = "") -> None:
        """Hand a slot of this owner to the first who waits, or keep it for the next."""
        self._leave(owner)
        while (following := self._next_owner()) is not None:
            waiting = heapq.heappop(self._waiting[following])[2]
            if not waiting.done():
                self._serve(following)
                waiting.set_result(None)
                return
        self.num_free += 1

    def _next_owner(self) -> str | None:
        """Return whose turn it is; those of which nothing is left are forgotten."""
        for owner in [owner for owner, heap in self._waiting.items() if not heap]:
            del self._waiting[owner]
            if not self._num_held[owner]:
                del self._num_held[owner]
                self._served_at.pop(owner, None)
        return min(
            self._waiting,
            key=lambda owner: (self._num_held[owner], self._served_at.get(owner, 0), self._waiting[owner][0][:2]),
            default=None,
        )

    def _serve(self, owner: str) -> None:
        self._num_held[owner] += 1
        self._num_served += 1
        self._served_at[owner] = self._num_served

    def _leave(self, owner: str) -> None:
        self._num_held[owner] -= 1

    async def _wait(self, rank: Rank, owner: str) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_asked += 1
        heapq.heappush(self._waiting.setdefault(owner, []), (rank, self._num_asked, waiting))
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.give(owner)  # it came, but too late
            raise

    def lend(self, slot: Slot) -> None:
        """A slot is held without being used: the first who waits gets it, else the next who comes."""
        if any(not waiting.done() for heap in self._waiting.values() for _, _, waiting in heap):
            slot.is_held = False
            self.give(slot.owner)
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
    owner: str = ""
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
            self.slots.give(self.owner)

    def suspend(self) -> None:
        """What is done with it waits for its reader, or for a person."""
        if self.is_held:
            self.slots.lend(self)

    async def resume(self) -> None:
        """Go on, with the slot kept or another one."""
        self.slots.reclaim(self)
        if not self.is_held:
            await self.deadline.bound(self.slots.take(self.rank, self.owner), "its turn")
            self.is_held = True
