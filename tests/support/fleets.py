"""Agents made of functions, and fleets of them over scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.steps import Step
from pyagent.testing import ScriptedBackend


class Custom:
    """An agent made of a function."""

    def __init__(self, name: str, function: Callable[[Context, Task], Awaitable[object]], **more: object) -> None:
        self.name = name
        self.description = f"does {name}"
        self.function = function
        for key, value in more.items():
            setattr(self, key, value)

    async def run(self, context: Context, task: Task) -> object:
        return await self.function(context, task)


class Work:
    """What an agent does that works until it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self, context: Context, task: Task) -> object:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()
        return "done"


async def echo(context: Context, task: Task) -> object:
    return f"{task.text}!"


async def ask(context: Context, task: Task) -> object:
    return await context.generate(task.text)


async def sleep_long(context: Context, task: Task) -> object:
    await asyncio.sleep(60)
    return ""


def fleet_of(*agents: Agent, script: object = (), **limits: object) -> Fleet:
    return Fleet(ScriptedBackend(script), agents, limits=FleetLimits(**limits))  # type: ignore[arg-type]


async def events_of(fleet: Fleet, task: str | list[Step], **options: object) -> tuple[list[ev.Event], Exception | None]:
    seen: list[ev.Event] = []
    try:
        async for event in fleet.run(task, **options):  # type: ignore[arg-type]
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except Exception as error:
        return seen, error
    return seen, None
