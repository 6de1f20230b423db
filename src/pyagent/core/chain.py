"""The fallback chain: an ordered list of backends that is itself a backend.

Links are tried in order until one gives its first token. Before that token, going on to the next link is silent: the
caller only reads in `ChatDelta.attempts` who did not answer and why. After it, a failure ends the stream with a
`BackendError` that names the link. The caller's deadline covers the whole chain. What is the caller's own fault
(`RequestError`) is told at once; a link that lacks the model or the room for the prompt is passed by.

The chain feeds each link's breaker from what its calls did, and draws retries from one budget. It opens no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

import msgspec

from pyagent.core.backends import Backend, Hintable, Link
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    ModelError,
    PyAgentError,
    RequestError,
)
from pyagent.core.messages import Attempt, ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, Hint, ModelInfo
from pyagent.core.prompt_cache import CacheAnswer, CacheQuestion, ExplainPrompt, PinPrompt, PromptCache
from pyagent.core.resilience.breaker import Breaker, BreakerPolicy, Permit, State
from pyagent.core.resilience.deadline import Clock, Deadline
from pyagent.core.resilience.retry import RetryBudget, RetryPolicy

_FAIR_SHARE_SECONDS = 1.0
"""A link that got less time than this is not blamed for using it up: the caller was in a hurry."""
_HEALTH_SECONDS = 5.0
_READY = {True: "ready", False: "not ready"}


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain would do with one link for a request, and why: a row of `pyagent chain explain`."""

    backend: str
    is_eligible: bool
    reason: str
    breaker: State
    is_ready: bool
    detail: str = ""


@runtime_checkable
class Loadable(Protocol):
    """A backend that can get ready ahead of its first request."""

    async def load(self) -> object:
        """Read what it needs; safe to call twice."""
        ...


@dataclass(slots=True)
class _Member:
    backend: Backend
    breaker: Breaker
    scheme: str

    @property
    def name(self) -> str:
        return self.backend.name


@dataclass(slots=True)
class _Failures:
    """The links that did not answer: `attempts` over all rounds, `errors` of this one."""

    attempts: list[Attempt] = field(default_factory=list[Attempt])
    errors: list[Exception] = field(default_factory=list[Exception])

    def add(self, backend: str, error: Exception) -> None:
        self.attempts.append(Attempt(backend=backend, reason=_reason(error)))
        self.errors.append(error)


@dataclass(slots=True)
class _Call:
    """One link's turn at one request: holds the breaker's permit, tells it the verdict, closes the stream."""

    member: _Member
    permit: Permit
    budget: RetryBudget
    deadline: Deadline
    stream: AsyncIterator[ChatDelta] | None = None

    async def first(self, request: ChatRequest, share: Deadline) -> list[ChatDelta]:
        """The deltas up to the first that says something, read until `share`; raises what the link raised."""
        given_seconds = share.remaining_seconds
        if request.timeout_seconds is not None:  # once begun, the answer may use all the time the caller has
            request = msgspec.structs.replace(request, timeout_seconds=self.deadline.remaining_seconds)
        try:
            self.stream = self.member.backend.chat(request)
            return await share.bound(
                _until_token(self.stream, self.member.name), f"the first token of {self.member.name}"
            )
        except DeadlineError as error:
            if given_seconds >= _FAIR_SHARE_SECONDS and not self.deadline.is_past:
                self.judge(error)
            raise
        except Exception as error:
            self.judge(error)
            raise

    async def rest(self, head: list[ChatDelta], attempts: list[Attempt]) -> AsyncGenerator[ChatDelta, None]:
        """The answer once it has begun; whatever breaks it now is told as this link's failure."""
        name, stream = self.member.name, cast("AsyncIterator[ChatDelta]", self.stream)
        if self.permit.is_probe:  # its first token lets the others back in; the rest of the answer is a call like any
            self.judge(None)
            self.permit = self.member.breaker.acquire() or self.permit
        yield msgspec.structs.replace(head[0], backend=head[0].backend or name, attempts=attempts + head[0].attempts)
        for delta in head[1:]:
            yield delta if delta.backend else msgspec.structs.replace(delta, backend=name)
        try:
            while (delta := await self.deadline.bound(_next(stream), f"the next token of {name}")) is not None:
                yield delta if delta.backend else msgspec.structs.replace(delta, backend=name)
        except (DeadlineError, RequestError):
            raise
        except Exception as error:
            self.judge(error)
            status = error.status if isinstance(error, BackendError) else None
            raise BackendError(f"{name} broke off its answer: {_reason(error)}", backend=name, status=status) from error
        self.judge(None)

    def judge(self, error: Exception | None) -> None:
        """Tell the breaker how it went. A refusal (too long, too busy, no such model) is a sign of life."""
        if error is None or isinstance(error, (RequestError, CapacityError, ModelError)):
            self.member.breaker.succeed(self.permit)
        else:
            self.member.breaker.fail(self.permit, _reason(error))
        if error is None:
            self.budget.succeed()

    async def aclose(self) -> None:
        """Without a verdict by now there is none: the caller left, or was in too much of a hurry."""
        self.member.breaker.release(self.permit)
        if isinstance(self.stream, AsyncGenerator):
            await cast("AsyncGenerator[ChatDelta, None]", self.stream).aclose()


