"""Which copy of an engine gets a request: the warm one unless its queue costs more, else the one with least to do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.cluster.coordinator import Coordinator, CopyLoad, Prompt
from pyagent.core.cluster.routing import Balancer

SHARED = Prompt(num_tokens=2000, keys=tuple(range(31)))
QUICK = CopyLoad(num_running=0, prefill_tokens_per_second=1000.0, first_token_seconds=0.5)


def coordinator_of(num_copies: int) -> Coordinator:
    return Coordinator(num_copies, Balancer(rng=random.Random(1)))


NOTHING = Prompt()


def sent(coordinator: Coordinator, prompt: Prompt = NOTHING) -> int:
    copy = coordinator.choose(prompt)
    assert copy is not None
    coordinator.began(copy, prompt)
    return copy


def answers(coordinator: Coordinator, copy: int, prompt: Prompt = NOTHING) -> None:
    """Send a prompt to a copy, which computes it and begins its answer."""
    coordinator.computed(copy, coordinator.began(copy, prompt))


@pytest.mark.parametrize("num_copies", [2, 3, 16])
def test_burst_spreads_evenly_before_any_copy_tells_anything(num_copies: int) -> None:
    """Of requests sent at once each copy gets as many as any other."""
    coordinator = coordinator_of(num_copies)
    shares = Counter(sent(coordinator, Prompt(num_tokens=50)) for _ in range(num_copies * 10))
    assert set(shares.values()) == {10}


def test_warm_copy_is_asked_until_its_queue_costs_more_than_the_prefill() -> None:
    """A prompt of two seconds goes to the copy that has it while less than that is to be computed there before it."""
    coordinator = coordinator_of(2)
    for copy in (0, 1):
        coordinator.told(copy, QUICK)
    answers(coordinator, 1, SHARED)
    shares = [sent(coordinator, SHARED) for _ in range(40)]
    num_before = shares.index(0)
    assert 4 <= num_before < 2000 // 32


def test_prompt_goes_where_fewer_tokens_are_left_not_fewer_requests() -> None:
    """Behind one prompt of four seconds a request waits longer than behind three short ones, until that has begun."""
    coordinator = coordinator_of(2)
    for copy in (0, 1):
        coordinator.told(copy, QUICK)
    num_long = coordinator.began(0, Prompt(num_tokens=4000))
    for _ in range(3):
        coordinator.began(1, Prompt(num_tokens=100))
    assert coordinator.choose(Prompt(num_tokens=400)) == 1
    coordinator.computed(0, num_long)
    assert coordinator.choose(Prompt(num_tokens=400)) == 0


def test_more_requests_than_may_run_at_once_wait_for_one_to_end() -> None:
    """Two copies compute as much; at the one whose places are all taken a request waits."""
    coordinator = coordinator_of(2)
    for copy in (0, 1):
        coordinator.told(copy, CopyLoad(num_running=4, max_num_running=5 - copy, first_token_seconds=0.5))
        for _ in range(4):
            answers(coordinator, copy)
    assert coordinator.choose(Prompt(num_tokens=10)) in {0, 1}
    answers(coordinator, 1)
    assert {coordinator.choose(Prompt(num_tokens=10)) for _ in range(10)} == {0}


def test_session_stays_with_its_copy_unless_others_wait_there() -> None:
    """A conversation counts as warm where it was last; another tenant's of the same name does not."""
    coordinator = coordinator_of(4)
    mine = Prompt(num_tokens=200, session=("a", "s"))
    home = 3
    answers(coordinator, home, mine)
    coordinator.ended(home, 0)
    for _ in range(20):
        assert coordinator.choose(mine) == home
    for _ in range(8):
        coordinator.began(home, Prompt())
    assert sent(coordinator, mine) != home
    other = Prompt(num_tokens=200, session=("b", "s"))
    assert sent(coordinator, other) != home


def test_copies_that_were_not_measured_yet_count_as_quick_as_the_others() -> None:
    """Four requests at once go to two idle copies by halves, though only one of them has told how quick it is."""
    coordinator = coordinator_of(2)
    coordinator.told(0, CopyLoad(prefill_tokens_per_second=5000.0, first_token_seconds=0.005))
    assert Counter(sent(coordinator, Prompt(num_tokens=30)) for _ in range(4)) == {0: 2, 1: 2}


