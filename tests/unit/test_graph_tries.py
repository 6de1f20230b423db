"""Steps that are tried again, and within their time, budget and turn."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.fleets import Custom, events_of, fleet_of
from support.graphs import AGENTS, DOWN, flaky_agent, ran, started, step

from pyagent.core.errors import AgentError, BudgetError, DeadlineError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.step_options import Repeat, Retries, StepBudget
from pyagent.core.fleet.steps import Step
from pyagent.testing import ScriptedBackend


def test_a_failed_step_is_tried_again() -> None:
    """Each try has its own path and is told with its wait; the result is that of the one that goes well."""
    retries = Retries(max=2, seconds=0.02)
    seen, output, error = ran([step("a", "flaky", retries=retries)], flaky_agent(DOWN, DeadlineError("late")))
    assert error is None
    assert output == "after 3"
    assert started(seen) == ["a", "a~2", "a~3"]
    retried = [event for event in seen if isinstance(event, ev.StepRetried)]
    assert [(event.step, event.attempt, event.kind, event.failed) for event in retried] == [
        ("a", 1, "BackendError", ("a",)),
        ("a~2", 2, "DeadlineError", ("a~2",)),
    ]
    begun = [event.at for event in seen if isinstance(event, ev.AgentStarted)][1:]
    waits = [(event.seconds, at - event.at) for event, at in zip(retried, begun, strict=True)]
    assert all(0.01 <= seconds <= waited * 1.1 for seconds, waited in waits)


@pytest.mark.parametrize(
    ("retries", "error", "num_tries"),
    [
        (Retries(max=2, seconds=0), DOWN, 3),
        (Retries(max=2, seconds=0, on=("timeout",)), DOWN, 1),
        (Retries(max=2, seconds=0, on=("agent",)), ValueError("no"), 3),
        (Retries(max=2, seconds=0), BudgetError("spent", resource="usd"), 1),
        (Retries(max=2, seconds=0), RequestError("wrong"), 1),
        (Retries(max=2, seconds=1_000), DOWN, 1),
    ],
)
def test_tries_are_bounded(retries: Retries, error: Exception, num_tries: int) -> None:
    """A step is tried so often, after such failures as are named, and never past its deadline or its budget."""
    seen, _, ended = ran([step("a", "flaky", retries=retries, deadline_seconds=20.0)], flaky_agent(*[error] * 5))
    assert isinstance(ended, type(error) if not isinstance(error, ValueError) else AgentError)
    assert len(started(seen)) == num_tries


def test_a_group_is_tried_again_as_one() -> None:
    """What failed in a group begins the group again, with paths of its own."""
    group = Step(name="both", steps=(step("one"), step("two", "flaky", ["one"])), retries=Retries(max=1, seconds=0))
    seen, output, _ = ran([group], flaky_agent(DOWN))
    assert output == "after 2"
    assert started(seen) == ["one", "two", "one~2", "two~2"]


def test_tries_in_tries_have_paths_of_their_own() -> None:
    """A step's second try in its group's first is not its first in the group's second: each is resumed as itself."""
    retries = Retries(max=1, seconds=0)
    group = Step(name="both", steps=(step("one"), step("two", "flaky", ["one"], retries=retries)), retries=retries)
    outer = Step(name="outer", steps=(group,), retries=retries)
    seen, output, error = ran([group], flaky_agent(DOWN, DOWN))
    assert (error, output) == (None, "after 3")
    assert started(seen) == ["one~1", "two~1", "two~1~2", "one~2", "two~2"]
    seen, output, error = ran([outer], flaky_agent(*[DOWN] * 7))
    assert (error, output) == (None, "after 8")
    assert max(Counter(started(seen)).values()) == 1
    assert started(seen)[-1] == "two~2~2~2"


def test_a_step_has_a_budget_and_a_deadline_of_its_own() -> None:
    """Tokens of all its rounds count together; its time is its own, and other steps go on."""

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("x" * 30)

    async def wait(context: Context, task: Task) -> object:
        await asyncio.sleep(60)
        return ""

    agents = Custom("ask", ask), Custom("wait", wait)
    steps = [step("a", "ask", repeat=Repeat(max=5), budget=StepBudget(tokens=540))]
    fleet = Fleet(ScriptedBackend(lambda _: "w " * 10), agents)
    seen, error = asyncio.run(events_of(fleet, steps))
    assert isinstance(error, BudgetError)
    assert "the budget of the step a is 540 tokens" in str(error)
    assert 1 < len(started(seen)) < 5
    for late in ({"deadline_seconds": 0.05}, {"budget": StepBudget(seconds=0.05)}):
        seen, error = asyncio.run(
            events_of(fleet_of(*AGENTS, *agents), [step("a", "wait", **late), step("b", after=["a"], join="done")])
        )
        assert error is None
        assert [event.kind for event in seen if isinstance(event, ev.AgentFailed)] == ["DeadlineError"]


