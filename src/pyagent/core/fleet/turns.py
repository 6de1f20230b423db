"""Waiting for a turn by a rate: the most urgent goes first, and who cannot have it in time is told so at once.

Agents and tools share their rate with all runs, and through the journal with other processes and with what ran before a
restart; a step's rate is of its run. Nothing that waits here holds a slot.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.errors import DeadlineError
from pyagent.core.fleet.events import RateLimited
from pyagent.core.fleet.rate_store import RatesInMemory, RateStore
from pyagent.core.fleet.urgency import Rank
from pyagent.core.rates import Rate
from pyagent.core.resilience.deadline import Deadline

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

_ALL = "*"
_LONGEST_SLEEP_SECONDS = 60.0
"""The clock of rates is the wall's, which may be set while something sleeps."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How often agents and tools may begin, by name; a name of tools that ends in `*` is of all that begin so."""

    agents: Mapping[str, Rate] = {}
    tools: Mapping[str, Rate] = {}

    def of_tool(self, tool: str) -> str | None:
        """Return the name by which the tool has a rate: its own, or the longest beginning of it."""
        if tool in self.tools:
            return tool
        fits = (name for name in self.tools if name.endswith(_ALL) and tool.startswith(name[:-1]))
        return max(fits, key=len, default=None)


@dataclass(slots=True)
class StepTurn:
    """A step's turn by its own rate, taken once, whichever agent then does the step."""

    name: str
    rate: Rate
    is_taken: bool = False


@dataclass(slots=True)
class RateStats:
    """Turns that were waited for and those that came too late, by what they are of, with the seconds of waiting."""

    waits: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    waiting: Counter[str] = field(default_factory=Counter[str])


@dataclass(order=True, slots=True)
class _Waiter:
    rank: Rank
    number: int
    is_first: asyncio.Event = field(compare=False)


class Turns:
    """The queues of a fleet's rates."""

    def __init__(self, rates: Rates, store: RateStore, stats: RateStats) -> None:
        self._rates = rates
        self._store = store
        self._of_private_steps = RatesInMemory()
        self._stats = stats
        self._queues: dict[str, list[_Waiter]] = {}
        self._num_asked = 0

    async def of_agent(self, context: Context, around: Deadline, step: StepTurn | None) -> None:
        """Wait until the agent may begin, and its step; none of that counts as time of the agent's own."""
        if step is not None and not step.is_taken:
            name = f"step:{context.run.id}:{step.name}"
            store = self._of_private_steps if context.run.is_private else self._store
            await self._turn(context, store, (name, f"the step {step.name}", "step"), step.rate, around)
            step.is_taken = True
        if (rate := self._rates.agents.get(context.agent)) is not None:
            name = f"agent:{context.agent}"
            await self._turn(context, self._store, (name, f"the agent {context.agent}", name), rate, around)

    async def of_tool(self, context: Context, tool: str) -> None:
        """Wait until the tool may be called."""
        if (named := self._rates.of_tool(tool)) is not None:
            names = (f"tool:{named}", f"the tool {tool}", f"tool:{named}")
            await self._turn(context, self._store, names, self._rates.tools[named], context.deadline)

    async def _turn(
        self, context: Context, store: RateStore, names: tuple[str, str, str], rate: Rate, deadline: Deadline
    ) -> None:
        """Take a turn by `names`: that of the store, for people, and for metrics."""
        name, what, counted = names
        if not self._queues.get(name) and store.take(name, rate) == 0:
            return
        started, stats = deadline.clock(), self._stats
        stats.waits[counted] += 1
        stats.waiting[counted] += 1

        def tell(seconds: float) -> None:
            run, step, agent = context.run.id, context.step, context.agent
            context.run.emit(
                RateLimited(run=run, step=step, agent=agent, what=what, rate=rate.text, seconds=round(seconds, 3))
            )

        try:
            await self._wait(_Asked(store, name, rate, what), context.urgency.rank(deadline), deadline, tell)
        except DeadlineError:
            stats.missed[counted] += 1
            raise
        finally:
            stats.waiting[counted] -= 1
            stats.seconds[counted] = stats.seconds.get(counted, 0.0) + deadline.clock() - started

    async def _wait(self, asked: _Asked, rank: Rank, deadline: Deadline, tell: Callable[[float], None]) -> None:
        self._num_asked += 1
        waiter = _Waiter(rank, self._num_asked, asyncio.Event())
        queue = self._queues.setdefault(asked.name, [])
        insort(queue, waiter)
        is_told = False
        try:
            while seconds := asked.take_or_wait(bisect_left(queue, waiter)):
                if seconds > deadline.remaining_seconds:
                    raise DeadlineError(asked.too_late(seconds))
                if not is_told:
                    tell(seconds)
                    is_told = True
                waiter.is_first.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(seconds, _LONGEST_SLEEP_SECONDS)):
                        await waiter.is_first.wait()
        finally:
            del queue[bisect_left(queue, waiter)]
            if queue:
                queue[0].is_first.set()
            else:
                self._queues.pop(asked.name, None)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A rate that a turn is asked of."""

    store: RateStore
    name: str
    rate: Rate
    what: str

    def take_or_wait(self, place: int) -> float:
        """Take the turn, if it is that of the first in the queue and has come; else return how long it will be."""
        return self.store.take(self.name, self.rate) if place == 0 else self._later(place)

    def _later(self, place: int) -> float:
        """Return the seconds until the turn of one further back, who is woken when those before are gone."""
        interval = self.rate.seconds / self.rate.count
        return max(self.store.wait_seconds(self.name, self.rate, place + 1), min(interval, 1.0))

    def too_late(self, seconds: float) -> str:
        """Return what is wrong with a turn that comes after the deadline."""
        turn = f"the turn of {self.what} by its rate, {self.rate.text}, is in {seconds:.1f} s"
        return f"the deadline passes before: {turn}"
