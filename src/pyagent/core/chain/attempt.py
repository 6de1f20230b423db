"""One attempt at a request with one link: begin it, read it to its end, record its outcome once, release what it held.

An attempt knows its link and the caller's deadline, not the other links. `begin` reads to the first delta that says
something, and closes the attempt when there is none; `rest` gives that and what follows. `aclose` closes the stream,
returns the admission and books what the call cost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec

from pyagent.core.backends import check_end
from pyagent.core.chain.failures import (
    NOT_TRANSFERABLE,
    BrokenOffError,
    EmptyAnswerError,
    FilteredError,
    LateError,
    public_reason,
    reason_of,
)
from pyagent.core.chain.link import Admission, Link
from pyagent.core.chain.pump import Pump
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    DeadlineError,
    ModelError,
    MovedError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyResult,
    EmbedResult,
    FailedAttempt,
    RankResult,
    Resumption,
    TokenEmbedResult,
    Usage,
)
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.resilience.retry import RetryBudget
from pyagent.core.token_estimate import estimated_request_tokens

T = TypeVar("T")
Pooled = TypeVar("Pooled", EmbedResult, TokenEmbedResult, RankResult, ClassifyResult)
"""What texts give at once."""
_FAIR_SHARE_SECONDS = 1.0
"""A timeout shorter than this is not counted against the link: the caller's deadline was too close."""
_SIGNS_OF_LIFE = (RequestError, CapacityError, ModelError, FilteredError, EmptyAnswerError, UnsupportedError)