@pytest.mark.parametrize("budget", [StepBudget(tokens=10**6), StepBudget(seconds=60.0)], ids=["tokens", "seconds"])
def test_a_budget_of_a_step_is_within_the_runs(budget: StepBudget) -> None:
    """What a step may use is no more than the run may; where the run's is spent no join goes on."""

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("x" * 30)

    steps = [step("a", "ask", repeat=Repeat(max=5), budget=budget), step("b", after=["a"], join="done")]
    model = ScriptedBackend(lambda _: "w " * 10)
    fleet = Fleet(model, [*AGENTS, Custom("ask", ask)], limits=FleetLimits(run_tokens=540))
    seen, error = asyncio.run(events_of(fleet, steps))
    told = [event.error for event in seen if isinstance(event, ev.AgentFailed)]
    assert len(told) == 1
    assert " is 540 tokens" in told[0]
    assert isinstance(error, BudgetError)
    assert error.setting == "budget.run"


def test_priority_and_class_of_a_step_reach_its_requests() -> None:
    """A step's requests, and those of agents it spawns, have its priority and class; others have the run's."""
    backend = ScriptedBackend(lambda request: "x")

    async def ask(context: Context, task: Task) -> object:
        return await context.generate(task.text)

    async def lead(context: Context, task: Task) -> object:
        return await context.spawn("ask", "child")

    fleet = Fleet(backend, [Custom("ask", ask), Custom("lead", lead)])
    steps = [step("a", "lead", priority=-3, request_class="fast", deadline_seconds=50.0), step("b", "ask")]
    asyncio.run(events_of(fleet, steps, priority=2, request_class="slow"))
    told = {request.messages[-1].text: request for request in backend.requests}
    assert (told["child"].priority, told["child"].request_class) == (-3, "fast")
    assert (told["b"].priority, told["b"].request_class) == (2, "slow")
    assert (told["child"].timeout_seconds or 99) <= 50.0


def test_steps_begin_by_priority_and_deadline() -> None:
    """Where more steps could begin than may, the lowest priority is first, then the soonest deadline."""
    steps = [
        step("late"),
        step("soon", deadline_seconds=9.0),
        step("sooner", deadline_seconds=5.0),
        step("first", priority=-1),
        step("last", priority=1, deadline_seconds=1.0),
    ]
    seen, _, _ = ran(steps, max_concurrency=1)
    assert started(seen) == ["first", "sooner", "soon", "late", "last"]


async def _three_runs(fleet: Fleet) -> list[str]:
    order: list[str] = []

    async def one(text: str, **options: object) -> None:
        _, error = await events_of(fleet, text, **options)
        assert error is None, error
        order.append(text)

    jobs = [asyncio.create_task(one("first"))]
    await asyncio.sleep(0)
    waiting = [("plain", {}), ("soon", {"timeout_seconds": 900.0}), ("urgent", {"priority": -1})]
    jobs += [asyncio.create_task(one(text, **options)) for text, options in waiting]
    await asyncio.gather(*jobs)
    return order


def test_runs_begin_by_priority_and_deadline() -> None:
    """Where more runs want to go on than may, one at a time here, the most urgent is next."""

    async def work(context: Context, task: Task) -> object:
        await asyncio.sleep(0.02)
        return task.text

    fleet = fleet_of(Custom("work", work), max_runs=1)
    assert asyncio.run(_three_runs(fleet)) == ["first", "urgent", "soon", "plain"]


def test_a_run_waits_for_its_turn_no_longer_than_it_may() -> None:
    """A run whose deadline passes while others go on ends with that."""

    async def work(context: Context, task: Task) -> object:
        await asyncio.sleep(0.3)
        return task.text

    async def main() -> None:
        fleet = fleet_of(Custom("work", work), max_runs=1)
        first = asyncio.create_task(events_of(fleet, "first"))
        await asyncio.sleep(0)
        seen, error = await events_of(fleet, "second", timeout_seconds=0.05)
        assert isinstance(error, DeadlineError)
        assert "its turn" in str(error)
        assert isinstance(seen[-1], ev.RunFailed)
        assert (await first)[1] is None

    asyncio.run(main())
