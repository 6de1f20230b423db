"""Queue policies: the properties their papers promise, on their own and behind the queues of request classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.messages import Origin
from pyagent.core.scheduling import Queued
from pyagent.infrastructure.engine.scheduler.policies import BUILT_IN
from pyagent.infrastructure.engine.scheduler.policies.fair import Fair, FairOptions
from pyagent.infrastructure.engine.scheduler.policies.mlfq import Mlfq, MlfqOptions
from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues


@dataclass(eq=False)
class Job:
    """What a policy sees of a request."""

    id: int
    arrived: float = 0.0
    priority: int = 0
    deadline: float | None = None
    origin: Origin = Origin()  # noqa: RUF009
    num_prompt_tokens: int = 10
    num_output_tokens: int = 0
    num_left: int = 10


def ids(waiting: Iterator[Queued]) -> list[int]:
    return [request.id for request in waiting]


@pytest.mark.parametrize("name", BUILT_IN)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(-5, 5), st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_policy_keeps_each_waiting_request_once(name: str, moves: list[tuple[int, int, int, bool]]) -> None:
    """Whatever is added, taken, put back, served and ended: exactly those that wait are offered, each once."""
    policy = BUILT_IN[name]({})
    waiting: dict[int, Job] = {}
    running: dict[int, Job] = {}
    for now, (job_id, move, priority, is_odd) in enumerate(moves):
        job = waiting.get(job_id) or running.get(job_id)
        if job is None:
            origin = Origin(client=f"client {job_id % 3}", agent=str(priority))
            job = Job(job_id, float(now), priority, now + 5.0 if is_odd else None, origin)
            policy.add(waiting.setdefault(job_id, job), now)
        elif job_id in waiting and move < 3:
            policy.remove(waiting.pop(job_id))
            running[job_id] = job
        elif job_id in waiting:
            policy.remove(waiting.pop(job_id))
            policy.finished(job, now)
        elif move < 2:
            policy.served(job, 7, 3, now)
        elif is_odd:
            policy.add(waiting.setdefault(job_id, running.pop(job_id)), now)
        else:
            policy.finished(running.pop(job_id), now)
        assert sorted(ids(policy.ordered(now))) == sorted(waiting)
        if running:
            assert policy.victim(list(running.values()), now) in running.values()


def test_first_come_is_served_first_and_newest_yields() -> None:
    """Order of arrival, whatever the order of adding; the newest of those that run is the victim."""
    policy = BUILT_IN["fcfs"]({})
    jobs = [Job(1, 3.0), Job(2, 1.0), Job(3, 2.0)]
    for job in jobs:
        policy.add(job, 4.0)
    assert ids(policy.ordered(4.0)) == [2, 3, 1]
    assert policy.victim(jobs, 4.0) is jobs[0]


@given(st.integers(1, 50), st.floats(1, 100))
@settings(max_examples=50, deadline=None)
def test_priority_waits_no_longer_than_its_ageing_allows(steps: int, ageing: float) -> None:
    """However many more urgent requests come, one `steps` less urgent goes before those `steps` x ageing later."""
    policy = BUILT_IN["priority"]({"ageing_seconds": ageing})
    policy.add(Job(0, 0.0, priority=steps), 0.0)
    for number in range(1, 30):
        policy.add(Job(number, arrived := number * steps * ageing / 10, priority=0), arrived)
    before = ids(policy.ordered(0.0))
    assert before.index(0) in {9, 10, 11}  # of ten a span, those of one span go first


def test_deadline_takes_the_earliest_and_counts_none_as_the_default() -> None:
    """Earliest deadline first; a request without one is due the default time after it came, and so is never starved."""
    policy = BUILT_IN["deadline"]({"default_seconds": 10})
    for job in (Job(1, 0.0), Job(2, 1.0, deadline=20.0), Job(3, 2.0, deadline=5.0)):
        policy.add(job, 3.0)
    assert ids(policy.ordered(3.0)) == [3, 1, 2]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=30, max_size=30),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=60, max_size=60),
    st.integers(1, 8),
)
@settings(max_examples=80, deadline=None)
def test_fair_shares_differ_by_no_more_than_the_bound_of_vtc(
    one: list[tuple[int, int]], two: list[tuple[int, int]], places: int
) -> None:
    """What two clients that always have requests waiting were served differs by at most 2 max(w_p L, w_q M)."""
    policy = Fair(FairOptions())
    jobs: dict[int, tuple[Job, int]] = {}
    for number, (prompt, draws) in enumerate([*one, *two]):
        origin = Origin(client="one" if number < len(one) else "two")
        jobs[number] = (Job(number, 0.0, origin=origin, num_prompt_tokens=prompt), draws)
        policy.add(jobs[number][0], 0.0)
    bound = 2 * max(1.0 * 60, 2.0 * places * 90)
    running: list[Job] = []
    num_left = {"one": len(one), "two": len(two)}
    while all(num_left.values()):
        while len(running) < places and all(num_left.values()):
            job = jobs[next(policy.ordered(0.0)).id][0]
            policy.remove(job)
            num_left[job.origin.client] -= 1
            policy.served(job, job.num_prompt_tokens, 0, 0.0)
            running.append(job)
        for job in running:
            policy.served(job, 0, 1, 0.0)
            job.num_output_tokens += 1
        running = [job for job in running if job.num_output_tokens < jobs[job.id][1]]
        counters = [policy.counter(Job(0, origin=Origin(client=name))) for name in ("one", "two")]
        assert abs(counters[0] - counters[1]) <= bound


def test_fair_gives_no_credit_for_a_pause_and_counts_shares() -> None:
    """A client that comes late starts level with the one waiting; one with a share of two is charged half."""
    policy = Fair(FairOptions(shares={"rich": 2.0}))
    old = Job(1, origin=Origin(client="old"))
    policy.add(old, 0.0)
    policy.served(old, 100, 0, 0.0)
    late, rich = Job(2, origin=Origin(client="late")), Job(3, origin=Origin(client="rich"))
    policy.add(late, 1.0)
    policy.add(rich, 1.0)
    assert policy.counter(late) == policy.counter(old) == 100.0
    policy.served(rich, 100, 0, 1.0)
    policy.served(late, 100, 0, 1.0)
    assert ids(policy.ordered(1.0)) == [1, 3, 2]


@pytest.mark.parametrize("per", ["agent", "run"])
def test_fair_by_agent_or_run_keeps_those_of_one_client_apart(per: str) -> None:
    """With `per = "agent"` the agent's name counts, with `per = "run"` the run's; not the client's."""
    policy = BUILT_IN["fair"]({"per": per})
    busy, idle = (Job(n, origin=Origin(**{"client": "c", per: name})) for n, name in ((1, "busy"), (2, "idle")))
    policy.add(busy, 0.0)
    policy.add(idle, 0.0)
    policy.served(busy, 10, 0, 0.0)
    assert ids(policy.ordered(0.0)) == [2, 1]


