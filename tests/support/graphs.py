"""Agents and steps of graphs, and a run of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from support.fleets import Custom, events_of, fleet_of

from pyagent.core.errors import BackendError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.steps import Step


class Score(msgspec.Struct, frozen=True):
    score: int


class Note(msgspec.Struct):
    text: str


async def say(context: Context, task: Task) -> object:
    return f"{task.text} {sorted(task.results)}" if task.results else task.text


async def fail(context: Context, task: Task) -> object:
    raise ValueError("no")


async def items(context: Context, task: Task) -> object:
    return {"items": [{"name": name, "size": len(name)} for name in task.text.split()]}


async def better(context: Context, task: Task) -> Score:
    """One more than the round before."""
    before = task.results.get("better", Score(0))
    return Score(getattr(before, "score", 0) + 1)


AGENTS = (Custom("say", say), Custom("fail", fail), Custom("items", items), Custom("better", better))


def step(name: str, agent: str = "say", after: Sequence[str] = (), **more: object) -> Step:
    return Step(name=name, agent=agent, task=Task(text=name), after=tuple(after), **more)  # type: ignore[arg-type]


def ran(steps: list[Step], *agents: Custom, **limits: object) -> tuple[list[ev.Event], object, Exception | None]:
    seen, error = asyncio.run(events_of(fleet_of(*AGENTS, *agents, **limits), steps))
    end = seen[-1]
    return seen, end.output if isinstance(end, ev.RunFinished) else None, error


def started(seen: Sequence[ev.Event]) -> list[str]:
    return [event.step for event in seen if isinstance(event, ev.AgentStarted)]


class Flaky:
    """An agent that fails the first times, in the ways given."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_runs = 0

    async def run(self, context: Context, task: Task) -> object:
        self.num_runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return f"after {self.num_runs}"


def flaky_agent(*errors: Exception) -> Custom:
    return Custom("flaky", Flaky(*errors).run)


DOWN = BackendError("down", backend="b")
