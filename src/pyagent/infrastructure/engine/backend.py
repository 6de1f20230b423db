"""The embedded engine as a `Backend`: what agents, the server and chains talk to.

Loads its model on first use, once, off the event loop; renders and checks requests at the door; turns the engine's
news into a stream of deltas. Closing a stream aborts its request.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyagent import _rust
from pyagent.core.errors import BackendError, ContextOverflowError, DeadlineError, PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    ImagePart,
    Message,
    ModelInfo,
    PromptTokensDetails,
    SamplingParams,
    Timings,
    Usage,
)
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
from pyagent.infrastructure.engine.request import Output, Request
from pyagent.infrastructure.engine.runners.cpu import CpuOptions, CpuRunner
from pyagent.infrastructure.engine.scheduler import SchedulerLimits
from pyagent.infrastructure.engine.tokens import ModelTokenizer

_T = TypeVar("_T")

# Longer texts are tokenised in a thread, so that the event loop goes on.
_LONG_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the native engine runs a model. `max_context` shortens the model's own context, in tokens."""

    cpu: CpuOptions = field(default_factory=CpuOptions)
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    max_context: int | None = None


class LoadedModel:
    """A model in memory: its runner, its tokenizer, its grammars, its engine."""

    def __init__(self, path: Path, options: EngineOptions) -> None:
        start = time.perf_counter()
        self.runner = CpuRunner(path, options.cpu)
        self.tokenizer = ModelTokenizer.load(path, vocab_size=self.runner.vocab_size)
        self.engine = Engine(self.runner, options.limits)
        self.grammars = GrammarCompiler(self.tokenizer)
        own_context = self.runner.context_length
        self.context_length = min(own_context, options.max_context or own_context, self.runner.kv_tokens)
        self.load_seconds = time.perf_counter() - start
        self._ids = itertools.count(1)

    def prepare(self, request: ChatRequest, on_output: Callable[[Output], None]) -> Request:
        """Check and tokenise a request. Raises `RequestError`; nothing has reached the engine's loop then."""
        params = request.sampling
        params.validate()
        tokens = self._tokenise(request)
        room = self.context_length - len(tokens)
        if room <= 0:
            raise ContextOverflowError(
                f"the prompt has {len(tokens)} tokens, but {self._context_reason()}",
                num_tokens=len(tokens),
                limit=self.context_length,
            )
        sampler = make_sampler(params, self.runner.vocab_size)
        if params.repetition_penalty != 1.0:
            sampler.observe_prompt(tokens)
        return Request(
            id=next(self._ids),
            tokens=tokens,
            params=params,
            max_tokens=min(params.max_tokens or room, room),
            sampler=sampler,
            tokenizer=self.tokenizer,
            detokenizer=self.tokenizer.detokenizer(),
            grammar=self._grammar(request),
            on_output=on_output,
        )

    def _context_reason(self) -> str:
        if self.context_length == self.runner.kv_tokens < self.runner.context_length:
            return f"the engine's KV memory holds {self.context_length}; raise engine.memory or shorten the prompt"
        return f"the model's context is {self.context_length}; shorten the prompt or use a model with a larger context"

    def _tokenise(self, request: ChatRequest) -> list[int]:
        if request.messages:
            if any(isinstance(part, ImagePart) for message in request.messages for part in _parts(message)):
                raise RequestError("this model reads text only; send no images", param="messages")
            return self.tokenizer.encode_chat(request.messages, request.tools)
        tokens = self.tokenizer.encode_text(request.prompt or "")
        if not request.prompt or not tokens:
            raise RequestError("the prompt is empty; send at least one message or some text", param="messages")
        return tokens

    def _grammar(self, request: ChatRequest) -> Grammar | None:
        wanted = request.response_format
        return None if wanted is None or wanted.type == "text" else self.grammars.compile(wanted)


