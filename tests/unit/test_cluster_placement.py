"""Which node loads what: the plan alone, and a simulation of nodes that hear of each other late and in any order."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.cluster.adverts import Offer
from pyagent.core.cluster.placement import MAX_COPIES, MAX_WISHES, Holder, plan, wanted_copies

GIB = 1 << 30


def holder(name: str, *loaded: str, can: str = "m", memory: int = GIB) -> Holder:
    return Holder(
        id=name, loaded=frozenset(loaded), placeable=frozenset(can.split()) - set(loaded), memory_bytes=memory
    )


def takers(holders: list[Holder], **wanted: int) -> list[str]:
    return [one.id for one in holders if plan(one.id, holders, wanted)]


class Nodes:
    """Nodes that tell of themselves; what is told reaches each other node later, and maybe after newer words."""

    def __init__(self, chance: random.Random, holders: list[Holder], wanted: dict[str, int]) -> None:
        self.chance = chance
        self.wanted = wanted
        self.true = {one.id: one for one in holders}
        self.views = {name: {one.id: (0, one) for one in holders} for name in self.true}
        self.on_the_way: list[tuple[str, int, Holder]] = []
        self.version = 0
        self.num_loads = Counter[str]()

    def tell(self, holder: Holder) -> None:
        self.version += 1
        self.true[holder.id] = holder
        self.views[holder.id][holder.id] = (self.version, holder)
        self.on_the_way += [(name, self.version, holder) for name in self.true if name != holder.id]

    def deliver(self) -> None:
        name, version, told = self.on_the_way.pop(self.chance.randrange(len(self.on_the_way)))
        if name in self.views and told.id in self.true and version > self.views[name][told.id][0]:
            self.views[name][told.id] = (version, told)

    def act(self, name: str) -> bool:
        """Have a node finish its load, or else do what the plan says."""
        own = self.true[name]
        if own.loading:
            self.tell(msgspec.structs.replace(own, loaded=own.loaded | own.loading, loading=frozenset()))
            return True
        planned = plan(name, [one for _, one in self.views[name].values()], self.wanted)
        for model in planned[:1]:
            self.num_loads[model] += 1
            left = own.placeable - {model}
            self.tell(msgspec.structs.replace(own, loading=frozenset({model}), placeable=left))
        return bool(planned)

    def kill(self, name: str) -> None:
        """Take a node away; the others hear of it one by one."""
        del self.true[name], self.views[name]

    def hear_of_deaths(self, name: str) -> None:
        view = self.views[name]
        self.views[name] = {other: view[other] for other in self.true}

    def settle(self) -> None:
        """Let everything happen in any order, until nothing is left to do."""
        while True:
            if self.on_the_way and self.chance.random() < 0.6:
                self.deliver()
                continue
            name = self.chance.choice(list(self.true))
            if self.chance.random() < 0.5:
                self.hear_of_deaths(name)
            if self.act(name) or self.on_the_way:
                continue
            for one in self.true:
                self.hear_of_deaths(one)
            acted = [one for one in self.true if self.act(one)]
            if not acted and not self.on_the_way:
                return

    def copies(self) -> Counter[str]:
        return Counter(model for one in self.true.values() for model in one.loaded)


@given(
    st.integers(0, 2**32).map(random.Random),
    st.integers(2, 8),
    st.dictionaries(st.sampled_from("mnop"), st.integers(1, 5), min_size=1),
    st.data(),
)
def test_any_order_of_gossip_ends_with_the_wanted_copies_and_no_more(
    chance: random.Random, number: int, wanted: dict[str, int], data: st.DataObject
) -> None:
    """Nodes that act alone on late words load each model as often as wanted; one that dies is replaced, once."""
    sizes = data.draw(st.lists(st.integers(0, 64 * GIB), min_size=number, max_size=number))
    holders = [holder(f"node{index}", can=" ".join(wanted), memory=sizes[index]) for index in range(number)]
    nodes = Nodes(chance, holders, wanted)
    nodes.settle()
    assert nodes.copies() == {model: min(copies, number) for model, copies in wanted.items()}
    loads = Counter(nodes.num_loads)
    victim = chance.choice(list(nodes.true))
    lost = nodes.true[victim].loaded
    nodes.kill(victim)
    nodes.settle()
    expected = Counter({model: count for model, copies in wanted.items() if (count := min(copies, number - 1))})
    assert nodes.copies() == expected
    replaced = nodes.num_loads - loads
    assert replaced.total() <= len(lost)


@given(st.integers(0, 6), st.integers(1, 6), st.integers(0, 6))
def test_nothing_moves_while_enough_copies_live(live: int, wanted: int, able: int) -> None:
    """Copies that are there stay where they are, wherever the ranking would have them; only those missing are added."""
    holders = [holder(f"has{index}", "m") for index in range(live)]
    holders += [holder(f"able{index}", memory=1 << 50) for index in range(able)]
    assert len(takers(holders, m=wanted)) == min(max(0, wanted - live), able)


def test_node_that_cannot_load_the_model_is_passed_by() -> None:
    """The next in the ranking takes what the first cannot: it lacks the file or the room, or it failed."""
    holders = [holder(name) for name in "abcdef"]
    (first,) = takers(holders, m=1)
    left = [holder(one.id, can="") if one.id == first else one for one in holders]
    (second,) = takers(left, m=1)
    assert second != first
    assert takers([holder("a", can=""), holder("b", can="")], m=1) == []


def test_node_loads_one_model_at_a_time() -> None:
    """While one loads, a node begins no other, and what loads counts as a copy for all."""
    one = Holder(id="a", loading=frozenset("m"), placeable=frozenset("n"))
    assert not plan("a", [one], {"m": 1, "n": 1})
    assert takers([one, holder("b")], m=1) == []


def test_larger_nodes_get_more_of_the_models() -> None:
    """A node with three times the memory is chosen for about three quarters of many models."""
    models = [f"model{index}" for index in range(400)]

    def first(model: str) -> list[str]:
        return takers([holder("large", can=model, memory=3 * GIB), holder("small", can=model)], **{model: 1})

    share = sum(first(model) == ["large"] for model in models) / len(models)
    assert 0.65 < share < 0.85


def test_larger_of_two_wishes_holds() -> None:
    """Nodes whose settings differ agree on the larger number, in whichever order they are heard."""
    wishes = [{"m": 1, "n": 4}, {"m": 2}]
    assert wanted_copies(wishes) == wanted_copies(wishes[::-1]) == {"m": 2, "n": 4}


def test_what_a_node_tells_of_the_placement_is_bounded() -> None:
    """Neither very many wishes nor huge numbers, negative ones or endless names are taken from a peer."""
    wild = {f"model{index}": 10**9 for index in range(10_000)}
    told = Offer(placement=wild, placeable=tuple(wild), placing=tuple(wild)).bounded()
    assert len(told.placement) == len(told.placeable) == len(told.placing) == MAX_WISHES
    assert set(told.placement.values()) == {MAX_COPIES}
    assert Offer(placement={"m": -1, "n": 0, "x" * 10_000: 1, "two\nlines": 1, "": 1}).bounded().placement == {}
