"""The scheduler and the engine's step, with a runner that computes nothing and the real block pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner, run_to_end

from pyagent.core.scheduling import Queued
from pyagent.infrastructure.engine.batch import PLAIN_KEY, Batch, PrefixKey, StepOutput
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.queues import ClassQueue, QueueOptions, RequestQueues, make_queues
from pyagent.infrastructure.engine.request import Output, Status
from pyagent.infrastructure.engine.scheduler import BLOCK_TOKENS, Scheduler, SchedulerLimits

arrivals = st.lists(
    st.tuples(
        st.integers(0, 30),  # step it arrives at
        st.integers(1, 90),  # tokens of the prompt
        st.integers(0, 40),  # of these, tokens every prompt begins with
        st.integers(1, 40),  # tokens to draw
        st.none() | st.integers(0, 40),  # steps after which it is aborted
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(arrivals, st.integers(9, 24), st.integers(1, 64), st.integers(1, 8))
def test_every_request_finishes_within_its_bounds_and_gives_its_blocks_back(
    plan: list[tuple[int, int, int, int, int | None]], num_blocks: int, token_budget: int, max_num_seqs: int
) -> None:
    """Whatever arrives when, with memory far too small for all: no step exceeds the budget, every text is the one a
    request has alone, preempted or not, and at the end no block is held."""
    runner = CountingRunner(num_blocks)
    engine = Engine(runner, SchedulerLimits(max_num_seqs, token_budget))
    clients: dict[int, tuple[Client, int, int | None]] = {}
    for number, (when, length, num_shared, max_tokens, patience) in enumerate(plan):
        tokens = [
            *range(min(num_shared, length)),
            *(5000 + number * 100 + place for place in range(num_shared, length)),
        ]
        clients[number] = (Client(number, tokens, max_tokens), when, patience)
    for step in range(20_000):
        for client, when, patience in clients.values():
            if when == step:
                engine.scheduler.add(client.request)
            if patience is not None and when + patience == step and client.request.status is not Status.FINISHED:
                engine.scheduler.remove(client.request)
                client.request.finish("abort")
        assert len(engine.scheduler.running) <= max_num_seqs
        if not engine.step() and step > 80:
            break
    else:
        pytest.fail("requests were left waiting")
    assert not engine.scheduler.has_work
    assert all(sum(len(segment.tokens) for segment in batch.segments) <= token_budget for batch in runner.batches)
    for client, _, _ in clients.values():
        assert client.request.finish_reason == "abort" or client.is_well
    assert runner.pool.stats().active == 0


def test_oldest_waiting_request_is_admitted_first_and_newest_running_one_yields() -> None:
    """When memory runs out the request admitted last goes back to wait, before those that never ran."""
    runner = CountingRunner(num_blocks=6)
    scheduler = Scheduler(runner, SchedulerLimits(max_num_seqs=8, token_budget=256))
    clients = [Client(number, [number * 100 + place for place in range(30)], 60) for number in range(3)]
    for client in clients:
        scheduler.add(client.request)
    works = scheduler.schedule()
    assert [work.request.id for work in works] == [0, 1]
    for work in works:
        request = work.request
        runner.pool.commit(request.id, request.tokens)
        request.num_computed = len(request.tokens)
        request.tokens += range(3 * BLOCK_TOKENS + 1 - len(request.tokens))
    works = scheduler.schedule()
    assert [work.request.id for work in works] == [0]
    assert [request.id for request in scheduler.queues.ordered(0.0)] == [1, 2]
    assert clients[1].request.num_preemptions == 1


def test_requests_with_a_common_prefix_compute_it_once() -> None:
    """Ten requests that arrive together with 64 common tokens compute them once."""
    runner = CountingRunner(num_blocks=100)
    engine = Engine(runner, SchedulerLimits(token_budget=1024))
    clients = [Client(number, [*range(64), 1000 + number], 4) for number in range(10)]
    for client in clients:
        engine.scheduler.add(client.request)
    run_to_end(engine)
    assert all(client.is_well for client in clients)
    assert sum(len(segment.tokens) for batch in runner.batches for segment in batch.segments) == 64 + 10 * (1 + 3)


@dataclass
class FaultyRunner(CountingRunner):
    """Fails at some steps."""

    faults: dict[int, Exception] = field(default_factory=dict)

    def execute(self, batch: Batch) -> StepOutput:
        fault = self.faults.get(len(self.batches))
        if fault is not None:
            self.batches.append(batch)
            raise fault
        return super().execute(batch)


def test_failed_step_ends_its_requests_with_the_reason_and_later_ones_are_served() -> None:
    """When a runner raises, the requests of that step end with its words, their blocks are free, the next is served."""
    runner = FaultyRunner(num_blocks=10, faults={1: RuntimeError("a kernel failed")})
    engine = Engine(runner)
    first, second = Client(1, [1, 2, 3], 5), Client(2, [4, 5], 5)
    engine.scheduler.add(first.request)
    run_to_end(engine)
    assert first.news[-1].finish_reason == "error"
    assert "a kernel failed" in (first.news[-1].error or "")
    assert runner.pool.stats().active == 0
    engine.scheduler.add(second.request)
    run_to_end(engine)
    assert second.is_well


def test_client_that_cannot_be_told_loses_only_its_own_request() -> None:
    """A client whose event loop is gone raises when told; its request ends, its neighbour's text is whole."""
    runner = CountingRunner(num_blocks=10)
    engine = Engine(runner)
    gone, well = Client(1, [1, 2, 3], 50), Client(2, [4, 5], 50)

    def raise_gone(output: Output) -> None:
        raise RuntimeError("Event loop is closed")

    gone.request.on_output = raise_gone
    engine.scheduler.add(gone.request)
    engine.scheduler.add(well.request)
    run_to_end(engine)
    assert well.is_well
    assert gone.request.finish_reason == "abort"
    assert gone.request.num_drawn == 1
    assert runner.pool.stats().active == 0


