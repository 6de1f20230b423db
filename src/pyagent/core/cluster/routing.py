"""Which node answers a request: pure functions over what the nodes told of themselves.

`prefix`, the default, estimates each node's time to the first token: prompts that are computed there first, the tokens
of this one that it has not computed yet, and the way. What was sent since its last load counts, so that a burst
spreads; of nodes that are as good, the nearest is asked. Copies of an engine are ranked alike (`coordinator`). The
others are what load balancers have: `power_of_two`, `least_requests`, `round_robin` (weighted), `cost`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pyagent.core.chain.settings import Price

Policy = Literal["prefix", "power_of_two", "least_requests", "round_robin", "cost"]
_USUAL_PREFILL = 500.0
"""Prompt tokens a second of a node that has not measured its own: a small model on a laptop."""
_USUAL_FIRST_TOKEN = 0.2
_STEP_TOKENS = 512
"""Prompt tokens of an engine's step, unless it is set otherwise (`engine.max_num_batched_tokens`)."""
_SHORT_TOKENS = _STEP_TOKENS // 2
"""A prompt with no more of it to compute goes past longer ones: half of a step is for such."""
LEAST_TOKENS = 32
"""What a request costs at least, in tokens of a prompt: a step reads all weights, however few tokens it computes."""
_LEAST_WEIGHT = 0.01
_NEAR = 1.1
"""Estimates within a tenth of each other are equal: they are no better than that."""
_DISTANCES = (0.0, 0.001, 0.01)
"""Round trips in seconds, at most, of this process, this machine and its network; what is longer is far."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node as a request sees it. `num_sent` requests went to it from here since it told its load.

    `num_free` requests more it can begin, before one has to wait for another's end. `num_prompt_tokens_left` of those
    it has are not computed yet; `num_warm_tokens` of the prompt it has computed, or was sent. After `load_seconds`
    the model is in its memory. `round_trip_seconds` is measured, 0 for this node itself.
    """

    id: str
    num_running: int = 0
    num_waiting: int = 0
    num_sent: int = 0
    num_free: int = 0
    num_prompt_tokens_left: int = 0
    num_warm_tokens: int = 0
    prefill_tokens_per_second: float = 0.0
    first_token_seconds: float = 0.0
    load_seconds: float = 0.0
    round_trip_seconds: float = 0.0
    price: Price | None = None
    weight: float = 1.0

    @property
    def num_requests(self) -> int:
        """The requests it has, as far as is known here."""
        return self.num_running + self.num_waiting + self.num_sent


def estimated_seconds(node: Node, num_tokens: int) -> float:
    """Return the time to the first token of a prompt of `num_tokens`, estimated.

    Prompts that are there are computed first, but a short one, or what is left of a warm one, waits no longer than for
    a step. Requests for which there is no room wait for others to end. Each that is there has its share of the steps.
    """
    rate = node.prefill_tokens_per_second or _USUAL_PREFILL
    own = max(LEAST_TOKENS, num_tokens - node.num_warm_tokens)
    ahead = node.num_prompt_tokens_left
    num_ahead = node.num_waiting + node.num_sent
    if own <= _SHORT_TOKENS:
        ahead = min(ahead, _STEP_TOKENS + LEAST_TOKENS * num_ahead)
    queue = max(0, num_ahead - node.num_free) * (node.first_token_seconds or _USUAL_FIRST_TOKEN)
    seconds = ((own + ahead) / rate + queue) * (1 + 0.1 * node.num_requests)
    return seconds / max(node.weight, _LEAST_WEIGHT) + node.load_seconds + node.round_trip_seconds


@dataclass(slots=True)
class Balancer:
    """Orders nodes by a policy. What it remembers is whose turn it is (`round_robin`); `rng` decides among equals."""

    policy: Policy = "prefix"
    rng: random.Random = field(default_factory=random.Random)
    _owed: dict[str, float] = field(default_factory=dict[str, float])

    def order(self, nodes: Sequence[Node], num_tokens: int) -> list[Node]:
        """Return the nodes in the order to ask them for an answer to a prompt of `num_tokens` tokens."""
        if len(nodes) < 2:
            return list(nodes)
        match self.policy:
            case "power_of_two":
                return self._power_of_two(nodes)
            case "round_robin":
                return self._in_turns(nodes)
            case "least_requests":
                return self._by(nodes, {node.id: _busyness(node) for node in nodes})
            case "cost":
                return self._by(nodes, {node.id: _price(node.price) for node in nodes}, num_tokens)
            case "prefix":
                return self._by(nodes, {node.id: estimated_seconds(node, num_tokens) for node in nodes})

    def _by(self, nodes: Sequence[Node], scores: Mapping[str, float], num_tokens: int | None = None) -> list[Node]:
        """Return the nodes by score; the first is chosen at random among the nearest of those as good as the best.

        With `num_tokens` those as good are ordered by their estimated time.
        """
        scores = {name: math.inf if math.isnan(score) else score for name, score in scores.items()}
        ranked = sorted(nodes, key=lambda node: scores[node.id])
        best = scores[ranked[0].id]
        equal = [node for node in ranked if scores[node.id] <= best * _NEAR + 1e-9] or ranked[:1]
        if num_tokens is not None:
            return [*sorted(equal, key=lambda node: estimated_seconds(node, num_tokens)), *ranked[len(equal) :]]
        nearest = min(map(_distance, equal))
        first = self.rng.choice([node for node in equal if _distance(node) == nearest])
        return [first, *(node for node in ranked if node is not first)]

    def _power_of_two(self, nodes: Sequence[Node]) -> list[Node]:
        """Return two nodes chosen at random, the less busy first, then the others (Mitzenmacher 2001)."""
        chosen = sorted(self.rng.sample(list(nodes), 2), key=_busyness)
        return [*chosen, *sorted((node for node in nodes if node not in chosen), key=lambda node: node.num_requests)]

    def _in_turns(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes as smooth weighted round robin takes them."""
        present = {node.id for node in nodes}
        self._owed = {name: owed for name, owed in self._owed.items() if name in present}
        for node in nodes:
            self._owed[node.id] = self._owed.get(node.id, 0.0) + node.weight
        ranked = sorted(nodes, key=lambda node: -self._owed[node.id])
        self._owed[ranked[0].id] -= sum(node.weight for node in nodes)
        return ranked


def _busyness(node: Node) -> float:
    return node.num_requests / max(node.weight, _LEAST_WEIGHT)


def _distance(node: Node) -> int:
    """Return how far away a node is: in this process, on this machine, on its network, or farther."""
    return sum(node.round_trip_seconds > most for most in _DISTANCES)


def _price(price: Price | None) -> float:
    return 0.0 if price is None else price.input + price.output
