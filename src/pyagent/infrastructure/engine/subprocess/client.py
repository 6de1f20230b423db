"""An engine in a process of its own, with the same face as one in this process.

A crash there costs those who wait some time and nothing else: the next process goes on with every answer where it
stopped. Seeds are drawn here, so that an answer computed twice is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator

import msgspec

from pyagent.core.errors import CapacityError, PyAgentError
from pyagent.core.messages import ChatDelta, ChatRequest, Hint
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult, UnpinPrompt, ViewCache
from pyagent.infrastructure.engine.client import EngineState, within
from pyagent.infrastructure.engine.lifecycle import GRACE_SECONDS, LifeCycle, Shared, State
from pyagent.infrastructure.engine.subprocess.in_flight import Asked
from pyagent.infrastructure.engine.subprocess.protocol import Ask, GiveBack, Load, Look, QueryCache, Told, encode_ask
from pyagent.infrastructure.engine.subprocess.supervisor import Supervisor

_MAX_REQUESTS = 8192
"""Requests on their way to or in the process; the engine itself refuses some earlier."""

_LOOK_SECONDS = 2.0


class ProcessEngine(Shared):
    """An engine in a process of its own, which starts with the first request."""

    def __init__(self, settings: bytes, hang_seconds: float | None) -> None:
        """`settings` are what the process reads (`Settings` as JSON); a step of `hang_seconds` counts as its death."""
        self.life = LifeCycle()
        self.supervisor = Supervisor(settings, self._note_process, hang_seconds)
        self._ids = itertools.count(1)

    def _note_process(self, is_there: bool) -> None:
        if is_there:
            self.life.replace(State.STARTING, State.READY)
        else:
            self.life.replace(State.READY, State.STARTING)

    async def load(self, model: str) -> None:
        """Load a model ahead of its first request. Raises `ModelError` naming what is wrong with its file."""
        await asyncio.wrap_future(self.supervisor.call(Load(model)))

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer with the model the request names; closing the stream aborts the request."""
        name = f"native:{request.model}"
        deadline = None if request.timeout_seconds is None else time.perf_counter() + request.timeout_seconds
        if request.sampling.seed is None:
            seeded = msgspec.structs.replace(request.sampling, seed=random.getrandbits(63))
            request = msgspec.structs.replace(request, sampling=seeded)
        if self.supervisor.num_requests >= _MAX_REQUESTS:
            raise CapacityError(f"{_MAX_REQUESTS} requests wait already; try again later", retry_after_seconds=1.0)
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[ChatDelta | PyAgentError | None] = asyncio.Queue()
        asked = Asked(next(self._ids), request, lambda told: loop.call_soon_threadsafe(news.put_nowait, told) and None)
        encode_ask(Ask(asked.id, request))  # what cannot be sent is said here
        self.life.enter()
        is_over = False
        try:
            self.supervisor.ask(asked)
            while (told := await within(deadline, news.get(), name)) is not None:
                if isinstance(told, PyAgentError):
                    is_over = True
                    raise told
                yield told
            is_over = True
        finally:
            self.life.leave()
            if not is_over and not self.is_closed:
                self.supervisor.abort(asked)

    async def state(self) -> EngineState:
        """What it is doing. Starts nothing."""
        vitals = self.supervisor.vitals
        state = EngineState(state=self.life.state.value, num_running=self.life.num_running)
        if self.supervisor.is_started and vitals.process_id is not None and not self.is_closed:
            with contextlib.suppress(TimeoutError, PyAgentError):  # it may die or hang at this moment
                seen = await asyncio.wait_for(self._look(), _LOOK_SECONDS)
                state = msgspec.structs.replace(seen, state=state.state, num_running=state.num_running)
        return msgspec.structs.replace(state, process_id=vitals.process_id, num_restarts=vitals.num_restarts)

    async def _look(self) -> EngineState:
        seen = await asyncio.wrap_future(self.supervisor.call(Look()))
        return msgspec.msgpack.decode(seen, type=EngineState)

    def hint(self, hint: Hint) -> None:
        """Take what the fleet knows of a prompt's future; nothing when there is no process yet."""
        if self.supervisor.is_started and not self.is_closed:
            self.supervisor.call(Told(hint))

    async def query_cache(self, question: CacheQuery) -> CacheQueryResult:
        """Look into the prompt caches, or keep a prompt there."""
        if isinstance(question, ViewCache | UnpinPrompt) and not self.supervisor.is_started:
            return CacheQueryResult()
        raw = await asyncio.wrap_future(self.supervisor.call(QueryCache(question)))
        return msgspec.msgpack.decode(raw, type=CacheQueryResult)

    async def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        return await asyncio.to_thread(self.life.drain, grace_seconds)

    async def sleep(self, level: int = 1) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        await asyncio.to_thread(self.life.sleep, level, self.give_back)

    def give_back(self, level: int) -> None:
        """Free the KV memory of models that nobody uses (1), or the models (2). Blocks."""
        if self.supervisor.is_started:
            self.supervisor.call(GiveBack(level)).result()

    async def wake(self) -> None:
        """Take requests again; models load when they are asked for."""
        self.life.become(State.READY)

    async def close(self) -> None:
        """Give up a share of the engine; with the last one, what runs is aborted and the process ends."""
        if self.give_up():
            self.life.become(State.STOPPED)
            await asyncio.to_thread(self.supervisor.close)
