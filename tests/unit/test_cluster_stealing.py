"""Who gets waiting requests: the division, and a simulation of nodes that know each other's loads late."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.cluster.stealing import Backlog, Idle, move_seconds, shares

TELL_SECONDS = 0.25


def test_division_is_that_of_the_rates() -> None:
    """Forty requests, two idle nodes as quick as this one: each gets a third, no more than it can begin."""
    backlog = Backlog(num_waiting=42, requests_per_second=1.0)
    wide = [Idle(id=name, num_free=64, requests_per_second=1.0) for name in "ab"]
    assert shares(backlog, wide) == {"a": 14, "b": 14}
    narrow = [Idle(id=name, num_free=2, requests_per_second=1.0) for name in "ab"]
    assert shares(backlog, narrow) == {"a": 2, "b": 2}


def test_quick_node_gets_more_than_a_slow_one() -> None:
    """A node three times as quick is given three times as many."""
    quick = Idle(id="quick", num_free=64, requests_per_second=3.0)
    slow = Idle(id="slow", num_free=64, requests_per_second=1.0)
    given = shares(Backlog(num_waiting=50, requests_per_second=1.0), [slow, quick])
    assert given["quick"] == pytest.approx(3 * given["slow"], abs=2)


def test_nothing_moves_where_the_move_costs_more_than_the_wait() -> None:
    """A short queue stays; a long prompt that is cold there, or a far node, moves only what would wait longer."""
    near = Idle(id="n", num_free=9, requests_per_second=10.0, prefill_tokens_per_second=100.0)
    short = Backlog(num_waiting=2, requests_per_second=10.0)
    assert shares(short, [near]) == {"n": 1}
    long = Backlog(num_waiting=2, requests_per_second=10.0, mean_prompt_tokens=1000.0)
    assert move_seconds(long, near) > 10
    assert shares(long, [near]) == {}
    far = Idle(id="f", num_free=9, requests_per_second=10.0, round_trip_seconds=1.0)
    assert shares(short, [far]) == {}
    assert shares(Backlog(num_waiting=0), [near]) == {}


@given(
    st.builds(
        Backlog,
        num_waiting=st.integers(0, 10_000),
        requests_per_second=st.floats(0, 1e12),
        answer_seconds=st.floats(0, 1e12),
        mean_prompt_tokens=st.floats(0, 1e9),
    ),
    st.lists(
        st.builds(
            Idle,
            id=st.uuids().map(str),
            num_free=st.integers(-3, 1000),
            requests_per_second=st.floats(0, 1e12),
            answer_seconds=st.floats(0, 1e12),
            prefill_tokens_per_second=st.floats(0, 1e12),
            round_trip_seconds=st.floats(0, 1e12),
        ),
        max_size=6,
        unique_by=lambda node: node.id,
    ),
)
def test_never_more_than_waits_nor_than_is_free(backlog: Backlog, idle: list[Idle]) -> None:
    """Whatever nodes tell of themselves, the shares are counts of requests that there are, for nodes that there are."""
    given_away = shares(backlog, idle)
    assert given_away.keys() <= {node.id for node in idle if node.num_free > 0}
    assert all(count > 0 for count in given_away.values())
    assert sum(given_away.values()) <= backlog.num_waiting


# -- simulation --------------------------------------------------------------------------------------------------------


@dataclass
class SimNode:
    """A node with slots that take `seconds` for a request each; its load is told each quarter of a second."""

    name: str
    slots: int
    seconds: float
    waiting: list[int] = field(default_factory=list[int])
    num_running: int = 0
    told_free: int = 0
    told_waiting: int = 0
    num_sent: int = 0

    @property
    def rate(self) -> float:
        return self.slots / self.seconds


def simulate(nodes: list[SimNode], num_requests: int, rng: random.Random, *, steals: bool) -> tuple[float, int]:
    """Put all requests on the first node; return when the last is done, and how often one was moved."""
    nodes[0].waiting = list(range(num_requests))
    computed, num_moves, moves_of = set[int](), 0, dict[int, int]()
    order = itertools.count()
    events: list[tuple[float, int, str, SimNode, int]] = []

    def at(when: float, what: str, node: SimNode, request: int = -1) -> None:
        heapq.heappush(events, (when, next(order), what, node, request))

    for node in nodes:
        at(rng.uniform(0, TELL_SECONDS), "tell", node)
        at(0.0, "begin", node)
    now = 0.0
    while len(computed) < num_requests:
        now, _, what, node, request = heapq.heappop(events)
        if what == "end":
            node.num_running -= 1
            assert request not in computed, "two nodes computed one request"
            computed.add(request)
        elif what == "arrive":
            node.waiting.append(request)
        elif what == "tell":
            node.told_free, node.told_waiting = node.slots - node.num_running, len(node.waiting)
            node.num_sent = 0
            at(now + TELL_SECONDS, "tell", node)
            for giver in nodes if steals else ():
                idle = [
                    Idle(
                        id=one.name,
                        num_free=one.told_free - one.num_sent,
                        requests_per_second=one.rate,
                        answer_seconds=one.seconds,
                    )
                    for one in nodes
                    if one is not giver and not one.told_waiting and one.told_free > one.num_sent
                ]
                backlog = Backlog(
                    num_waiting=len(giver.waiting), requests_per_second=giver.rate, answer_seconds=giver.seconds
                )
                for name, count in shares(backlog, idle).items():
                    taker = next(one for one in nodes if one.name == name)
                    movable = [one for one in giver.waiting if moves_of.get(one, 0) < 3][:count]
                    for one in movable:
                        giver.waiting.remove(one)
                        moves_of[one] = moves_of.get(one, 0) + 1
                        taker.num_sent += 1
                        num_moves += 1
                        at(now + 0.01, "arrive", taker, one)
        while node.waiting and node.num_running < node.slots:
            node.num_running += 1
            at(now + node.seconds * rng.uniform(0.5, 1.5), "end", node, node.waiting.pop(0))
    return now, num_moves


def test_forty_requests_on_one_of_three_nodes_take_little_more_than_a_third() -> None:
    """The last of forty is done within 1.3 times what three nodes need; without moving three times that."""
    for seed in range(20):
        nodes = [SimNode(name, 2, 1.0) for name in "abc"]
        without, _ = simulate([SimNode(name, 2, 1.0) for name in "abc"], 40, random.Random(seed), steals=False)
        taken, num_moves = simulate(nodes, 40, random.Random(seed), steals=True)
        assert taken < 1.3 * 40 / 6, seed
        assert without > 0.9 * 40 / 2
        assert num_moves < 60


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.05, 3.0)), min_size=2, max_size=5),
    st.integers(1, 60),
    st.integers(0, 1000),
)
def test_moving_is_never_much_worse_than_not_moving(shapes: list[tuple[int, float]], num: int, seed: int) -> None:
    """Nodes of any speed: each request is computed once, and the end is at most one answer of a slow node later."""
    make = lambda: [SimNode(str(number), *shape) for number, shape in enumerate(shapes)]  # noqa: E731
    without, _ = simulate(make(), num, random.Random(seed), steals=False)
    taken, _ = simulate(make(), num, random.Random(seed), steals=True)
    assert taken <= without + 1.5 * max(seconds for _, seconds in shapes) + TELL_SECONDS