class BrokenPoolRunner(CountingRunner):
    """Cannot even start a sequence."""

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> int:
        raise RuntimeError("the pool is broken")


def test_loop_that_fails_ends_every_request_and_says_so_to_later_ones() -> None:
    """A fault outside of any step ends all requests with the reason; `submit` refuses later ones with it."""
    import threading

    from pyagent.core.errors import CapacityError

    engine = Engine(BrokenPoolRunner(num_blocks=4))
    client, ended = Client(1, [1], 1), threading.Event()
    client.request.on_output = lambda output: (client.news.append(output), ended.set())[0]
    engine.submit(client.request)
    assert ended.wait(10)
    assert "the pool is broken" in (client.news[-1].error or "")
    with pytest.raises(CapacityError, match="the pool is broken"):
        engine.submit(Client(2, [1], 1).request)
    engine.close()


def test_submit_refuses_when_too_many_wait_or_the_engine_is_closed() -> None:
    """A full queue says when to try again; a closed engine says so."""
    from pyagent.core.errors import CapacityError

    engine = Engine(CountingRunner(num_blocks=4), SchedulerLimits(max_num_waiting=0))
    with pytest.raises(CapacityError, match="0 requests wait already") as caught:
        engine.submit(Client(1, [1], 1).request)
    assert caught.value.retry_after_seconds == 1.0
    engine.close()
    engine.close()
    with pytest.raises(CapacityError, match="stopping"):
        engine.submit(Client(2, [1], 1).request)


def test_request_that_can_never_fit_is_refused_with_what_to_do() -> None:
    """A log longer than all KV memory ends with an error naming the setting, and does not block the queue."""
    engine = Engine(CountingRunner(num_blocks=2))
    big, small = Client(1, list(range(60)), 1), Client(2, [1], 1)
    done: list[Output] = []
    import threading

    ended = threading.Event()

    def tell(output: Output) -> None:
        done.append(output)
        if len(done) == 2:
            ended.set()

    big.request.on_output = small.request.on_output = tell
    engine.submit(big.request)
    engine.submit(small.request)
    assert ended.wait(10)
    engine.close()
    assert "raise engine.memory" in (done[0].error or "")
    assert done[1].finish_reason == "length"


@pytest.mark.parametrize("share", [1.0, 3.0])
def test_classes_share_the_engine_by_weight_and_leave_nothing_idle(share: float) -> None:
    """Two classes with requests always waiting are served in proportion to their shares; one alone gets everything."""
    queues = make_queues({"default": QueueOptions(), "bulk": QueueOptions(share=share)})
    engine = Engine(CountingRunner(num_blocks=100), SchedulerLimits(max_num_seqs=4), queues)
    clients = [Client(number, [number], 10) for number in range(200)]
    for client in clients:
        client.request.request_class = "bulk" if client.request.id % 2 else "default"
        engine.scheduler.add(client.request)
    while all(engine.scheduler.queues.depths().values()):
        engine.step()
    done = [sum(len(client.news) for client in clients[first::2]) for first in (0, 1)]
    assert done[1] / done[0] == pytest.approx(share, rel=0.15)
    run_to_end(engine)
    assert all(client.is_well for client in clients)


class Faulty:
    """Works until told to fail."""

    def __init__(self) -> None:
        self.waiting: list[Queued] = []
        self.is_broken = False

    def _check(self) -> None:
        if self.is_broken:
            raise RuntimeError("broken")

    def add(self, request: Queued, now: float) -> None:
        self._check()
        self.waiting.insert(0, request)

    def remove(self, request: Queued) -> None:
        self._check()
        self.waiting.remove(request)

    def ordered(self, now: float) -> Iterator[Queued]:
        self._check()
        return iter(self.waiting)

    def served(self, request: Queued, num_prompt: int, num_drawn: int, now: float) -> None:
        self._check()

    def finished(self, request: Queued, now: float) -> None:
        self._check()

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        self._check()
        return running[0]


@pytest.mark.parametrize("when", range(12))
def test_policy_that_fails_costs_no_request(when: int, caplog: pytest.LogCaptureFixture) -> None:
    """A plugin's policy that raises at any moment is replaced by first come, first served; every text is whole."""
    policy = Faulty()
    queues = RequestQueues([ClassQueue("default", policy, 1.0)])
    runner = CountingRunner(num_blocks=9)
    engine = Engine(runner, SchedulerLimits(max_num_seqs=4), queues)
    clients = [Client(number, list(range(number, number + 30)), 20) for number in range(8)]
    for client in clients:
        engine.scheduler.add(client.request)
    for step in range(1000):
        policy.is_broken = step >= when * 4
        if not engine.step():
            break
    assert all(client.is_well for client in clients)
    assert runner.pool.stats().active == 0
    assert "first come, first served from now on" in caplog.text
