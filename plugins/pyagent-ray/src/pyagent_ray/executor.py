"""The executor `ray`: pure agents as Ray tasks, others in actors that keep their state; their run stays here."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any

from pyagent.plugin import Agent, AgentError, BackendError, Context, RunCalls, Settings, Task, is_pure
from pyagent_ray.agent_work import AgentHost, Outcome, Source, work
from pyagent_ray.connection import connect, disconnect
from pyagent_ray.desk import RunDesk
from pyagent_ray.lazily import module
from pyagent_ray.options import Options, encoded_for_workers

logger = logging.getLogger("pyagent.ray")
_MAX_BEGINNINGS = 4
"""How often a pure agent is begun before its workers' deaths are its own failure."""
_KILL_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_MAX_CALLS = 1_000


class RayExecutor:
    """Runs the agents that the options name, and others in this process."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self._options = options
        self._settings = encoded_for_workers(settings, options)
        self._ray: Any = None
        self._desk: RunDesk | None = None
        self._sources: dict[int, tuple[Agent, Source]] = {}
        self._hosts: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        # Of each depth its own: an agent that waits for those it spawned holds none that they need.
        self._places = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(options.max_agents))
        self._killing = set[asyncio.Task[None]]()

    async def run(self, agent: Agent, context: Context, task: Task) -> object:
        """Return what the agent returns for the task."""
        if self._options.agents and agent.name not in self._options.agents:
            return await agent.run(context, task)
        async with self._places[context.depth]:
            desk = await self._open(agent.name)
            calls = RunCalls(context, is_repeatable=is_pure(agent))
            number = desk.enter(calls)
            try:
                outcome = await self._outcome(agent, desk, number, calls, task)
            finally:
                del desk.calls[number]
                await calls.close()
        return outcome.result(agent.name)

    async def close(self) -> None:
        """Let the actors' agents close, and end them. Safe to call twice."""
        desk, self._desk = self._desk, None
        if desk is None:
            return
        hosts = list(self._hosts.values())
        self._hosts.clear()
        closing = [asyncio.ensure_future(_closed(host)) for host in hosts]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        for host in hosts:
            self._ray.kill(host)
        await desk.close()
        self._sources.clear()
        await disconnect()

    # -- the cluster --------------------------------------------------------------------------------------------------

    async def _open(self, agent: str) -> RunDesk:
        async with self._opening:
            if self._desk is not None and not self._desk.is_open:
                await self.close()
            if self._desk is None:
                try:
                    self._ray = await connect(self._options)
                except BackendError as error:
                    raise AgentError(f"{agent} is to run on Ray, and {error}", agent=agent) from error
                self._desk = RunDesk(self._ray)
            return self._desk

    def _source(self, agent: Agent) -> Source:
        """Return where workers get the agent; it is sent once, or found by name where it cannot be sent."""
        known = self._sources.get(id(agent))
        if known is None:
            try:
                sent = [self._ray.put(agent)]
            except Exception as error:  # noqa: BLE001 - it may hold anything: a lock, a process
                logger.info("the agent %s cannot be sent to Ray and is found there by its name: %s", agent.name, error)
                sent = []
            known = self._sources[id(agent)] = (agent, Source(agent.name, sent, self._settings))
        return known[1]

    # -- running ------------------------------------------------------------------------------------------------------

    async def _outcome(self, agent: Agent, desk: RunDesk, number: int, calls: RunCalls, task: Task) -> Outcome:
        failures = module("ray.exceptions")
        repeats = _MAX_BEGINNINGS if is_pure(agent) else 1
        for beginning in range(1, repeats + 1):
            ref = self._begin(agent, desk, number, calls, task)
            try:
                return await self._awaited(agent, ref)
            except failures.RayTaskError as error:  # it never ran, or what it returned cannot be sent
                said = str(getattr(error, "cause", None) or error).strip().splitlines()
                raise AgentError(f"{agent.name} cannot run on Ray: {said[-1][:300]}", agent=agent.name) from error
            except failures.RayError as error:
                self._hosts.pop(agent.name, None)
                why = f"the Ray worker of {agent.name} is gone ({type(error).__name__})"
                if not is_pure(agent):
                    text = f"{why}; it is not begun again, as it may keep state or have had effects (is_pure)"
                    raise AgentError(text, agent=agent.name) from error
                if beginning == repeats:
                    raise AgentError(f"{why} for the {repeats}th time", agent=agent.name) from error
                logger.warning("%s: it is begun again", why)
        raise AssertionError

    def _begin(self, agent: Agent, desk: RunDesk, number: int, calls: RunCalls, task: Task) -> Any:
        view, source = calls.begin(), self._source(agent)
        place: dict[str, Any] = {"num_cpus": self._options.agent_cpus, "scheduling_strategy": "SPREAD"}
        if is_pure(agent):
            function = self._ray.remote(work).options(max_retries=0, **place)
            return function.remote(source, desk.actor, number, task, view)
        if agent.name not in self._hosts:
            made = self._ray.remote(AgentHost).options(max_restarts=0, max_concurrency=_MAX_CALLS, **place)
            self._hosts[agent.name] = made.remote(source)
        return self._hosts[agent.name].work.remote(desk.actor, number, task, view)

    async def _awaited(self, agent: Agent, ref: Any) -> Outcome:
        try:
            return await ref
        except asyncio.CancelledError:
            self._ray.cancel(ref)
            if is_pure(agent):
                killing = asyncio.create_task(self._kill(ref))
                self._killing.add(killing)
                killing.add_done_callback(self._killing.discard)
            raise

    async def _kill(self, ref: Any) -> None:
        """End a task that does not end when it is cancelled: elsewhere that can be done."""
        await asyncio.sleep(_KILL_SECONDS)
        self._ray.cancel(ref, force=True)


async def _closed(host: Any) -> None:
    await host.close.remote()
