"""The task graph: steps that come after others, run side by side where they may, with what they wait for named.

Pure but for asyncio: it knows nothing of agents. A cycle is refused before anything runs. A step that fails takes the
steps after it along; the others go on. Cancelling the run cancels every step.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, Literal, TypeVar

import msgspec

from pyagent.core.errors import RequestError

T = TypeVar("T")
State = Literal["done", "failed", "skipped", "cancelled"]


class Outcome(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How a step ended. `cause` names the failed step because of which this one did not run."""

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


async def run_graph(
    name_to_after: Mapping[str, Collection[str]],
    work: Callable[[str, Mapping[str, T]], Awaitable[T]],
    *,
    max_concurrency: int,
    on_skip: Callable[[str, str], None] = lambda _step, _cause: None,
) -> dict[str, Outcome[T]]:
    """Run `work(name, outputs of the steps it comes after)` for every step; at most `max_concurrency` at once.

    A step's exception becomes its outcome. `on_skip(name, cause)` hears of each step that will not run.
    """
    if max_concurrency < 1:
        raise RequestError(f"max_concurrency must be 1 or more, got {max_concurrency}", param="max_concurrency")
    run = _GraphRun(name_to_after, work, on_skip)
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

    def __init__(
        self,
        name_to_after: Mapping[str, Collection[str]],
        work: Callable[[str, Mapping[str, T]], Awaitable[T]],
        on_skip: Callable[[str, str], None],
    ) -> None:
        self.name_to_after = name_to_after
        self.work = work
        self.on_skip = on_skip
        order = topological_order(name_to_after)
        self.ready = [(place, name) for place, name in enumerate(order) if not name_to_after[name]]  # a heap
        self.name_to_place = {name: place for place, name in enumerate(order)}
        self.name_to_num_awaited = {name: len(set(after)) for name, after in name_to_after.items()}
        self.name_to_next: dict[str, list[str]] = {name: [] for name in order}
        for name in order:
            for needed in set(name_to_after[name]):
                self.name_to_next[needed].append(name)
        self.tasks: dict[asyncio.Task[T], str] = {}
        self.outcomes: dict[str, Outcome[T]] = {}

    def start_ready(self, max_concurrency: int) -> None:
        """Start what can start, in order."""
        while self.ready and len(self.tasks) < max_concurrency:
            _, name = heapq.heappop(self.ready)
            self.tasks[asyncio.ensure_future(self._work(name))] = name

    def _end(self, name: str, outcome: Outcome[T]) -> None:
        """Keep how a step ended; what comes after it is nearer to its start, or is skipped."""
        self.outcomes[name] = outcome
        if outcome.state != "done":
            self._skip_after(name)
            return
        for after in self.name_to_next[name]:
            self.name_to_num_awaited[after] -= 1
            if not self.name_to_num_awaited[after]:
                heapq.heappush(self.ready, (self.name_to_place[after], after))

    def _skip_after(self, cause: str) -> None:
        left = [cause]
        while left:
            for name in self.name_to_next[left.pop()]:
                if name not in self.outcomes:
                    self.outcomes[name] = Outcome(state="skipped", cause=cause)
                    self.on_skip(name, cause)
                    left.append(name)

    async def _work(self, name: str) -> T:
        outputs = {needed: self.outcomes[needed].output for needed in self.name_to_after[name]}
        return await self.work(name, outputs)  # type: ignore[arg-type]

    def collect(self) -> None:
        """Keep the outcomes of the finished steps."""
        for task in [task for task in self.tasks if task.done()]:
            name = self.tasks.pop(task)
            if task.cancelled():
                self._end(name, Outcome(state="cancelled"))
            elif (error := task.exception()) is None:
                self._end(name, Outcome(state="done", output=task.result()))
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
