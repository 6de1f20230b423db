"""Rates of agents, tools and steps: how they are read, who waits how long, and what a restart and a deadline do."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import Custom, echo, events_of

from pyagent.core.errors import DeadlineError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.graph_file import read_graph
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.limits import FleetLimits
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.rate_store import RatesInMemory
from pyagent.core.fleet.step_options import Retries
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.turns import Rates
from pyagent.core.rates import read_bucket_rate, read_rate
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.rates import SqliteRates
from pyagent.testing import ScriptedBackend

SLOW = read_bucket_rate("1/h")


def fleet_of(*agents: Custom, journal: Journal | None = None, tools: Any = (), **limits: Any) -> Fleet:
    return Fleet(ScriptedBackend([]), agents, tools, journal=journal, limits=FleetLimits(**limits))


def kinds(events: list[ev.Event], kind: type[ev.Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize(
    ("text", "count", "seconds", "burst"),
    [("30/minute", 30, 60, 30), ("30/min", 30, 60, 30), (" 2 / s  burst 5 ", 2, 1, 5), ("1/hour", 1, 3600, 1)],
)
def test_rate_is_read(text: str, count: int, seconds: float, burst: int) -> None:
    """A count in a unit of time; without a burst the count may begin at once."""
    rate = read_bucket_rate(text)
    assert (rate.count, rate.seconds, rate.burst) == (count, seconds, burst)


@pytest.mark.parametrize("text", ["", "30", "0/min", "30/fortnight", "-1/s", "1/s burst 0", "9" * 20 + "/s", None, 3])
def test_what_is_no_rate_is_told(text: object) -> None:
    """What is no rate is named, with one that is."""
    with pytest.raises(ValueError, match='expected a rate such as "60/min"'):
        read_rate(text)
    with pytest.raises(ValueError, match="expected a rate such as"):
        read_bucket_rate("30/min window")


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_bucket_equals_one_that_counts(count: int, burst: int, pauses: list[float]) -> None:
    """Turns come when a bucket that is filled drop by drop has a whole one; what it says to wait for is enough."""
    rate, now, level = read_bucket_rate(f"{count}/s burst {burst}"), 1_000.0, float(burst)
    store = RatesInMemory(lambda: now)
    for pause in pauses:
        now += pause
        level = min(burst, level + pause * count)
        wait = store.take("x", rate)
        if abs(level - 1) > 1e-3:
            assert (wait == 0) == (level > 1)
        if wait == 0:
            level -= 1
        else:
            assert wait * count == pytest.approx(1 - level, abs=1e-3)
            now, level = now + wait, 1.0
            assert store.take("x", rate) == 0
            level = 0.0


def test_clock_that_is_set_back_costs_one_empty_bucket() -> None:
    """However far the clock goes back, nothing waits longer than for an empty bucket to fill."""
    now, rate = 1e9, read_bucket_rate("2/s")
    store = RatesInMemory(lambda: now)
    assert [store.take("x", rate) == 0 for _ in range(3)] == [True, True, False]
    now = 5.0
    assert 0 < store.take("x", rate) <= 0.5
    assert store.wait_seconds("x", rate, place=4) <= 2.0


def test_processes_and_restarts_share_a_rate(tmp_path: Path) -> None:
    """What one opening of the file took is taken for another, at the same time and after; no file is an own level."""
    rate = read_bucket_rate("3/h")
    one, other = SqliteRates(tmp_path / "rates.db"), SqliteRates(tmp_path / "rates.db")
    assert [store.take("x", rate) == 0 for store in (one, other, one, other)] == [True, True, True, False]
    one.close()
    other.close()
    with closing(SqliteRates(tmp_path / "rates.db")) as again:
        assert 1_000 < again.take("x", rate) <= 1_200
        assert again.take("y", rate) == 0
    (tmp_path / "file").write_text("no folder")
    with closing(SqliteRates(tmp_path / "file" / "rates.db")) as broken:
        assert [broken.take("x", SLOW) == 0 for _ in range(2)] == [True, False]


def test_agent_waits_for_its_rate() -> None:
    """Four runs of an agent of two at once and 20 a second: two wait, say so, and are counted."""
    fleet = fleet_of(Custom("a", echo), rates=Rates(agents={"a": read_bucket_rate("20/s burst 2")}))

    async def main() -> None:
        async with fleet:
            runs = await asyncio.gather(*(events_of(fleet, "x") for _ in range(4)))
        assert all(error is None for _, error in runs)
        waits = [event for events, _ in runs for event in kinds(events, ev.RateLimited)]
        assert [(wait.what, wait.rate) for wait in waits] == [("the agent a", "20/s burst 2")] * 2
        assert fleet.stats.rates.waits["agent:a"] == 2
        assert fleet.stats.rates.waiting["agent:a"] == 0
        assert 0.05 <= fleet.stats.rates.seconds["agent:a"] < 60

    asyncio.run(main())


def test_most_urgent_goes_first() -> None:
    """Of those that wait the lowest priority number has the next turn, then the earliest deadline."""
    begun: list[str] = []

    async def note(context: Context, task: Task) -> object:
        begun.append(task.text)
        return "done"

    fleet = fleet_of(Custom("a", note), rates=Rates(agents={"a": read_bucket_rate("10/s burst 1")}))

    async def main() -> None:
        async with fleet:
            asked = [("first", 0, None), ("last", 1, None), ("later", 0, 50), ("sooner", 0, 40), ("urgent", -1, None)]
            jobs: list[asyncio.Task[Any]] = []
            for text, priority, seconds in asked:
                run = events_of(fleet, text, priority=priority, timeout_seconds=seconds)
                jobs.append(asyncio.create_task(run))
                await asyncio.sleep(0)
            await asyncio.gather(*jobs)
        assert begun == ["first", "urgent", "sooner", "later", "last"]

    asyncio.run(main())


def test_turn_that_comes_too_late_fails_at_once() -> None:
    """A run whose deadline is before its turn does not wait for it, and says why; its agent was not begun."""
    begun: list[str] = []

    async def note(context: Context, task: Task) -> object:
        begun.append(task.text)
        return "done"

    fleet = fleet_of(Custom("a", note), rates=Rates(agents={"a": SLOW}))

    async def main() -> None:
        async with fleet:
            await events_of(fleet, "one")
            started = time.monotonic()
            events, error = await events_of(fleet, "two", timeout_seconds=600)
        assert time.monotonic() - started < 60
        assert isinstance(error, DeadlineError)
        assert "before: the turn of the agent a by its rate, 1/h, is in 3" in str(error)
        assert kinds(events, ev.RunFailed)[0].reason == "timeout"
        assert (begun, fleet.stats.rates.missed["agent:a"]) == (["one"], 1)

    asyncio.run(main())


def test_cancelled_wait_gives_its_place_to_the_next() -> None:
    """A run that is cancelled while it waits takes no turn; the next in the queue has it."""
    fleet = fleet_of(Custom("a", echo), rates=Rates(agents={"a": read_bucket_rate("5/s burst 1")}))

    async def main() -> None:
        async with fleet:
            await events_of(fleet, "one")
            gone = asyncio.create_task(events_of(fleet, "gone"))
            await asyncio.sleep(0.02)
            after = asyncio.create_task(events_of(fleet, "after"))
            await asyncio.sleep(0.02)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            _, error = await after
            assert error is None
            assert not fleet._turns._queues
            assert fleet.journal.rates.wait_seconds("agent:a", read_bucket_rate("5/s burst 1"), 2) <= 0.4

    asyncio.run(main())


def test_step_has_a_rate_for_all_its_items() -> None:
    """A step's items share its rate, which is the run's own; waiting is no time of the agents' own."""
    graph = '[[steps]]\nname = "each"\nagent = "a"\nrate = "20/s burst 1"\nfor_each = ["x", "y", "z"]\ntask = "{item}"'
    fleet = fleet_of(Custom("a", echo))

    async def main() -> None:
        async with fleet:
            for _ in range(2):
                events, error = await events_of(fleet, read_graph(graph, "", None))
                assert error is None
                assert kinds(events, ev.RunFinished)[0].output == ["x!", "y!", "z!"]
                assert {wait.what for wait in kinds(events, ev.RateLimited)} == {"the step each"}
                assert len(kinds(events, ev.RateLimited)) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step(name="s", agent="a", task=Task(text="x"), rate="often"), "the step s: rate: expected a rate such as"),
        (Step(name="g", rate="1/s", steps=(Step(name="s", task=Task(text="x")),)), "has no rate; give it to the first"),
    ],
)
def test_wrong_rate_of_a_step_is_refused(step: Step, said: str) -> None:
    """What is no rate, and a rate of a group, are named before anything runs."""
    _, error = asyncio.run(events_of(fleet_of(Custom("a", echo)), [step]))
    assert isinstance(error, RequestError)
    assert said in str(error)


