"""One call of a model on behalf of an agent: reserved before, bounded while it lasts, settled and journalled after."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from math import fsum, isinf
from typing import TYPE_CHECKING, Literal

import msgspec

from pyagent.core.activations import TokenActivations
from pyagent.core.chain.failures import attempts_of
from pyagent.core.errors import BackendError, DeadlineError
from pyagent.core.fleet.budget import Reservation
from pyagent.core.fleet.confidence import TOP_LOGPROBS, Confidence, TokenStats
from pyagent.core.fleet.containment import contained
from pyagent.core.fleet.events import ModelCalled, Totals
from pyagent.core.fleet.past import CANCELLED, asked_of, fault_of, restored_error
from pyagent.core.fleet.tracing import OpenSpan
from pyagent.core.learning.prompts import with_system
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    FailedAttempt,
    FinishReason,
    Message,
    Origin,
    PromptLogprob,
    ResponseFormat,
    SamplingParams,
    TokenLogprob,
    Tool,
    ToolCall,
    Usage,
)
from pyagent.core.token_estimate import estimated_prompt_tokens
from pyagent.core.tool_call_deltas import ToolCallJoiner

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

DEFAULT_MAX_TOKENS = 512
MOST_ACTIVATIONS = 20_000
"""Neurons and tokens of layers that are journalled of one answer: about a megabyte."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model made of a tool, and what the model was told of it: the output, or what went wrong."""

    tool: str
    arguments: str
    text: str
    is_error: bool = False


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A model's whole answer, how it ended, what it used, and the tools it called on the way.

    `output` is the answer read by its schema; or, `is_handed_over`, what the agent gave that the model handed over to.
    `confidence` is how sure the answer is, and `doubt` why it is doubtful; empty when it is not. `logprobs` are
    those of its tokens, where the `sampling` asks for `top_logprobs`; `prompt_logprob` the sum of the prompt's, where
    it asks for `prompt_logprobs`. An agent that asks for either judges the answer itself: none is called doubtful.
    """

    text: str
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    tool_results: tuple[ToolResult, ...] = ()
    output: object = None
    is_handed_over: bool = False
    confidence: Confidence | None = None
    doubt: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprob: float | None = None

    @property
    def is_cut(self) -> bool:
        """Whether it ended at `max_tokens` or at the model's context length, not by itself."""
        return self.finish_reason == "length"


@dataclass(slots=True)
class TextStream:
    """A model's answer in pieces: `async for` reads it, and afterwards it says how it ended."""

    pieces: AsyncGenerator[str, None]
    call: ModelCall

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return await anext(self.pieces)

    async def aclose(self) -> None:
        """Break the answer off."""
        await self.pieces.aclose()

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None until it has."""
        return self.call.finish_reason

    @property
    def doubt(self) -> str:
        """Why the answer is doubtful, once it is over; empty when it is not."""
        return self.call.completion.doubt

    @property
    def is_cut(self) -> bool:
        """Whether it ended at `max_tokens` or at the model's context length, not by itself."""
        return self.finish_reason == "length"


