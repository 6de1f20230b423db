"""An engine in a process of its own, with the interface of one in this process.

A crash there costs time and nothing else: the next process continues every answer where it stopped. Seeds are chosen
here, so that an answer computed twice is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator

import msgspec

from pyagent.core.errors import CapacityError, PyAgentError, RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, Hint
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult, UnpinPrompt, ViewCache
from pyagent.infrastructure.engine.client import EngineState, within
from pyagent.infrastructure.engine.lifecycle import GRACE_SECONDS, LifeCycle, Shared, State
from pyagent.infrastructure.engine.subprocess.in_flight import InFlightRequest
from pyagent.infrastructure.engine.subprocess.protocol import (
    ENGINE,
    FreeMemory,
    GetState,
    LoadModel,
    QueryCache,
    Submit,
    TakeHint,
    encode_for_caller,
)
from pyagent.infrastructure.engine.subprocess.supervisor import Supervisor
from pyagent.infrastructure.wire.codec import Codec

_MAX_REQUESTS = 8192
"""Requests on their way to or in the process; the engine itself refuses some earlier."""
_STATE_SECONDS = 2.0
_state_codec: Codec[EngineState] = Codec(EngineState, ENGINE)
_query_codec: Codec[CacheQueryResult] = Codec(CacheQueryResult, ENGINE)


class ProcessEngine(Shared):
    """An engine in a process of its own, which starts with the first request."""

    def __init__(self, settings: bytes, hang_seconds: float | None) -> None:
        """`settings` are the process's `Settings` as JSON; a step of `hang_seconds` counts as its death."""
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
        await asyncio.wrap_future(self.supervisor.call(LoadModel(model)))

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
        outputs: asyncio.Queue[ChatDelta | PyAgentError | None] = asyncio.Queue()

        def emit(output: ChatDelta | PyAgentError | None) -> None:
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        in_flight = InFlightRequest(next(self._ids), request, emit)
        encode_for_caller(
            Submit(in_flight.id, request)
        )  # raise for what cannot be sent, while the caller still waits here
        self.life.enter()
        is_over = False
        try:
            self.supervisor.submit(in_flight)
            while (output := await within(deadline, outputs.get(), name)) is not None:
                if isinstance(output, PyAgentError):
                    is_over = True
                    raise output
                yield output
            is_over = True
        finally:
            self.life.leave()
            if not is_over and not self.is_closed:
                self.supervisor.abort(in_flight)

    async def state(self) -> EngineState:
        """Return what the engine is doing. Starts nothing."""
        process = self.supervisor.status
        state = EngineState(state=self.life.state.value, num_running=self.life.num_running)
        if self.supervisor.is_started and process.process_id is not None and not self.is_closed:
            with contextlib.suppress(TimeoutError, PyAgentError):  # it may die or hang at this moment
                seen = await asyncio.wait_for(self._get_state(), _STATE_SECONDS)
                state = msgspec.structs.replace(seen, state=state.state, num_running=state.num_running)
        return msgspec.structs.replace(state, process_id=process.process_id, num_restarts=process.num_restarts)

    async def _get_state(self) -> EngineState:
        return _state_codec.decode(await asyncio.wrap_future(self.supervisor.call(GetState())))

    def hint(self, hint: Hint) -> None:
        """Pass a hint on, where there is a process. One that cannot be sent is dropped: hints never fail."""
        if self.supervisor.is_started and not self.is_closed:
            with contextlib.suppress(RequestError):
                self.supervisor.call(TakeHint(hint))

    async def query_cache(self, query: CacheQuery) -> CacheQueryResult:
        """Look into the prompt caches, or keep a prompt there."""
        if isinstance(query, ViewCache | UnpinPrompt) and not self.supervisor.is_started:
            return CacheQueryResult()
        raw = await asyncio.wrap_future(self.supervisor.call(QueryCache(query)))
        return _query_codec.decode(raw)

    async def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        return await asyncio.to_thread(self.life.drain, grace_seconds)

    async def sleep(self, level: int = 1) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        await asyncio.to_thread(self.life.sleep, level, self.give_back)

    def give_back(self, level: int) -> None:
        """Free the KV memory of unused models (1), or the models (2). Blocks."""
        if self.supervisor.is_started:
            self.supervisor.call(FreeMemory(level)).result()

    async def wake(self) -> None:
        """Take requests again; models load when they are asked for."""
        self.life.become(State.READY)

    async def close(self) -> None:
        """Give up a share of the engine; with the last one, what runs is aborted and the process ends."""
        if self.give_up():
            self.life.become(State.STOPPED)
            await asyncio.to_thread(self.supervisor.close)
