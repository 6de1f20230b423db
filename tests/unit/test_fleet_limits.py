"""What bounds a run: budgets, deadlines, calls at once, and cancellation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from support.fleets import Custom, ask, echo, events_of, fleet_of, sleep_long

from pyagent.core.errors import AgentError, BudgetError, DeadlineError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.limits import RunBudget
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.run import MAX_DEPTH
from pyagent.core.fleet.steps import Step
from pyagent.core.messages import ChatRequest
from pyagent.core.resilience.deadline import Deadline
from pyagent.testing import Reply, ScriptedBackend


def test_budget_is_reserved_before_the_call_and_partial_results_kept() -> None:
    """The call that would break the budget is never made; what was done before it is in the last event."""

    async def greedy(context: Context, task: Task) -> object:
        await context.spawn("echo", "kept")
        return await context.generate("x" * 3000)

    fleet = fleet_of(Custom("greedy", greedy), Custom("echo", echo), script=["never"], run_tokens=1000)
    steps = [
        Step(name="first", agent="echo", task=Task(text="kept")),
        Step(name="second", agent="greedy", task=Task(text="go"), after=("first",)),
    ]
    seen, error = asyncio.run(events_of(fleet, steps))
    assert isinstance(error, BudgetError)
    assert error.resource == "tokens"
    assert "run r-" in str(error)
    assert fleet.backend.requests == []  # type: ignore[attr-defined]
    assert isinstance(seen[-1], ev.RunFailed)
    assert (seen[-1].kind, seen[-1].partial) == ("BudgetError", {"first": "kept!"})


def test_settled_budget_counts_what_was_used() -> None:
    """After a call only its real use counts, so a long row of small calls fits a small budget."""

    budgets: list[Budget] = []

    async def many(context: Context, task: Task) -> object:
        budgets.append(context.run.budget)
        return "".join([await context.generate("hi") for _ in range(20)])

    fleet = fleet_of(Custom("many", many), script=["a"] * 20, run_tokens=600)
    assert asyncio.run(fleet.run_agent("many", "go")) == "a" * 20
    (budget,) = budgets
    assert (budget.used_tokens, budget.reserved_tokens) == (40, 0)


def test_spawned_agent_has_its_own_limit_inside_the_run() -> None:
    """A child's budget is refused at its own level, by its name."""

    async def parent(context: Context, task: Task) -> object:
        return await context.spawn("ask", "hi", max_tokens=100)

    with pytest.raises(BudgetError, match=r"parent/1\.ask is 100 tokens"):
        asyncio.run(fleet_of(Custom("parent", parent), Custom("ask", ask)).run_agent("parent", "go"))


def test_an_agent_that_spawns_itself_ends() -> None:
    """Agents within agents have a bound of their own, which names the agent that goes too deep."""
    depths: list[int] = []

    async def again(context: Context, task: Task) -> object:
        depths.append(context.depth)
        return await context.spawn("again", task.text)

    _, error = asyncio.run(events_of(fleet_of(Custom("again", again), run_agents=50), "go"))
    assert isinstance(error, AgentError)
    assert f"again is spawned {MAX_DEPTH} agents deep" in str(error)
    assert depths == list(range(MAX_DEPTH + 1))


def test_deadline_is_passed_down_and_kept() -> None:
    """The backend is told the time left; an agent that sleeps past it is ended."""
    fleet = fleet_of(Custom("ask", ask), Custom("sleep", sleep_long), script=["ok"])

    async def main() -> None:
        await fleet.run_agent("ask", "hi", timeout_seconds=30)
        timeout = fleet.backend.requests[0].timeout_seconds  # type: ignore[attr-defined]
        assert 29 < timeout <= 30
        with pytest.raises(DeadlineError, match="agent sleep"):
            await fleet.run_agent("sleep", "hi", timeout_seconds=0.05)

    asyncio.run(main())


def test_run_seconds_bound_a_run_without_timeout() -> None:
    """The fleet's own limit on a run's time holds when the caller gives none."""
    with pytest.raises(DeadlineError):
        asyncio.run(fleet_of(Custom("sleep", sleep_long), run_seconds=0.05).run_agent("sleep", "x"))


def test_calls_at_once_are_bounded() -> None:
    """However many children ask, no more calls are under way than the fleet allows."""
    running = most = 0

    class Counting(ScriptedBackend):
        async def chat(self, request: ChatRequest):  # type: ignore[override]
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                async for delta in super().chat(request):
                    yield delta
            finally:
                running -= 1

    async def fan(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.spawn("ask", f"{n}"), range(40))

    backend = Counting(lambda request: request.messages[-1].text)
    fleet = Fleet(backend, [Custom("fan", fan), Custom("ask", ask)], limits=FleetLimits(max_concurrency=3))
    assert asyncio.run(fleet.run_agent("fan", "go")) == [str(n) for n in range(40)]
    assert most == 3


