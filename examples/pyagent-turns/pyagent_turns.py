"""A PyAgent plugin with an executor: of all agents at most `$AGENT_TURNS` run at a time, the others wait."""

import asyncio
import os
from collections.abc import Mapping

from pyagent.plugin import Agent, ConfigError, Context, Executor, ExecutorFactory, Settings, Task, hookimpl


class Turns:
    """Runs agents in this process. One that was spawned runs at once: its parent has a turn, and waits for it."""

    def __init__(self, most: int) -> None:
        self.turns = asyncio.Semaphore(most)

    async def run(self, agent: Agent, context: Context, task: Task) -> object:
        if context.depth:
            return await agent.run(context, task)
        async with self.turns:
            return await agent.run(context, task)

    async def close(self) -> None:
        """Nothing is held between runs."""


def make_turns(settings: Settings) -> Executor:
    told = os.environ.get("AGENT_TURNS", "4")
    if not told.isdecimal() or int(told) < 1:
        raise ConfigError(f"expected a number of agents from 1 in AGENT_TURNS, got {told!r}", key="fleet.executor")
    return Turns(int(told))


@hookimpl
def pyagent_register_executors() -> Mapping[str, ExecutorFactory]:
    return {"turns": make_turns}
