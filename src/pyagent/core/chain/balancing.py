"""Which of several links that share requests is asked first: the policies of `rules.routing`. Pure; turns are kept.

The names are those of `cluster.routing`: weighted round robin, the fewest requests under way, the power of two choices
(Mitzenmacher 2001), and by price. `latency` chooses a link as often as it is quick, so that none is flooded by all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

Routing = Literal["round_robin", "least_requests", "power_of_two", "latency", "cost"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
_LEAST_SECONDS = 1e-3
"""First tokens that are quicker than this are equally quick."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A link as a policy sees it. `usd` is the most that the request may cost; None is not known."""

    name: str
    nth: int = 0
    weight: float = 1.0
    num_in_flight: int = 0
    first_token_seconds: float | None = None
    usd: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the others: a server may be several links."""
        return self.name, self.nth

    @property
    def busyness(self) -> float:
        """The requests it has under way, for its weight."""
        return self.num_in_flight / self.weight


@dataclass(slots=True)
class Balancer:
    """Orders links by a policy; `draw` returns a number from 0 to 1. It remembers whose turn it is."""

    routing: Routing = "round_robin"
    _owed: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])

    def order(self, links: Sequence[Standing], draw: Callable[[], float]) -> list[int]:
        """Return the places of the links in the order to ask them; the first has had its turn then."""
        for link in links:
            self._owed[link.key] = self._owed.get(link.key, 0.0) + link.weight
        ranked = self.preview(links, draw)
        self._owed[links[ranked[0]].key] -= sum(link.weight for link in links)
        return ranked

    def preview(self, links: Sequence[Standing], draw: Callable[[], float]) -> list[int]:
        """Return the order as it is now, and leave whose turn it is as it is."""
        places = range(len(links))
        turns = [-self._owed.get(link.key, 0.0) for link in links]
        match self.routing:
            case "round_robin":
                return sorted(places, key=turns.__getitem__)
            case "least_requests":
                return sorted(places, key=lambda at: (links[at].busyness, turns[at]))
            case "power_of_two":
                shuffled = _shuffled([link.weight for link in links], draw)
                two = sorted(shuffled[:2], key=lambda at: links[at].busyness)
                return [*two, *sorted(shuffled[2:], key=lambda at: (links[at].busyness, turns[at]))]
            case "latency":
                return _shuffled(
                    [link.weight / seconds for link, seconds in zip(links, _seconds(links), strict=True)], draw
                )
            case "cost":
                return sorted(places, key=lambda at: (links[at].usd, links[at].busyness, turns[at]))


def why(routing: Routing, link: Standing, others: Sequence[Standing]) -> str:
    """Return in words why a policy asks a link before the others."""
    match routing:
        case "round_robin":
            all_weights = link.weight + sum(one.weight for one in others)
            return f"its share is {link.weight:g} of {all_weights:g} requests, in turns"
        case "least_requests":
            return f"{link.num_in_flight} under way, the fewest for its weight"
        case "power_of_two":
            return f"{link.num_in_flight} under way, no more than the other of two chosen at random"
        case "latency":
            if link.first_token_seconds is None:
                return "not measured yet, so taken for as quick as the quickest"
            return f"chosen at random, by its speed: its first token takes {link.first_token_seconds:.2f} s"
        case "cost":
            return f"${link.usd:.6f} at most, the least" if link.usd else "it costs nothing"


def _seconds(links: Sequence[Standing]) -> list[float]:
    """Return first-token times; a link that is not measured is as quick as the quickest, so that it will be."""
    known = [link.first_token_seconds for link in links if link.first_token_seconds is not None]
    quickest = min(known, default=1.0)
    return [
        max(quickest if link.first_token_seconds is None else link.first_token_seconds, _LEAST_SECONDS)
        for link in links
    ]


def _shuffled(weights: Sequence[float], draw: Callable[[], float]) -> list[int]:
    """Return all places, chosen one after the other by weight without replacement (Efraimidis and Spirakis 2006)."""
    keys = [-math.log(max(draw(), 1e-300)) / weight for weight in weights]
    return sorted(range(len(weights)), key=keys.__getitem__)
