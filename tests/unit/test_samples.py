"""Several answers to one prompt: computed once, forked, ended once each, whatever happens to the others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner, run_to_end

from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output, Status
from pyagent.infrastructure.engine.sampling.parallel_sampling import Samples, num_samples
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits


def sampled(count: int, num_prompt: int, max_tokens: int, first_id: int = 0) -> tuple[list[Client], list[Output]]:
    """Clients whose requests answer one prompt, and all that is told."""
    clients = [Client(first_id + index, list(range(num_prompt)), max_tokens) for index in range(count)]
    for index, client in enumerate(clients):
        client.request.index = index
        client.request.status = Status.FOLLOWING if index else Status.WAITING
    told: list[Output] = []
    Samples([client.request for client in clients], count, told.append)
    return clients, told


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(2, 8),
    num_prompt=st.integers(1, 60),
    max_tokens=st.integers(1, 30),
    num_blocks=st.integers(6, 40),
    max_num_batched_tokens=st.integers(1, 64),
    max_num_seqs=st.integers(1, 8),
    abort_at=st.none() | st.integers(0, 20),
)
def test_answers_are_whole_and_each_ends_once(
    count: int,
    num_prompt: int,
    max_tokens: int,
    num_blocks: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    abort_at: int | None,
) -> None:
    """With or without room to fork, preempted, aborted at any step: each index ends once, the last news say so, every
    text is whole unless aborted, and no block is held at the end."""
    runner = CountingRunner(num_blocks)
    engine = Engine(runner, SchedulerLimits(max_num_seqs, max_num_batched_tokens))
    clients, told = sampled(count, num_prompt, max_tokens)
    other = Client(100, [7] * 20, 10)
    engine.scheduler.add(clients[0].request)
    engine.scheduler.add(other.request)
    step = 0
    while engine.step():
        if step == abort_at:
            engine.end(clients[0].request)
        step += 1
    assert other.is_well
    ends = [output for output in told if output.finish_reason is not None]
    assert sorted(output.index for output in ends) == list(range(count))
    assert [output.is_last for output in told].count(True) == 1
    assert told[-1].is_last
    for client in clients:
        client.news = [output for output in told if output.index == client.request.index]
        assert client.is_well or client.request.finish_reason == "abort"
    assert runner.pool.stats().active == 0


def test_prompt_is_computed_once_for_all_answers() -> None:
    """Four answers to 100 tokens compute 99, and then each its own."""
    runner = CountingRunner(num_blocks=100)
    engine = Engine(runner)
    clients, _ = sampled(4, 100, 5)
    engine.scheduler.add(clients[0].request)
    run_to_end(engine)
    assert sum(len(batch.tokens) for batch in runner.batches) == 99 + 4 * 5


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 0}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"n": 17}, "n"),
        ({"best_of": 17}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
    ],
)
def test_counts_out_of_range_are_refused_by_name(asked: dict[str, int], param: str) -> None:
    """What cannot be told or is too much names the field."""
    with pytest.raises(RequestError) as caught:
        num_samples(ChatRequest(**asked))  # type: ignore[arg-type]
    assert caught.value.param == param
