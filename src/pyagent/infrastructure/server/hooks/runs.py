"""Runs that hooks begin: taken from the inbox in their order, a few at a time, and what became of each.

A message whose server died goes on when one is there again: a run that had not begun begins, one that had is resumed,
once; what dies twice, fails or asks a person is a dead letter, with the run's id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress

from pyagent.core.errors import PyAgentError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.steps import RunSpec, as_steps, check_agents
from pyagent.core.nearest import did_you_mean
from pyagent.core.settings.hooks import HookSettings
from pyagent.infrastructure.server.runs.background import BackgroundRuns
from pyagent.infrastructure.storage.webhooks.inbox import Inbox, Received

MAX_AT_ONCE = 8
_QUIET_SECONDS, _BUSY_SECONDS = 1.0, 0.1
_PRUNE_SECONDS, _RECOVER_SECONDS = 3_600.0, 30.0
_RESUMED = "resumed"
logger = logging.getLogger("pyagent.webhooks")


class HookRuns:
    """Begins the runs of one server's hooks."""

    def __init__(
        self, runs: BackgroundRuns, inbox: Inbox, hooks: Mapping[str, HookSettings], file_access: FileAccess
    ) -> None:
        self.inbox = inbox
        self._runs = runs
        self._hooks = hooks
        self._file_access = file_access
        self._under_way: dict[int, Received] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look into the inbox now."""
        self._wake.set()

    async def work(self) -> None:
        """Begin runs and see to their ends, until cancelled."""
        self._check_agents()
        pruned_at = recovered_at = float("-inf")
        while True:
            now = time.monotonic()
            try:
                if now - pruned_at > _PRUNE_SECONDS:
                    pruned_at = now
                    self.inbox.prune(time.time())
                if now - recovered_at > _RECOVER_SECONDS:
                    recovered_at = now
                    await self.recover()
                self._settle()
                await self._begin()
            except PyAgentError as error:
                logger.warning("messages of hooks wait: %s", error)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_BUSY_SECONDS if self._under_way else _QUIET_SECONDS):
                    await self._wake.wait()

    async def _begin(self) -> None:
        while len(self._under_way) < MAX_AT_ONCE and (taken := self.inbox.take()) is not None:
            message, task = taken
            hook = self._hooks.get(message.hook)
            if hook is None:
                self._dead(message, f"there is no hook {message.hook} any more (server.hooks)")
                continue
            await self._begin_one(message, task, hook)

    async def _begin_one(self, message: Received, task: str, hook: HookSettings) -> None:
        fleet = self._runs.fleet
        try:
            steps = as_steps(Task(text=task), (), hook.agent or None)
            check_agents(steps, list(fleet.agents))
            spec = RunSpec.of(steps, None, hook.tenant, hook.tenant, self._file_access)
            events = fleet.run(
                steps,
                client=hook.tenant,
                tenant=hook.tenant,
                file_access=self._file_access,
                waits_for_answers=False,
                run_id=message.run,
            )
            await self._runs.begin(events, spec, lambda _: None, message.run)
        except PyAgentError as error:
            if getattr(error, "code", "") != "run_exists":  # another server took it for one whose server died
                self._dead(message, str(error))
        else:
            self._under_way[message.number] = message

    def _check_agents(self) -> None:
        agents = self._runs.fleet.agents
        for name, hook in self._hooks.items():
            if hook.agent and hook.agent not in agents:
                hint = did_you_mean(hook.agent, agents, f"there are {', '.join(agents)}")
                logger.warning("the hook %s names the agent %r, which is not here; %s", name, hook.agent, hint)

    async def recover(self) -> None:
        """See to the messages of servers that died."""
        for message in self.inbox.running():
            if message.number in self._under_way:
                continue
            row = self._runs.fleet.journal.summary(message.run)
            if row is None:
                self.inbox.settle(message, "waiting")
            elif row.state == "unfinished" and not message.error:
                await self._resume(message)
            elif row.state != "running":
                self._ended(message, row.state)

    async def _resume(self, message: Received) -> None:
        fleet = self._runs.fleet
        self.inbox.settle(message, "running", _RESUMED)
        try:
            events = fleet.resume(message.run, waits_for_answers=False)
            await self._runs.begin(events, fleet.journal.spec(message.run), lambda _: None, message.run)
        except PyAgentError as error:
            self._dead(message, str(error))
        else:
            self._under_way[message.number] = message

    def _settle(self) -> None:
        """Keep the ends of runs that are over."""
        for number, message in list(self._under_way.items()):
            if self._runs.fleet.under_way(message.run) is None:
                del self._under_way[number]
                row = self._runs.fleet.journal.summary(message.run)
                state = "deleted" if row is None else row.state
                if state != "unfinished":  # left by a server that ends: the next one goes on with it
                    self._ended(message, state)

    def _ended(self, message: Received, state: str) -> None:
        if state == "done":
            self.inbox.settle(message, "done")
        else:
            self._dead(message, f"its run is {state}: pyagent runs show {message.run}")

    def _dead(self, message: Received, error: str) -> None:
        self.inbox.settle(message, "dead", error)
        logger.warning("hook", extra={"hook": message.hook, "delivery": message.name, "state": "dead"})
