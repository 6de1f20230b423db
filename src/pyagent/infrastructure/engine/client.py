"""The embedded engine as its users see it: ask for a stream, whatever models there are and wherever it runs.

Requests are rendered and checked at the door; the engine's outputs become deltas. Closing a stream aborts its request.
Which names are offered, and which model answers a request that names none, is the backend's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import msgspec

from pyagent.core.cluster.coordinator import CopyLoad
from pyagent.core.errors import BackendError, CapacityError, DeadlineError, MovedError, UnsupportedError
from pyagent.core.load_progress import LoadProgress
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Hint,
    ModelInfo,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
)
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult
from pyagent.core.runners.runner import (
    AttendingRunner,
    CompileStats,
    CompilingRunner,
    DividedRunner,
    RankStats,
    RoutingRunner,
)
from pyagent.core.structured_output.form_size import is_short
from pyagent.core.token_estimate import estimated_request_tokens
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.encoders.pooling import Pooling
from pyagent.infrastructure.engine.expert_loads import ExpertLoad, expert_loads
from pyagent.infrastructure.engine.grammar import CANNOT_ENFORCE
from pyagent.infrastructure.engine.kv_moves.moves import KvMoves
from pyagent.infrastructure.engine.lifecycle import GRACE_SECONDS, Arrivals, LifeCycle, Shared, State
from pyagent.infrastructure.engine.memory.garbage import GarbageStats, GarbageWatch
from pyagent.infrastructure.engine.models.adapter_names import AdapterPaths
from pyagent.infrastructure.engine.models.answer_grammars import at_once
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.prompt_logprobs import PromptReport
from pyagent.infrastructure.engine.sampling.sampler import excluding_fields, names_texts
from pyagent.infrastructure.engine.sessions.cache_query import run_cache_query
from pyagent.infrastructure.engine.stats import AdapterStats, EngineStats, KvMoveStats
from pyagent.infrastructure.engine.usage import usage_of

if TYPE_CHECKING:
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.models.loaded_model import LoadedModel
    from pyagent.infrastructure.engine.request import Output, PastTurn, Request, TokenLog

_T = TypeVar("_T")
logger = logging.getLogger(__name__)

# Longer texts are tokenised in a thread: 2,000 characters take about 1 ms, and in a burst all of them add up.
_LONG_TEXT = 2_000
_NUM_PREPARED = 2


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is doing. `memory` is bytes by account of its ledger, out of `memory_bytes`; `stats` by model.

    `loading` are the models on their way into memory, `load_progress` says how far each is. `runners` names each
    model's runner. `swap_bytes` are those of the files that each model's requests are swapped to, `faults` why
    loops of models ended by themselves: those are loaded again by their next request. `draft_models` has the models
    that are to have one, and why one goes on without; an empty text where it has one. `load_seconds` is what
    loading each model took by phase. `num_arriving` requests, with prompts of `num_arriving_tokens`, are in no
    model's queue yet: they wait for a load, for KV from elsewhere, or for a process. `ranks` says how the processes
    are that a model is divided among, `attention` which backend computes attention where a runner has several,
    `compilation` what was compiled and captured. `garbage` tells of the process's garbage collections, `adapters`
    of each model's, by their names, `experts` of each mixture's layers. `num_waves` counts the times in which
    processes of it had something to do. Of an engine with several `copies` each is told, too; then counts and bytes
    are those of all, percentiles and rates those of the slowest, and `experts` are told of the copies alone.
    """

    state: str
    num_running: int = 0
    num_arriving: int = 0
    num_arriving_tokens: int = 0
    models: list[ModelInfo] = []
    loading: list[str] = []
    load_progress: dict[str, LoadProgress] = {}
    memory: dict[str, int] = {}
    memory_bytes: int = 0
    runners: dict[str, str] = {}
    swap_bytes: dict[str, int] = {}
    process_id: int | None = None
    num_restarts: int = 0
    stats: dict[str, EngineStats] = {}
    kv_moves: dict[str, KvMoveStats] = {}
    adapters: dict[str, dict[str, AdapterStats]] = {}
    ranks: dict[str, list[RankStats]] = {}
    attention: dict[str, str] = {}
    compilation: dict[str, CompileStats] = {}
    faults: dict[str, str] = {}
    draft_models: dict[str, str] = {}
    experts: dict[str, list[ExpertLoad]] = {}
    load_seconds: dict[str, dict[str, float]] = {}
    garbage: GarbageStats = GarbageStats()
    num_waves: int = 0
    copies: list[EngineState] = []


