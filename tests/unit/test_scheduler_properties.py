"""Random loads under every policy: nobody is left waiting, nothing is exceeded, every text is the one given alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner, LaunchingRunner

from pyagent.core.messages import Origin
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Request
from pyagent.infrastructure.engine.scheduler.admission import OutputLengths
from pyagent.infrastructure.engine.scheduler.policies import BUILT_IN
from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues
from pyagent.infrastructure.engine.scheduler.scheduler import Scheduler, SchedulerLimits

ENDS = frozenset(range(0, 1009, 25))
PREEMPTING = {
    "mlfq": {"quantum": 4, "levels": 3, "boost_seconds": 30},
    "priority": {"ageing_seconds": 10, "preempts": True},
    "deadline": {"preempts": True},
}
QUEUES = [*map(QueueOptions, BUILT_IN), *(QueueOptions(name, options) for name, options in PREEMPTING.items())]


class Arrival(NamedTuple):
    """A request of a random load."""

    step: int
    num_prompt: int
    num_shared: int
    max_tokens: int
    patience: int | None
    priority: int
    may_stop: bool


arrivals = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 30),
        num_prompt=st.integers(1, 90),
        num_shared=st.integers(0, 40),
        max_tokens=st.integers(1, 120),
        patience=st.none() | st.integers(0, 40),
        priority=st.integers(-2, 2),
        may_stop=st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


class Load:
    """An engine with memory far too small for its load, a clock that ticks once a step, and the clients."""

    def __init__(self, engine: Engine, plan: list[Arrival]) -> None:
        self.engine = engine
        self.now = 0
        self.clients = [self._client(number, arrival) for number, arrival in enumerate(plan)]
        self.plan = plan

    def _client(self, number: int, arrival: Arrival) -> Client:
        own = range(5000 + number * 100 + arrival.num_shared, 5000 + number * 100 + arrival.num_prompt)
        tokens = [*range(min(arrival.num_shared, arrival.num_prompt)), *own]
        client = Client(number, tokens, arrival.max_tokens, ENDS if arrival.may_stop else frozenset())
        client.request.arrived = float(arrival.step)
        client.request.priority = arrival.priority
        client.request.deadline = arrival.step + 100.0 if arrival.priority > 0 else None
        client.request.origin = Origin(client=str(arrival.priority))
        client.request.request_class = "bulk" if number % 3 == 0 else "default"
        return client

    def step(self) -> bool:
        """Arrivals and aborts of this tick, then one step."""
        for client, arrival in zip(self.clients, self.plan, strict=True):
            if arrival.step == self.now:
                self.engine.scheduler.add(client.request)
            if arrival.patience is not None and arrival.step + arrival.patience == self.now:
                self.engine.end(client.request)
        has_worked = self.engine.step()
        assert has_worked or not self.engine.scheduler.has_work
        self.now += 1
        return has_worked or self.now < 80


def check_books(scheduler: Scheduler) -> None:
    """What the scheduler counts is what there is."""
    running = scheduler.running()
    assert len({request.id for request in running}) == scheduler.num_running
    growth = sum(request.num_expected - request.num_pages for request in running)
    free, spare = scheduler.runner.free_pages, scheduler.admission.spare_pages
    if free == scheduler.runner.free_pages:  # else a step beside this thread has just found a block that was there
        assert spare == free - growth
    held = {request.id for request in scheduler.queues.waiting}
    assert not held & {request.id for request in running}


class Hopeful(OutputLengths):
    """Expects everybody to stop after one token."""

    def expected(self, request: Request) -> int:
        return 1


@pytest.mark.parametrize("queue", QUEUES, ids=str)
@settings(max_examples=60, deadline=None)
@given(
    plan=arrivals,
    blocks=st.integers(15, 30) | st.just(300),
    max_num_batched_tokens=st.integers(1, 64),
    max_num_seqs=st.integers(1, 8),
    is_hopeful=st.booleans(),
    can_swap=st.booleans(),
    num_lost=st.integers(0, 2),
    scheduling=st.sampled_from(["off", "on", "ahead"]),
    num_lookahead_tokens=st.integers(0, 3),
)
def test_every_request_finishes_within_its_bounds_and_gives_its_blocks_back(
    queue: QueueOptions,
    plan: list[Arrival],
    blocks: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    is_hopeful: bool,
    can_swap: bool,
    num_lost: int,
    scheduling: str,
    num_lookahead_tokens: int,
) -> None:
    """Whatever arrives, stops or is aborted when: no step exceeds the budget, every text is the one a request has
    alone, preempted or not, in steps of one token or several, each ends once, and at the end no block is held."""
    kind = LaunchingRunner if scheduling == "ahead" else CountingRunner
    runner = kind(blocks, can_swap=can_swap, num_lost=num_lost, num_lookahead_tokens=num_lookahead_tokens)
    queues = make_queues({"default": queue, "bulk": replace(queue, share=0.5)})
    load: Load
    limits, is_async = SchedulerLimits(max_num_seqs, max_num_batched_tokens), scheduling != "off"
    engine = Engine(runner, limits, queues, clock=lambda: load.now, is_async=is_async)
    load = Load(engine, plan)
    if is_hopeful:  # short answers are expected, so that too many are admitted
        engine.scheduler.admission.lengths = Hopeful()
    for _ in range(20_000):
        if not load.step():
            break
        assert engine.scheduler.num_running <= max_num_seqs
        check_books(engine.scheduler)
    else:
        pytest.fail("requests were left waiting")
    assert not engine.scheduler.has_work
    engine.close()
    assert all(len(batch.tokens) <= max_num_batched_tokens for batch in runner.batches)
    if blocks == 300:  # memory for all: only seats are taken
        assert all(client.request.num_preemptions <= 4 for client in load.clients)
    for client in load.clients:
        assert client.request.finish_reason == "abort" or client.is_well
        assert [output.finish_reason for output in client.news].count(None) == len(client.news) - 1
        assert [token for output in client.news for token in output.tokens] == client.request.tokens[
            client.request.num_prompt_tokens :
        ]
    assert runner.pool.stats().active == 0
    assert not runner.swapped


def favoured() -> Iterator[Client]:
    """Requests that each policy puts before the one that waits, without end."""
    number = 1
    while True:
        client = Client(number, [number], 2)
        client.request.priority = -5
        client.request.origin = Origin(client=f"new {number}")
        yield client
        number += 1


@pytest.mark.parametrize("queue", QUEUES, ids=str)
def test_no_policy_starves_a_request_however_many_others_come(queue: QueueOptions) -> None:
    """One place, a less urgent request that waits, and a more urgent one arriving at every step: it is done in time."""
    now = 0.0
    if queue == QueueOptions("priority"):
        queue = QueueOptions("priority", {"ageing_seconds": 10})
    engine = Engine(
        CountingRunner(num_blocks=20),
        SchedulerLimits(max_num_seqs=1),
        make_queues({"default": queue}),
        clock=lambda: now,
    )
    waiting = Client(0, list(range(100)), 20)
    waiting.request.arrived = 0.0
    waiting.request.origin = Origin(client="z")
    engine.scheduler.add(waiting.request)
    others = favoured()
    while waiting.request.finish_reason is None:
        now += 1.0
        client = next(others)
        client.request.arrived = now
        client.request.deadline = now + 1
        engine.scheduler.add(client.request)
        engine.step()
        assert now < 500
    assert waiting.is_well
