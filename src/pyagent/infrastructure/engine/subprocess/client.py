"""An engine in processes of its own, one or several copies, with the interface of one in this process.

A crash there costs time and nothing else: another copy or the next process continues every answer where it stopped.
Seeds are chosen here, so that an answer computed twice is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

import msgspec

from pyagent.core.errors import CapacityError, PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Hint,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
)
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult, ExplainPrompt, UnpinPrompt, ViewCache
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.client import EngineState, within
from pyagent.infrastructure.engine.lifecycle import GRACE_SECONDS, LifeCycle, Shared, State
from pyagent.infrastructure.engine.models.adapter_names import AdapterPaths
from pyagent.infrastructure.engine.subprocess.copies import Copies
from pyagent.infrastructure.engine.subprocess.in_flight import InFlightRequest
from pyagent.infrastructure.engine.subprocess.merging import merged_cache, merged_state
from pyagent.infrastructure.engine.subprocess.protocol import (
    ENGINE,
    ClassifyTexts,
    Command,
    EmbedTexts,
    EmbedTokens,
    FreeMemory,
    GetState,
    NameAdapter,
    QueryCache,
    RankTexts,
    Start,
    Submit,
    TakeHint,
    UseAttention,
    Withdraw,
    encode_for_caller,
)
from pyagent.infrastructure.wire.codec import Codec

_MAX_REQUESTS = 8192
"""Requests on their way to or in the process; the engine itself refuses some earlier."""
_STATE_SECONDS = 2.0
_LAST_ENDS_SECONDS = 10.0
"""How long processes may take to end requests whose readers left, before memory is given back."""
_state_codec: Codec[EngineState] = Codec(EngineState, ENGINE)
_embed_codec: Codec[EmbedResult] = Codec(EmbedResult, ENGINE)
_rank_codec: Codec[RankResult] = Codec(RankResult, ENGINE)
_classify_codec: Codec[ClassifyResult] = Codec(ClassifyResult, ENGINE)
_token_embed_codec: Codec[TokenEmbedResult] = Codec(TokenEmbedResult, ENGINE)
_query_codec: Codec[CacheQueryResult] = Codec(CacheQueryResult, ENGINE)


class ProcessEngine(Shared):
    """An engine in processes of its own, which start with the first request."""

    def __init__(
        self, starts: Sequence[Start], hang_seconds: float | None, adapters: Mapping[str, str] | None = None
    ) -> None:
        """`starts` is what the process of each copy is told; a step of `hang_seconds` counts as its death.

        `adapters` are those of the settings that the processes are told.
        """
        self.adapters = AdapterPaths(adapters or {})
        self.life = LifeCycle()
        self.copies = Copies(starts, hang_seconds, self._note_process)
        self._ids = itertools.count(1)

    def _note_process(self, is_there: bool) -> None:
        if is_there:
            self.life.replace(State.STARTING, State.READY)
        else:
            self.life.replace(State.READY, State.STARTING)

    async def load(self, model: str, *, beside: bool = False) -> None:
        """Load a model ahead of its first request. Raises `ModelError` naming what is wrong with its file."""
        await self.copies.load(model, beside=beside)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed by the copy that has the fewest requests."""
        return _embed_codec.decode(await self._pooled(EmbedTexts(request)))

    async def rank(self, request: RankRequest) -> RankResult:
        """Rank by the copy that has the fewest requests."""
        return _rank_codec.decode(await self._pooled(RankTexts(request)))

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """Classify by the copy that has the fewest requests."""
        return _classify_codec.decode(await self._pooled(ClassifyTexts(request)))

    async def token_embed(self, request: TokenEmbedRequest) -> TokenEmbedResult:
        """Give vectors of tokens by the copy that has the fewest requests."""
        return _token_embed_codec.decode(await self._pooled(EmbedTokens(request)))

    async def _pooled(self, command: Command) -> msgspec.Raw:
        copy = min(range(len(self.copies)), key=self.copies.num_requests_of)
        with self.life.entered():
            return await asyncio.wrap_future(self.copies.call(copy, command))

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer with the model the request names; closing the stream aborts the request."""
        name = f"native:{request.model}"
        deadline = None if request.timeout_seconds is None else time.perf_counter() + request.timeout_seconds
        if request.sampling.seed is None:
            seeded = msgspec.structs.replace(request.sampling, seed=random.getrandbits(63))
            request = msgspec.structs.replace(request, sampling=seeded)
        if self.copies.num_requests >= _MAX_REQUESTS:
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
            self.copies.submit(in_flight)
            while (output := await within(deadline, outputs.get(), name)) is not None:
                if isinstance(output, PyAgentError):
                    is_over = True
                    raise output
                yield output
            is_over = True
        finally:
            self.life.leave()
            self.copies.leave(in_flight, has_end=is_over or self.is_closed)

    async def state(self) -> EngineState:
        """Return what the engine is doing. Starts nothing."""
        states = await asyncio.gather(*(self._state_of(copy) for copy in range(len(self.copies))))
        return msgspec.structs.replace(
            merged_state(states),
            state=self.life.state.value,
            num_running=self.life.num_running,
            num_waves=self.copies.num_waves,
        )

    async def _state_of(self, copy: int) -> EngineState:
        process = self.copies.supervisors[copy].status
        num_requests = self.copies.num_requests_of(copy)
        state = EngineState(
            state=State.STARTING.value,
            num_arriving=num_requests,
            num_arriving_tokens=self.copies.num_prompt_tokens_left_of(copy),
        )
        if process.process_id is not None and not self.is_closed:
            with contextlib.suppress(TimeoutError, PyAgentError):  # it may die or hang at this moment
                seen = await asyncio.wait_for(asyncio.wrap_future(self.copies.call(copy, GetState())), _STATE_SECONDS)
                state = _state_codec.decode(seen)
        return msgspec.structs.replace(
            state,
            num_running=num_requests,
            process_id=process.process_id,
            num_restarts=process.num_restarts,
        )

    def hint(self, hint: Hint) -> None:
        """Pass a hint on, where there is a process. One that cannot be sent is dropped: hints never fail."""
        if self.copies.is_started and not self.is_closed:
            with contextlib.suppress(RequestError):
                self.copies.tell_all(TakeHint(hint))

    async def query_cache(self, query: CacheQuery) -> CacheQueryResult:
        """Look into the prompt caches, or keep a prompt there: in every copy."""
        if isinstance(query, ViewCache | UnpinPrompt) and not self.copies.is_started:
            return CacheQueryResult()
        if isinstance(query, ExplainPrompt):  # by the copy that would answer
            raw = [await asyncio.wrap_future(self.copies.call(self.copies.chosen(query.request), QueryCache(query)))]
        else:
            raw = await self.copies.call_all(QueryCache(query))
            self.copies.pins.note(query)
        return merged_cache([_query_codec.decode(one) for one in raw], query)

    async def withdraw(self, wanted: Withdrawal) -> int:
        """Give requests back that have not begun: their streams raise `MovedError`. Returns how many."""
        num_given = 0
        for copy in [] if self.is_closed else [one for one in self.copies.supervisors if one.is_started]:
            left = msgspec.structs.replace(wanted, at_most=wanted.at_most - num_given)
            raw = await asyncio.wrap_future(copy.call(Withdraw(left)))
            num_given += msgspec.msgpack.decode(raw, type=int)
        return num_given

    async def use_attention(self, name: str) -> None:
        """Have the loaded models compute attention by another backend: in every copy."""
        if self.copies.is_started:
            await self.copies.call_all(UseAttention(name))

    async def name_adapter(self, key: str, path: str) -> None:
        """Have a key name the adapter at a path, or none where that is empty: in every copy, and those to come."""
        self.adapters.put(key, path)
        self.copies.name_adapters(self.adapters.all, key)
        if self.copies.is_started:
            await self.copies.call_all(NameAdapter(key, path))

    async def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        return await asyncio.to_thread(self._drain, grace_seconds)

    def _drain(self, grace_seconds: float) -> int:
        until = time.monotonic() + grace_seconds
        num_left = self.life.drain(grace_seconds)
        return max(num_left, self.copies.wait_for_wave(max(0.0, until - time.monotonic())))

    async def sleep(self, level: int = 1) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        await asyncio.to_thread(self.life.sleep, level, self.give_back)

    def give_back(self, level: int) -> None:
        """Free the KV memory of unused models (1), or the models (2). Blocks."""
        if self.copies.is_started:
            self.copies.wait_for_wave(_LAST_ENDS_SECONDS)
            self.copies.forget_models(level)
            for freeing in self.copies.tell_all(FreeMemory(level)):
                freeing.result()

    async def wake(self) -> None:
        """Take requests again; models load when they are asked for."""
        self.life.become(State.READY)

    async def close(self) -> None:
        """Give up a share of the engine; with the last one, what runs is aborted and the processes end."""
        if self.give_up():
            self.life.become(State.STOPPED)
            await self.copies.close()