def test_cancelling_a_run_reaches_every_child_and_stream() -> None:
    """Leaving the iterator ends children at every depth, aborts streams, and the journal says how the run ended."""

    async def nest(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.spawn("ask", f"{n}"), range(3))

    async def main() -> None:
        backend = ScriptedBackend(lambda _: Reply(text="a b c", delay_seconds=30))
        fleet = Fleet(backend, [Custom("nest", nest), Custom("ask", ask)])
        async with aclosing(fleet.run("go", agent="nest")) as run:
            run_id = ""
            async for event in run:
                run_id = event.run
                if isinstance(event, ev.AgentStarted) and event.step == "nest/1[2].1.ask":
                    await asyncio.sleep(0.02)
                    break
        assert len(asyncio.all_tasks()) == 1
        assert backend.num_aborted == 3
        records = [record.event for record in fleet.journal.replay(run_id)]
        assert isinstance(records[-1], ev.RunFailed)
        assert records[-1].kind == "CancelledError"
        assert sum(isinstance(event, ev.AgentFailed) for event in records) == 4

    asyncio.run(main())


def test_leaving_the_fleet_ends_its_runs_and_closes_agents() -> None:
    """What still runs when the fleet ends is cancelled; agents are closed, those that need others first."""
    closed: list[str] = []

    def closing(name: str) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            closed.append(name)

        return close

    async def main() -> None:
        base = Custom("base", sleep_long, close=closing("base"))
        user = Custom("user", echo, needs=("base",), close=closing("user"))
        async with fleet_of(user, base) as fleet:
            job = asyncio.create_task(fleet.run_agent("base", "x"))
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await job
        assert closed == ["user", "base"]

    asyncio.run(main())


_NO_NUMBERS = [math.nan, math.inf, -math.inf, -1, 10**400, True, "5"]


@pytest.mark.parametrize("number", _NO_NUMBERS)
def test_limit_that_is_no_number_is_refused_by_its_name(number: Any) -> None:
    """NaN is below nothing: as a run's own timeout it would take the fleet's limit away. The agent does not begin."""
    begun: list[str] = []

    async def counting(context: Context, task: Task) -> object:
        begun.append(task.text)
        return "x"

    async def work(context: Context, task: Task) -> object:
        wanted: dict[str, Callable[[], Awaitable[object]]] = {
            "timeout_seconds": lambda: context.spawn("counting", "x", timeout_seconds=number),
            "max_tokens": lambda: context.spawn("counting", "x", max_tokens=number),
            "max_concurrency": lambda: context.map(context.generate, ["x"], max_concurrency=number),
        }
        return await wanted[task.text]()

    async def main() -> None:
        fleet = fleet_of(Custom("work", work), Custom("counting", counting), script=["x"], run_seconds=60.0)
        given: dict[str, dict[str, Any]] = {
            "timeout_seconds": {"timeout_seconds": number},
            "budget.tokens": {"budget": RunBudget(tokens=number)},
            "budget.usd": {"budget": RunBudget(usd=number)},
            "budget.seconds": {"budget": RunBudget(seconds=number)},
        }
        if number != -1:
            given["priority"] = {"priority": number}
        for name, options in given.items():
            _, error = await events_of(fleet, "x", agent="counting", **options)
            assert isinstance(error, RequestError), name
            assert str(error).startswith(f"{name} is a "), name
        for name in ("timeout_seconds", "max_tokens", "max_concurrency"):
            _, error = await events_of(fleet, name, agent="work")
            assert isinstance(error, RequestError), name
            assert str(error).startswith(f"{name} is a "), name

    asyncio.run(main())
    assert begun == []


def test_deadline_is_no_sooner_by_what_is_no_number() -> None:
    """A limit in seconds that came out as NaN is an error, and no end of all limits."""
    with pytest.raises(RequestError, match="timeout_seconds must be 0 or more, got nan"):
        Deadline.after(60).sooner(math.nan)


def test_a_table_among_arguments_is_told_by_its_beginning() -> None:
    """Events and prompts that show a task do not repeat a million numbers of its arguments."""
    task = Task(arguments={"data": {"x": list(range(1_000_000))}, "y": "z" * 1_000_000, "top": 3, "names": ["a", "b"]})
    assert len(task.title) < 3_000
    assert task.title.startswith("data={'x': [0, 1, 2, ")
    assert task.title.endswith("zzz... top=3 names=['a', 'b']")