@dataclass(slots=True)
class Chain:
    """Backends tried in order. `private` lists the schemes (or whole link names) that keep text on this machine."""

    links: Sequence[Backend]
    private: Sequence[str] = ()
    breaker_policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    budget: RetryBudget = field(default_factory=RetryBudget)
    clock: Clock = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[float, float], float] = random.uniform
    name: str = "chain"
    _members: list[_Member] = field(init=False)

    def __post_init__(self) -> None:
        self._members = [
            _Member(backend, Breaker(self.breaker_policy, self.clock), Link.parse(backend.name).scheme)
            for backend in self.links
        ]

    # -- asking ---------------------------------------------------------------------------------------------------

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer from the first link that gives a token; see the module's text for what happens when one fails."""
        deadline = Deadline.after(request.timeout_seconds, self.clock)
        request, members = self._choose(request)
        attempts: list[Attempt] = []
        for retry in range(self.retry_policy.num_retries + 1):
            failed = _Failures(attempts)
            for index, member in enumerate(members):
                permit = member.breaker.acquire()
                if permit is None:
                    failed.add(member.name, _open_error(member))
                    continue
                async with aclosing(_Call(member, permit, self.budget, deadline)) as call:
                    try:
                        head = await call.first(request, _share(deadline, len(members) - index))
                    except Exception as error:
                        if deadline.is_past or not _is_passed_by(error):
                            raise
                        failed.add(member.name, error)
                        continue
                    async with aclosing(call.rest(head, attempts)) as answer:
                        async for delta in answer:
                            yield delta
                    return
            wait = self.retry_policy.wait_seconds(failed.errors, retry, self.budget, deadline, self.draw)
            if wait is None:
                raise _nobody(failed)
            await self.sleep(wait)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed with the first link that can."""
        failed = _Failures()
        for member in self._members:
            permit = member.breaker.acquire()
            if permit is None:
                failed.add(member.name, _open_error(member))
                continue
            async with aclosing(_Call(member, permit, self.budget, Deadline(clock=self.clock))) as call:
                try:
                    result = await member.backend.embed(request)
                except Exception as error:  # noqa: BLE001 - one link's bug must not keep the next from answering
                    call.judge(error)
                    failed.add(member.name, error)
                else:
                    call.judge(None)
                    return result
        raise _nobody(failed)

    def hint(self, hint: Hint) -> None:
        """Pass a hint on to the links that take some: whoever has computed the prompt knows what to do with it."""
        for member in self._members:
            if isinstance(member.backend, Hintable):
                member.backend.hint(hint)

    async def ask_cache(self, question: CacheQuestion) -> CacheAnswer:
        """Ask the links that compute prompts themselves; about a request, the first of them that may see it."""
        if isinstance(question, ExplainPrompt | PinPrompt):
            request, members = self._choose(question.request)
            asked = msgspec.structs.replace(question, request=request)
            for member in members:
                if isinstance(member.backend, PromptCache):
                    return await member.backend.ask_cache(asked)
            raise RequestError("no link of the chain keeps prompts itself; `native` does", param="model")
        caches = [member.backend for member in self._members if isinstance(member.backend, PromptCache)]
        answers = [await cache.ask_cache(question) for cache in caches]
        models = {model.model: model for answer in answers for model in answer.models}
        return CacheAnswer(models=[*models.values()], num_tokens=sum(answer.num_tokens for answer in answers))

    def _choose(self, request: ChatRequest) -> tuple[ChatRequest, list[_Member]]:
        """The links that may see the request; a request whose model is a link's name goes to that link alone."""
        members = self._members
        named = [member for member in members if member.name == request.model]
        if named:
            members, request = named, msgspec.structs.replace(request, model="")
        wants_several = request.n > 1 or request.best_of is not None or request.beam is not None
        if wants_several:
            members = [member for member in members if getattr(member.backend, "gives_several", False)]
            if not members:
                raise RequestError("no link of the chain gives several answers to a request; `native` does", param="n")
        if request.private:
            members = [member for member in members if self._is_private(member)]
        if members:
            return request, members
        if not self._members:
            raise BackendError("the chain is empty: set `chain` in pyagent.toml", backend=self.name, retryable=False)
        raise RequestError(
            "the request is private, and no link of the chain is in rules.private "
            f"({', '.join(self.private) or 'empty'}); add one that stays on this machine",
            param="private",
        )

    def _is_private(self, member: _Member) -> bool:
        return member.scheme in self.private or member.name in self.private

    # -- looking --------------------------------------------------------------------------------------------------

    async def models(self) -> list[ModelInfo]:
        """The models of every link that says, in the chain's order, each once a link."""
        answers = await asyncio.gather(*(member.backend.models() for member in self._members), return_exceptions=True)
        found: list[ModelInfo] = []
        for member, answer in zip(self._members, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, Exception):
                    raise answer
                continue
            found += [msgspec.structs.replace(model, backend=model.backend or member.name) for model in answer]
        return found

    async def health(self) -> Health:
        """Ready when one link is."""
        states = await asyncio.gather(*(health_of(member.backend) for member in self._members))
        rows = zip(self._members, states, strict=True)
        detail = "; ".join(f"{member.name}: {state.detail or _READY[state.is_ready]}" for member, state in rows)
        models = [model for state in states if state.is_ready for model in state.models]
        return Health(is_ready=any(state.is_ready for state in states), detail=detail or "no links", models=models)

    async def explain(self, request: ChatRequest) -> list[LinkView]:
        """What would be tried for `request`, in order, and why the rest would not. Sends no request."""
        try:
            eligible = {id(member) for member in self._choose(request)[1]}
        except RequestError:
            eligible = set[int]()
        states = await asyncio.gather(*(health_of(member.backend) for member in self._members))
        return [
            self._view(member, health, request, is_eligible=id(member) in eligible)
            for member, health in zip(self._members, states, strict=True)
        ]

    def _view(self, member: _Member, health: Health, request: ChatRequest, *, is_eligible: bool) -> LinkView:
        state = member.breaker.state
        if not is_eligible:
            is_kept = request.private and not self._is_private(member)
            reason = "the request is private, this link is not" if is_kept else "another link is named"
        elif state == "open":
            reason = _reason(_open_error(member))
        elif not health.is_ready:
            reason = "would be tried, and would likely fail"
        else:
            reason = "would be tried" if state == "closed" else "would be probed by one request"
        return LinkView(
            backend=member.name,
            is_eligible=is_eligible and state != "open",
            reason=reason,
            breaker=state,
            is_ready=health.is_ready,
            detail=health.detail,
        )

    async def load(self) -> None:
        """Let the first link get ready before it is asked, where it can; what fails now is told when it is asked."""
        for backend in self.links[:1]:
            if isinstance(backend, Loadable):
                with contextlib.suppress(PyAgentError):
                    await backend.load()

    async def close(self) -> None:
        """Close every link, also when one of them fails to."""
        results = await asyncio.gather(*(member.backend.close() for member in self._members), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def health_of(backend: Backend) -> Health:
    """A backend's health within a few seconds, also when a plugin breaks the rule that asking never raises."""
    try:
        return await Deadline.after(_HEALTH_SECONDS).bound(backend.health(), backend.name)
    except DeadlineError:
        return Health(is_ready=False, detail=f"did not answer within {_HEALTH_SECONDS:g} s")
    except Exception as error:  # noqa: BLE001 - see above
        return Health(is_ready=False, detail=_reason(error))


async def _until_token(stream: AsyncIterator[ChatDelta], name: str) -> list[ChatDelta]:
    """Read up to and including the first delta that says something."""
    head: list[ChatDelta] = []
    async for delta in stream:
        head.append(delta)
        if delta.content or delta.reasoning or delta.tool_calls or delta.finish_reason:
            return head
    raise BackendError(f"{name} ended its answer before it began", backend=name)


async def _next(stream: AsyncIterator[ChatDelta]) -> ChatDelta | None:
    return await anext(stream, None)


def _share(deadline: Deadline, num_links: int) -> Deadline:
    """A link's part of the time left: what remains, divided among it and the links that could follow it."""
    if math.isinf(deadline.at) or num_links == 1:
        return deadline
    return deadline.sooner(deadline.remaining_seconds / num_links)


def _is_passed_by(error: Exception) -> bool:
    """Whether the next link should be asked: unless it would find the same fault with the request."""
    if isinstance(error, RequestError):
        return isinstance(error, ContextOverflowError) or error.code == "model_not_found"
    return True


def _reason(error: Exception) -> str:
    text = str(error) or "no reason given"
    return text if isinstance(error, PyAgentError) else f"{type(error).__name__}: {text}"


def _open_error(member: _Member) -> BackendError:
    breaker = member.breaker
    when = f"next probe in {breaker.retry_in_seconds:.0f} s" if breaker.state == "open" else "a probe is under way"
    return BackendError(f"left alone after: {breaker.reason} ({when})", backend=member.name, retryable=False)


def _nobody(failed: _Failures) -> Exception:
    """The error of a request that no link answered. Alone, a link's own error says it best."""
    errors = failed.errors
    if len(errors) == 1 and isinstance(errors[0], PyAgentError):
        return errors[0]
    reasons = "; ".join(dict.fromkeys(f"{attempt.backend}: {attempt.reason}" for attempt in failed.attempts))
    message = f"no link of the chain answered: {reasons}"
    if errors and all(isinstance(error, CapacityError) for error in errors):
        waits = [getattr(error, "retry_after_seconds", None) for error in errors]
        return CapacityError(message, retry_after_seconds=min(filter(None, waits), default=None))
    if errors and all(isinstance(error, RequestError) for error in errors):
        return RequestError(message, param="model", code=cast("RequestError", errors[-1]).code)
    wrapped = BackendError(message, backend="chain", retryable=any(getattr(e, "retryable", False) for e in errors))
    wrapped.__cause__ = errors[-1] if errors else None
    return wrapped
