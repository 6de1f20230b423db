"""Where an agent's code runs. All else of a run stays in the process that began it, wherever its agents work.

The built-in executor is this process; plugins bring others, and `fleet.executor` names one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent, Task
    from pyagent.core.fleet.context import Context
    from pyagent.core.settings import Settings

IN_PROCESS = "in-process"


class Executor(Protocol):
    """Runs agents. What an agent raises comes out of `run` as it would here; cancelling the call ends the agent."""

    def run(self, agent: Agent, context: Context, task: Task) -> Awaitable[object]:
        """Return what the agent returns for the task. `core.fleet.remote` is for agents that run elsewhere."""
        ...

    async def close(self) -> None:
        """End what still runs and release what it holds. Safe to call twice."""
        ...


ExecutorFactory = Callable[["Settings"], Executor]
"""Makes an executor. Cheap: it reaches for other machines when the first agent runs."""


class InProcess:
    """Runs agents in this process."""

    def run(self, agent: Agent, context: Context, task: Task) -> Awaitable[object]:
        """Return what the agent returns."""
        return agent.run(context, task)

    async def close(self) -> None:
        """Do nothing: the fleet closes its agents."""
