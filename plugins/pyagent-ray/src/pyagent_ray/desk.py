"""Where agents in Ray's workers reach their run: an actor on the run's own node that passes calls on and answers back.

Objects go through it as references: only the worker and the run open them. Ray serializes them, within its cluster.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from typing import Any

from pyagent.plugin import AgentError, Fault, RunCalls
from pyagent_ray.lazily import module

logger = logging.getLogger("pyagent.ray")
_MAX_CALLS = 100_000


class Desk:
    """Ray's actor: `ask` waits for what `reply` brings; `asked` is read by the run."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[tuple[int, int, list[Any]]] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[list[Any]]] = {}
        self._keys = itertools.count()

    async def ask(self, number: int, box: list[Any]) -> list[Any]:
        """Pass a call of the `number`th agent on, and return the answer, each a list of one reference."""
        key = next(self._keys)
        self._waiting[key] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((key, number, box))
        try:
            return await self._waiting[key]
        finally:
            del self._waiting[key]

    async def asked(self) -> AsyncGenerator[tuple[int, int, list[Any]], None]:
        """Give the calls as they come."""
        while True:
            yield await self._asked.get()

    async def reply(self, key: int, box: list[Any]) -> None:
        """Bring an answer."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(box)


class RunDesk:
    """The run's side of the desk: has each call made by the agent's `RunCalls`."""

    def __init__(self, ray: Any) -> None:
        strategies = module("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made = ray.remote(Desk).options(num_cpus=0, max_concurrency=_MAX_CALLS, scheduling_strategy=here)
        self.actor = made.remote()
        self.calls: dict[int, RunCalls] = {}
        self._ray = ray
        self._numbers = itertools.count()
        self._answering = set[asyncio.Task[None]]()
        self._reading = asyncio.create_task(self._read(), name="calls of agents on Ray")

    def enter(self, calls: RunCalls) -> int:
        """Take the calls of an agent from now on; return its number."""
        number = next(self._numbers)
        self.calls[number] = calls
        return number

    @property
    def is_open(self) -> bool:
        """Whether calls are taken."""
        return not self._reading.done()

    async def close(self) -> None:
        """Take no more calls."""
        for task in (self._reading, *self._answering):
            task.cancel()
        await asyncio.gather(self._reading, *self._answering, return_exceptions=True)
        await asyncio.to_thread(self._ray.kill, self.actor)

    async def _read(self) -> None:
        async for item in self.actor.asked.remote():
            task = asyncio.create_task(self._answer(*(await item)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, key: int, number: int, box: list[Any]) -> None:
        try:
            answer = (await self._made(number, await box[0]), None)
        except module("ray.exceptions").RayError:
            return  # the worker died with what it asked
        except Exception as error:  # noqa: BLE001 - the agent is told whatever it is
            answer = (None, Fault.of(error, "the run"))
        try:
            sent = self._ray.put(answer)
        except Exception as error:  # noqa: BLE001 - a tool's or an agent's output may be anything
            fault = AgentError(f"what the run found cannot be sent to Ray: {error}", agent=f"number {number}")
            sent = self._ray.put((None, Fault.of(fault, "the run")))
        self.actor.reply.remote(key, [sent])

    async def _made(self, number: int, call: Any) -> object:
        calls = self.calls.get(number)
        if calls is None:
            raise AgentError("the agent has ended", agent=f"number {number}")
        return await calls.make(call)
