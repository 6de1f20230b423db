"""Nodes that place models, simulated: a clock, words that come late and in any order, loads that take their time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from pyagent.core.cluster.placement import Holder, Reconciler

DELAY_SECONDS = 10.0
TICK_SECONDS = 1.0
_LONGEST_LOAD_SECONDS = 20.0


@dataclass(slots=True, kw_only=True)
class SimulatedNode:
    """What a node is, and what it has heard: for each node the number of its word, and the word."""

    own: Holder
    reconciler: Reconciler
    heard: dict[str, tuple[int, Holder]] = field(default_factory=dict[str, tuple[int, Holder]])
    loads_until: float = 0.0


class PlacingSim:
    """A cluster over time. Words take up to `word_seconds`; of a node that is met it is known sooner that it is."""

    def __init__(self, chance: random.Random, wanted: Mapping[str, int], word_seconds: float = 2.0) -> None:
        self.chance = chance
        self.wanted = wanted
        self.word_seconds = word_seconds
        self.now = 0.0
        self.nodes: dict[str, SimulatedNode] = {}
        self.parts: dict[str, int] = {}
        self.num_loads = Counter[str]()
        self._num_words = 0
        self._on_the_way: list[tuple[float, str, int, Holder]] = []

    # -- what happens -------------------------------------------------------------------------------------------------

    def join(self, holder: Holder, *, meets_seconds: float = 2.0, offers_seconds: float = 0.0) -> None:
        """Start a node that knows nobody: in so long all know of each other, in so long what the others offer."""
        node = SimulatedNode(own=holder, reconciler=Reconciler(holder.id, DELAY_SECONDS))
        for other in [one for one in self.nodes if self._are_together(one, holder.id)]:
            met = self.now + self.chance.uniform(0, meets_seconds)
            heard = max(met, self.now + self.chance.uniform(0, max(offers_seconds, self.word_seconds)))
            self._send(met, holder.id, 0, Holder(id=other, is_heard=False))
            self._send(met, other, 0, Holder(id=holder.id, is_heard=False))
            self._send(heard, holder.id, *self.nodes[other].heard[other])
        self.nodes[holder.id] = node
        self.tell(holder)

    def tell(self, holder: Holder) -> None:
        """Have a node say what it is now."""
        self._num_words += 1
        node = self.nodes[holder.id]
        node.own = holder
        node.heard[holder.id] = (self._num_words, holder)
        for other in self.nodes:
            if other != holder.id and self._are_together(other, holder.id):
                self._send(self.now + self.chance.uniform(0, self.word_seconds), other, self._num_words, holder)

    def kill(self, name: str) -> None:
        """End a node; the others know it at once, as the slowest would at the end of the delay anyway."""
        del self.nodes[name]
        self._forget(name, list(self.nodes))

    def part(self, parts: Mapping[str, int]) -> None:
        """Cut the cluster: nodes of different parts hold each other for dead."""
        self.parts = dict(parts)
        for one in self.nodes:
            self._forget(one, [other for other in self.nodes if not self._are_together(one, other)])

    def heal(self) -> None:
        """End the partition: all hear of all again."""
        self.parts = {}
        for node in list(self.nodes.values()):
            self.tell(node.own)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_SECONDS
            self._deliver()
            for name in self.chance.sample(sorted(self.nodes), len(self.nodes)):
                self._act(name)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def copies(self) -> Counter[str]:
        """How many nodes have each model."""
        return Counter(model for node in self.nodes.values() for model in node.own.loaded)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _are_together(self, one: str, other: str) -> bool:
        return self.parts.get(one) == self.parts.get(other)

    def _forget(self, name: str, by: list[str]) -> None:
        for other in by:
            self.nodes[other].heard.pop(name, None)
        self._on_the_way = [word for word in self._on_the_way if not (word[1] in by and word[3].id == name)]

    def _send(self, at: float, to: str, number: int, told: Holder) -> None:
        self._on_the_way.append((at, to, number, told))

    def _deliver(self) -> None:
        come = [word for word in self._on_the_way if word[0] <= self.now]
        self._on_the_way = [word for word in self._on_the_way if word[0] > self.now]
        for _, to, number, told in come:
            if to in self.nodes and told.id in self.nodes:
                before = self.nodes[to].heard.get(told.id)
                if before is None or before[0] < number:
                    self.nodes[to].heard[told.id] = (number, told)

    def _act(self, name: str) -> None:
        node = self.nodes[name]
        if node.own.loading:
            if node.loads_until <= self.now:
                loaded = node.own.loaded | node.own.loading
                self.tell(msgspec.structs.replace(node.own, loaded=loaded, loading=frozenset()))
            return
        model = node.reconciler.begin(self.now, [told for _, told in node.heard.values()], self.wanted)
        if model:
            self.num_loads[model] += 1
            node.loads_until = self.now + self.chance.uniform(0, _LONGEST_LOAD_SECONDS)
            left = node.own.placeable - {model}
            self.tell(msgspec.structs.replace(node.own, loading=frozenset({model}), placeable=left))