class EngineClient(Protocol):
    """An engine, in this process or in one of its own. Every method may raise what `Backend`'s may."""

    @property
    def is_closed(self) -> bool:
        """Whether its last owner closed it."""
        ...

    @property
    def adapters(self) -> AdapterPaths:
        """The adapters of its models."""
        ...

    def share(self) -> Self:
        """The engine with one owner more: each closes it once, and the last to do so ends it."""
        ...

    def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer with the model the request names; closing the stream aborts the request."""
        ...

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed with the model the request names; without texts it is only loaded."""
        ...

    async def rank(self, request: RankRequest) -> RankResult:
        """Rank with the model the request names."""
        ...

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """Classify with the model the request names."""
        ...

    async def token_embed(self, request: TokenEmbedRequest) -> TokenEmbedResult:
        """Give vectors of tokens with the model the request names."""
        ...

    async def load(self, model: str, *, beside: bool = False) -> object:
        """Load a model ahead of its first request; with `beside`, no other is unloaded for it."""
        ...

    async def state(self) -> EngineState:
        """What it is doing. Starts nothing."""
        ...

    def hint(self, hint: Hint) -> None:
        """Take what the fleet knows of a prompt's future. Returns at once; hints are taken in order."""
        ...

    async def query_cache(self, query: CacheQuery) -> CacheQueryResult:
        """Look into the prompt caches, or keep a prompt there."""
        ...

    async def withdraw(self, wanted: Withdrawal) -> int:
        """Give requests back that have not begun: their streams raise `MovedError`. Returns how many."""
        ...

    async def use_attention(self, name: str) -> None:
        """Have the loaded models compute attention by another backend. Raises `ConfigError` where one cannot."""
        ...

    async def name_adapter(self, key: str, path: str) -> None:
        """Have a key name the adapter at a path, or none where that is empty; what it named before goes."""
        ...

    async def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        ...

    async def sleep(self, level: int = 1) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        ...

    async def wake(self) -> None:
        """Take requests again."""
        ...

    async def close(self) -> None:
        """Give up a share of the engine; with the last one, what runs is aborted and the engine ends."""
        ...


class Piece(msgspec.Struct, frozen=True):
    """A delta of an answer, and the tokens sampled for it; the first one has the prompt's too, 32 bits each."""

    delta: ChatDelta
    tokens: tuple[int, ...]
    prompt: bytes = b""


