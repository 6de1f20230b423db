"""The breaker, the retry rules and the deadline, on a clock that only moves when told to."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.waiting import Clock

from pyagent.core.errors import BackendError, CapacityError, DeadlineError, RequestError
from pyagent.core.resilience.breaker import Breaker, BreakerPolicy, Permit
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.resilience.retry import RetryBudget, RetryPolicy

POLICY = BreakerPolicy(num_failures=3, open_seconds=5, growth=2, max_open_seconds=30)


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(POLICY, clock)
    for _ in range(POLICY.num_failures):
        permit = breaker.acquire()
        assert permit
        breaker.fail(permit, "refused")
    return breaker


def test_breaker_opens_after_failures_in_a_row() -> None:
    """Three failures in a row open it, and it says why and for how long."""
    breaker = opened(Clock())
    assert (breaker.state, breaker.acquire(), breaker.reason) == ("open", None, "refused")
    assert breaker.retry_in_seconds == 5


def test_breaker_success_resets_the_count() -> None:
    """Failures that a success separates do not add up."""
    breaker = Breaker(POLICY, Clock())
    for _ in range(10):
        for verdict in ("fail", "fail", "succeed"):
            permit = breaker.acquire()
            assert permit
            breaker.succeed(permit) if verdict == "succeed" else breaker.fail(permit, "x")
    assert breaker.state == "closed"


def test_breaker_half_open_lets_one_probe_through() -> None:
    """When its time is over one call goes out, and no other until that one has a verdict."""
    clock = Clock()
    breaker = opened(clock)
    clock.now += 5
    probe = breaker.acquire()
    assert probe
    assert probe.is_probe
    assert breaker.acquire() is None
    breaker.succeed(probe)
    assert (breaker.state, breaker.reason) == ("closed", "")


def test_breaker_failed_probe_opens_it_for_longer_up_to_a_limit() -> None:
    """Open times grow 5, 10, 20, 30, 30 seconds while probes fail, and start over after a success."""
    clock = Clock()
    breaker = opened(clock)
    times = [breaker.retry_in_seconds]
    for _ in range(4):
        clock.now += breaker.retry_in_seconds
        probe = breaker.acquire()
        assert probe
        breaker.fail(probe, "still down")
        times.append(breaker.retry_in_seconds)
    assert times == [5, 10, 20, 30, 30]


def test_breaker_ignores_verdicts_from_before_the_change() -> None:
    """A slow success that began before the outage does not close an open breaker."""
    clock = Clock()
    breaker = Breaker(POLICY, clock)
    slow = breaker.acquire()
    assert slow
    for _ in range(3):
        permit = breaker.acquire()
        assert permit
        breaker.fail(permit, "down")
    breaker.succeed(slow)
    assert breaker.state == "open"


def test_breaker_released_probe_frees_its_place() -> None:
    """A probe whose caller left does not block the next probe."""
    clock = Clock()
    breaker = opened(clock)
    clock.now += 5
    probe = breaker.acquire()
    assert probe
    breaker.release(probe)
    assert breaker.acquire() is not None


class BreakerMachine(RuleBasedStateMachine):
    """Any interleaving of calls, verdicts and time against the breaker's rules."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(POLICY, self.clock)
        self.permits: list[Permit] = []

    @rule()
    def acquire(self) -> None:
        state = self.breaker.state
        permit = self.breaker.acquire()
        if permit:
            self.permits.append(permit)
        assert (permit is None) if state == "open" else True
        assert permit is not None if state == "closed" else True
        assert permit is None or permit.is_probe == (state == "half-open")

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), verdict=st.sampled_from(["succeed", "fail", "release"]))
    def normalize(self, data: st.DataObject, verdict: str) -> None:
        permit = self.permits.pop(data.draw(st.integers(0, len(self.permits) - 1)))
        before, is_current = self.breaker.state, permit.generation == self.breaker._generation
        if verdict == "succeed":
            self.breaker.succeed(permit)
        elif verdict == "fail":
            self.breaker.fail(permit, "no")
        else:
            self.breaker.release(permit)
        if not is_current:
            assert self.breaker.state == before
        elif permit.is_probe and verdict != "release":
            assert self.breaker.state == ("closed" if verdict == "succeed" else "open")

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def at_most_one_probe_is_out(self) -> None:
        current = [p for p in self.permits if p.is_probe and p.generation == self.breaker._generation]
        assert len(current) <= 1

    @invariant()
    def open_time_is_bounded(self) -> None:
        assert 0 <= self.breaker.retry_in_seconds <= POLICY.max_open_seconds
        assert (self.breaker.state == "open") == (self.breaker.retry_in_seconds > 0)


