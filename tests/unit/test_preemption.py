"""Waiting requests that take the seats of running ones: who may, how often, and that texts stay what they are."""

from __future__ import annotations

import pytest
from support.counting_runner import Client, CountingRunner, run_to_end

from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits

MLFQ = QueueOptions("mlfq", {"quantum": 8, "boost_seconds": 1000})


def engine_of(queue: QueueOptions, runner: CountingRunner, seats: int) -> Engine:
    return Engine(runner, SchedulerLimits(max_num_seqs=seats), make_queues({"default": queue}), clock=lambda: 0.0)


def steps(engine: Engine, number: int) -> None:
    for _ in range(number):
        engine.step()


def test_short_request_takes_the_seat_of_one_that_used_up_its_quantum() -> None:
    """One seat: a request of 8 draws or more gives it to a new one at once, one of fewer draws keeps it. What it had
    computed is found again: all that is computed twice is the block it was in."""
    runner = CountingRunner(num_blocks=100)
    engine = engine_of(MLFQ, runner, seats=1)
    long, early, late = Client(0, list(range(40)), 60), Client(1, [1], 3), Client(2, [2], 3)
    engine.scheduler.add(long.request)
    steps(engine, 2)
    engine.scheduler.add(early.request)
    steps(engine, 2)
    assert not early.news  # 40 prompt tokens count as 4, and 4 draws
    steps(engine, 3)
    assert early.is_well
    assert long.request.num_preemptions == 1
    steps(engine, 5)
    engine.scheduler.add(late.request)
    steps(engine, 3)
    assert late.is_well
    run_to_end(engine)
    assert long.is_well
    assert engine.scheduler.num_preemptions == {"recompute": 2}
    assert sum(len(batch.tokens) for batch in runner.batches) <= (40 + 59) + 2 * 3 + 2 * 16


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority", "deadline"])
def test_other_policies_take_no_seat_unless_asked_to(policy: str) -> None:
    """A request runs to its end though a more urgent one waits."""
    engine = engine_of(QueueOptions(policy), CountingRunner(num_blocks=100), seats=1)
    first, urgent = Client(0, [1, 2], 50), Client(1, [3], 1)
    urgent.request.priority, urgent.request.deadline = -9, 1.0
    engine.scheduler.add(first.request)
    engine.step()
    engine.scheduler.add(urgent.request)
    steps(engine, 49)
    assert first.is_well
    assert not urgent.news


@pytest.mark.parametrize("policy", ["priority", "deadline"])
def test_urgent_request_takes_the_seat_of_the_last_in_order_when_settings_say_so(policy: str) -> None:
    """With `preempts` the least urgent of those that run goes, and no one for a request that is no more urgent."""
    engine = engine_of(QueueOptions(policy, {"preempts": True}), CountingRunner(num_blocks=100), seats=3)
    clients = [Client(number, [number] * 20, 30) for number in range(5)]
    for client, urgency in zip(clients, (1, 3, 2, 3, 0), strict=True):
        client.request.arrived = 0.0
        client.request.priority, client.request.deadline = urgency, 100.0 + urgency
    for client in clients[:3]:
        engine.scheduler.add(client.request)
    steps(engine, 5)
    engine.scheduler.add(clients[3].request)
    steps(engine, 5)
    assert not clients[3].news
    engine.scheduler.add(clients[4].request)
    steps(engine, 1)
    assert [client.request.num_preemptions for client in clients] == [0, 1, 0, 0, 0]
    run_to_end(engine)
    assert all(client.is_well for client in clients)


def test_seat_is_lost_four_times_at_most() -> None:
    """However many short requests come, a long one is put back four times and then keeps its seat."""
    engine = engine_of(MLFQ, CountingRunner(num_blocks=100), seats=1)
    long = Client(0, list(range(40)), 200)
    engine.scheduler.add(long.request)
    number = 1
    while long.request.finish_reason is None:
        if engine.scheduler.queues.num_waiting == 0:
            engine.scheduler.add(Client(number, [number], 2).request)
            number += 1
        engine.step()
    assert long.is_well
    assert long.request.num_preemptions == 4


@pytest.mark.parametrize("can_swap", [False, True])
def test_seats_are_taken_for_memory_by_as_many_as_it_takes(can_swap: bool) -> None:
    """Places are left but no memory: requests of lower levels go, by swap where that is quicker, until it suffices."""
    runner = CountingRunner(num_blocks=40, can_swap=can_swap)
    engine = engine_of(MLFQ, runner, seats=8)
    engine.scheduler.costs.note(0.1, 100, 0)
    old = [Client(number, [number] * 100, 60) for number in range(3)]
    for client in old:
        engine.scheduler.add(client.request)
    steps(engine, 20)
    new = Client(9, [9] * 78, 240)
    engine.scheduler.add(new.request)
    steps(engine, 3)
    assert new.news
    assert [client.request.num_preemptions for client in old].count(1) == 2
    assert engine.scheduler.num_preemptions == {"swap" if can_swap else "recompute": 2}
    run_to_end(engine)
    assert all(client.is_well for client in [*old, new])
    assert not runner.swapped


def test_no_seat_is_lost_in_vain() -> None:
    """A request that could not start though all of lower levels went away waits, and they run on."""
    engine = engine_of(MLFQ, CountingRunner(num_blocks=38), seats=8)
    low, high = Client(0, [1] * 100, 60), Client(1, [2] * 20, 400)
    big = Client(2, [3] * 70, 500)
    for client in (low, high):
        engine.scheduler.add(client.request)
    steps(engine, 1)
    engine.scheduler.add(big.request)
    steps(engine, 4)
    assert engine.scheduler.num_preemptions.total() == 0
    run_to_end(engine)
    assert all(client.is_well for client in (low, high, big))


@pytest.mark.parametrize(("so_far", "expected"), [((0, 4), [1, 4]), ((4, 4), [4, 5]), ((0, 0), [0, 1])])
def test_memory_is_given_up_by_one_that_was_spared_until_the_oldest_alone_is_left(
    so_far: tuple[int, int], expected: list[int]
) -> None:
    """The newest yields, unless it did so four times and others did not; where all did, the oldest finishes."""
    engine = engine_of(QueueOptions(), CountingRunner(num_blocks=16), seats=2)
    clients = [Client(number, [number] * 48, 200) for number in range(2)]
    for client, num_preemptions in zip(clients, so_far, strict=True):
        client.request.arrived = float(client.request.id)
        client.request.num_preemptions = num_preemptions
        engine.scheduler.admission.lengths.note(client.request)  # no long answer is expected, so that both start
        engine.scheduler.add(client.request)
    steps(engine, 2)
    assert engine.scheduler.num_running == 2
    while not engine.scheduler.num_preemptions:
        engine.step()
    assert [client.request.num_preemptions for client in clients] == expected
    run_to_end(engine)
    assert all(client.is_well for client in clients)