class LocalEngine(Shared):
    """An engine in this process."""

    def __init__(self, models: ModelPool, kv: KvMoves | None = None) -> None:
        """`kv` moves KV from and to other engines."""
        self.models = models
        self.kv = kv or KvMoves()
        models.when_loaded(self.kv.loaded)
        self.garbage = GarbageWatch()
        self.garbage.start()
        self.life = LifeCycle()
        self.arrivals = Arrivals()
        self._hints = ThreadPoolExecutor(1, thread_name_prefix="pyagent-hints")
        # apart from asyncio's threads: what takes long here must not hold up what the server asks of those
        self._preparing = ThreadPoolExecutor(_NUM_PREPARED, thread_name_prefix="pyagent-prepare")
        self.pooling = Pooling(models.encoders, self.in_thread)

    async def in_thread(self, work: Callable[..., _T], *args: object) -> _T:
        """Do what may take long beside the event loop, a few at a time."""
        context, loop = copy_context(), asyncio.get_running_loop()
        try:
            working = loop.run_in_executor(self._preparing, lambda: context.run(work, *args))
        except RuntimeError as error:  # closed while the request waited for its grammar
            raise CapacityError(_STOPPING) from error
        try:
            return await working
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise CapacityError(_STOPPING) from error  # closed before it began

    def hint(self, hint: Hint) -> None:
        """Take what the fleet knows of a prompt's future."""
        if not self.is_closed:
            self._hints.submit(self._take, hint)

    def _take(self, hint: Hint) -> None:
        for model in self.models.loaded().values():
            try:
                model.hint(hint)
            except Exception:
                logger.exception("a hint failed: %s", hint.kind)

    async def query_cache(self, query: CacheQuery) -> CacheQueryResult:
        """Look into the prompt caches, or keep a prompt there."""
        return await run_cache_query(query, self)

    async def load(self, model: str, *, beside: bool = False) -> LoadedModel:
        """The model, loaded when it is not. Raises `ModelError` naming what is wrong with its file.

        With `beside` no other model is unloaded for it: `CapacityError` where it does not fit beside them.
        """
        name, adapter = self.models.split_name(model)
        async with self.models.using(name, beside=beside) as loaded, loaded.adapters.using(adapter):
            return loaded

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed with the model the request names; without texts it is only loaded."""
        with self.life.entered():
            return await self.pooling.embed(request)

    async def rank(self, request: RankRequest) -> RankResult:
        """Rank with the model the request names."""
        with self.life.entered():
            return await self.pooling.rank(request)

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """Classify with the model the request names."""
        with self.life.entered():
            return await self.pooling.classify(request)

    async def token_embed(self, request: TokenEmbedRequest) -> TokenEmbedResult:
        """Give vectors of tokens with the model the request names."""
        with self.life.entered():
            return await self.pooling.token_embed(request)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer with the model the request names; closing the stream aborts the request."""
        async with aclosing(self.pieces(request)) as pieces:
            async for piece in pieces:
                yield piece.delta

    async def pieces(
        self, request: ChatRequest, log: TokenLog | None = None, past: PastTurn | None = None
    ) -> AsyncGenerator[Piece, None]:
        """As `stream`, with the tokens; continue after those of `log`, which another process sampled.

        `past` is what was computed elsewhere of the request's conversation.
        """
        name, (base, adapter) = f"native:{request.model}", self.models.split_name(request.model)
        deadline = None if request.timeout_seconds is None else time.perf_counter() + request.timeout_seconds
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output] = asyncio.Queue()

        def tell(output: Output) -> None:
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        async with AsyncExitStack() as stack:
            stack.enter_context(self.life.entered())
            with self.arrivals.counting(estimated_request_tokens(request)):
                model = await within(deadline, stack.enter_async_context(self.models.using(base)), name)
                adapting = stack.enter_async_context(model.adapters.using(adapter))
                adapter_id = await within(deadline, adapting, name)
                if past is not None:
                    await within(deadline, self.in_thread(model.remember, request, past), name)
                prepared = await within(deadline, self._prepare(model, request, tell, log, deadline, adapter_id), name)
                prompt = array("I", prepared.tokens[: prepared.num_prompt_tokens]).tobytes()
                await within(deadline, self.kv.load(base, model, request, prepared), name)
                model.engine.submit(prepared)
            of_prompt: PromptReport | None = None
            is_single = prepared.samples is None and prepared.search is None
            begun = {0} if log is not None and is_single else set[int]()
            try:
                while True:
                    output = await within(deadline, outputs.get(), name)
                    if prompt or output.is_last:
                        self.kv.save(base, request, prepared)
                    delta = _delta(output, prepared, name)
                    if output.scores is not None:  # with the first output of each answer
                        of_prompt = of_prompt or await self.in_thread(PromptReport.of, prepared, output.scores)
                        delta = of_prompt.before(delta)
                    if request.sampling.return_token_ids:
                        is_first = output.index not in begun
                        begun.add(output.index)
                        delta = _with_ids(delta, output, prepared, is_first=is_first)
                    yield Piece(delta, output.tokens, prompt)
                    prompt = b""
                    if output.is_last:
                        return
            finally:
                if any(answer.finish_reason is None for answer in prepared.answers):
                    model.engine.abort(prepared)

    async def _prepare(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        model: LoadedModel,
        request: ChatRequest,
        sink: Callable[[Output], None],
        log: TokenLog | None,
        deadline: float | None,
        adapter_id: int,
    ) -> Request:
        # A log may take long to replay, and plugins to make what they bring.
        is_long = (
            log is not None or request.chat_template or model.logits.runs_for(request.sampling) or _takes_long(request)
        )
        beside = self.in_thread if is_long else at_once
        processor = await beside(model.processor_for, request)
        return await processor.process(request, sink, log, deadline=deadline, adapter_id=adapter_id, beside=beside)

    async def state(self) -> EngineState:
        """What it is doing."""
        ledger = self.models.ledger
        return EngineState(
            state=self.life.state.value,
            num_running=self.life.num_running,
            num_arriving=self.arrivals.num_requests,
            num_arriving_tokens=self.arrivals.num_prompt_tokens,
            models=[_info(name, model) for name, model in self.models.loaded().items()]
            + [info for name, model in self.models.loaded().items() for info in _adapter_infos(name, model)]
            + [encoder.info() for encoder in self.models.encoders.loaded().values()],
            loading=self.models.loading() + self.models.encoders.loading(),
            load_progress=self.models.watch.now(),
            memory=self.models.accounts(),
            memory_bytes=ledger.total_bytes,
            runners={name: model.runner_name for name, model in self.models.loaded().items()},
            load_seconds={name: model.load_seconds for name, model in self.models.loaded().items()}
            | {name: {"load": round(one.load_seconds, 3)} for name, one in self.models.encoders.loaded().items()},
            swap_bytes={name: model.runner.swapped_bytes for name, model in self.models.loaded().items()},
            stats={name: model.engine.stats() for name, model in self.models.loaded().items()},
            kv_moves=self.kv.stats(),
            adapters={name: stats for name, model in self.models.loaded().items() if (stats := model.adapters.stats())},
            ranks={name: ranks for name, model in self.models.loaded().items() if (ranks := _ranks(model.runner))},
            attention={name: runner.attention for name, runner in self._attending().items()},
            compilation={
                name: stats for name, model in self.models.loaded().items() if (stats := _compilation(model.runner))
            },
            garbage=self.garbage.stats,
            experts={name: loads for name, model in self.models.loaded().items() if (loads := _experts(model.runner))},
            draft_models={
                name: model.draft_fault.text
                for name, model in self.models.loaded().items()
                if model.draft is not None or model.draft_fault.text
            },
            faults={name: model.engine.fault for name, model in self.models.loaded().items() if model.engine.fault},
        )

    async def withdraw(self, wanted: Withdrawal) -> int:
        """Give requests back that have not begun: their streams raise `MovedError`. Returns how many."""
        num_given = 0
        for name, model in self.models.loaded().items():
            if wanted.model in {"", name}:
                left = msgspec.structs.replace(wanted, at_most=wanted.at_most - num_given)
                num_given += await asyncio.wrap_future(model.engine.withdraw(left))
        return num_given

    async def use_attention(self, name: str) -> None:
        """Have the loaded models compute attention by another backend. Raises `ConfigError` where one cannot."""
        for runner in self._attending().values():
            await asyncio.to_thread(runner.use_attention, name)

    @property
    def adapters(self) -> AdapterPaths:
        """The adapters of its models."""
        return self.models.adapters

    async def name_adapter(self, key: str, path: str) -> None:
        """Have a key name the adapter at a path, or none where that is empty; what it named before goes."""
        await asyncio.to_thread(self.models.name_adapter, key, path)

    def _attending(self) -> dict[str, AttendingRunner]:
        """The runners that have several attention backends, by their models."""
        runners = {name: model.runner for name, model in self.models.loaded().items()}
        return {name: runner for name, runner in runners.items() if isinstance(runner, AttendingRunner)}

    async def unload(self, model: str) -> None:
        """Unload a model that no request uses."""
        await asyncio.to_thread(self.models.unload, model)

    def load_now(self, before: CopyLoad | None) -> CopyLoad:
        """How busy it is, all models together, as quick as it was `before`; without that its speed is measured anew."""
        engines = [model.engine for model in self.models.loaded().values()]
        stats = [engine.stats() for engine in engines] if before is None else []
        speed = before or CopyLoad(
            prefill_tokens_per_second=max((one.prefill_tokens_per_second for one in stats), default=0.0),
            first_token_seconds=max((one.first_token_seconds.p50 for one in stats), default=0.0),
        )
        return msgspec.structs.replace(
            speed,
            num_running=sum(engine.scheduler.num_running for engine in engines),
            max_num_running=sum(engine.scheduler.limits.most_running for engine in engines),
            free_kv_pages=sum(engine.runner.stats().free for engine in engines),
        )

    def turn_seconds(self) -> float:
        """How long the loop that is longest at its present turn has been at it; 0 while all wait for requests."""
        return max((model.engine.turn_seconds for model in self.models.loaded().values()), default=0.0)

    async def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        return await asyncio.to_thread(self.life.drain, grace_seconds)

    async def sleep(self, level: int = 1) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        await asyncio.to_thread(self.life.sleep, level, self.give_back)

    def give_back(self, level: int) -> None:
        """Free the KV memory of unused models (1), or the models (2). Blocks."""
        self.models.give_back(level)

    async def wake(self) -> None:
        """Take requests again; models load when they are asked for."""
        self.life.become(State.READY)

    async def close(self) -> None:
        """Give up a share of the engine; with the last one, what runs is aborted and the models are unloaded."""
        if not self.give_up():
            return
        self.garbage.stop()
        self.life.become(State.STOPPED)
        self._hints.shutdown(wait=False, cancel_futures=True)
        self._preparing.shutdown(wait=False, cancel_futures=True)
        await self.kv.close()
        await asyncio.to_thread(self.models.close)


