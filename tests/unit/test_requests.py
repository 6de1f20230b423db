"""A request's states, its one end, its times and the token ids it tells."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner, LaunchingRunner, run_to_end

from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Status, TransitionError
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits
from pyagent.infrastructure.engine.stats import Counts, EngineStats, SlowStep
from pyagent.infrastructure.engine.usage import timings_of


@given(st.lists(st.sampled_from(Status), max_size=12))
def test_a_refused_transition_changes_nothing_and_the_end_is_final(wanted: list[Status]) -> None:
    """A state is left only for one that follows it; a refusal leaves the request as it was; nothing follows the end."""
    request = Client(1, [1], 1).request
    for status in wanted:
        before = request.status
        try:
            request.become(status)
        except TransitionError:
            assert request.status is before
        else:
            assert before is not Status.FINISHED
            assert request.status is status


def test_a_request_ends_once() -> None:
    """A second end is a bug that raises; the first reason stands."""
    request = Client(1, [1], 1).request
    request.finish("abort")
    with pytest.raises(TransitionError):
        request.finish("error", error="again")
    assert request.finish_reason == "abort"


def test_timestamps_are_in_order_and_make_up_the_timings() -> None:
    """Arrived, scheduled, first token, last token, finished; the parts of the timings sum to the whole."""
    engine = Engine(CountingRunner(num_blocks=10), SchedulerLimits(max_num_batched_tokens=3))
    client = Client(1, list(range(10)), 5)
    engine.scheduler.add(client.request)
    run_to_end(engine)
    request = client.request
    times = [request.arrived, request.scheduled, request.first_token, request.last_token, request.finished]
    assert times == sorted(times)  # type: ignore[type-var]
    timings = timings_of(request)
    assert timings.queue_seconds + timings.prefill_seconds == pytest.approx(timings.first_token_seconds)
    whole = timings.first_token_seconds + 4 * timings.inter_token_seconds
    assert 0 < whole <= timings.total_seconds


@pytest.mark.parametrize(
    ("kind", "is_async"), [(CountingRunner, False), (CountingRunner, True), (LaunchingRunner, True)]
)
def test_steps_are_shared_out_among_their_requests(kind: type[CountingRunner], is_async: bool) -> None:
    """All requests together are charged no more than what the steps took; the one with more tokens is charged more."""
    engine = Engine(kind(num_blocks=100), is_async=is_async)
    clients = [Client(1, list(range(20)), 12), Client(2, list(range(50, 60)), 3)]
    for client in clients:
        engine.scheduler.add(client.request)
    run_to_end(engine)
    engine.close()
    long, short = (timings_of(client.request) for client in clients)
    assert short.forward_seconds > 0
    assert short.scheduler_seconds > 0
    assert long.forward_seconds > short.forward_seconds
    assert long.scheduler_seconds > short.scheduler_seconds
    assert long.forward_seconds + short.forward_seconds <= engine.stats().busy_seconds


@pytest.mark.parametrize("num_blocks", [3, 20])
def test_news_carry_every_drawn_token_once(num_blocks: int) -> None:
    """The prompt and the tokens of all news are the token log, preempted or not."""
    engine = Engine(CountingRunner(num_blocks=num_blocks))
    clients = [Client(number, [number, number], 30) for number in range(4)]
    for client in clients:
        engine.scheduler.add(client.request)
    run_to_end(engine)
    for client in clients:
        told = [token for output in client.news for token in output.tokens]
        assert client.request.tokens == [client.request.id] * 2 + told
        assert len(told) == 30


@pytest.mark.parametrize("is_running", [False, True])
def test_a_request_past_its_deadline_ends_and_says_where_it_was(is_running: bool) -> None:
    """Waiting or running, a request ends when its caller's time is over; the other's text is whole."""
    now = 0.0
    runner = CountingRunner(num_blocks=20)
    engine = Engine(runner, SchedulerLimits(max_num_seqs=2 if is_running else 1), clock=lambda: now)
    well, late = Client(1, [1, 2], 30), Client(2, [3, 4], 30)
    late.request.deadline = 10.0
    for client in (well, late):
        engine.scheduler.add(client.request)
    while engine.step():
        now += 1.0
    assert well.is_well
    assert late.request.finish_reason == "abort"
    assert late.news[-1].error == f"its deadline passed {'after 10 output tokens' if is_running else 'in the queue'}"
    assert runner.pool.stats().active == 0


def test_stats_add_up() -> None:
    """Counts of what was done are those of the requests; percentiles are of what was measured."""
    engine = Engine(CountingRunner(num_blocks=100))
    clients = [Client(number, list(range(20)), 10) for number in range(5)]
    for client in clients:
        engine.scheduler.add(client.request)
    engine.step()
    stats = engine.stats()
    assert stats.num_running + sum(stats.waiting.values()) == 5
    run_to_end(engine)
    stats = engine.stats()
    assert stats.generation_tokens == 50
    assert stats.prompt_tokens == 100
    assert stats.cached_tokens == 4 * 16
    assert stats.finished == {"length": 5}
    assert stats.waiting == {"default": 0}
    assert stats.pool.active == 0
    assert 0 < stats.step_seconds.p50 <= stats.step_seconds.p95 <= stats.step_seconds.p99 < 10
    assert 0 < stats.scheduler_seconds.p50 < 1
    assert stats.first_token_seconds.p50 > 0
    assert msgspec.json.decode(msgspec.json.encode(stats), type=EngineStats) == stats


def test_slow_steps_are_counted_with_their_batch() -> None:
    """A step far beyond the usual is counted and told with its size; prefill that takes what prefill takes is not."""
    counts = Counts()
    for number in range(300):
        counts.note_step_time(0.010, 0.010, 4, 4)
        counts.note_step(0.001, 4, 4)
        if number == 200:
            counts.note_step_time(0.300, 0.290, 512, 5)
            counts.note_step(0.001, 512, 4)
    assert counts.num_slow_steps == 0
    for seconds in (0.2, 0.4, 0.3):
        counts.note_step_time(seconds, 0.010, 7, 6)
        counts.note_step(0.001, 7, 6)
    assert counts.num_slow_steps == 3
    assert counts.slowest_step == SlowStep(seconds=0.4, usual_seconds=0.010, num_tokens=7, num_requests=6)


def test_step_trend_tells_of_steps_that_get_slower() -> None:
    """The trend is 1 while step times stay, and rises when the last steps take longer than those before."""
    counts = Counts()
    pool = CountingRunner(num_blocks=1).stats()

    def trend() -> float:
        counted = counts.snapshot(
            num_running=0,
            num_prompt_tokens_left=0,
            max_num_running=1,
            waiting={},
            preemptions={},
            prefill_tokens_per_second=0.0,
            pool=pool,
        )
        return counted.step_trend

    assert trend() == 1.0
    for seconds, num_steps, expected in ((0.01, 900, 1.0), (0.02, 128, 2.0), (0.02, 1024, 1.0)):
        for _ in range(num_steps):
            counts.note_step_time(seconds, seconds, 1, 1)
            counts.note_step(0.001, 1, 1)
        assert trend() == pytest.approx(expected)
