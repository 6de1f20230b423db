"""The fallback chain: an ordered list of backends that is itself a backend.

Links are tried in order until one gives its first token. Before that token, going on to the next link is silent: the
caller only reads in `ChatDelta.attempts` who did not answer and why. After it, `after_first_token` decides: the answer
goes on elsewhere, begins anew, or ends with an error that names the link. The caller's deadline covers the whole chain.
What is the caller's own fault (`RequestError`) is told at once; a link that lacks the model or the room for the prompt
is passed by.

The chain feeds each link's breaker and limits from what its calls did, and draws retries from one budget. It opens no
socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from pyagent.core.backends import Backend, LinkSpec, classify_by, pass_hint, rank_by, token_embed_by
from pyagent.core.capabilities import Capabilities
from pyagent.core.chain.attempt import Pooled
from pyagent.core.chain.balancing import Routing
from pyagent.core.chain.delivered_answer import AfterFirstToken, DeliveredAnswer
from pyagent.core.chain.explaining import LinkView, health_of, view_of
from pyagent.core.chain.failover import Failover
from pyagent.core.chain.failures import away_error, no_model_error, no_node_error
from pyagent.core.chain.link import Link
from pyagent.core.chain.listing import ModelLists
from pyagent.core.chain.ordering import Prefer, Shares, after, asks_for_abilities, error_of_none, is_absence, why_not
from pyagent.core.chain.routed_links import RoutedLinks
from pyagent.core.chain.router import Router
from pyagent.core.chain.settings import LinkSettings
from pyagent.core.chain.stats import LinkState
from pyagent.core.chain.structured_output import wants_structured_output
from pyagent.core.errors import AwayError, BackendError, ConfigError, ModelError, PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Health,
    Hint,
    ModelInfo,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
)
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult, ExplainPrompt, PinPrompt
from pyagent.core.resilience.breaker import BreakerPolicy
from pyagent.core.resilience.deadline import Clock, Deadline
from pyagent.core.resilience.retry import RetryBudget, RetryPolicy
from pyagent.core.resilience.spend_limit import SpendLimit

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pyagent.core.response_cache.cache import ResponseCache

CheckAnswers = Literal["whole", "always", "never"]
_RANKS: dict[bool | None, int] = {True: 0, None: 1, False: 2}
"""Links known to have the requested model go first, those known to lack it last."""
_NO_RETRY = RetryPolicy(num_retries=0)
"""For what a peer asks: it has other nodes to ask at once, and tries again itself."""
_READY_SECONDS = 0.9
"""Health checks usually allow a second."""
_READY_STEP_SECONDS = 0.05
_READY = {True: "ready", False: "not ready"}


def _hedges() -> RetryBudget:
    """Return the budget of hedges: one for twenty requests, a few at a time."""
    return RetryBudget(capacity=5.0, ratio=0.05, left=1.0)


@dataclass(slots=True)
class Chain:
    """Backends tried in order. `private` lists the schemes (or whole link names) that keep text on this machine.

    `settings` are those of the links, in their order; none means plain links. `deadline_seconds` bounds requests that
    give more time or none. `check_answers` says which structured outputs are validated: those read whole, or all.
    `routing` says how neighbours with weights share requests. `answers` holds those given before, when they are to be
    given again. A `router` brings links that come and go.
    `prefer` says which of several neighbours with weights is asked first.
    """

    links: Sequence[Backend]
    private: Sequence[str] = ()
    settings: Sequence[LinkSettings] = ()
    breaker_policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    budget: RetryBudget = field(default_factory=RetryBudget)
    hedges: RetryBudget = field(default_factory=_hedges)
    spend_limit: SpendLimit = field(default_factory=SpendLimit)
    after_first_token: AfterFirstToken = "continue"  # noqa: S105 - a policy
    check_answers: CheckAnswers = "whole"
    deadline_seconds: float | None = None
    routing: Routing = "round_robin"
    response_cache: ResponseCache | None = None
    router: Router | None = None
    prefer: Prefer | None = None
    clock: Clock = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[float, float], float] = random.uniform
    name: str = "chain"
    _own: list[Link] = field(init=False, default_factory=list[Link])
    _routed: RoutedLinks = field(init=False, default_factory=RoutedLinks)
    _shares: Shares = field(init=False)
    _lists: ModelLists = field(init=False, default_factory=ModelLists)

    def __post_init__(self) -> None:
        self._shares = Shares(self.routing)
        settings = self.settings or [LinkSettings(use=backend.name) for backend in self.links]
        num_named = Counter[str]()
        for backend, own in zip(self.links, settings, strict=True):
            nth = num_named[backend.name]
            self._own.append(self._link(backend, own, nth))
            num_named[backend.name] += 1

    @property
    def _links(self) -> list[Link]:
        """The chain's own links, and those that its router has now."""
        if self.router is None:
            return self._own
        return [*self._own, *self._routed.links(self.router.backends(), self._link)]

    def _link(self, backend: Backend, settings: LinkSettings | None = None, nth: int = 0) -> Link:
        settings = settings or LinkSettings(use=backend.name)
        return Link(backend, settings, self.breaker_policy, self.spend_limit, self.clock, nth)

    @property
    def capabilities(self) -> Capabilities:
        """Return what some present link can do; hints and cache queries go to the links that take them."""
        said = [link.backend.capabilities for link in self._present()]
        return Capabilities(
            abilities=frozenset[str]().union(*(one.abilities for one in said)),
            gives_several=any(one.gives_several for one in said),
            assistant_prefix="continued" if any(link.continues for link in self._present()) else "ignored",
            load=self.load,
            hint=self.hint,
            query_cache=self.query_cache,
            rank=self.rank if any(one.rank for one in said) else None,
            classify=self.classify if any(one.classify for one in said) else None,
            token_embed=self.token_embed if any(one.token_embed for one in said) else None,
            price_of=self.price_of,
        )

    def price_of(self, request: ChatRequest) -> float:
        """Return the most USD that a request may cost: the dearest link's price."""
        return max((link.price_of(request) for link in self._links), default=0.0)

    # -- asking ---------------------------------------------------------------------------------------------------

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Answer from the first link that gives a token; see the module's text for what happens when one fails."""
        return self._ask(request) if self.response_cache is None else self._ask_once(request, self.response_cache)

    async def _ask_once(self, request: ChatRequest, response_cache: ResponseCache) -> AsyncGenerator[ChatDelta, None]:
        request = self._bounded(request)
        await self._prepare(request)
        links = [link.name for link in self._choose(request)[1]]
        async with aclosing(response_cache.chat(request, links, self._ask)) as stream:
            async for delta in stream:
                yield delta

    async def _ask(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        await self._prepare(request)
        failover = self._failover(request)
        while (attempt := await failover.start()) is not None:
            if self.router is not None:
                self.router.began(failover.request, attempt.name)
            async with failover.deltas(attempt) as deltas:
                async for delta in deltas:
                    yield delta
        for delta in failover.ending():
            yield delta

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Embed with the first link that can."""
        asked = ChatRequest(model=request.model, prompt="\n".join(request.input), private=request.private)
        return await self._pooled(asked, lambda link, model: link.embed(msgspec.structs.replace(request, model=model)))

    async def rank(self, request: RankRequest) -> RankResult:
        """Rank with the first link that can."""
        texts = "\n".join(text for pair in request.pairs for text in pair)
        asked = ChatRequest(model=request.model, prompt=texts, private=request.private)
        return await self._pooled(
            asked, lambda link, model: rank_by(link.backend, msgspec.structs.replace(request, model=model))
        )

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """Classify with the first link that can."""
        asked = ChatRequest(model=request.model, prompt="\n".join(request.input), private=request.private)
        return await self._pooled(
            asked, lambda link, model: classify_by(link.backend, msgspec.structs.replace(request, model=model))
        )

    async def token_embed(self, request: TokenEmbedRequest) -> TokenEmbedResult:
        """Give vectors of tokens with the first link that can."""
        asked = ChatRequest(model=request.model, prompt="\n".join(request.input), private=request.private)
        return await self._pooled(
            asked, lambda link, model: token_embed_by(link.backend, msgspec.structs.replace(request, model=model))
        )

    async def _pooled(self, asked: ChatRequest, ask: Callable[[Link, str], Awaitable[Pooled]]) -> Pooled:
        failover = self._failover(asked)
        model = failover.request.model
        while (attempt := await failover.admit()) is not None:
            async with aclosing(attempt):
                try:
                    return await attempt.pooled(lambda link: ask(link, model))
                except RequestError as error:  # most links do no such thing and say so: the next may
                    failover.passed(attempt, error)
                except Exception as error:  # noqa: BLE001 - one link's bug must not keep the next from answering
                    failover.failed(attempt, error)
        raise failover.failure()

    def hint(self, hint: Hint) -> None:
        """Pass a hint on to the links that were asked: one of them computed the prompt that it is about."""
        concerned = {link.name for link in self._own} | set(self.router.hinted(hint) if self.router else ())
        for link in self._links:
            if link.stats.num_requests and link.name in concerned:  # looking at another may import its plugin
                pass_hint(link.backend, hint)

    async def query_cache(self, question: CacheQuery) -> CacheQueryResult:
        """Ask the links that compute prompts themselves; about a request, the first of them that may see it."""
        if isinstance(question, ExplainPrompt | PinPrompt):
            request, links = self._choose(question.request)
            asked = msgspec.structs.replace(question, request=request)
            for link in links:
                if (query := link.backend.capabilities.query_cache) is not None:
                    return await query(asked)
            raise RequestError("no link of the chain keeps prompts itself; `native` does", param="model")
        queries = [link.backend.capabilities.query_cache for link in self._links]
        answers = [await query(question) for query in queries if query is not None]
        models = {model.model: model for answer in answers for model in answer.models}
        return CacheQueryResult(models=[*models.values()], num_tokens=sum(answer.num_tokens for answer in answers))

    async def _prepare(self, request: ChatRequest) -> None:
        """Make the links of `auto` where the choice among links depends on what they can."""
        if asks_for_abilities(request):
            for link in self._present():
                await link.prepare()

    def _failover(self, request: ChatRequest) -> Failover:
        request = self._bounded(request)
        deadline = Deadline.after(request.timeout_seconds, self.clock)
        is_for_peer, is_named = bool(request.origin.node), self._named(request)[0] is not request
        is_free = self.router is not None and not is_for_peer and not is_named
        request, links = self._ordered(request)
        if self.router is not None and not links:
            raise self.missing_error(request.model) or no_model_error(request.model)
        if is_free and not request.private:
            request = msgspec.structs.replace(request, is_movable=True)
        return Failover(
            request,
            links,
            deadline,
            _NO_RETRY if is_for_peer else self.retry_policy,
            self.budget,
            self.hedges,
            DeliveredAnswer(request, "restart" if request.whole else self.after_first_token),
            self.draw,
            self.sleep,
            is_validated=self._is_validated(request),
            router=self.router,
            reroute=(lambda node: self._rerouted(request, node)) if is_free else None,
            away_error=self.away_error(request.model),
        )

    def _ordered(self, request: ChatRequest, taker: str = "") -> tuple[ChatRequest, list[Link]]:
        """Return the request as links get it, and the links in the order to ask them; the `taker` is there."""
        request, links = self._choose(request, taker)
        if request.model:
            links = sorted(links, key=lambda link: _RANKS[self._lists.has(link, request.model)])
        links = self._shares.order(links, request, lambda: self.draw(0.0, 1.0), self.prefer)
        return request, links if self.router is None else self._order_by(self.router, request, links)

    def _rerouted(self, request: ChatRequest, node: str) -> list[Link]:
        """Return the links in the order to ask them now, that of a node first where there is one."""
        first = "" if self.router is None else self.router.taker(node)
        try:
            links = self._ordered(request, first)[1]
        except RequestError:  # none is left that may see it
            return []
        return sorted(links, key=lambda link: link.name != first)

    def _order_by(self, router: Router, request: ChatRequest, links: Sequence[Link]) -> list[Link]:
        """Return the links that the router tries, in its order; those known to lack the model stay last."""
        places = {name: place for place, name in enumerate(router.order(request, [link.name for link in links]))}
        ranks = {link.name: _RANKS[self._lists.has(link, request.model)] if request.model else 0 for link in links}
        kept = [link for link in links if link.name in places]
        return sorted(kept, key=lambda link: (ranks[link.name], places[link.name]))

    def _is_validated(self, request: ChatRequest) -> bool:
        if self.check_answers == "never" or not wants_structured_output(request):
            return False
        return request.whole or self.check_answers == "always"

    def _bounded(self, request: ChatRequest) -> ChatRequest:
        seconds = request.timeout_seconds
        if self.deadline_seconds is None or (seconds is not None and seconds <= self.deadline_seconds):
            return request
        return msgspec.structs.replace(request, timeout_seconds=self.deadline_seconds)

    def _choose(self, request: ChatRequest, taker: str = "") -> tuple[ChatRequest, list[Link]]:
        """Return the links that may see the request; a request whose model is a link's name goes to that link alone."""
        if not self._links and self.router is None:
            raise BackendError("the chain is empty: set `chain` in pyagent.toml", backend=self.name, retryable=False)
        request, links = self._named(request)
        links = after(links, request.after_link)
        reasons = [why_not(link, request, self.private, is_there=link.name == taker) for link in links]
        eligible = [link for link, reason in zip(links, reasons, strict=True) if not reason]
        if not eligible:
            names = [link.name for link in links]
            if self.router is not None and all(map(is_absence, reasons)):
                raise self.away_error(request.model) or no_node_error(names)
            raise error_of_none(request, list(zip(names, reasons, strict=True)), self.private)
        return request, eligible

    def _named(self, request: ChatRequest) -> tuple[ChatRequest, list[Link]]:
        named = self._called(request.model) if request.model else []
        return (msgspec.structs.replace(request, model=""), named) if named else (request, self._links)

    def _called(self, name: str) -> list[Link]:
        """Return the links that a name means: those that have it, or this node's own where it names this node."""
        own = self.router.own_links(name) if self.router is not None else ()
        return [link for link in self._links if link.is_called(name) or link.name in own]

    # -- looking --------------------------------------------------------------------------------------------------

    async def models(self) -> list[ModelInfo]:
        """Return the models of every link that lists them in time, in the chain's order."""
        return [
            msgspec.structs.replace(model, backend=model.backend or link.name)
            for link, models in await self._lists.models(self._present())
            for model in models
        ]

    async def has_model(self, model: str) -> bool:
        """Return whether a link has a model, by the model's name or the link's, as soon as one says so."""
        is_called = any(not link.absence() for link in self._called(model))
        return is_called or await self._lists.find(self._present(), model)

    def away_error(self, model: str) -> AwayError | None:
        """Return what is told where a model's link is away for now: when to ask again."""
        link = self.router.away(model) if self.router is not None and model else ""
        return away_error(model, link) if link else None

    def missing_error(self, model: str) -> PyAgentError | None:
        """Return what is told of a model, or an agent, that no link has.

        Its link is away, or its name names none, or several, or only other nodes could have it and none is there.
        """
        told = self.router.why_none(model) if self.router is not None else ""
        missing = RequestError(told, param="model", code="model_not_found") if told else None
        return self.away_error(model) or missing or self._no_node_error()

    def _no_node_error(self) -> AwayError | None:
        """Return what is told where other nodes alone could answer, and none does now."""
        if self.router is None or self._present():
            return None
        return no_node_error([link.name for link in self._links])

    def link_of(self, model: ModelInfo) -> Backend | None:
        """Return the link that offers a model: the one it names, or else one of the same scheme."""
        exact = (link for link in self._links if link.name == model.backend)
        alike = (link for link in self._links if link.scheme == LinkSpec.parse(model.backend or "-").scheme)
        link = next(exact, None) or next(alike, None)
        return link.backend if link else None

    async def health(self) -> Health:
        """Return whether a link is ready, and the details of all."""
        links = self._present()
        states = await asyncio.gather(*(health_of(link.backend) for link in links))
        rows = zip(links, states, strict=True)
        detail = "; ".join(f"{link.name}: {state.detail or _READY[state.is_ready]}" for link, state in rows)
        models = [model for state in states if state.is_ready for model in state.models]
        return Health(is_ready=any(state.is_ready for state in states), detail=detail or "no links", models=models)

    async def is_ready(self) -> bool:
        """Return whether a link says in time that it is ready; the first is enough.

        A link is asked when those before it have not said so at once: that is asked often, and most chains begin near.
        """
        deadline = Deadline.after(_READY_SECONDS, self.clock)
        asked: set[asyncio.Task[Health]] = set()
        left = self._present()
        try:
            while (left or asked) and not deadline.is_past:
                asked |= {asyncio.create_task(self._health(link)) for link in left[:1]}
                left = left[1:]
                patience = min(_READY_STEP_SECONDS, deadline.remaining_seconds) if left else deadline.remaining_seconds
                done, asked = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result().is_ready for task in done):
                    return True
            return False
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def explain(self, request: ChatRequest) -> list[LinkView]:
        """Return what would be tried for `request`, in order, and why the rest would not. Sends no request."""
        links = self._links
        asked, named = self._named(request)
        reasons = [why_not(link, asked, self.private) if link in named else "another link is named" for link in links]
        states = await asyncio.gather(*map(self._health, links))
        rows = zip(links, states, reasons, strict=True)
        return [view_of(link, state, reason) for link, state, reason in rows]

    @property
    def names(self) -> list[str]:
        """Return the names of the links that are there now; each is a chain entry, too."""
        return [link.name for link in self._present()]

    def recall(self, failing: Mapping[str, float]) -> None:
        """Begin with the breakers of these links open, each for so many seconds, as an earlier process saw them fail.

        They are probed after that, and used meanwhile where no other link is left.
        """
        for link in self._own:
            if link.name in failing:
                link.breaker.recall(failing[link.name], "failed in most of its last calls, before this start")

    def link_states(self) -> list[LinkState]:
        """Return the state and the counters of each link; of `auto`, those found now or asked before."""
        return [link.state() for link in self._links if link.stats.num_requests or not link.absence()]

    def _present(self) -> list[Link]:
        return [link for link in self._links if not link.absence()]

    async def _health(self, link: Link) -> Health:
        return Health(is_ready=False) if link.absence() else await health_of(link.backend)

    def renew(self, scheme: str, make: Callable[[Backend, LinkSettings], Backend]) -> list[Backend]:
        """Replace the backends of a scheme for the requests from now on; return those that were there.

        All are made before one is replaced: when `make` raises, nothing has changed.
        """
        links = [link for link in self._own if link.scheme == scheme]
        before = [link.backend for link in links]
        for link, backend in zip(links, [make(link.backend, link.settings) for link in links], strict=True):
            link.renew(backend)
        self.links = [link.backend for link in self._own]
        return before

    async def load(self) -> None:
        """Load the first link's model ahead of its first request; an error is raised by that request instead.

        What is wrong with the model's file or its settings is logged too: more requests would change nothing.
        """
        for link in self._present()[:1]:
            if (load := link.backend.capabilities.load) is not None:
                with contextlib.suppress(Exception):
                    try:
                        await load()
                    except (ConfigError, ModelError) as error:
                        logger.warning("%s cannot answer: %s", link.name, error)

    async def close(self) -> None:
        """Close every link, also when closing one of them fails."""
        await self._lists.close()
        results = await asyncio.gather(*(link.backend.close() for link in self._own), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
