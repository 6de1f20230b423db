"""The task graph: steps that come after others, run side by side where they may, with what they wait for named.

Pure but for asyncio: it knows nothing of agents. A cycle is refused before anything runs. A step that fails takes the
steps after it along, unless they join otherwise; the others go on. Cancelling the run cancels every step.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, Literal, TypeVar

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.step_options import Join

T = TypeVar("T")
State = Literal["done", "failed", "skipped", "cancelled"]
Rank = tuple[float, ...]


class Skip(Exception):  # noqa: N818 - what a step does, not what went wrong
    """A step does not run, and nothing is wrong with that."""


class Outcome(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How a step ended. `cause` names the step because of which this one did not run: it failed, or did not run."""

    state: State
    output: T | None = None
    error: Exception | None = None
    cause: str | None = None


def topological_order(name_to_after: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names so that each comes after those it needs, otherwise as given.

    Raises `RequestError` for an unknown name, and for a cycle, which it spells out: `a -> b -> a`.
    """
    for name, after in name_to_after.items():
        for needed in after:
            if needed not in name_to_after:
                known = ", ".join(name_to_after)
                raise RequestError(f"{name!r} comes after {needed!r}, which does not exist; there are {known}")
    order: list[str] = []
    done: set[str] = set()
    for root in name_to_after:
        if trail := _visit(root, name_to_after, done, order):
            cycle = " -> ".join(trail)
            raise RequestError(f"the steps wait for each other: {cycle}; remove one of these", code="cycle")
    return order


def find_cycle(name_to_after: Mapping[str, Collection[str]]) -> list[str] | None:
    """Return a cycle among the names, the first one at both ends: `[a, b, a]`; None when there is none."""
    done: set[str] = set()
    trails = (_visit(root, name_to_after, done, []) for root in name_to_after)
    return next((trail for trail in trails if trail), None)


def _visit(
    root: str, name_to_after: Mapping[str, Collection[str]], done: set[str], order: list[str]
) -> list[str] | None:
    """Append what `root` needs, then itself; returns the cycle when there is one.

    Depth first, without recursion: a long chain is no deeper than a short one.
    """
    path: dict[str, None] = {}
    stack = [(root, False)]
    while stack:
        name, is_left = stack.pop()
        if is_left:
            del path[name]
            done.add(name)
            order.append(name)
        elif name in path:
            trail = [*path, name]
            return trail[trail.index(name) :]
        elif name not in done:
            path[name] = None
            stack.append((name, True))
            stack.extend((needed, False) for needed in reversed(list(name_to_after[name])))
    return None


async def run_graph(  # noqa: PLR0913 - what it goes by
    name_to_after: Mapping[str, Collection[str]],
    work: Callable[[str, Mapping[str, T]], Awaitable[T]],
    *,
    max_concurrency: int,
    on_skip: Callable[[str, str], None] = lambda _step, _cause: None,
    name_to_join: Mapping[str, Join] | None = None,
    name_to_rank: Mapping[str, Rank] | None = None,
    outcomes: dict[str, Outcome[T]] | None = None,
) -> dict[str, Outcome[T]]:
    """Run `work(name, outputs of the steps it comes after)` for every step; at most `max_concurrency` at once.

    A step's exception becomes its outcome; `Skip` skips it. `on_skip(name, cause)` hears of each step that will not run
    because of another. Where more could run than may, the lowest rank is first. `outcomes` is filled as steps end.
    """
    if max_concurrency < 1:
        raise RequestError(f"max_concurrency must be 1 or more, got {max_concurrency}", param="max_concurrency")
    run = _GraphRun(name_to_after, work, on_skip, name_to_join or {}, name_to_rank or {}, outcomes)
    try:
        while True:
            run.start_ready(max_concurrency)
            if not run.tasks:
                break
            await asyncio.wait(run.tasks, return_when=asyncio.FIRST_COMPLETED)
            run.collect()
    finally:
        await run.cancel()
    return {name: run.outcomes[name] for name in name_to_after}


class _GraphRun(Generic[T]):
    """The steps under way and the outcomes so far. Each edge is looked at once, when the step before it has ended."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it goes by
        self,
        name_to_after: Mapping[str, Collection[str]],
        work: Callable[[str, Mapping[str, T]], Awaitable[T]],
        on_skip: Callable[[str, str], None],
        name_to_join: Mapping[str, Join],
        name_to_rank: Mapping[str, Rank],
        outcomes: dict[str, Outcome[T]] | None,
    ) -> None:
        self.name_to_after = name_to_after
        self.name_to_join = name_to_join
        self.work = work
        self.on_skip = on_skip
        order = topological_order(name_to_after)
        self.name_to_place = {name: (name_to_rank.get(name, ()), place) for place, name in enumerate(order)}
        self.ready = [(self.name_to_place[name], name) for name in order if not name_to_after[name]]
        heapq.heapify(self.ready)
        self.name_to_num_awaited = {name: len(set(after)) for name, after in name_to_after.items()}
        self.name_to_next: dict[str, list[str]] = {name: [] for name in order}
        for name in order:
            for needed in set(name_to_after[name]):
                self.name_to_next[needed].append(name)
        self.tasks: dict[asyncio.Task[T], str] = {}
        self.outcomes: dict[str, Outcome[T]] = {} if outcomes is None else outcomes

    def start_ready(self, max_concurrency: int) -> None:
        """Start what can start, in order."""
        while self.ready and len(self.tasks) < max_concurrency:
            _, name = heapq.heappop(self.ready)
            self.tasks[asyncio.ensure_future(self._work(name))] = name

    def _end(self, name: str, outcome: Outcome[T]) -> None:
        """Keep how a step ended; what comes after it is nearer to its start, or is skipped, and what is after that."""
        self.outcomes[name] = outcome
        ended = [name]
        while ended:
            before = ended.pop()
            for after in self.name_to_next[before]:
                self.name_to_num_awaited[after] -= 1
                if after not in self.outcomes and (cause := self._join(after, before)) is not None:
                    self.outcomes[after] = Outcome(state="skipped", cause=cause)
                    self.on_skip(after, cause)
                    ended.append(after)

    def _join(self, name: str, before: str) -> str | None:
        """Make a step ready that waits for nothing more; or return because of which step it will never run."""
        outcome, join = self.outcomes[before], self.name_to_join.get(name, "all")
        cause = None if outcome.state == "done" else outcome.cause or before
        if join == "all" and cause is not None:
            return cause
        if self.name_to_num_awaited[name]:
            return None
        if join == "any" and not any(self.outcomes[needed].state == "done" for needed in self.name_to_after[name]):
            return cause
        heapq.heappush(self.ready, (self.name_to_place[name], name))
        return None

    async def _work(self, name: str) -> T:
        befores = {needed: self.outcomes[needed] for needed in self.name_to_after[name]}
        outputs = {needed: outcome.output for needed, outcome in befores.items() if outcome.state == "done"}
        return await self.work(name, outputs)  # type: ignore[arg-type]

    def collect(self) -> None:
        """Keep the outcomes of the finished steps."""
        for task in [task for task in self.tasks if task.done()]:
            name = self.tasks.pop(task)
            if task.cancelled():
                self._end(name, Outcome(state="cancelled"))
            elif (error := task.exception()) is None:
                self._end(name, Outcome(state="done", output=task.result()))
            elif isinstance(error, Skip):
                self._end(name, Outcome(state="skipped"))
            elif isinstance(error, Exception):
                self._end(name, Outcome(state="failed", error=error))
            else:
                raise error

    async def cancel(self) -> None:
        """Cancel what is under way and wait until it has ended."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for task, name in self.tasks.items():
            is_done = not task.cancelled() and task.exception() is None
            self.outcomes[name] = Outcome(state="done", output=task.result()) if is_done else Outcome(state="cancelled")
        self.tasks.clear()