def test_tool_waits_or_misses_its_turn() -> None:
    """Tools of one beginning share a rate; a call that would come too late fails, and the agent goes on."""
    called: list[str] = []

    @tool(effect="once")
    async def web_get(page: str) -> str:
        """Get a page."""
        called.append(page)
        return page

    async def work(context: Context, task: Task) -> object:
        await context.call_tool("web_get", {"page": "a"})
        try:
            await context.call_tool("web_get", {"page": "b"})
        except DeadlineError as error:
            return str(error)
        return "twice"

    fleet = fleet_of(Custom("a", work), tools=[web_get], rates=Rates(tools={"web_*": SLOW}))

    async def main() -> None:
        async with fleet:
            events, error = await events_of(fleet, "x", timeout_seconds=100)
        assert error is None
        assert "the turn of the tool web_get by its rate, 1/h" in kinds(events, ev.RunFinished)[0].output
        assert called == ["a"]
        assert [event.error is None for event in kinds(events, ev.ToolCalled)] == [True, False]
        assert len(kinds(events, ev.ToolStarted)) == 1

    asyncio.run(main())


def test_resumed_run_takes_turns_for_what_runs_again(tmp_path: Path) -> None:
    """After a restart the bucket is as it was: what is kept takes no turn, what runs again does."""
    rates = Rates(agents={"a": read_bucket_rate("2/h")})
    is_broken = True

    async def flaky(context: Context, task: Task) -> object:
        if is_broken:
            raise ValueError("broken")
        return "mended"

    steps = [
        Step(name="one", agent="a", task=Task(text="x")),
        Step(name="two", agent="b", after=("one",), task=Task(text="y")),
    ]

    async def main() -> None:
        nonlocal is_broken
        journal = SqliteJournal(tmp_path)
        async with fleet_of(Custom("a", echo), Custom("b", flaky), journal=journal, rates=rates) as fleet:
            events, _ = await events_of(fleet, steps)
        journal.close()
        is_broken, journal = False, SqliteJournal(tmp_path)
        async with fleet_of(Custom("a", echo), Custom("b", flaky), journal=journal, rates=rates) as fleet:
            resumed = [event async for event in fleet.resume(events[0].run)]
            assert kinds(resumed, ev.RunFinished)[0].output == "mended"
            assert (await events_of(fleet, "z", agent="a"))[1] is None, "the second turn, which the resumed run left"
            _, error = await events_of(fleet, "z", agent="a", timeout_seconds=60)
            assert isinstance(error, DeadlineError)
        journal.close()

    asyncio.run(main())