def test_copy_that_died_gets_nothing_until_it_is_back() -> None:
    """Its requests and new ones go to others; with none up, any copy is waited for, but nothing is moved."""
    coordinator = coordinator_of(3)
    coordinator.died(1)
    assert {sent(coordinator) for _ in range(12)} == {0, 2}
    assert coordinator.choose(Prompt(), without={0}) == 2
    coordinator.died(0)
    coordinator.died(2)
    assert coordinator.choose(Prompt(), without={0}) is None
    assert coordinator.choose(Prompt()) in {0, 1, 2}
    coordinator.is_back(1)
    assert coordinator.choose(Prompt()) == coordinator.choose(Prompt(), without={0}) == 1


def test_nothing_is_warm_in_a_process_that_started_anew() -> None:
    """After a death, or when memory was given back, a prompt is computed anew, wherever it goes."""
    for forget in (lambda one: one.died(0), lambda one: one.forget_prompts()):
        coordinator = coordinator_of(2)
        for copy in (0, 1):
            coordinator.told(copy, QUICK)
        answers(coordinator, 0, SHARED)
        answers(coordinator, 1)
        assert coordinator.choose(SHARED) == 0
        forget(coordinator)
        coordinator.is_back(0)
        for copy in (0, 1):
            coordinator.told(copy, QUICK)
        assert {coordinator.choose(SHARED) for _ in range(20)} == {0, 1}


def test_copy_without_kv_memory_counts_what_runs_as_waiting() -> None:
    """Where no page is free a new request waits for one that ends, however well the others run."""
    coordinator = coordinator_of(2)
    for copy in (0, 1):
        coordinator.told(copy, CopyLoad(num_running=3, free_kv_pages=copy, first_token_seconds=0.5))
        for _ in range(3):
            answers(coordinator, copy)
    assert coordinator.choose(Prompt(num_tokens=10)) == 1


@pytest.mark.parametrize(
    "forget", [lambda coordinator: coordinator.died(0), lambda coordinator: coordinator.forget_prompts()]
)
def test_sessions_are_not_warm_where_memory_is_gone(forget: Callable[[Coordinator], None]) -> None:
    """A conversation's copy that died, or gave its memory back, is chosen for it no sooner than another."""
    coordinator, prompt = coordinator_of(2), Prompt(num_tokens=1000, session=("tenant", "s"))
    answers(coordinator, 0, prompt)
    coordinator.ended(0, 0)
    assert {coordinator.choose(prompt) for _ in range(20)} == {0}
    forget(coordinator)
    coordinator.is_back(0)
    coordinator.began(0, Prompt())
    assert coordinator.choose(prompt) == 1


@given(st.data(), st.integers(1, 6))
def test_counts_are_of_what_began_and_has_not_ended(data: st.DataObject, num_copies: int) -> None:
    """Whatever happens, a copy is chosen while one is up, never one that is down, and counts never drift."""
    coordinator = coordinator_of(num_copies)
    running: list[tuple[int, int]] = []
    down: set[int] = set()
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["send", "compute", "end", "die", "back", "tell"])):
            case "send":
                keys = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
                prompt = Prompt(num_tokens=100, keys=keys, session=("t", str(len(keys))))
                copy = coordinator.choose(prompt)
                assert copy is not None
                assert copy not in down or len(down) == num_copies
                running.append((copy, coordinator.began(copy, prompt)))
            case "compute" if running:
                copy, num_tokens = running.pop(data.draw(st.integers(0, len(running) - 1)))
                coordinator.computed(copy, num_tokens)
                running.append((copy, 0))
            case "end" if running:
                coordinator.ended(*running.pop(data.draw(st.integers(0, len(running) - 1))))
            case "die":
                copy = data.draw(st.integers(0, num_copies - 1))
                coordinator.died(copy)
                down.add(copy)
            case "back" if down:
                coordinator.is_back(down.pop())
            case _:
                coordinator.told(data.draw(st.integers(0, num_copies - 1)), CopyLoad(num_running=9))
        for copy in range(num_copies):
            left = [num_tokens for one, num_tokens in running if one == copy]
            assert coordinator.num_requests(copy) == len(left)
            assert coordinator.num_prompt_tokens_left(copy) == sum(left)