_NOTHING_LEFT = "no token is allowed"
"""How the kernels begin to say that nothing is left to sample."""


def _takes_long(request: ChatRequest) -> bool:
    """Whether to prepare a request beside the event loop: for its text, schemas, or texts to find in a vocabulary."""
    has_long_form = request.response_format is not None and not is_short(request.response_format)
    length = len(request.prompt or "") + len(request.prediction)
    length += sum(len(message.text) for message in request.messages)
    return has_long_form or bool(request.tools) or length > _LONG_TEXT or names_texts(request.sampling)


def _info(name: str, model: LoadedModel) -> ModelInfo:
    return ModelInfo(
        id=name,
        backend=f"native:{name}",
        context_length=model.context_length,
        architecture=model.runner.info.architecture,
        size_bytes=model.runner.info.weight_bytes,
        is_loaded=True,
        task="generate",
        takes_effort=model.takes_effort,
    )


def _adapter_infos(name: str, model: LoadedModel) -> list[ModelInfo]:
    """Return a model's adapters that are in memory, by the names by which requests name them."""
    base = _info(name, model)
    return [
        msgspec.structs.replace(
            base, id=f"{name}:{adapter}", backend=f"native:{name}:{adapter}", size_bytes=stats.num_bytes
        )
        for adapter, stats in model.adapters.stats().items()
        if stats.num_bytes
    ]


