"""Which links a request may go to, and in what order. Pure but for whose turn it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby

from pyagent.core.chain.balancing import Balancer, Routing, Standing
from pyagent.core.chain.failures import NO_LINK
from pyagent.core.chain.link import Link
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest

_NOT_FOUND = "not found"
_ONE_ANSWER = "it gives one answer to a request"
_NOT_PRIVATE = "the request is private, this link is not"


def asks_for_abilities(request: ChatRequest) -> bool:
    """Return whether `why_not` looks at what links can."""
    return _wants_several(request) or bool(request.assistant_prefix or request.answer_prefix)


def after(links: Sequence[Link], name: str) -> list[Link]:
    """Return the links after the last one of that name; all where there is none."""
    places = [place for place, link in enumerate(links) if name and link.name == name]
    return list(links[places[-1] + 1 :] if places else links)


def _wants_several(request: ChatRequest) -> bool:
    return request.n > 1 or request.best_of is not None or request.beam is not None


def why_not(link: Link, request: ChatRequest, private: Sequence[str], *, is_there: bool = False) -> str:
    """Return why a link may not see a request; empty when it may. With `is_there` it is not said to be absent."""
    if not is_there and (absence := link.absence()):
        return f"{_NOT_FOUND}: {absence}"
    if _wants_several(request) and not link.backend.capabilities.gives_several:
        return _ONE_ANSWER
    if (request.assistant_prefix or request.answer_prefix) and not link.continues:
        return "it cannot go on from an answer's beginning"
    if request.private and not (link.scheme in private or link.identity in private):
        return _NOT_PRIVATE
    unmet = next((condition.text for condition in link.settings.when if not condition.holds(request)), "")
    return f"only when {unmet}" if unmet else ""


def is_absence(reason: str) -> bool:
    """Return whether a reason of `why_not` is that the link is not there now."""
    return reason.startswith(_NOT_FOUND)


def error_of_none(request: ChatRequest, reasons: Sequence[tuple[str, str]], private: Sequence[str]) -> RequestError:
    """Return the error of a request that no link may see; `reasons` has each link's name and why."""
    if not reasons and request.after_link:
        text = f"the chain has no link after {request.after_link}"
        return RequestError(text, param="model", code=NO_LINK)
    kinds = {reason for _, reason in reasons if not is_absence(reason)}
    if kinds == {_ONE_ANSWER}:
        text = "no link of the chain gives several answers to a request; `native` does"
        return RequestError(text, param="n", code=NO_LINK)
    if kinds == {_NOT_PRIVATE}:
        return RequestError(
            "the request is private, and no link of the chain is in rules.private "
            f"({', '.join(private) or 'empty'}); add one that stays on this machine",
            param="private",
            code=NO_LINK,
        )
    said = "; ".join(f"{name}: {reason}" for name, reason in reasons)
    param = "messages" if request.assistant_prefix else "model"
    return RequestError(f"no link of the chain takes this request: {said}", param=param, code=NO_LINK)


Prefer = Callable[[ChatRequest, Sequence[str]], str]
"""Returns which of several links that share requests a request goes to first; empty for none in particular."""


@dataclass(slots=True)
class Shares:
    """How neighbours with weights share requests: by a policy of `rules.routing`.

    A conversation stays with one link while that is eligible, chosen by weighted rendezvous hashing, so that what the
    link computed for it is found again; with `round_robin`, so does a run.
    """

    routing: Routing = "round_robin"
    _balancer: Balancer = field(init=False)

    def __post_init__(self) -> None:
        self._balancer = Balancer(self.routing)

    def order(
        self, links: Sequence[Link], request: ChatRequest, draw: Callable[[], float], prefer: Prefer | None = None
    ) -> list[Link]:
        """Return the links, each run of weighted neighbours in the order to ask them, one that is preferred first."""
        if not any(link.settings.weight for link in links):
            return list(links)
        ordered: list[Link] = []
        for has_weight, group in groupby(links, key=lambda link: link.settings.weight is not None):
            run = list(group)
            ordered += self._preferred(run, request, draw, prefer) if has_weight and len(run) > 1 else run
        return ordered

    def _preferred(
        self, run: list[Link], request: ChatRequest, draw: Callable[[], float], prefer: Prefer | None
    ) -> list[Link]:
        shared = self._shared(run, request, draw)
        first = "" if prefer is None else prefer(request, [link.name for link in run])
        return sorted(shared, key=lambda link: link.name != first) if first else shared

    def _shared(self, run: list[Link], request: ChatRequest, draw: Callable[[], float]) -> list[Link]:
        session = request.session or (request.origin.run if self.routing == "round_robin" else "")
        if session:
            return sorted(run, key=lambda link: _score(link, session))
        return [run[at] for at in self._balancer.order([self._standing(link, request) for link in run], draw)]

    def _standing(self, link: Link, request: ChatRequest) -> Standing:
        """Return what the policy looks at, and no more: each request comes by."""
        return Standing(
            name=link.name,
            nth=link.nth,
            weight=link.settings.weight or 1.0,
            num_in_flight=link.concurrency.num_in_flight,
            first_token_seconds=link.times.percentile(0.5, least=1) if self.routing == "latency" else None,
            usd=link.price_of(request) if self.routing == "cost" else 0.0,
        )


def _score(link: Link, session: str) -> float:
    """Return a score, least for the link that a session belongs to; sessions spread in proportion to weight."""
    name = f"{link.name}\0{link.nth}" if link.nth else link.name
    digest = blake2b(f"{session}\0{name}".encode(errors="surrogatepass"), digest_size=8).digest()
    part = (int.from_bytes(digest) + 1) / (2**64 + 1)
    return -math.log(part) / (link.settings.weight or 1.0)
