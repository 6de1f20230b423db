"""Other agents, tools and guardrails for a fleet: runs that begin get the new ones, runs under way keep theirs.

What is gone is closed when the last run that could use it has ended. Knows no plugins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from pyagent.core.fleet.agent import Agent
from pyagent.core.fleet.containment import close_all
from pyagent.core.fleet.guardrails import Guardrail
from pyagent.core.fleet.orchestrator import Fleet, start_order
from pyagent.core.fleet.scores import Scores
from pyagent.core.fleet.tool_providers import OpenTools, ToolProvider
from pyagent.core.fleet.tools import FleetTool


class RenewableFleet(Fleet):
    """A fleet whose parts can be replaced between its runs."""

    _retiring: set[asyncio.Task[None]] | None = None

    async def replace(
        self,
        agents: Mapping[str, Agent],
        tools: Mapping[str, FleetTool],
        guardrails: Iterable[Guardrail],
        providers: Iterable[ToolProvider] | None = None,
    ) -> None:
        """Use these for the runs that begin from now on; tool providers are opened anew where some are given.

        Raises `RequestError` for agents that need each other in a circle; nothing has changed then.
        """
        order = start_order(agents)
        gone = [agent for name, agent in self.agents.items() if agents.get(name) is not agent]
        closers: dict[str, object] = {f"the agent {agent.name}": getattr(agent, "close", None) for agent in gone}
        self._start_order, self.agents, self.tools = order, dict(agents), dict(tools)
        self._scores = Scores(self.agents, self._scores.fail_until, self._scores.clock)
        self._guardrails = tuple(guardrails)
        if providers is None:
            self._tools.replace_own(self.tools)
        else:
            closers["the tool providers before"] = self._tools.close
            self._tools = OpenTools(self.tools, providers)
        self._retire({what: close for what, close in closers.items() if callable(close)})

    async def close(self) -> None:
        """Close the fleet, and what it no longer uses."""
        await super().close()
        await asyncio.gather(*(self._retiring or ()))

    def _retire(self, closers: dict[str, Callable[[], object]]) -> None:
        """Close what is gone, once the runs that are under way now have ended."""
        if not closers:
            return
        jobs = set(self._jobs)

        async def retire() -> None:
            if jobs:
                await asyncio.wait(jobs)
            await close_all(closers)

        self._retiring = set() if self._retiring is None else self._retiring
        task = asyncio.create_task(retire(), name="close what plugins no longer bring")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
