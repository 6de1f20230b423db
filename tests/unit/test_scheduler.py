"""The scheduler and the engine's step, with a runner that computes nothing and the real block pool."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting_runner import Client, CountingRunner, CrampedRunner, LaunchingRunner, run_to_end
from support.waiting import wait_until

from pyagent import _rust
from pyagent.core.messages import SamplingParams
from pyagent.core.runners.batch import BLOCK_TOKENS, PLAIN_KEY, Batch, PrefixKey, StepOutput
from pyagent.core.scheduling import Queued
from pyagent.infrastructure.engine.answer_text import AnswerText
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output
from pyagent.infrastructure.engine.scheduler.decode_batch import DecodeBatch
from pyagent.infrastructure.engine.scheduler.policies import guarded
from pyagent.infrastructure.engine.scheduler.queues import ClassQueue, QueueOptions, RequestQueues, make_queues
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits
from pyagent.infrastructure.engine.scheduler.shared_prefill import common_blocks
from pyagent.infrastructure.engine.step_executor import AsyncScheduling, is_async


def test_requests_with_a_common_prefix_compute_it_once() -> None:
    """Ten requests that arrive together with 64 common tokens compute them once."""
    runner = CountingRunner(num_blocks=100)
    engine = Engine(runner, SchedulerLimits(max_num_batched_tokens=1024))
    clients = [Client(number, [*range(64), 1000 + number], 4) for number in range(10)]
    for client in clients:
        engine.scheduler.add(client.request)
    run_to_end(engine)
    assert all(client.is_well for client in clients)
    assert sum(len(batch.tokens) for batch in runner.batches) == 64 + 10 * (1 + 3)


@given(st.lists(st.integers(0, 1), max_size=200), st.lists(st.integers(0, 1), max_size=200), st.integers(0, 200))
def test_common_blocks_are_those_a_comparison_token_by_token_finds(left: list[int], right: list[int], cut: int) -> None:
    """Whole blocks both logs begin with, the last token of the first log never counted."""
    right = left[:cut] + right
    common = next((place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(left), len(right)) if common is None else common
    assert common_blocks(left, right) == max(0, min(common, len(left) - 1)) // BLOCK_TOKENS * BLOCK_TOKENS


def test_short_prompts_pass_a_long_one_under_way() -> None:
    """A prompt of many steps does not hold up one that is done in a step, and is not held up by many of these."""
    runner = CountingRunner(num_blocks=1000)
    engine = Engine(runner, SchedulerLimits(max_num_batched_tokens=64))
    long = Client(0, list(range(2000)), 1)
    engine.scheduler.add(long.request)
    engine.step()
    shorts = [Client(number, [5000 + number] * 20, 1) for number in range(1, 60)]
    for short in shorts:
        engine.scheduler.add(short.request)
    engine.step()
    assert shorts[0].is_well
    num_before = len(runner.batches)
    while long.request.finish_reason is None:
        engine.step()
    assert len(runner.batches) - num_before <= 2000 / 32
    run_to_end(engine)
    assert all(client.is_well for client in [long, *shorts])


def test_prompt_tokens_left_are_those_that_no_step_has_taken() -> None:
    """What waits counts whole; what is under way counts without what is cached or was handed to the runner."""
    engine = Engine(CountingRunner(num_blocks=1000), SchedulerLimits(max_num_batched_tokens=64))
    clients = [Client(0, list(range(200)), 2), Client(1, list(range(1000, 1100)), 2)]
    for client in clients:
        engine.scheduler.add(client.request)
    assert engine.stats().num_prompt_tokens_left == 300
    engine.step()
    assert engine.stats().num_prompt_tokens_left == 236
    run_to_end(engine)
    assert engine.stats().num_prompt_tokens_left == 0
    engine.scheduler.add(Client(2, [*range(192), *range(2000, 2100)], 2).request)
    engine.step()
    assert engine.stats().num_prompt_tokens_left == 100 - 64


def test_chunks_keep_decoding_requests_within_their_latency() -> None:
    """With a millisecond for each prompt token and 50 to wait at most, prompts go in chunks of 48 while one decodes."""
    runner = CountingRunner(num_blocks=1000)
    engine = Engine(runner, SchedulerLimits(max_num_batched_tokens=512, decode_latency=0.05))
    costs = engine.scheduler.costs
    costs.note(0.1, 100, 0)
    costs.note(0.001, 0, 1)
    for number, length in enumerate([10, 600]):
        engine.scheduler.add(Client(number, [number] * length, 50).request)
        engine.step()
        costs.decode_seconds, costs.prompt_token_seconds = 0.001, 0.001
    assert len(runner.batches[-1].tokens) == 48 + 1
    alone = Engine(CountingRunner(num_blocks=1000), SchedulerLimits(max_num_batched_tokens=512, decode_latency=0.05))
    alone.scheduler.costs.note(0.1, 100, 0)
    alone.scheduler.add(Client(3, [3] * 600, 50).request)
    alone.step()
    assert len(alone.runner.batches[-1].tokens) == 512  # type: ignore[attr-defined]


def test_preemptions_are_rare_when_nobody_names_a_limit() -> None:
    """Answers of many lengths; each may fill the context, in memory for a few: fewer than one in a hundred yield."""
    draw = random.Random(5)
    engine = Engine(CountingRunner(num_blocks=300), SchedulerLimits(max_num_seqs=64))
    ends: dict[int, int] = {}
    for number in range(300):
        client = Client(number, [number] * draw.randint(10, 100), 1)
        client.request.max_tokens = 4000
        ends[number] = min(600, int(draw.lognormvariate(4, 0.7)) + 1)
        client.request.params = SamplingParams(stop=("never",))
        engine.scheduler.add(client.request)
        client.request.text = AnswerText(Stopper(ends[number]), ("never",))  # type: ignore[arg-type]
    run_to_end(engine)
    assert engine.counts.finished.total() == 300
    assert engine.scheduler.num_preemptions.total() < 3
    assert engine.counts.generation_tokens / engine.counts.num_steps > 10  # and memory is used


class Stopper:
    """Says the stop text after so many tokens."""

    def __init__(self, num_tokens: int) -> None:
        self.num_left = num_tokens

    def push(self, token: int) -> str:
        self.num_left -= 1
        return "never" if self.num_left == 0 else "x"

    def flush(self) -> str:
        return ""


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
    assert gone.request.num_output_tokens == 1
    assert runner.pool.stats().active == 0


class BrokenPoolRunner(CountingRunner):
    """Cannot reserve anything."""

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
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


class PickyRunner(CountingRunner):
    """Cannot start one of its sequences."""

    def add(
        self,
        sequence_id: int,
        tokens: list[int],
        key: PrefixKey = PLAIN_KEY,
        *,
        is_resumed: bool = False,
        most_cached: int | None = None,
    ) -> int:
        if sequence_id == 2:
            raise ValueError("a token is out of range")
        return super().add(sequence_id, tokens, key, is_resumed=is_resumed)


def test_request_that_cannot_be_started_ends_alone() -> None:
    """When the pool refuses a sequence, that request ends with its words; the others are served."""
    engine = Engine(PickyRunner(num_blocks=10))
    clients = [Client(number, [number], 5) for number in range(4)]
    for client in clients:
        engine.scheduler.add(client.request)
    run_to_end(engine)
    assert [client.is_well for client in clients] == [True, True, False, True]
    assert clients[2].news[-1].error == "a token is out of range"
    assert engine.scheduler.queues.num_waiting == 0


def test_submit_refuses_when_too_many_wait_or_the_engine_is_closed() -> None:
    """A full queue says when to try again; a closed engine says so."""
    from pyagent.core.errors import CapacityError

    engine = Engine(CountingRunner(num_blocks=4), SchedulerLimits(max_num_waiting=0))
    with pytest.raises(
        CapacityError, match=r"0 requests wait already, as many as may \(engine\.max_num_waiting\); try again"
    ) as caught:
        engine.submit(Client(1, [1], 1).request)
    assert caught.value.retry_after_seconds == 0.5
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

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        self._check()

    def finished(self, request: Queued, now: float) -> None:
        self._check()

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        self._check()
        return running[0]

    def victim_for(self, waiting: Queued, running: Sequence[Queued], now: float) -> Queued | None:
        self._check()
        return running[0] if running else None


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


class Withholding(Faulty):
    """Offers nothing, half, everything twice, or never answers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def ordered(self, now: float) -> Iterator[Queued]:
        if self.kind == "hangs":
            threading.Event().wait(600)
        elif self.kind == "spins":
            yield from itertools.cycle(self.waiting)
        elif self.kind == "half":
            yield from self.waiting[::2]

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        if self.kind == "exits":
            raise SystemExit(3)


