"""Rates, concurrency, money and hedges: no limit is ever exceeded, whatever the order of calls and the clock."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import Clock

from pyagent.core.chain.balancing import Balancer, Standing
from pyagent.core.errors import BudgetError
from pyagent.core.resilience.concurrency import Concurrency
from pyagent.core.resilience.latency import RecentTimes
from pyagent.core.resilience.rate import RateLimit, TokenBucket
from pyagent.core.resilience.retry import RetryBudget
from pyagent.core.resilience.spend_limit import SpendLimit

gaps = st.lists(st.floats(0, 30), max_size=80)


@settings(deadline=None)
@given(gaps, st.integers(1, 6), st.floats(1, 60))
def test_window_never_lets_more_by(pauses: list[float], count: int, seconds: float) -> None:
    """In any stretch as long as the window there are at most as many requests as it allows."""
    clock, taken = Clock(), list[float]()
    limit = RateLimit(count, seconds, count, "window", clock=clock)
    for pause in pauses:
        clock.now += pause
        if limit.wait_seconds("") == 0:
            limit.take("")
            taken.append(clock.now)
    for at, start in enumerate(taken):
        assert bisect_right(taken, start + seconds * (1 - 1e-9)) - at <= count


@settings(deadline=None)
@given(gaps, st.integers(1, 6), st.integers(1, 10), st.floats(1, 60))
def test_bucket_never_lets_more_by_than_its_burst_and_its_flow(
    pauses: list[float], count: int, burst: int, seconds: float
) -> None:
    """From any moment on, no more go than the burst and what flowed in since; and a wait it names is long enough."""
    clock, taken = Clock(), list[float]()
    limit = RateLimit(count, seconds, burst, clock=clock)
    for pause in pauses:
        clock.now += pause
        wait = limit.wait_seconds("")
        if wait:
            clock.now += wait
            assert limit.wait_seconds("") == 0
        limit.take("")
        taken.append(clock.now)
    for at, start in enumerate(taken):
        for further, end in enumerate(taken[at:], 1):
            assert further <= burst + (end - start) * count / seconds + 1e-6


def test_clients_are_forgotten_longest_unseen_first() -> None:
    """However many clients come, the memory for them is bounded."""
    limit = RateLimit(1, 3600, 1, is_per_client=True, clock=Clock())
    for number in range(10_050):
        assert limit.wait_seconds(f"c{number}") == 0
        limit.take(f"c{number}")
    assert len(limit._client_to_limit) == 10_000
    assert limit.wait_seconds("c10049") > 0
    assert limit.wait_seconds("c0") == 0


@settings(deadline=None)
@given(st.lists(st.sampled_from(["enter", "leave", "overloaded", "fast", "slow"]), max_size=200), st.booleans())
def test_concurrency_is_never_exceeded(steps: list[str], is_adaptive: bool) -> None:
    """No call enters when the limit is reached; an adaptive limit stays between one and a thousand."""
    clock = Clock()
    room = Concurrency(None if is_adaptive else 3, is_adaptive=is_adaptive, clock=clock)
    slots = []
    for step in steps:
        clock.now += 0.1
        if step == "enter":
            before, slot = room.num_in_flight, room.enter()
            assert (slot is not None) == (before < (room.limit or 0))
            slots += [slot] if slot else []
        elif slots:
            slot = slots.pop()
            if step == "overloaded":
                room.overloaded(slot)
            elif step != "leave":
                room.answered(slot, 0.01 if step == "fast" else 5.0)
            room.leave()
        assert 1 <= (room.limit or 0) <= 1000
        assert room.num_in_flight == len(slots)


def test_one_burst_of_refusals_cuts_once() -> None:
    """Calls sent under one limit and refused together shrink it once: they all found the same."""
    clock = Clock()
    room = Concurrency(is_adaptive=True, clock=clock)
    slots = [room.enter() for _ in range(8)]
    clock.now += 1
    for slot in slots:
        assert slot
        room.overloaded(slot)
    assert room.limit == 5


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1), st.floats(0, 2000)), max_size=60))
def test_purse_is_never_overspent(calls: list[tuple[float, float, float]]) -> None:
    """When calls cost no more than they reserved, an hour costs no more than its limit, nor a request than its own."""
    clock, spent = Clock(), list[tuple[float, float]]()
    spend_limit, waiting = SpendLimit(per_request=2.0, per_hour=10.0, clock=clock), list[tuple[float, float]]()
    for usd, part, pause in calls:
        clock.now += pause
        try:
            spend_limit.reserve(usd)
        except BudgetError:
            continue
        assert usd <= 2.0
        waiting.append((usd, usd * part))
        if len(waiting) > 2:
            reserved, used = waiting.pop(0)
            spend_limit.settle(reserved, used)
            spent.append((clock.now, used))
        recent = sum(used for at, used in spent if at > clock.now - 3600)
        assert recent + spend_limit.reserved <= 10.0 + 1e-6
    for reserved, used in waiting:
        spend_limit.settle(reserved, used)
    assert spend_limit.reserved == pytest.approx(0, abs=1e-9)


@settings(deadline=None)
@given(st.integers(0, 500))
def test_hedges_stay_within_their_part_of_requests(num_requests: int) -> None:
    """The budget that hedges are drawn from gives one for twenty requests, and one at the start."""
    hedges = RetryBudget(capacity=5.0, ratio=0.05, left=1.0)
    num_hedges = 0
    for _ in range(num_requests):
        hedges.succeed()
        num_hedges += hedges.left >= 1 and hedges.spend()
    assert num_hedges <= 1 + num_requests * 0.05 + 1e-6


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=5), st.integers(1, 300))
def test_weights_converge(weights: list[float], num_requests: int) -> None:
    """After any number of requests each neighbour is within one of its share for each of the others."""
    links = [Standing(name=f"e:{at}", weight=weight) for at, weight in enumerate(weights)]
    turns, first = Balancer("round_robin"), [0] * len(links)
    for _ in range(num_requests):
        first[turns.order(links, random.Random(0).random)[0]] += 1
    for count, weight in zip(first, weights, strict=True):
        assert abs(count - num_requests * weight / sum(weights)) <= len(links)


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=20, max_size=300), st.floats(0.5, 0.99))
def test_percentile_is_of_the_last_times(times: list[float], part: float) -> None:
    """A percentile lies among the last two hundred times; there is none of fewer than twenty."""
    recent = RecentTimes()
    for at, seconds in enumerate(times):
        recent.add(seconds)
        if at < 19:
            assert recent.percentile(part) is None
    found = recent.percentile(part)
    assert found is not None
    assert min(times) <= found <= max(times)


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 100), st.floats(0, 500))))
def test_token_bucket_gives_no_more_than_its_rate(per_minute: int, steps: list[tuple[float, float]]) -> None:
    """A client that takes only what is there gets at most a minute's worth at once, and its rate after that."""
    now, taken = 0.0, 0.0
    bucket = TokenBucket(per_minute, 60, per_minute, lambda: now)
    for seconds, wanted in steps:
        now += seconds
        count = min(wanted, bucket.level)
        bucket.take(count)
        taken += count
        assert taken <= per_minute * (1 + now / 60) * (1 + 1e-9)
        assert bucket.wait_seconds(per_minute) <= 60 + 1e-6


def test_token_bucket_that_was_overdrawn_waits_until_that_is_made_good() -> None:
    """More than there is can be taken, as with tokens known only afterwards; the next waits for it."""
    now = 0.0
    bucket = TokenBucket(60, 60, 60, lambda: now)
    bucket.take(100)
    assert (bucket.level, bucket.wait_seconds()) == (-40, 41)
    now = 41.0
    assert bucket.wait_seconds() == 0