def test_mlfq_joins_at_the_level_whose_quantum_covers_the_prompt() -> None:
    """Skip-join: a long prompt does not begin at the first level."""
    policy = Mlfq(MlfqOptions(levels=4, quantum=10, ratio=2, prompt_weight=1.0))
    jobs = [Job(number, num_prompt_tokens=length) for number, length in enumerate([10, 11, 40, 10_000])]
    for job in jobs:
        policy.add(job, 0.0)
    assert [policy.level(job) for job in jobs] == [0, 1, 2, 3]


@given(st.lists(st.integers(1, 25), min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_mlfq_demotes_exactly_at_the_quantum(servings: list[int]) -> None:
    """A request's level follows from its service alone, however that is cut into steps."""
    policy = Mlfq(MlfqOptions(levels=5, quantum=8, ratio=2, prompt_weight=0.001))
    job = Job(1, num_prompt_tokens=1)
    policy.add(job, 0.0)
    policy.remove(job)
    total = 0
    for num_output_tokens in servings:
        policy.served(job, 0, num_output_tokens, 0.0)
        total += num_output_tokens
        borders = [8, 24, 56, 120]  # 8, + 16, + 32, + 64
        assert policy.level(job) == sum(total >= border for border in borders)


def test_mlfq_takes_nothing_of_a_level_while_a_higher_one_waits() -> None:
    """Waiting requests come level by level; one put back keeps its level."""
    policy = Mlfq(MlfqOptions(quantum=8, boost_seconds=1000))
    low, high = Job(1), Job(2)
    policy.add(low, 0.0)
    policy.remove(low)
    policy.served(low, 0, 9, 0.0)
    policy.add(high, 1.0)
    policy.add(low, 2.0)
    assert ids(policy.ordered(3.0)) == [2, 1]
    assert policy.victim([low, high], 3.0) is low


def test_mlfq_boost_bounds_the_wait() -> None:
    """With a short request arriving every second for ever, a demoted one is first in line after one boost."""
    policy = Mlfq(MlfqOptions(quantum=8, boost_seconds=10))
    low = Job(0, arrived=0.0)
    policy.add(low, 0.0)
    policy.remove(low)
    policy.served(low, 0, 500, 0.0)
    policy.add(low, 0.0)
    for number in range(1, 40):
        policy.add(Job(number, arrived=float(number)), float(number))
        first = next(iter(policy.ordered(float(number))))
        if first is low:
            break
        policy.remove(first)
    assert 9 <= number <= 11


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("fcfs", {"x": 1}, "unknown field 'x'"),
        ("priority", {"ageing_seconds": 0}, "> 0"),
        ("fair", {"per": "tenant"}, "tenant"),
        ("mlfq", {"level": 3}, "its options are levels"),
        ("prioritys", {}, "did you mean 'priority'"),
    ],
)
def test_wrong_policy_or_option_is_refused_by_name(policy: str, options: dict[str, object], said: str) -> None:
    """Settings that name no policy, or an option it does not have, say so and what there is."""
    with pytest.raises(ConfigError, match="queue") as caught:
        make_queues({"default": QueueOptions(policy, options)})
    assert said in str(caught.value)
    assert caught.value.key == "engine.queues"


def test_policy_maker_that_raises_is_named_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """A plugin's factory that fails is named with its queue, which is first come, first served."""

    def broken(options: object) -> object:
        raise RuntimeError("no luck")

    queues = make_queues({"fast": QueueOptions("mine")}, {"mine": broken})  # type: ignore[dict-item]
    assert queues.check("fast") == "fast"
    text = "queue fast is first come, first served: its policy mine cannot be made: RuntimeError: no luck"
    assert text in caplog.text


def test_unknown_class_is_refused_with_the_classes_there_are() -> None:
    """A request that names no class of the settings hears which there are; none at all is `default`."""
    queues = make_queues({"interactive": QueueOptions()})
    assert queues.check("") == "default"
    assert queues.check("interactive") == "interactive"
    with pytest.raises(RequestError, match="interactive, default") as caught:
        queues.check("batch")
    assert caught.value.param == "request_class"