class NativeBackend:
    """Answers with a model run in this process."""

    def __init__(
        self,
        model_name: str,
        locate: Callable[[], Path],
        options: EngineOptions | None = None,
        *,
        look: Callable[[], str] | None = None,
    ) -> None:
        """`locate` finds the model's file, fetching it if need be; it may block and raise `ModelError`.

        `look` says in words what loading would do; it fetches nothing, and raises `ModelError` when loading cannot
        succeed.
        """
        self.name = f"native:{model_name}"
        self.model_name = model_name
        self._locate = locate
        self._look = look or (lambda: "loads on first use")
        self._options = options or EngineOptions()
        self._model: LoadedModel | None = None
        self._lock = threading.Lock()

    async def load(self) -> LoadedModel:
        """The model, loaded on the first call. Raises `ModelError` naming what is wrong with its file."""
        return self._model or await asyncio.to_thread(self._load)

    def _load(self) -> LoadedModel:
        # A thread's lock: a caller who gives up, or whose event loop ends, must not make the next one load again.
        with self._lock:
            if self._model is None:
                self._model = LoadedModel(self._locate(), self._options)
            return self._model

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer as a stream; closing the iterator aborts the request."""
        if request.model not in {"", self.model_name, self.name}:
            raise RequestError(
                f"{self.name} does not offer model {request.model!r}", param="model", code="model_not_found"
            )
        start = time.perf_counter()
        deadline = None if request.timeout_seconds is None else start + request.timeout_seconds
        model = await self._within(deadline, self.load())
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Output] = asyncio.Queue()

        def tell(output: Output) -> None:
            loop.call_soon_threadsafe(news.put_nowait, output)

        prepared = await self._prepare(model, request, tell)
        model.engine.submit(prepared)
        try:
            while True:
                output = await self._within(deadline, news.get())
                yield self._delta(output, prepared)
                if output.finish_reason is not None:
                    return
        finally:
            if prepared.finish_reason is None:
                model.engine.abort(prepared)

    async def _prepare(self, model: LoadedModel, request: ChatRequest, sink: Callable[[Output], None]) -> Request:
        length = len(request.prompt or "") + sum(len(message.text) for message in request.messages)
        has_form = request.response_format is not None and request.response_format.type != "text"
        if length > _LONG_TEXT or has_form:  # a schema may take long to compile
            return await asyncio.to_thread(model.prepare, request, sink)
        return model.prepare(request, sink)

    async def _within(self, deadline: float | None, waiting: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.perf_counter()):
                return await waiting
        except TimeoutError as error:
            raise DeadlineError(f"{self.name} did not finish before the deadline") from error

    def _delta(self, output: Output, request: Request) -> ChatDelta:
        if output.finish_reason in {"error", "abort"}:
            reason = output.error or "the engine stopped"
            raise BackendError(f"{self.name}: {reason}", backend=self.name, retryable=False)
        return ChatDelta(
            content=output.text,
            logprobs=list(output.logprobs),
            finish_reason=output.finish_reason,
            usage=usage_of(request) if output.finish_reason else None,
            model=self.model_name,
            backend=self.name,
        )

    async def models(self) -> list[ModelInfo]:
        """The one model this backend runs."""
        info = ModelInfo(id=self.model_name, backend=self.name, is_loaded=self._model is not None)
        if self._model is None:
            return [info]
        about = self._model.runner.info
        return [
            ModelInfo(
                id=self.model_name,
                backend=self.name,
                context_length=self._model.context_length,
                architecture=about["architecture"],
                size_bytes=about["weight_bytes"],
                is_loaded=True,
            )
        ]

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Refused: this engine runs no embedding models yet."""
        raise RequestError(f"{self.name} cannot embed; use a backend with an embedding model", param="model")

    async def health(self) -> Health:
        """Ready when loaded, or when it can be loaded; fetches nothing."""
        if self._model is not None:
            return Health(is_ready=True, detail="loaded", models=[self.model_name])
        try:
            detail = await asyncio.to_thread(self._look)
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error))
        return Health(is_ready=True, detail=detail, models=[self.model_name])

    async def close(self) -> None:
        """Abort what runs and stop the engine's thread."""
        model, self._model = self._model, None
        if model is not None:
            await asyncio.to_thread(model.engine.close)


def _parts(message: Message) -> Sequence[object]:
    return message.content if isinstance(message.content, list) else ()


def usage_of(request: Request) -> Usage:
    """What a finished request used."""
    total = (request.finished or request.arrived) - request.arrived
    timings = Timings(
        queue_seconds=(request.scheduled or request.arrived) - request.arrived,
        first_token_seconds=(request.first_token or request.arrived) - request.arrived,
        total_seconds=total,
    )
    return Usage(
        prompt_tokens=request.num_prompt_tokens,
        completion_tokens=request.num_drawn,
        total_tokens=len(request.tokens),
        prompt_tokens_details=PromptTokensDetails(cached_tokens=request.num_cached or 0),
        timings=timings,
    )


def make_sampler(params: SamplingParams, vocab_size: int) -> _rust.SamplerState:
    """The Rust state of a request's sampling. Raises `RequestError` for a value it refuses."""
    unknown = [token for token in params.logit_bias if not 0 <= token < vocab_size]
    if unknown:
        raise RequestError(f"logit_bias names token {unknown[0]}; the vocabulary has {vocab_size}", param="logit_bias")
    seed = random.getrandbits(64) if params.seed is None else params.seed & (2**64 - 1)
    try:
        return _rust.SamplerState(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            logit_bias=list(params.logit_bias.items()),
            seed=seed,
            num_logprobs=0 if params.top_logprobs is None else max(1, params.top_logprobs),
        )
    except ValueError as error:
        raise RequestError(str(error), param="sampling") from error
