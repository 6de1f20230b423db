"""Numbers for an agent's calls, equal each time its code runs: what a resumed run finds its results by.

Calls of one task are numbered as they come: 1, 2, 3. What runs side by side has numbers of its own, below the call
that began it: items of `map` by their place (`4[0].1`), the inside of a tool (`4.1`), tasks that an agent begins itself
by the order of their first calls (`t1.1`). So the numbers do not depend on which of them is quicker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")
Task = asyncio.Task[Any]


@dataclass(slots=True, eq=False)
class Scope:
    """A part of an agent's work in which one call comes after another."""

    path: str = ""
    task: Task | None = None
    num_calls: int = 0
    num_tasks: int = 0
    of_task: WeakKeyDictionary[Task, Scope] = field(default_factory=WeakKeyDictionary["Task", "Scope"])

    def next_call(self) -> str:
        """Return the number of a call made now."""
        task = asyncio.current_task()
        if self.task is None:
            self.task = task
        elif task is not None and task is not self.task:
            return self._of(task).next_call()
        self.num_calls += 1
        return f"{self.path}{self.num_calls}"

    def _of(self, task: Task) -> Scope:
        if task not in self.of_task:
            self.num_tasks += 1
            self.of_task[task] = Scope(f"{self.path}t{self.num_tasks}.", task)
        return self.of_task[task]


_scope: ContextVar[tuple[object, Scope] | None] = ContextVar(
    "the part of an agent's work that is under way", default=None
)


@dataclass(slots=True)
class Scopes:
    """The scopes of one agent: `owner` tells it from those it spawns, whose tasks begin within its own."""

    owner: object = field(default_factory=object)
    root: Scope = field(default_factory=Scope)

    def next_call(self) -> str:
        """Return the number of a call that the agent makes now."""
        found = _scope.get()
        return (found[1] if found and found[0] is self.owner else self.root).next_call()

    @contextmanager
    def within(self, path: str) -> Generator[None]:
        """Number the calls of this block, and of the tasks begun in it, below `path`."""
        token = _scope.set((self.owner, Scope(f"{path}.")))
        try:
            yield
        finally:
            _scope.reset(token)

    def parts(self, function: Callable[[T], Awaitable[R]]) -> Callable[[tuple[int, T]], Awaitable[R]]:
        """Return the function of an item with its place; the calls in it are numbered below that place."""
        call = self.next_call()

        async def part(numbered: tuple[int, T]) -> R:
            with self.within(f"{call}[{numbered[0]}]"):
                return await function(numbered[1])

        return part

    @contextmanager
    def at(self, call: str) -> Generator[None]:
        """Give the first call of this block this number, which was given elsewhere."""
        path, _, number = call.rpartition(".")
        token = _scope.set((self.owner, Scope(f"{path}." if path else "", num_calls=int(number or 1) - 1)))
        try:
            yield
        finally:
            _scope.reset(token)


def call_of_child(step: str, parent: str, agent: str) -> str:
    """Return the number of the call that spawned the agent of a step."""
    return step[len(parent) + 1 : -len(agent) - 1]


def levels(call: str) -> list[tuple[str, int]]:
    """Return the scopes that a call stands in and its place in each: of `4[0].1` 4 and 1."""
    parts = call.split(".")
    places = [(".".join(parts[:depth]), part.partition("[")[0]) for depth, part in enumerate(parts)]
    return [(scope, int(part)) for scope, part in places if part.isdecimal()]
