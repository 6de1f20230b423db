"""The attempts of one request: link after link, then again after a wait, until one answers or there is no point.

Keeps which failed and why. Retries come after failover: a round asks every link once, those whose breaker is open last,
and is repeated while the policy, the budget shared by the process and the deadline allow.

A link that is late is hedged: after its own usual time the next is asked too, and the first to give a token answers.
Hedges come from a budget that each request fills by a few percent of one, so that a slow day cannot double the load.
Requests with tools are never hedged: a backend may run tools itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from pyagent.core.backends import AGENT_PREFIX
from pyagent.core.chain.attempt import Attempt
from pyagent.core.chain.delivered_answer import DeliveredAnswer
from pyagent.core.chain.failures import (
    EmptyAnswerError,
    Failure,
    FilteredError,
    error_of_all,
    is_of_one_link,
    is_passed_by,
    kind_of,
    reason_of,
    with_attempts,
)
from pyagent.core.chain.hedging import Race
from pyagent.core.chain.link import Admission, Link, Refusal
from pyagent.core.chain.router import Router
from pyagent.core.chain.structured_output import check_answer
from pyagent.core.errors import AwayError, BackendError, ContextOverflowError, MovedError
from pyagent.core.messages import ChatDelta, ChatRequest, FailedAttempt
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.resilience.retry import RetryBudget, RetryPolicy

_MAX_LOOKS = 3
"""A request that was given back or broken off so often stays where it is asked next."""


@dataclass(slots=True)
class Failover:
    """`links` in the order to ask them, `delivered` what the caller has of the answer.

    With `is_validated`, structured output that does not match the request is a failure; what is streamed is held back
    until that is known. A `router` is told which links are asked. `away_error` says that a link which has the model is
    away, where that is so. `errors` are those of this round. A request that a link gives back before it began, or
    breaks off, goes to the links that `reroute` returns then; without it, one that was given back is its sender's to
    move.
    """

    request: ChatRequest
    links: Sequence[Link]
    deadline: Deadline
    policy: RetryPolicy
    budget: RetryBudget
    hedges: RetryBudget
    delivered: DeliveredAnswer
    draw: Callable[[float, float], float]
    sleep: Callable[[float], Awaitable[None]]
    is_validated: bool = False
    router: Router | None = None
    reroute: Callable[[str], list[Link]] | None = None
    away_error: AwayError | None = None
    errors: list[Exception] = field(default_factory=list[Exception])
    _attempts: list[Attempt] = field(default_factory=list[Attempt])
    _is_answered: bool = False
    _head: list[ChatDelta] = field(default_factory=list[ChatDelta])
    """What there is of an answer that a content filter kept back, or that is empty."""
    _open: list[Link] = field(default_factory=list[Link])
    _all: list[FailedAttempt] = field(default_factory=list[FailedAttempt])
    _untold: list[FailedAttempt] = field(default_factory=list[FailedAttempt])
    _index: int = 0
    _round: int = 0
    _wait: float = 0.0
    _num_tokens: int = 0
    _num_looks: int = 0

    async def start(self) -> Attempt | None:
        """Return the next attempt that has a first token; None when the answer is complete, or no attempt is left.

        Read it by `deltas`, which closes it.
        """
        if self._is_answered or self.delivered.is_full:
            return None
        while (attempt := await self.admit()) is not None:
            if (begun := await self._begin(attempt)) is not None:
                return begun
        return None

    @asynccontextmanager
    async def deltas(self, attempt: Attempt) -> AsyncGenerator[AsyncGenerator[ChatDelta, None]]:
        """Give the deltas of an attempt, and close it. Its failure is raised where no other link can go on."""
        try:
            async with aclosing(self._read(attempt)) as stream:
                yield stream
            self._is_answered = True
        except Exception as error:  # noqa: BLE001 - what can go on elsewhere is decided by what was delivered
            self.failed(attempt, error)
            self.delivered.break_off(attempt, error)
            self._look_again(attempt.link)
        finally:
            await attempt.aclose()

    def ending(self) -> list[ChatDelta]:
        """Return what is left to say after the last attempt; raise the error of a request that no link answered."""
        if self._is_answered:
            return []
        delivered = self.delivered
        resumed = delivered.resumed
        if delivered.is_full and resumed is not None:
            failed = self._take_failed()
            return [ChatDelta(finish_reason="length", backend=resumed.backend, attempts=failed, resumed=resumed)]
        if delivered.is_begun or resumed or not self._head:
            raise self.failure()
        return self._head

    async def admit(self) -> Attempt | None:
        """Return the next attempt, not begun, after a wait where a round is over; None when there is none."""
        while (attempt := self._admit_now()) is None:
            wait = self.policy.wait_seconds(
                self.errors, self._round, self.budget, self.deadline, self.draw, before=self._wait
            )
            if wait is None:
                return None
            self._wait = wait
            await self.sleep(wait)
            self._round, self._index, self.errors, self._open = self._round + 1, 0, [], []
        return attempt

    async def _begin(self, attempt: Attempt) -> Attempt | None:
        """Return the attempt, or the hedge that overtook it, with its first token; None when both failed."""
        patience = None if self.request.tools or self._has_effects else attempt.link.hedge_seconds()
        self.hedges.succeed()
        if patience is not None and self.hedges.left >= 1:
            return await self._hedged(attempt, patience)
        delivered = self.delivered
        try:
            await attempt.begin(delivered.request_for, may_be_empty=bool(delivered.text))
        except Exception as error:  # noqa: BLE001 - one link's bug must not keep the next from answering
            self.failed(attempt, error)
            return None
        return attempt

    async def _hedged(self, attempt: Attempt, patience: float) -> Attempt | None:
        delivered, may_be_empty = self.delivered, bool(self.delivered.text)
        async with Race() as race:
            race.enter(attempt, delivered.request_for, may_be_empty=may_be_empty)
            if await race.is_late(patience) and (other := self._hedge()) is not None:
                race.enter(other, delivered.request_for, may_be_empty=may_be_empty)
            while (finished := await race.finished()) is not None:
                first, error = finished
                if error is None:
                    first.link.stats.num_hedges_won += first.is_hedge
                    return first
                self.failed(first, error)
        return None

    def _hedge(self) -> Attempt | None:
        other = self._admit_now(is_hedge=True) if self.hedges.left >= 1 else None
        if other is not None:
            self.hedges.spend()
            other.link.stats.num_hedges += 1
        return other

    def _read(self, attempt: Attempt) -> AsyncGenerator[ChatDelta, None]:
        if not self.is_validated:
            return self.delivered.deltas(attempt, self._take_failed())
        return self._checked(attempt) if self.request.whole else self._held_back(attempt)

    async def _checked(self, attempt: Attempt) -> AsyncGenerator[ChatDelta, None]:
        """Give the deltas, and then raise where they do not match the request: for callers that read to the end."""
        seen: list[ChatDelta] = []
        async with aclosing(self.delivered.deltas(attempt, self._take_failed())) as stream:
            async for delta in stream:
                seen.append(delta)
                yield delta
        await check_answer(seen, self.request, attempt.name, self.deadline)

    async def _held_back(self, attempt: Attempt) -> AsyncGenerator[ChatDelta, None]:
        """Give the deltas once all are there and match the request."""
        failed = self._take_failed()
        try:
            async with aclosing(attempt.rest(failed, can_go_on=True)) as stream:
                deltas = [delta async for delta in stream]
            await check_answer(deltas, self.request, attempt.name, self.deadline)
        except BaseException:
            self._untold[:0] = failed
            raise
        for delta in deltas:
            yield delta

    def _admit_now(self, *, is_hedge: bool = False) -> Attempt | None:
        """Return the next attempt of this round, if a link is left that can be asked now."""
        while self._index < len(self.links):
            link = self.links[self._index]
            num_left = len(self.links) - self._index
            self._index += 1
            if link.settings.context is not None and link.settings.context < self._num_tokens:
                text = f"{self._num_tokens} tokens or more, its context has {link.settings.context}"
                self._add(link, "context", ContextOverflowError(text, num_tokens=self._num_tokens, limit=0))
                continue
            if not self.delivered.is_taken_by(link):
                text = f"{link.name} cannot go on exactly where the answer stopped"
                self._add(link, "broken_off", BackendError(text, backend=link.name, retryable=False))
                continue
            admitted = link.admit(self.request, self._spent_usd)
            if not isinstance(admitted, Refusal):
                return self._attempt(link, admitted, num_left, is_hedge=is_hedge)
            if admitted.kind == "open":
                self._open.append(link)
                self._note(link, admitted)
            elif not is_hedge:
                self._add(link, admitted.kind, admitted.error)
        return None if is_hedge else self._last_resort()

    def _last_resort(self) -> Attempt | None:
        """Return an attempt of a link whose breaker is open, as no other link answered."""
        while self._open:
            link = self._open.pop(0)
            admitted = link.admit(self.request, self._spent_usd, is_last_resort=True)
            if not isinstance(admitted, Refusal):
                return self._attempt(link, admitted, len(self._open) + 1)
            self.errors.append(admitted.error)
        return None

    def _attempt(self, link: Link, admission: Admission, num_left: int, *, is_hedge: bool = False) -> Attempt:
        if self.router is not None:
            self.router.asked(self.request, link.name)
        share = self._share(num_left)
        is_final = num_left == 1 and (len(self.links) == 1 or self._round >= self.policy.num_retries)
        num_after = 0 if self._has_effects else num_left - 1
        spent = self._spent_usd
        attempt = Attempt(link, admission, self.budget, self.deadline, share, num_after, is_hedge, is_final, spent)
        self._attempts.append(attempt)
        return attempt

    @property
    def _has_effects(self) -> bool:
        """Return whether to ask one link and no other once it has begun: for an agent's run, which may do anything."""
        return self.request.model.startswith(AGENT_PREFIX)

    @property
    def _spent_usd(self) -> float:
        """Return what the request's closed attempts cost so far."""
        return sum(attempt.spent_usd for attempt in self._attempts)

    def failed(self, attempt: Attempt, error: Exception) -> None:
        """Record a failed attempt. Raise its error when the next link would not help, or no time is left for it."""
        if isinstance(error, ContextOverflowError):
            self._num_tokens = max(self._num_tokens, error.num_tokens, error.limit + 1)
        self.passed(attempt, error)
        if self.deadline.is_past or not is_passed_by(error):
            raise with_attempts(error, self._all)
        if isinstance(error, MovedError):
            if self.reroute is None:
                raise error
            self._look_again(attempt.link, error.to)

    def _look_again(self, link: Link, node: str = "") -> None:
        """Have the links that there are now asked, the one that gave the request back or broke it off last."""
        if self.reroute is None or self._has_effects or self._num_looks >= _MAX_LOOKS:
            return
        self._num_looks += 1
        others = [other for other in self.reroute(node) if other is not link]
        self.links, self._index, self._open = [*others, link], 0, []
        if self._num_looks == _MAX_LOOKS:
            self.request = self.delivered.request = msgspec.structs.replace(self.request, is_movable=False)

    def passed(self, attempt: Attempt, error: Exception) -> None:
        """Record a failed attempt, after which the next link is asked whatever the error."""
        if isinstance(error, FilteredError | EmptyAnswerError) and not self._head:
            self._head = error.head
        self._add(attempt.link, kind_of(error), error)

    def failure(self) -> Exception:
        """Return the error of a request that no link answered."""
        if self.away_error is not None and all(map(is_of_one_link, self.errors)):
            return self.away_error
        return with_attempts(error_of_all(self.errors, self._all), self._all)

    def _take_failed(self) -> list[FailedAttempt]:
        """Return the failed attempts that the caller has not been told of yet."""
        failed, self._untold = self._untold, []
        return failed

    def _add(self, link: Link, kind: Failure, error: Exception) -> None:
        self._note(link, Refusal(kind, error))
        self.errors.append(error)

    def _note(self, link: Link, refusal: Refusal) -> None:
        link.stats.failures[refusal.kind] += 1
        attempt = FailedAttempt(link.name, reason_of(refusal.error), refusal.kind)
        self._untold.append(attempt)
        self._all.append(attempt)

    def _share(self, num_links: int) -> Deadline:
        """Return a link's share of the time left, divided among it and the links that could follow it."""
        if not self.deadline.is_set or num_links == 1 or self._has_effects:
            return self.deadline
        return self.deadline.sooner(self.deadline.remaining_seconds / num_links)