def _ranks(runner: ModelRunner) -> list[RankStats]:
    return runner.ranks() if isinstance(runner, DividedRunner) else []


def _compilation(runner: ModelRunner) -> CompileStats | None:
    return runner.compile_stats() if isinstance(runner, CompilingRunner) else None


def _experts(runner: ModelRunner) -> list[ExpertLoad]:
    return expert_loads(runner.expert_loads()) if isinstance(runner, RoutingRunner) else []


async def within(deadline: float | None, waiting: Awaitable[_T], name: str) -> _T:
    """Wait until a moment of `time.perf_counter`; raises `DeadlineError` naming who was waited for."""
    if deadline is None:
        return await waiting
    try:
        async with asyncio.timeout(deadline - time.perf_counter()):
            return await waiting
    except TimeoutError as error:
        raise DeadlineError(f"{name} did not finish before the deadline") from error


def _with_ids(delta: ChatDelta, output: Output, request: Request, *, is_first: bool) -> ChatDelta:
    """Return a delta with the ids of its tokens, and an answer's first one with those of the prompt."""
    prompt = tuple(request.tokens[: request.num_prompt_tokens]) if is_first else ()
    return msgspec.structs.replace(delta, token_ids=output.tokens, prompt_token_ids=prompt)


def _delta(output: Output, request: Request, name: str) -> ChatDelta:
    if output.moved_to is not None:
        raise MovedError(f"{name} gave the request back before it began; another node takes it", to=output.moved_to)
    if output.finish_reason in {"error", "abort"}:
        reason = output.error or "the engine stopped"
        if request.deadline is not None and request.deadline <= time.perf_counter():
            raise DeadlineError(f"{name} did not finish before the deadline: {reason}")
        if reason.startswith(CANNOT_ENFORCE):
            raise UnsupportedError(f"{name}: {reason}", backend=name, fields=["response_format"])
        if reason.startswith(_NOTHING_LEFT) and (
            fields := excluding_fields(request.params, request.grammar is not None)
        ):
            text = f"{name}: {', '.join(fields)} leave no token that may be sampled"
            raise UnsupportedError(text, backend=name, fields=fields)
        raise BackendError(f"{name}: {reason}", backend=name, retryable=False)
    return ChatDelta(
        index=output.index,
        content=output.text,
        reasoning=output.reasoning,
        tool_calls=list(output.tool_calls),
        logprobs=list(output.logprobs),
        activations=list(output.activations),
        finish_reason=output.finish_reason,
        usage=usage_of(request) if output.is_last else None,
        model=name.removeprefix("native:"),
        backend=name,
    )


_STOPPING = "the engine is stopping; send the request elsewhere"