TestBreakerMachine = BreakerMachine.TestCase


def waits(
    errors: list[Exception], retry: int = 0, budget: RetryBudget | None = None, left: float = 100
) -> float | None:
    clock = Clock()
    deadline = Deadline.after(left, clock)
    return RetryPolicy().wait_seconds(errors, retry, budget or RetryBudget(), deadline, lambda _low, high: high)


def test_retry_waits_grow_with_full_jitter() -> None:
    """The interval drawn from doubles with each retry, and the draw starts at zero."""
    down = [BackendError("down", backend="x")]
    assert [waits(down, retry) for retry in (0, 1, 2)] == [0.2, 0.4, None]
    drawn = RetryPolicy().wait_seconds([*down], 0, RetryBudget(), Deadline(), lambda low, _high: low)
    assert drawn == 0


def test_retry_honours_retry_after() -> None:
    """A wait that was asked for is added; one longer than anybody should sit through is not waited for."""
    assert waits([CapacityError("busy", retry_after_seconds=3)]) == pytest.approx(3.2)
    assert waits([CapacityError("busy", retry_after_seconds=60)]) is None


def test_retry_gives_up_when_it_cannot_help() -> None:
    """Caller's faults, final failures and full capacity without a time are not tried again."""
    assert waits([RequestError("bad")]) is None
    assert waits([BackendError("key refused", backend="x", retryable=False)]) is None
    assert waits([CapacityError("full")]) is None


def test_retry_never_passes_the_deadline() -> None:
    """A wait that would end after the deadline is not begun, and takes nothing from the budget."""
    budget = RetryBudget()
    assert waits([CapacityError("busy", retry_after_seconds=3)], budget=budget, left=2) is None
    assert budget.left == budget.capacity


def test_retry_budget_is_shared_and_refilled_by_success() -> None:
    """Ten retries, then none, until five successes pay for one more."""
    budget = RetryBudget()
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(5):
        budget.succeed()
    assert budget.spend()
    assert not budget.spend()


def test_deadline_cancels_what_it_waits_for() -> None:
    """Past the deadline the work is cancelled and the error names it; a timeout of the work's own passes through."""

    async def own_timeout() -> None:
        raise TimeoutError("own")

    async def main() -> None:
        with pytest.raises(DeadlineError, match="waiting for sleep"):
            await Deadline.after(0.01).bound(asyncio.sleep(10), "sleep")
        with pytest.raises(TimeoutError, match="own"):
            await Deadline.after(10).bound(own_timeout(), "it")

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_deadline_refuses_impossible_times(seconds: float) -> None:
    """A negative or NaN timeout is the caller's mistake and says so."""
    with pytest.raises(RequestError, match="timeout_seconds"):
        Deadline.after(seconds)


def test_breaker_lets_a_few_by_as_a_last_resort() -> None:
    """Forced calls go through an open breaker, four at once; one that succeeds closes it, failures grow nothing."""
    clock = Clock()
    breaker = opened(clock)
    forced = [breaker.force() for _ in range(5)]
    assert [permit is not None for permit in forced] == [True] * 4 + [False]
    first, second, third, fourth = (permit for permit in forced if permit is not None)
    clock.now += 1
    breaker.fail(first, "still down")
    breaker.release(first)
    assert (breaker.state, breaker.retry_in_seconds) == ("open", POLICY.open_seconds)
    breaker.succeed(second)
    assert breaker.state == "closed"
    for permit in (second, third, fourth):
        breaker.release(permit)
    assert breaker.force() is not None
    assert breaker._num_forced == 0
