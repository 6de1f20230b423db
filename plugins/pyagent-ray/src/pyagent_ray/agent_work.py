"""An agent in a Ray worker: as a task when it is pure, in an actor that keeps its state when it is not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Any

import msgspec

from pyagent.plugin import Agent, AgentCall, AgentError, AgentView, Fault, PyAgentError, Task, make_host, run_remote
from pyagent_ray.lazily import module
from pyagent_ray.options import decoded_by_worker

_found: dict[str, Agent] = {}
"""Agents of this worker's own plugins, by name: found once, as a worker runs many tasks."""


class Source(msgspec.Struct, frozen=True):
    """Where a worker gets an agent: sent (a list of one reference), or from its own plugins by the name."""

    name: str
    sent: list[Any]
    settings: bytes

    def agent(self, ray: Any) -> Agent:
        """Return the agent. Raises `AgentError` where no plugin of this worker brings it."""
        if self.sent:
            try:
                return ray.get(self.sent[0])
            except Exception as error:
                said = str(error).strip().splitlines()[:1]
                text = f"the agent {self.name} cannot be read in Ray's worker: {said}"
                text += "; install its module there (runtime_env)"
                raise AgentError(text, agent=self.name) from error
        if self.name not in _found:
            told = decoded_by_worker(self.settings)
            agents = make_host(told).agents()
            if self.name not in agents:
                text = f"no plugin of Ray's worker brings the agent {self.name}: install its plugin there (runtime_env)"
                raise AgentError(text, agent=self.name)
            _found[self.name] = agents[self.name]
        return _found[self.name]


class Outcome(msgspec.Struct, frozen=True):
    """What came of an agent: its output, our error as a fault, or the class and text of a foreign one.

    `is_cancelled` says that it raised `CancelledError` itself, though nothing had cancelled it.
    """

    output: object = None
    fault: Fault | None = None
    kind: str = ""
    text: str = ""
    is_cancelled: bool = False

    def result(self, agent: str) -> object:
        """Return the output, or raise the error; a foreign one as a class of the same name."""
        if self.is_cancelled:
            raise asyncio.CancelledError
        if self.fault is not None:
            raise self.fault.error(agent)
        if self.kind:
            raise type(self.kind, (Exception,), {})(self.text)
        return self.output


def work(source: Source, desk: Any, number: int, task: Task, view: AgentView) -> Outcome:
    """Run a pure agent: the function of a Ray task."""
    ray = module()
    try:
        return asyncio.run(_ended_by_ray(_worked(lambda: source.agent(ray), desk, number, task, view)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # what Ray knows as the end of a cancelled task


async def _ended_by_ray(working: Awaitable[Outcome]) -> Outcome:
    """Cancel the agent when Ray does: by an interrupt, of which a loop that waits hears only through a handler."""
    current = asyncio.current_task()
    assert current is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, current.cancel)
    return await working


class AgentHost:
    """Ray's actor that keeps one agent: its tasks run in it side by side."""

    def __init__(self, source: Source) -> None:
        self._agent = source.agent(module())

    async def work(self, desk: Any, number: int, task: Task, view: AgentView) -> Outcome:
        """Run the agent for one task."""
        return await _worked(lambda: self._agent, desk, number, task, view)

    async def close(self) -> None:
        """Let the agent release what it holds."""
        if (close := getattr(self._agent, "close", None)) is not None:
            await close()


async def _worked(agent: Any, desk: Any, number: int, task: Task, view: AgentView) -> Outcome:
    ray = module()

    async def ask(call: AgentCall) -> object:
        box = await desk.ask.remote(number, [ray.put(call)])
        value, fault = await box[0]
        if fault is not None:
            raise fault.error("the run")
        return value

    current = asyncio.current_task()
    try:
        return Outcome(await run_remote(agent(), task, view, ask))
    except asyncio.CancelledError:
        if current is None or current.cancelling():  # by Ray, and not the agent's own
            raise
        return Outcome(is_cancelled=True)
    except PyAgentError as error:
        return Outcome(fault=Fault.of(error, view.agent))
    except Exception as error:  # noqa: BLE001 - other people's code; the run names what it raised
        return Outcome(kind=type(error).__name__, text=str(error))