def test_missed_turn_stays_missed_when_the_run_is_resumed(tmp_path: Path) -> None:
    """A step that went on after a missed turn is given the same when the run is resumed, though there is a turn now."""
    journal, is_broken, seen = SqliteJournal(tmp_path), True, list[object]()

    async def last(context: Context, task: Task) -> object:
        seen.append(dict(task.results))
        if is_broken:
            raise ValueError("broken")
        return "mended"

    steps = [
        Step(name="late", agent="a", task=Task(text="x"), deadline_seconds=5, retries=Retries(max=1, seconds=0)),
        Step(name="last", agent="b", after=("late",), join="done", task=Task(text="y")),
    ]

    async def main() -> None:
        nonlocal is_broken
        rates = Rates(agents={"a": SLOW})
        async with fleet_of(Custom("a", echo), Custom("b", last), journal=journal, rates=rates) as fleet:
            await events_of(fleet, "x", agent="a")
            events, _ = await events_of(fleet, steps)
            assert [failed.kind for failed in kinds(events, ev.AgentFailed)][:2] == ["DeadlineError"] * 2
        is_broken = False
        async with fleet_of(Custom("a", echo), Custom("b", last), journal=journal) as fleet:
            resumed = [event async for event in fleet.resume(events[0].run)]
            assert kinds(resumed, ev.RunFinished)[0].output == "mended"
        assert seen == [{}, {}]

    asyncio.run(main())
    journal.close()


def test_private_runs_leave_no_step_on_disk(tmp_path: Path) -> None:
    """The rate of a private run's step is in memory alone."""
    journal = SqliteJournal(tmp_path)

    async def main() -> None:
        async with fleet_of(Custom("a", echo), journal=journal) as fleet:
            step = Step(name="secret", agent="a", task=Task(text="x"), rate="1/h")
            assert (await events_of(fleet, [step], is_private=True))[1] is None

    asyncio.run(main())
    journal.close()
    assert not (tmp_path / "rates.db").exists()
    assert isinstance(MemoryJournal().rates, RatesInMemory)
