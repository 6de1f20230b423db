"""An executor whose agents work in another task, with nothing of their run but what crosses; it can kill workers."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import random

from pyagent.core.fleet.agent import Agent, Task, is_pure
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.remote.calls import RunCalls
from pyagent.core.fleet.remote.context import run_remote
from pyagent.core.fleet.remote.messages import AgentCall


class Elsewhere:
    """Pickles what crosses; calls arrive in any order. A worker dies at each call whose number is in `deaths`."""

    def __init__(self, *deaths: int, seed: int = 1) -> None:
        self.deaths = list(deaths)
        self.num_beginnings = 0
        self.num_calls = 0
        self._rng = random.Random(seed)

    async def run(self, agent: Agent, context: Context, task: Task) -> object:
        calls = RunCalls(context, is_repeatable=is_pure(agent))
        try:
            while True:
                died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                view = pickle.loads(pickle.dumps(calls.begin()))
                self.num_beginnings += 1
                work = asyncio.create_task(
                    run_remote(agent, task, view, lambda call, died=died: self._ask(calls, call, died)),  # type: ignore[misc]
                    context=contextvars.Context(),
                )
                try:
                    await asyncio.wait([work, died], return_when=asyncio.FIRST_COMPLETED)
                    if not died.done():
                        return await work
                finally:
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
        finally:
            await calls.close()

    async def _ask(self, calls: RunCalls, call: AgentCall, died: asyncio.Future[None]) -> object:
        self.num_calls += 1
        is_last = self.num_calls in self.deaths
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)
        made = calls.make(pickle.loads(pickle.dumps(call)))
        making = asyncio.create_task(made, context=contextvars.Context())  # what carries calls is of no run
        if is_last:
            await asyncio.sleep(0.01)  # the call is made, and its answer arrives nowhere
            if not died.done():
                died.set_result(None)
            making.cancel()
            await asyncio.sleep(60)
        result = await making
        if died.done():
            await asyncio.sleep(60)
        return pickle.loads(pickle.dumps(result))

    async def close(self) -> None:
        pass
