"""When nodes act on the plan: over starts, joins, partitions, and models that do not stay, in simulated time."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.placing_sim import DELAY_SECONDS, PlacingSim

from pyagent.core.cluster.placement import (
    LATE_SECONDS,
    LONGEST_REST_SECONDS,
    REST_SECONDS,
    UNHEARD_SECONDS,
    Holder,
    Reconciler,
)

CHANCES = st.integers(0, 2**32).map(random.Random)
WANTED = st.dictionaries(st.sampled_from("mno"), st.integers(1, 4), min_size=1)
SETTLED_SECONDS = 150.0


def able(name: str, wanted: dict[str, int]) -> Holder:
    return Holder(id=name, placeable=frozenset(wanted), memory_bytes=1 << 30)


def settled(chance: random.Random, number: int, wanted: dict[str, int]) -> PlacingSim:
    """Nodes that started within half the delay, and have done what there was to do."""
    sim = PlacingSim(chance, wanted)
    for index in range(number):
        sim.join(able(f"node{index}", wanted))
        if index < 3:
            sim.run(1)
    sim.run(SETTLED_SECONDS)
    return sim


@settings(max_examples=30)
@given(CHANCES, st.integers(1, 6), WANTED)
def test_cluster_that_starts_loads_no_copy_too_many(chance: random.Random, number: int, wanted: dict[str, int]) -> None:
    """Nodes that start one after another, each knowing nobody at first, end with the wanted copies and no more."""
    sim = settled(chance, number, wanted)
    assert sim.copies() == {model: min(copies, number) for model, copies in wanted.items()}
    assert sim.num_loads == sim.copies()


@settings(max_examples=30)
@given(CHANCES, st.integers(1, 5), st.integers(1, 3), WANTED)
def test_node_that_joins_loads_nothing_the_others_have(
    chance: random.Random, number: int, joining: int, wanted: dict[str, int]
) -> None:
    """It knows nobody at first and hears last what the others have: it waits for their word."""
    wanted = {model: min(copies, number) for model, copies in wanted.items()}
    sim = settled(chance, number, wanted)
    before = Counter(sim.num_loads)
    for index in range(joining):
        sim.join(able(f"new{index}", wanted), meets_seconds=DELAY_SECONDS - 1, offers_seconds=UNHEARD_SECONDS - 2)
        sim.run(chance.uniform(0, 20))
    sim.run(SETTLED_SECONDS)
    assert sim.num_loads == before


@settings(max_examples=30)
@given(CHANCES, st.integers(2, 6), WANTED)
def test_node_that_is_back_within_the_delay_costs_no_load(
    chance: random.Random, number: int, wanted: dict[str, int]
) -> None:
    """A node that starts anew and has its models again in that time is missed by nobody."""
    sim = settled(chance, number, wanted)
    before = Counter(sim.num_loads)
    for _ in range(3):
        away = sim.nodes[chance.choice(sorted(sim.nodes))].own
        sim.kill(away.id)
        sim.run(DELAY_SECONDS - 5)
        sim.join(away)
        sim.run(30)
    assert sim.num_loads == before


@settings(max_examples=30)
@given(CHANCES, st.integers(2, 6), WANTED)
def test_partition_costs_copies_but_takes_none(chance: random.Random, number: int, wanted: dict[str, int]) -> None:
    """Each part loads what it lacks; when it is over nothing is loaded or lost, however often it comes again."""
    sim = settled(chance, number, wanted)
    names = sorted(sim.nodes)
    for _ in range(3):
        sim.part({name: chance.randrange(2) for name in names})
        sim.run(SETTLED_SECONDS)
        copies, loads = sim.copies(), Counter(sim.num_loads)
        sim.heal()
        sim.run(SETTLED_SECONDS)
        assert (sim.copies(), sim.num_loads) == (copies, loads)
    assert all(loads <= number for loads in sim.num_loads.values())


def begun(reconciler: Reconciler, own: Holder, seconds: int) -> list[int]:
    """The seconds at which a node begins a model that never stays."""
    return [now for now in range(seconds) if reconciler.begin(float(now), [own], {"m": 1})]


def test_model_that_does_not_load_is_tried_ever_more_seldom() -> None:
    """Of one that fails each time the rest doubles, from five minutes to an hour."""
    times = begun(Reconciler("a", DELAY_SECONDS), able("a", {"m": 1}), 24 * 3600)
    rests = [later - earlier - DELAY_SECONDS for earlier, later in itertools.pairwise(times)]
    assert times[0] == DELAY_SECONDS
    assert rests[:4] == [REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS, 8 * REST_SECONDS]
    assert set(rests[4:]) == {LONGEST_REST_SECONDS}


def test_model_that_is_unloaded_again_is_loaded_every_five_minutes_at_the_most() -> None:
    """A load that ended well does not count as one that failed, however often its memory is needed for another."""
    reconciler, own, times = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1}), list[int]()
    for now in range(3600):
        is_there = times and 20 <= now - times[-1] < 40
        told = msgspec.structs.replace(own, loaded=frozenset("m" if is_there else ""))
        if reconciler.begin(float(now), [told], {"m": 1}):
            times.append(now)
    assert times == [*range(10, 3600, int(REST_SECONDS + DELAY_SECONDS))]


def test_load_that_ended_a_process_is_not_begun_at_each_start() -> None:
    """What a node had begun before it was started rests on, and counts."""
    first = Reconciler("a", DELAY_SECONDS)
    (began,) = begun(first, able("a", {"m": 1}), 20)
    again = Reconciler("a", DELAY_SECONDS, first.begun())
    (second,) = begun(again, able("a", {"m": 1}), 600)
    assert second == began + REST_SECONDS + DELAY_SECONDS
    assert again.begun()["m"].times == 2


def test_nodes_that_come_and_go_keep_no_model_from_being_loaded() -> None:
    """One that is started again and again, and is unknown each time, is waited for, and then it is loaded at once."""
    reconciler, own = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1})

    def others(now: int) -> list[Holder]:
        phase = now % 8
        return [Holder(id="b", is_heard=phase != 2)] if 2 <= phase < 5 else []

    times = [now for now in range(60) if reconciler.begin(float(now), [own, *others(now)], {"m": 1})]
    assert times == [DELAY_SECONDS + 1]


def test_node_that_could_and_does_not_is_passed_by() -> None:
    """A model that falls to a node which never begins goes to the next, also where several are so."""
    reconciler, own = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1})
    idle = [msgspec.structs.replace(able(name, {"m": 1}), memory_bytes=1 << 62) for name in "xyz"]
    times = [now for now in range(400) if reconciler.begin(float(now), [own, *idle], {"m": 1})]
    assert times == [3 * (DELAY_SECONDS + LATE_SECONDS) + DELAY_SECONDS]


def test_node_that_loads_another_model_first_is_waited_for() -> None:
    """A node that is at a load of half an hour keeps its turn for the next model; after that it has begun in time."""
    reconciler, own = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1})
    busy = msgspec.structs.replace(able("b", {"m": 1}), memory_bytes=1 << 62, loading=frozenset("n"))
    wanted = {"m": 1, "n": 1}
    assert not [now for now in range(1800) if reconciler.begin(float(now), [own, busy], wanted)]
    done = msgspec.structs.replace(busy, loading=frozenset(), loaded=frozenset("n"))
    ended = range(1800, 1800 + int(DELAY_SECONDS + LATE_SECONDS) - 1)
    assert not [now for now in ended if reconciler.begin(float(now), [own, done], wanted)]


def test_model_must_be_short_all_the_while() -> None:
    """One that has enough copies for a moment is waited for anew."""
    reconciler, own = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1})
    other = Holder(id="b", loaded=frozenset("m"))
    assert not reconciler.begin(0.0, [own], {"m": 1})
    assert not reconciler.begin(DELAY_SECONDS - 1, [own, other], {"m": 1})
    assert not reconciler.begin(DELAY_SECONDS, [own], {"m": 1})
    assert reconciler.begin(2 * DELAY_SECONDS, [own], {"m": 1}) == "m"


def test_peer_that_never_tells_what_it_has_stops_nobody() -> None:
    """A peer's first word is waited for, but not for ever: it may run another version."""
    reconciler, own = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1})
    mute = Holder(id="b", is_heard=False)
    times = [now for now in range(120) if reconciler.begin(float(now), [own, mute], {"m": 1})]
    assert times == [UNHEARD_SECONDS]


def test_models_fall_due_each_by_itself() -> None:
    """A model that comes to be short later does not have the earlier one wait longer."""
    reconciler, own = Reconciler("a", DELAY_SECONDS), able("a", {"m": 1, "n": 1})
    assert not reconciler.begin(0.0, [own], {"n": 1})
    assert not reconciler.begin(DELAY_SECONDS - 1, [own], {"n": 1, "m": 1})
    assert reconciler.begin(DELAY_SECONDS, [own], {"n": 1, "m": 1}) == "n"
    assert reconciler.resting(DELAY_SECONDS) == {"n"}
    left = msgspec.structs.replace(own, placeable=frozenset("m"), loaded=frozenset("n"))
    assert reconciler.begin(2 * DELAY_SECONDS, [left], {"n": 1, "m": 1}) == ""
    assert reconciler.begin(3 * DELAY_SECONDS, [left], {"n": 1, "m": 1}) == "m"
