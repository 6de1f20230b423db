"""A request's states, its one end, its times and the token ids it tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner, run_to_end

from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.model import timings_of
from pyagent.infrastructure.engine.request import Status, TransitionError
from pyagent.infrastructure.engine.scheduler import SchedulerLimits


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
    engine = Engine(CountingRunner(num_blocks=10), SchedulerLimits(token_budget=3))
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
