"""The attempts of one request: link after link, then again after a wait, until one answers or there is no point.

Keeps who failed and why. Retries come after failover: a round asks every link once, those left alone last, and is
repeated while the policy, the budget shared by the process and the deadline allow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from pyagent.core.chain.attempt import Attempt
from pyagent.core.chain.failures import EmptyAnswerError, Failure, FilteredError, kind_of, reason_of
from pyagent.core.chain.link import Admission, Link, Refusal
from pyagent.core.errors import (
    BackendError,
    BudgetError,
    CapacityError,
    ContextOverflowError,
    InvalidOutputError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import ChatDelta, ChatRequest, FailedAttempt
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.resilience.retry import RetryBudget, RetryPolicy

_OF_ONE_LINK = frozenset({"model_not_found", "loop_detected"})
"""Codes of refusals that say nothing of another link."""


@dataclass(slots=True)
class Failover:
    """`links` in the order to ask them; `attempts` of all rounds that the caller was not told of, `errors` of this.

    `leftover` is what there is of an answer that a content filter kept back, or that is empty. `accepts` says which
    links can go on with the answer now.
    """

    request: ChatRequest
    links: Sequence[Link]
    deadline: Deadline
    policy: RetryPolicy
    budget: RetryBudget
    draw: Callable[[float, float], float]
    sleep: Callable[[float], Awaitable[None]]
    attempts: list[FailedAttempt] = field(default_factory=list[FailedAttempt])
    errors: list[Exception] = field(default_factory=list[Exception])
    spent_usd: float = 0.0
    leftover: list[ChatDelta] = field(default_factory=list[ChatDelta])
    accepts: Callable[[Link], bool] = lambda _: True
    _open: list[Link] = field(default_factory=list[Link])
    _all: list[FailedAttempt] = field(default_factory=list[FailedAttempt])
    _index: int = 0
    _round: int = 0
    _wait: float = 0.0
    _num_tokens: int = 0

    async def start(self) -> Attempt | None:
        """The next attempt, after a wait where a round is over; None when there is none."""
        while (attempt := self.start_now()) is None:
            wait = self.policy.wait_seconds(
                self.errors, self._round, self.budget, self.deadline, self.draw, before=self._wait
            )
            if wait is None:
                return None
            self._wait = wait
            await self.sleep(wait)
            self._round, self._index, self.errors, self._open = self._round + 1, 0, [], []
        return attempt

    def start_now(self, *, is_hedge: bool = False) -> Attempt | None:
        """The next attempt of this round, if a link is left that can be asked now."""
        while self._index < len(self.links):
            link = self.links[self._index]
            num_left = len(self.links) - self._index
            self._index += 1
            if link.settings.context is not None and link.settings.context < self._num_tokens:
                text = f"{self._num_tokens} tokens or more, its context has {link.settings.context}"
                self._add(link, "context", ContextOverflowError(text, num_tokens=self._num_tokens, limit=0))
                continue
            if not self.accepts(link):
                text = f"{link.name} cannot go on exactly where the answer stopped"
                self._add(link, "broken_off", BackendError(text, backend=link.name, retryable=False))
                continue
            admitted = link.admit(self.request, self.spent_usd)
            if not isinstance(admitted, Refusal):
                return self._attempt(link, admitted, num_left, is_hedge=is_hedge)
            if admitted.kind == "open":
                self._open.append(link)
                self._note(link, admitted)
            elif not is_hedge:
                self._add(link, admitted.kind, admitted.error)
        return None if is_hedge else self._last_resort()

    def _last_resort(self) -> Attempt | None:
        """An attempt of a link that is left alone: nobody else answered, so it may as well be asked."""
        while self._open:
            link = self._open.pop(0)
            admitted = link.admit(self.request, self.spent_usd, is_last_resort=True)
            if not isinstance(admitted, Refusal):
                return self._attempt(link, admitted, len(self._open) + 1)
            self.errors.append(admitted.error)
        return None

    def _attempt(self, link: Link, admission: Admission, num_left: int, *, is_hedge: bool = False) -> Attempt:
        share = self._share(num_left)
        return Attempt(link, admission, self.budget, self.deadline, share, num_left - 1, is_hedge=is_hedge)

    def failed(self, attempt: Attempt, error: Exception) -> None:
        """Note a failed attempt. Raises its error when the next link would not help, or there is no time for it."""
        if isinstance(error, ContextOverflowError):
            self._num_tokens = max(self._num_tokens, error.num_tokens, error.limit + 1)
        self.passed(attempt, error)
        if self.deadline.is_past or not _is_passed_by(error):
            raise error

    def passed(self, attempt: Attempt, error: Exception) -> None:
        """Note a failed attempt, after which the next link is asked whatever it was."""
        if isinstance(error, FilteredError | EmptyAnswerError) and not self.leftover:
            self.leftover = error.head
        self._add(attempt.link, kind_of(error), error)

    def take_failed(self) -> list[FailedAttempt]:
        """The attempts the caller has not been told of yet."""
        attempts, self.attempts = self.attempts, []
        return attempts

    def nobody(self) -> Exception:
        """The error of a request that no link answered. Alone, a link's own error says it best."""
        errors = self.errors
        if len(errors) == 1 and isinstance(errors[0], PyAgentError):
            return errors[0]
        reasons = "; ".join(dict.fromkeys(f"{attempt.backend}: {attempt.reason}" for attempt in self._all))
        message = f"no link of the chain answered: {reasons}"
        if errors and all(isinstance(error, BudgetError) for error in errors):
            return BudgetError(message, resource="usd")
        if errors and all(isinstance(error, CapacityError) for error in errors):
            waits = [getattr(error, "retry_after_seconds", None) for error in errors]
            return CapacityError(message, retry_after_seconds=min(filter(None, waits), default=None))
        if errors and all(isinstance(error, RequestError) for error in errors):
            last = cast("RequestError", errors[-1])
            return RequestError(message, param=last.param or "model", code=last.code)
        unsupported = [error.fields for error in errors if isinstance(error, UnsupportedError)]
        if unsupported and len(unsupported) == len(errors):
            return UnsupportedError(message, backend="chain", fields=[name for names in unsupported for name in names])
        wrapped = BackendError(message, backend="chain", retryable=any(getattr(e, "retryable", False) for e in errors))
        wrapped.__cause__ = errors[-1] if errors else None
        return wrapped

    def _add(self, link: Link, kind: Failure, error: Exception) -> None:
        self._note(link, Refusal(kind, error))
        self.errors.append(error)

    def _note(self, link: Link, refusal: Refusal) -> None:
        link.stats.failures[refusal.kind] += 1
        attempt = FailedAttempt(link.name, reason_of(refusal.error), refusal.kind)
        self.attempts.append(attempt)
        self._all.append(attempt)

    def _share(self, num_links: int) -> Deadline:
        """A link's part of the time left: what remains, divided among it and the links that could follow it."""
        if not self.deadline.is_set or num_links == 1:
            return self.deadline
        return self.deadline.sooner(self.deadline.remaining_seconds / num_links)


def _is_passed_by(error: Exception) -> bool:
    """Whether the next link should be asked: unless it would find the same fault with the request."""
    if isinstance(error, RequestError):
        return isinstance(error, ContextOverflowError | InvalidOutputError) or error.code in _OF_ONE_LINK
    return True