@pytest.mark.parametrize("kind", ["nothing", "half", "spins", "hangs", "exits"])
def test_policy_that_withholds_requests_costs_none(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's policy that offers too little, or never answers, is replaced and named; every text is whole."""
    monkeypatch.setattr(guarded, "ANSWER_SECONDS", 0.5 if kind == "hangs" else 60)
    queues = make_queues({"default": QueueOptions("odd")}, {"odd": lambda options: Withholding(kind)})
    engine = Engine(CountingRunner(num_blocks=100), SchedulerLimits(max_num_seqs=2), queues)
    clients = [Client(number, list(range(number, number + 30)), 5) for number in range(6)]
    for client in clients:
        engine.scheduler.add(client.request)
    run_to_end(engine)
    assert all(client.is_well for client in clients)
    assert "queue default is first come, first served from now on: its policy odd failed" in caplog.text


def test_prompts_count_once_as_looked_up() -> None:
    """However often a prompt asks for room or comes back, the cache's hit rate knows it once."""
    runner = CountingRunner(num_blocks=20)
    engine = Engine(runner, SchedulerLimits(max_num_seqs=8))
    for number in range(108):
        client = Client(number, [number] * 20, 1)
        client.request.max_tokens = 250
        client.request.params = SamplingParams(stop=("never",))
        client.request.text = AnswerText(Stopper(5 if number < 100 else 200), ("never",))  # type: ignore[arg-type]
        engine.scheduler.add(client.request)
    run_to_end(engine)
    assert engine.scheduler.num_preemptions.total() > 0
    assert runner.stats().queried_tokens == 108 * 20


class CountsHits:
    """First in, first out; counts the hits it is told of."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.num_hits = 0

    def insert(self, block: int, key: int, priority: int) -> None:
        pass

    def hit(self, block: int) -> None:
        self.num_hits += 1

    def release(self, block: int) -> None:
        self.released.append(block)

    def hold(self, block: int) -> None:
        self.released.remove(block)

    def evict(self) -> int:
        return self.released.pop(0)

    def forget(self, block: int) -> None:
        if block in self.released:
            self.released.remove(block)


def test_waiting_is_no_use_of_a_prefix() -> None:
    """A request that is looked at in many steps before there is memory for it counts its prefix's use once."""
    runner = CountingRunner(num_blocks=20)
    policy = CountsHits()
    runner.pool = _rust.BlockPool(20, eviction=policy)
    engine = Engine(runner, SchedulerLimits(max_num_seqs=8))
    prefix = list(range(40))
    engine.scheduler.add(Client(0, prefix, 1).request)
    run_to_end(engine)
    others = [Client(number, [500 + number] * 8, 12 * number) for number in range(1, 6)]
    waiting = Client(9, [*prefix, 7], 150)
    for client in [*others, waiting]:
        engine.scheduler.add(client.request)
    num_waits = 0
    while waiting.request.scheduled is None:
        engine.step()
        num_waits += 1
    run_to_end(engine)
    assert num_waits > 20
    assert all(client.is_well for client in [*others, waiting])
    assert runner.stats().policy_error is None
    assert policy.num_hits == 2  # of two blocks


@pytest.mark.parametrize(("mode", "threads", "expected"), [("on", 2, True), ("off", 1, False), ("auto", 2, False)])
def test_async_scheduling_is_for_machines_with_a_core_to_spare(
    mode: AsyncScheduling, threads: int, expected: bool
) -> None:
    """On `auto` steps are planned ahead where computing leaves a core for it."""
    assert is_async(mode, threads, num_cores=2) is expected
    assert is_async("auto", 1, num_cores=2)


@pytest.mark.parametrize("num_stops", [0, 3])
def test_steps_planned_ahead_draw_what_steps_one_by_one_draw(num_stops: int) -> None:
    """Requests that end by a token or by length while the next step is on its way: the surplus is dropped, the texts
    are whole, and no step is computed for nobody."""
    runner = CountingRunner(num_blocks=200)
    engine = Engine(runner, is_async=True)
    ends = frozenset(range(0, 1009, 30))
    clients = [Client(number, [number] * 20, 60, ends if number < num_stops else frozenset()) for number in range(6)]
    for client in clients:
        engine.submit(client.request)
    wait_until(lambda: all(client.request.finish_reason is not None for client in clients))
    engine.close()
    assert all(client.is_well for client in clients)
    assert runner.pool.stats().active == 0
    assert sum(len(batch.samplers) for batch in runner.batches) <= sum(
        client.request.num_output_tokens + 2 for client in clients
    )


def test_steps_launched_ahead_draw_what_steps_one_by_one_draw() -> None:
    """Most steps are launched before the last one's tokens are known: the texts are whole, what a request computes
    after its end is dropped, and its memory is held until then."""
    runner = LaunchingRunner(num_blocks=200)
    engine = Engine(runner, is_async=True)
    ends = frozenset(range(0, 1009, 30))
    clients = [Client(number, [number] * 20, 60, ends if number < 3 else frozenset()) for number in range(6)]
    for client in clients:
        engine.submit(client.request)
    wait_until(lambda: all(client.request.finish_reason is not None for client in clients))
    engine.close()
    assert all(client.is_well for client in clients)
    assert runner.num_ahead > 50
    assert runner.num_launched == 0
    assert runner.pool.stats().active == 0


@pytest.mark.parametrize(("kind", "is_async"), [(CrampedRunner, False), (CrampedRunner, True), (LaunchingRunner, True)])
@pytest.mark.parametrize("most_tokens", [1, 3, 25])
def test_steps_that_lack_memory_are_taken_back(kind: type[CrampedRunner], is_async: bool, most_tokens: int) -> None:
    """A device without room for a step: its requests wait and go on in smaller ones, with the same texts."""
    runner = kind(num_blocks=200, most_tokens=most_tokens)
    engine = Engine(runner, SchedulerLimits(max_num_batched_tokens=64), is_async=is_async)
    clients = [Client(number, [number] * 20, 12) for number in range(6)]
    for client in clients:
        engine.submit(client.request)
    wait_until(lambda: all(client.request.finish_reason is not None for client in clients))
    engine.close()
    assert [client.request.finish_reason for client in clients] == ["length"] * 6
    assert all(client.is_well for client in clients)
    assert runner.num_refused > 0
    assert runner.pool.stats().active == 0


class BrokenRowRunner(LaunchingRunner):
    """Cannot sample the first row of its 20th step."""

    def execute(self, batch: Batch) -> StepOutput:
        output = super().execute(batch)
        if len(self.batches) == 20:
            output.errors[0] = "the model's output is broken"
        return output


def test_a_row_that_fails_while_the_next_step_is_on_its_way_ends_alone() -> None:
    """Its memory is held until that step is done, and what it computes there is in no log; the others go on."""
    runner = BrokenRowRunner(num_blocks=200)
    engine = Engine(runner, is_async=True)
    clients = [Client(number, [number] * 20, 60) for number in range(4)]
    for client in clients:
        engine.submit(client.request)
    wait_until(lambda: all(client.request.finish_reason is not None for client in clients))
    engine.close()
    assert sorted(str(client.request.finish_reason) for client in clients) == ["error", "length", "length", "length"]
    assert all(client.is_well for client in clients if client.request.finish_reason == "length")
    for client in clients:
        told = [token for output in client.news for token in output.tokens]
        assert client.request.tokens[client.request.num_prompt_tokens :] == told
    assert runner.pool.stats().active == 0


def test_a_step_that_cannot_be_smaller_fails() -> None:
    """No room for a single token: the request ends with the reason, and the engine goes on."""
    runner = CrampedRunner(num_blocks=200, most_tokens=0)
    engine = Engine(runner)
    client = Client(1, [1, 2, 3], 4)
    engine.submit(client.request)
    wait_until(lambda: client.request.finish_reason is not None)
    assert "no room for 1 tokens" in (client.news[-1].error or "")
    runner.most_tokens = 100
    other = Client(2, [4, 5, 6], 4)
    engine.submit(other.request)
    wait_until(lambda: other.request.finish_reason is not None)
    engine.close()
    assert other.is_well


def test_decode_batch_says_when_accepted_tokens_are_the_last() -> None:
    """A request whose accepted tokens reach `max_tokens` has no more to sample; one token less, and it has."""
    requests = [Client(number, [1, 2, 3], max_tokens=6).request for number in (1, 2)]
    batch = DecodeBatch(3)
    for request in requests:
        batch.add(request, 3)
    assert batch.skip(requests[0], 3)
    assert not batch.skip(requests[1], 2)
