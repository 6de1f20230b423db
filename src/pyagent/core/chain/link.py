"""A link in a chain: its backend and all that decides whether it is asked now.

Asking goes through `admit`, which takes everything a call needs (breaker, room, rate, money) or nothing. Knows nothing
of the other links.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from pyagent.core.backends import Backend, LinkSpec
from pyagent.core.chain.failures import Failure
from pyagent.core.chain.settings import LinkSettings
from pyagent.core.chain.stats import LinkState, LinkStats
from pyagent.core.errors import BackendError, BudgetError, CapacityError
from pyagent.core.messages import (
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Usage,
)
from pyagent.core.resilience.breaker import Breaker, BreakerPolicy, Permit
from pyagent.core.resilience.concurrency import Concurrency, Slot
from pyagent.core.resilience.deadline import Clock
from pyagent.core.resilience.latency import RecentTimes
from pyagent.core.resilience.rate import RateLimit
from pyagent.core.resilience.spend_limit import SpendLimit
from pyagent.core.token_estimate import estimated_request_tokens

if TYPE_CHECKING:
    from pyagent.core.chain.embedding_batcher import EmbeddingBatcher

_MILLION = 1e6
_USUAL_ANSWER_TOKENS = 1024
"""Output tokens assumed for an answer without max_tokens, when its price is estimated."""
_FULL_SECONDS = 1.0
_MAX_COOLDOWN_SECONDS = 3600.0
_LEAST_PATIENCE_SECONDS = 0.02
"""The least wait before a hedge by percentile: below it, differences are noise."""


@runtime_checkable
class Absent(Protocol):
    """A backend that may be absent: a link of the default chain (`auto`) that was not found, a node of a cluster."""

    def absence(self) -> str:
        """Return why the backend is absent; empty when it is there."""
        ...

    async def prepare(self) -> None:
        """Make it beside the event loop, where it is there: that may import its plugin. Raises nothing."""
        ...


@runtime_checkable
class Identified(Protocol):
    """A backend whose name is not what the settings or rules write, such as a node of a cluster, which names itself.

    No other backend can have its `identity`.
    """

    @property
    def identity(self) -> str:
        """The name that rules of privacy know it by."""
        ...


def identity_of(backend: Backend) -> str:
    """Return a name that no other backend can take: its own, unless that is what a node says of itself."""
    return backend.identity if isinstance(backend, Identified) else backend.name


class Admission(msgspec.Struct, frozen=True):
    """What one call holds: release all of it by `Link.leave`, once."""

    permit: Permit
    slot: Slot
    reserved_usd: float = 0.0


class Refusal(msgspec.Struct, frozen=True):
    """Why a link is not asked now."""

    kind: Failure
    error: Exception


@dataclass(slots=True)
class Link:
    """One link. `settings` are the user's; `spend_limit` is shared by the chain.

    A server may be several links, with other keys or conditions: `nth` tells those of one name apart.
    """

    backend: Backend
    settings: LinkSettings
    breaker_policy: BreakerPolicy
    spend_limit: SpendLimit
    clock: Clock = time.monotonic
    nth: int = 0
    scheme: str = field(init=False)
    breaker: Breaker = field(init=False)
    concurrency: Concurrency = field(init=False)
    rates: list[RateLimit] = field(init=False)
    times: RecentTimes = field(default_factory=RecentTimes, init=False)
    stats: LinkStats = field(default_factory=LinkStats, init=False)
    cooldown_until: float = field(default=float("-inf"), init=False)
    _batcher: EmbeddingBatcher | None = field(default=None, init=False)
    _absent: Absent | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.scheme = LinkSpec.parse(self.backend.name).scheme
        self._absent = self.backend if isinstance(self.backend, Absent) else None
        self.breaker = Breaker(self.breaker_policy, self.clock)
        wanted = self.settings.concurrency
        fixed = None if wanted == "auto" else wanted
        self.concurrency = Concurrency(fixed, is_adaptive=wanted == "auto", clock=self.clock)
        self.rates = [
            RateLimit(rate.count, rate.seconds, rate.burst, rate.kind, rate.is_per_client, self.clock)
            for rate in self.settings.rates
        ]
        if self.settings.batch_ms is not None:
            from pyagent.core.chain.embedding_batcher import EmbeddingBatcher

            def embed(request: EmbedRequest) -> Awaitable[EmbedResult]:
                return self.backend.embed(request)  # as it is then: `renew` replaces it

            self._batcher = EmbeddingBatcher(embed, self.settings.batch_ms / 1000)

    @property
    def name(self) -> str:
        """Return the backend's name."""
        return self.backend.name

    @property
    def identity(self) -> str:
        """Return the name that rules of privacy know it by: its own, unless any other may take that."""
        return identity_of(self.backend)

    def is_called(self, name: str) -> bool:
        """Return whether a request that names a link means this one."""
        return name in {self.name, self.identity}

    @property
    def continues(self) -> bool:
        """Return whether the link continues exactly from an answer's beginning."""
        own = self.settings.continues
        return self.backend.capabilities.assistant_prefix == "continued" if own is None else own

    @property
    def counts_prefix(self) -> bool:
        """Return whether its usage counts the tokens of `answer_prefix` as output: the embedded engine's does."""
        return self.settings.continues is not False and self.backend.capabilities.assistant_prefix == "continued"

    @property
    def takes_prefix(self) -> bool:
        """Return whether it knows a request's `answer_prefix`; others are given a last assistant message instead."""
        return self.backend.capabilities.assistant_prefix != "ignored"

    def renew(self, backend: Backend) -> None:
        """Go on with another backend of the same identity, started anew: its breaker is closed, its counters go on."""
        self.backend = backend
        self._absent = backend if isinstance(backend, Absent) else None
        self.breaker.renew()
        self.cooldown_until = float("-inf")

    def absence(self) -> str:
        """Return why the backend is absent; empty when it is there."""
        return "" if self._absent is None else self._absent.absence()

    @property
    def may_be_absent(self) -> bool:
        """Whether it comes and goes: a link of `auto`, which is made when it is first asked, or a node of a cluster."""
        return self._absent is not None

    async def prepare(self) -> None:
        """Have what a link of `auto` stands for made before it is asked, beside the event loop."""
        if self._absent is not None:
            await self._absent.prepare()

    def embed(self, request: EmbedRequest) -> Awaitable[EmbedResult]:
        """Return the link's vectors, batched with other calls where `batch_ms` says so."""
        return (self.backend if self._batcher is None else self._batcher).embed(request)

    def hedge_seconds(self) -> float | None:
        """Return how long its first token may take before a hedge is sent; None is no limit."""
        part = self.settings.hedge_percentile
        if part is None:
            return self.settings.hedge_seconds
        usual = self.times.percentile(part)
        return None if usual is None else max(usual, _LEAST_PATIENCE_SECONDS)

    # -- admission ------------------------------------------------------------------------------------------------

    def admit(
        self, request: ChatRequest, spent_usd: float = 0.0, *, is_last_resort: bool = False
    ) -> Admission | Refusal:
        """Take all that a call needs, or nothing and say why. As a last resort an open breaker lets some calls by."""
        now_not = self._cooling_down() or self._out_of_rate(request.origin.client)
        if now_not is not None:
            return now_not
        permit = self.breaker.force() if is_last_resort else self.breaker.acquire()
        if permit is None:
            return Refusal("open", self.open_error(retryable=is_last_resort))
        slot = self.concurrency.enter()
        if slot is None:
            self.breaker.release(permit)
            text = f"{self.name} is full: {self.concurrency.num_in_flight} requests are under way"
            return Refusal("full", CapacityError(text, retry_after_seconds=_FULL_SECONDS))
        try:
            usd = self._reserve(request, spent_usd)
        except BudgetError as error:
            self.breaker.release(permit)
            self.concurrency.leave()
            return Refusal("money", error)
        for rate in self.rates:
            rate.take(request.origin.client)
        self.stats.num_requests += 1
        return Admission(permit, slot, usd)

    def leave(self, admission: Admission, usage: Usage | None) -> float:
        """Release what a call held; return the USD that `usage` cost. No usage, no cost."""
        self.breaker.release(admission.permit)
        self.concurrency.leave()
        usd = 0.0
        if usage is not None:
            usd = self.cost(usage.prompt_tokens, usage.completion_tokens)
            self.stats.prompt_tokens += usage.prompt_tokens
            self.stats.completion_tokens += usage.completion_tokens
            self.stats.usd += usd
        if usd or admission.reserved_usd:
            self.spend_limit.settle(admission.reserved_usd, usd)
        return usd

    def cool_down(self, seconds: float | None) -> None:
        """Start a cooldown: the server said when to come back (Retry-After)."""
        if seconds:
            self.cooldown_until = max(self.cooldown_until, self.clock() + min(seconds, _MAX_COOLDOWN_SECONDS))

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of so many tokens in USD."""
        price = self.settings.price
        return 0.0 if price is None else (prompt_tokens * price.input + completion_tokens * price.output) / _MILLION

    def price_of(self, request: ChatRequest) -> float:
        """Return the most USD that a request may cost."""
        num_output_tokens = (request.sampling.max_tokens or _USUAL_ANSWER_TOKENS) * (request.best_of or request.n)
        return self.cost(estimated_request_tokens(request), num_output_tokens)

    def _reserve(self, request: ChatRequest, spent_usd: float) -> float:
        if self.settings.price is None or not self.spend_limit.is_limited:
            return 0.0
        usd = self.price_of(request)
        self.spend_limit.reserve(usd, spent_usd)
        return usd

    def _cooling_down(self) -> Refusal | None:
        left = self.cooldown_until - self.clock()
        if left <= 0:
            return None
        return Refusal(
            "cooldown",
            CapacityError(f"{self.name} is cooling down, as it asked for (Retry-After)", retry_after_seconds=left),
        )

    def _out_of_rate(self, client: str) -> Refusal | None:
        wait = max((rate.wait_seconds(client) for rate in self.rates), default=0.0)
        if wait <= 0:
            return None
        return Refusal("rate", CapacityError(f"the rate of {self.name} is used up", retry_after_seconds=wait))

    def open_error(self, *, retryable: bool = False) -> BackendError:
        """Return the error that says why the breaker is open."""
        breaker = self.breaker
        when = f"next probe in {breaker.retry_in_seconds:.0f} s" if breaker.state == "open" else "a probe is under way"
        return BackendError(f"left alone after: {breaker.reason} ({when})", backend=self.name, retryable=retryable)

    # -- looking --------------------------------------------------------------------------------------------------

    def state(self) -> LinkState:
        """Return the link's state and counters."""
        stats, breaker = self.stats, self.breaker
        return LinkState(
            backend=self.name,
            breaker=breaker.state,
            reason=breaker.reason,
            retry_in_seconds=breaker.retry_in_seconds,
            cooldown_seconds=max(0.0, self.cooldown_until - self.clock()),
            num_in_flight=self.concurrency.num_in_flight,
            limit=self.concurrency.limit,
            num_requests=stats.num_requests,
            num_answers=stats.num_answers,
            failures={str(kind): count for kind, count in stats.failures.items()},
            num_hedges=stats.num_hedges,
            num_hedges_won=stats.num_hedges_won,
            num_continued=stats.num_continued,
            num_restarted=stats.num_restarted,
            prompt_tokens=stats.prompt_tokens,
            completion_tokens=stats.completion_tokens,
            usd=stats.usd,
            first_token_p50=self.times.percentile(0.5, least=1),
            first_token_p95=self.times.percentile(0.95),
            weight=self.settings.weight,
            price=self.settings.price,
        )