@dataclass(slots=True)
class ModelCall:
    """A question and what came back so far. With `whole`, pieces count only when the answer is over.

    A `prompt` is asked as it stands, without a chat template; `messages` say then what the journal is told of it.
    """

    context: Context
    messages: list[Message]
    response_format: ResponseFormat | None
    sampling: SamplingParams
    whole: bool = False
    tools: Sequence[Tool] = ()
    tool_choice: Literal["none", "required"] | None = None
    after_link: str = ""
    prompt: str | None = None
    pieces: list[str] = field(default_factory=list[str])
    usage: Usage | None = None
    backend: str = ""
    model: str = ""
    finish_reason: FinishReason | None = None
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    call: str = field(init=False)
    _asked: str = field(default="", init=False)
    _fault: dict[str, object] = field(default_factory=dict[str, object], init=False)
    _joiner: ToolCallJoiner = field(default_factory=ToolCallJoiner, init=False)
    attempts: list[FailedAttempt] = field(default_factory=list[FailedAttempt])
    tokens: TokenStats = field(default_factory=TokenStats, init=False)
    confidence: Confidence | None = field(default=None, init=False)
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob], init=False)
    prompt_logprob: float | None = field(default=None, init=False)
    activations: list[TokenActivations] = field(default_factory=list[TokenActivations], init=False)
    _num_activations: int = field(default=0, init=False)
    _told: list[Message] = field(init=False)
    """The messages as the model is told them: with the variant of the system prompt, if the agent has one."""

    def __post_init__(self) -> None:
        self.call = self.context.scopes.next_call()
        is_chat, text = self.prompt is None, self.context.system_text
        self._told = with_system(self.messages, text) if is_chat and text else self.messages

    async def finish(self) -> None:
        """Wait for the whole answer."""
        async with aclosing(self.deltas()) as deltas:
            async for _ in deltas:
                pass  # each is noted on its way (`_note`)

    @property
    def completion(self) -> Completion:
        """The whole answer, once it is there."""
        return Completion(
            text="".join(self.pieces),
            finish_reason=self.finish_reason,
            usage=self.usage or Usage(),
            confidence=self.confidence,
            doubt=self.context.run.limits.confidence.doubt(self.confidence),
            logprobs=tuple(self.logprobs),
            prompt_logprob=self.prompt_logprob,
        )

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """The answer as the backend streams it, or as it was given before the run was resumed."""
        choice, past = self.tool_choice, self.context.run.past
        self._asked = asked_of("model", self._told, self.tools, self.response_format, self.sampling, choice)
        past.check(self.context, self.call, "an answer of the model", self._asked, self._told)
        if (kept := past.model_call(self.context, self.call)) is not None:
            yield self._kept(kept)
            return
        asked: dict[str, str | int | float | list[str]] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": self.context.agent,
            "pyagent.step": self.context.step,
            "pyagent.call": self.call,
            "gen_ai.request.max_tokens": self.sampling.max_tokens or DEFAULT_MAX_TOKENS,
            "gen_ai.request.temperature": self.sampling.temperature,
        }
        with self.context.run.span("chat", asked, self.context.trace) as span:
            try:
                async with aclosing(self._counted()) as deltas:
                    async for delta in deltas:
                        yield delta
            finally:
                self._tell(span)

    def _tell(self, span: OpenSpan) -> None:
        """Tell the call's span what came of it; a peer tells of its own engine."""
        for attempt in self.attempts:
            span.link_failed(attempt)
        if self.finish_reason is not None:
            span.note(self._answered())
        timings = None if self.usage is None or self.backend.startswith("peer") else self.usage.timings
        if timings is not None:
            span.engine_worked(timings)

    def _kept(self, kept: ModelCalled) -> ChatDelta:
        """Return an answer from the journal as one piece; raise what was raised instead of it."""
        delta = ChatDelta(
            content=kept.answer,
            usage=kept.usage,
            backend=kept.backend,
            finish_reason=kept.finish_reason,
            model=kept.model,
        )
        self._note(delta)
        self.tool_calls = list(kept.tool_calls)
        self.confidence = kept.confidence
        self.logprobs, self.prompt_logprob = list(kept.logprobs), kept.prompt_logprob
        totals = _totals(kept.usage, kept.usage.cost_usd or 0.0)
        self.context.budget.count(totals, self.context.run.budget)
        self.context.usage.add(totals)
        self.context.run.listener(kept)
        if kept.error is not None:
            raise restored_error(kept.fault, kept.error, self.context.agent)
        return delta

    def _answered(self) -> dict[str, str | int | float | list[str]]:
        """Return what the answer's span tells of it."""
        usage, backend = self.usage or Usage(), self.backend or self.context.run.backend.name
        return {
            "gen_ai.response.model": self.model,
            "gen_ai.provider.name": backend.partition(":")[0],
            "pyagent.backend": backend,
            "gen_ai.response.finish_reasons": [self.finish_reason] if self.finish_reason else [],
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
            "pyagent.failed_links": [attempt.backend for attempt in self.attempts],
        }

    async def _counted(self) -> AsyncGenerator[ChatDelta, None]:
        """The answer, reserved before and settled after, in one of the run's slots."""
        await self.context.check_open()
        num_prompt = estimated_prompt_tokens(self._told, self.tools)
        max_tokens = self.sampling.max_tokens or DEFAULT_MAX_TOKENS
        reservation = self.context.budget.reserve(num_prompt + max_tokens, self._price(max_tokens))
        started, fault = time.perf_counter(), CANCELLED
        try:
            async with self.context.run.slots.slot(self.context.rank) as slot:
                started = time.perf_counter()
                async with aclosing(self._stream(max_tokens)) as deltas:
                    async for delta in deltas:
                        slot.suspend()
                        yield delta
                        await slot.resume()
            fault = None
        except Exception as error:
            fault = str(error) or type(error).__name__
            self._fault, self.attempts = fault_of(error), list(attempts_of(error)) or self.attempts
            raise
        finally:
            self._settle(reservation, num_prompt, time.perf_counter() - started, fault)

    async def _stream(self, max_tokens: int) -> AsyncGenerator[ChatDelta, None]:
        run, deadline, name = self.context.run, self.context.deadline, self.context.run.backend.name
        if deadline.is_past:
            raise DeadlineError(f"the deadline passed before {self.context.agent} could ask the model")
        request = self._request(max_tokens)
        async with AsyncExitStack() as stack:
            stream: AsyncIterator[ChatDelta] = run.backend.chat(request)
            if isinstance(stream, AsyncGenerator):
                stack.push_async_callback(stream.aclose)
            stack.enter_context(contained(f"the backend {name}", lambda text: BackendError(text, backend=name)))
            async for delta in stream:
                self._note(delta)
                yield delta
        run.hints.answered(self.context.session, self._told, is_spawned=self.context.parent is not None)

    def _request(self, max_tokens: int) -> ChatRequest:
        run, deadline = self.context.run, self.context.deadline
        return ChatRequest(
            messages=self._told if self.prompt is None else [],
            prompt=self.prompt,
            response_format=self.response_format,
            tools=list(self.tools),
            tool_choice=self.tool_choice,
            sampling=self._sampling(max_tokens),
            timeout_seconds=None if isinf(deadline.at) else deadline.remaining_seconds,
            private=run.is_private,
            priority=self.context.urgency.priority,
            request_class=self.context.urgency.request_class,
            session=self.context.session if self.prompt is None else None,
            whole=self.whole,
            after_link=self.after_link,
            origin=Origin(tenant=run.tenant, client=run.client, agent=self.context.agent, run=run.id),
        )

    def _sampling(self, max_tokens: int) -> SamplingParams:
        limits = self.context.run.limits
        sampling = msgspec.structs.replace(
            self.sampling,
            max_tokens=max_tokens,
            top_activations=limits.top_activations,
            logit_lens=limits.logit_lens,
        )
        if not limits.confidence.asks_logprobs:
            return sampling
        num_top = TOP_LOGPROBS if sampling.top_logprobs is None else sampling.top_logprobs
        return msgspec.structs.replace(sampling, top_logprobs=num_top, return_entropy=True)

    def _price(self, max_tokens: int) -> float:
        """Return the most USD that the call may cost; not looked up where no budget is of money."""
        price_of = self.context.run.backend.capabilities.price_of
        if price_of is None or self.context.budget.left_usd is None:
            return 0.0
        return price_of(self._request(max_tokens))

    def _note(self, delta: ChatDelta) -> None:
        if delta.resumed and delta.resumed.kind == "restart":
            self.pieces.clear()
            self.tool_calls.clear()
            self._joiner = ToolCallJoiner()
            self.tokens = TokenStats()
            self.logprobs.clear()
            self.activations.clear()
            self._num_activations = 0
        self.pieces.append(delta.content)
        self.tokens.add(delta.logprobs)
        if self.sampling.top_logprobs is not None:
            self.logprobs += delta.logprobs
        for one in delta.activations:
            self._num_activations += len(one.neurons) + sum(map(len, one.layers))
            if self._num_activations <= MOST_ACTIVATIONS:
                self.activations.append(one)
        if delta.prompt_logprobs:
            self.prompt_logprob = prompt_logprob(delta.prompt_logprobs)
        self.tool_calls += self._joiner.push(delta.tool_calls)
        if delta.finish_reason:
            self.tool_calls += self._joiner.finish(delta.finish_reason)
        self.usage = delta.usage or self.usage
        self.backend = delta.backend or self.backend
        self.model = delta.model or self.model
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.attempts += delta.attempts

    def _settle(self, reservation: Reservation, num_prompt: int, seconds: float, fault: str | None) -> None:
        usage, usd = self.usage, None
        if usage is not None:
            usd = usage.cost_usd
        elif not self.pieces:  # it never began
            usd = 0.0
        if usage is None:  # broken off, or a backend that does not count: what was seen is what was used
            num_seen = sum(1 for piece in self.pieces if piece)
            usage = Usage(num_prompt if self.pieces else 0, num_seen, num_seen + num_prompt if self.pieces else 0)
        reservation.settle(usage, usd)
        context = self.context
        context.usage.add(_totals(usage, reservation.usd if usd is None else usd))
        if self.finish_reason == "length" and self.prompt is None:
            context.progress(f"an answer was cut after {usage.completion_tokens} tokens")
        if fault is None:
            self.confidence = self._seen()
        context.run.emit(
            ModelCalled(
                run=context.run.id,
                step=context.step,
                agent=context.agent,
                backend=self.backend or context.run.backend.name,
                messages=self._told,
                answer="".join(self.pieces),
                usage=usage,
                finish_reason=self.finish_reason,
                tool_calls=self.tool_calls,
                attempts=self.attempts,
                seconds=seconds,
                error=fault,
                call=self.call,
                asked=self._asked,
                fault=self._fault,
                model=self.model,
                confidence=self.confidence,
                logprobs=self.logprobs,
                prompt_logprob=self.prompt_logprob,
                activations=self.activations,
            )
        )

    def _seen(self) -> Confidence | None:
        """Return how sure the answer is; None for calls of tools, and where it is not looked at or its caller looks."""
        policy, text = self.context.run.limits.confidence, "".join(self.pieces)
        is_judged = self.sampling.top_logprobs is not None or self.sampling.prompt_logprobs is not None
        if policy.act == "off" or self.tool_calls or is_judged or not text.strip():
            return None
        return policy.seen_in(text, is_prose=self.response_format is None, tokens=self.tokens)


def prompt_logprob(entries: Sequence[Mapping[int, PromptLogprob] | None]) -> float:
    """Return the log probability of a prompt's tokens after the first; each entry has the prompt's own token first."""
    return fsum(next(iter(entry.values())).logprob for entry in entries if entry)


def _totals(usage: Usage, usd: float) -> Totals:
    return Totals(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        completion_tokens=usage.completion_tokens,
        model_calls=1,
        usd=usd,
    )