@dataclass(slots=True)
class Attempt:
    """One call of one link. `share` is until when its first token may come, `deadline` covers the whole.

    `num_after` links of its round could take over when it breaks off; `is_final` says that nothing could: neither
    those nor, in a chain of several links, another round.
    """

    link: Link
    admission: Admission
    budget: RetryBudget
    deadline: Deadline
    share: Deadline
    num_after: int = 0
    is_hedge: bool = False
    is_final: bool = False
    spent_before_usd: float = 0.0
    head: list[ChatDelta] = field(default_factory=list[ChatDelta], init=False)
    spent_usd: float = field(default=0.0, init=False)
    _stream: AsyncIterator[ChatDelta] | None = field(default=None, init=False)
    _request: ChatRequest | None = field(default=None, init=False)
    _num_deltas: int = field(default=0, init=False)
    _usage: Usage | None = field(default=None, init=False)
    _is_judged: bool = field(default=False, init=False)
    _is_left: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """Return the link's name."""
        return self.link.name

    async def begin(
        self, request_for: Callable[[Link], ChatRequest], *, is_raced: bool = False, may_be_empty: bool = False
    ) -> None:
        """Read up to the first delta with content; raise what the link raised.

        An answer without a word is a failure, unless it `may_be_empty`, as the rest of one that was broken off may.
        """
        link, started = self.link, self.link.clock()
        try:
            if link.may_be_absent:
                await self.within(self.share, link.prepare(), link.name)
            request = request_for(link)
            if request.timeout_seconds is not None:  # once begun, the answer may use all the time the caller has
                request = msgspec.structs.replace(request, timeout_seconds=self.deadline.remaining_seconds)
            self._request = request
            stream = link.backend.chat(request)
            self._stream = Pump(stream) if is_raced else stream
            what = f"the first token of {link.name}"
            self.head = await self.within(self.share, _until_token(self._stream, link.name), what)
            if not may_be_empty and _is_empty(self.head, request):
                raise EmptyAnswerError(self.name, self.head)  # noqa: TRY301 - judged as other failures are
        except BaseException as error:
            if isinstance(error, Exception):
                self.judge(error)
            await self.aclose()
            raise
        self._num_deltas = len(self.head)
        seconds = link.clock() - started
        link.times.add(seconds)
        link.concurrency.answered(self.admission.slot, seconds)

    async def within(self, share: Deadline, work: Awaitable[T], what: str) -> T:
        """Await `work` within the share and the link's own timeout; exceeding the latter is the link's failure."""
        own = self.link.settings.timeout_seconds
        given = share.remaining_seconds
        try:
            return await (share if own is None else share.sooner(own)).bound(work, what)
        except DeadlineError as error:
            if self.deadline.is_past:
                raise
            if own is not None and own <= given:
                text = f"{self.name}: {what} did not come within {own:g} s (timeout_seconds of the link)"
                raise LateError(text, backend=self.name) from error
            if given < _FAIR_SHARE_SECONDS:
                self._is_judged = True  # too much of a hurry to say anything of the link
            raise

    async def rest(
        self, attempts: list[FailedAttempt], resumed: Resumption | None = None, *, can_go_on: bool = False
    ) -> AsyncGenerator[ChatDelta, None]:
        """Return the deltas of an answer that has begun; raise what breaks it from now on as this link's failure.

        Where the answer `can_go_on` with another link, silence may take no more than a part of the time left.
        """
        name, stream, head = self.name, cast("AsyncIterator[ChatDelta]", self._stream), self.head
        if self.admission.permit.is_probe:  # its first token lets the others back in; the rest is a call like any
            self.link.breaker.succeed(self.admission.permit)
            self.link.breaker.release(self.admission.permit)
            permit = self.link.breaker.acquire() or self.admission.permit
            self.admission = Admission(permit, self.admission.slot, self.admission.reserved_usd)
        first = self._told(head[0])
        yield msgspec.structs.replace(
            first, backend=first.backend or name, attempts=attempts + first.attempts, resumed=resumed or first.resumed
        )
        for delta in head[1:]:
            yield self._told(delta)
        self._usage = head[-1].usage
        is_bounded = self.link.settings.timeout_seconds is not None or self.deadline.is_set
        what = f"the next token of {name}"
        try:
            while True:
                if is_bounded:
                    delta = await self.within(self._patience(can_go_on=can_go_on), _next(stream), what)
                else:
                    delta = await anext(stream, None)
                if delta is None:
                    break
                self._num_deltas += 1
                self._usage = check_end(delta, name).usage or self._usage
                yield self._told(delta)
        except (RequestError, UnsupportedError) as error:
            self.judge(error)
            raise
        except DeadlineError as error:
            if self.deadline.is_past:
                raise
            late = LateError(f"{what} did not come in its part of the time left", backend=name)
            self.judge(late)
            raise BrokenOffError(f"{name} broke off its answer: {late}", backend=name) from error
        except Exception as error:
            self.judge(error)
            status = error.status if isinstance(error, BackendError) else None
            raise BrokenOffError(
                f"{name} broke off its answer: {reason_of(error)}", backend=name, status=status
            ) from error
        self.judge(None)

    def _told(self, delta: ChatDelta) -> ChatDelta:
        """Return a delta with the link's name, and with what the answer cost so far where it has the usage."""
        delta = delta if delta.backend else msgspec.structs.replace(delta, backend=self.name)
        if delta.usage is None:
            return delta
        usd = self.spent_before_usd + self.link.cost(delta.usage.prompt_tokens, delta.usage.completion_tokens)
        if not usd:
            return delta
        usage = msgspec.structs.replace(delta.usage, cost_usd=delta.usage.cost_usd + usd)
        return msgspec.structs.replace(delta, usage=usage)

    def _patience(self, *, can_go_on: bool) -> Deadline:
        """Return the deadline of the next delta."""
        if not can_go_on or not self.num_after or not self.deadline.is_set:
            return self.deadline
        part = self.deadline.remaining_seconds / (self.num_after + 1)
        return self.deadline.sooner(max(part, _FAIR_SHARE_SECONDS))

    async def pooled(self, ask: Callable[[Link], Awaitable[Pooled]]) -> Pooled:
        """Return what the link gives for texts at once: vectors, relevances, labels; raise what it raised."""
        started = self.link.clock()
        try:
            await self.link.prepare()
            result = await self.within(self.share, ask(self.link), f"what {self.name} gives for these texts")
        except Exception as error:
            self.judge(error)
            raise
        self._usage = result.usage
        self.link.concurrency.answered(self.admission.slot, self.link.clock() - started)
        self.judge(None)
        return result

    def judge(self, error: Exception | None) -> None:
        """Record the outcome with breaker and limits, once. A refusal (too long, too busy) counts as alive.

        A request that could not be sent says nothing of the link.
        """
        if self._is_judged:
            return
        self._is_judged = True
        if isinstance(error, RequestError) and error.code == NOT_TRANSFERABLE:
            return
        link, permit = self.link, self.admission.permit
        is_alive = error is None or isinstance(error, _SIGNS_OF_LIFE)
        if is_alive:
            link.breaker.succeed(permit)
        else:
            link.breaker.fail(permit, public_reason(cast("Exception", error)))
        if error is None:
            self.budget.succeed()
            link.stats.num_answers += 1
        elif isinstance(error, MovedError):
            pass  # it had not begun: nothing is said of the link
        elif isinstance(error, CapacityError):
            link.cool_down(error.retry_after_seconds)
            link.concurrency.overloaded(self.admission.slot)
        elif isinstance(error, (DeadlineError, LateError)):
            link.concurrency.overloaded(self.admission.slot)

    async def aclose(self) -> None:
        """Close the stream and release the admission; without a verdict by now there is none. Safe to call twice."""
        if self._is_left:
            return
        self._is_left = True
        self.spent_usd = self.link.leave(self.admission, self._used())
        if isinstance(self._stream, AsyncGenerator | Pump):
            await cast("AsyncGenerator[ChatDelta, None]", self._stream).aclose()

    def _used(self) -> Usage | None:
        """Return the usage: as reported, or as counted where the answer broke off; None when it never began."""
        is_counted = self._usage is not None and (self._usage.prompt_tokens or self._usage.completion_tokens)
        if is_counted or not self._num_deltas or self._request is None:
            return self._usage
        return Usage(prompt_tokens=estimated_request_tokens(self._request), completion_tokens=self._num_deltas)


async def _until_token(stream: AsyncIterator[ChatDelta], name: str) -> list[ChatDelta]:
    """Read up to and including the first delta with content."""
    head: list[ChatDelta] = []
    async for delta in stream:
        head.append(check_end(delta, name))
        if delta.finish_reason == "content_filter" and not (delta.content or delta.tool_calls):
            raise FilteredError(name, head)
        if delta.content or delta.reasoning or delta.tool_calls or delta.finish_reason:
            return head
    raise BackendError(f"{name} ended its answer before it began", backend=name)


def _is_empty(head: list[ChatDelta], request: ChatRequest) -> bool:
    """Return whether an answer is empty without reason: a stop string or a given beginning may leave no text."""
    last = head[-1]
    has_words = last.content or last.reasoning or last.tool_calls
    if has_words or last.finish_reason != "stop" or not request.messages:
        return False
    return not (
        request.sampling.stop
        or request.assistant_prefix
        or request.answer_prefix
        or request.messages[-1].role == "assistant"
    )


async def _next(stream: AsyncIterator[ChatDelta]) -> ChatDelta | None:
    return await anext(stream, None)
