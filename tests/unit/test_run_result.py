"""A run's own budget, and its result read again from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom, ask, echo

import pyagent
from pyagent.core.errors import BudgetError, DeadlineError, PyAgentError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.limits import RunBudget
from pyagent.core.fleet.steps import Step
from pyagent.core.settings import Settings
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

pytestmark = pytest.mark.anyio


class Poem(msgspec.Struct):
    """A result with a type."""

    line: str


class Poet:
    name = "poet"
    description = "Writes."

    async def run(self, context: Context, task: Task) -> Poem:
        return Poem(task.text)


async def broken(context: Context, task: Task) -> object:
    raise ValueError("broken")


async def slow(context: Context, task: Task) -> object:
    await asyncio.sleep(30)
    return ""


def fleet_in(folder: Path) -> pyagent.Fleet:
    """Return a fleet whose journal is on disk."""
    agents = [Poet(), Custom("echo", echo), Custom("ask", ask), Custom("broken", broken), Custom("slow", slow)]
    backend = ScriptedBackend(["an answer"] * 9)
    return pyagent.Fleet(Settings(), backend=backend, agents=agents, tools=[], journal=SqliteJournal(folder))


async def end_of(run: AsyncGenerator[ev.Event, None]) -> tuple[str, PyAgentError | None]:
    """Return a run's id and the error that it ends with."""
    name = ""
    try:
        async for event in run:
            name = event.run
    except PyAgentError as error:
        return name, error
    return name, None


async def test_a_finished_runs_result_is_read_again_in_its_type(tmp_path: Path) -> None:
    """`fleet.result` gives what the run gave: an agent's type, the results of several last steps, a plain text."""
    steps = [Step(name="one", agent="poet", task=Task(text="a")), Step(name="two", agent="echo", task=Task(text="b"))]
    async with fleet_in(tmp_path) as fleet:
        typed, _ = await end_of(fleet.run("roses", agent="poet"))
        several, _ = await end_of(fleet.run(steps))
        plain, _ = await end_of(fleet.run("hi", agent="echo"))
    async with fleet_in(tmp_path) as again:
        assert again.result(typed) == Poem("roses")
        assert again.result(several) == {"one": Poem("a"), "two": "b!"}
        assert again.result(plain) == "hi!"
    without = [Custom("echo", echo)]
    async with pyagent.Fleet(
        Settings(), backend=ScriptedBackend([]), agents=without, tools=[], journal=SqliteJournal(tmp_path)
    ) as again:
        assert again.result(typed) == {"line": "roses"}, "plain data where the agent is gone"


async def test_a_run_without_a_result_says_how_it_stands(tmp_path: Path) -> None:
    """A failed run and an unknown one are refused by name."""
    async with fleet_in(tmp_path) as fleet:
        failed, _ = await end_of(fleet.run("x", agent="broken"))
        with pytest.raises(RequestError, match=f"{failed} is failed and has no result; `pyagent runs show"):
            fleet.result(failed)
        with pytest.raises(RequestError, match="there is no run"):
            fleet.result("r-none")


async def test_a_runs_own_budget_bounds_it_also_when_it_goes_on(tmp_path: Path) -> None:
    """Tokens, USD and seconds of `budget` end the run, and a resumed one has the same budget."""
    async with fleet_in(tmp_path) as fleet:
        run, error = await end_of(fleet.run("x", agent="ask", budget=RunBudget(tokens=3)))
        assert isinstance(error, BudgetError)
        assert f"the budget of run {run} is 3 tokens" in str(error)
        assert "raise budget.tokens" in str(error)
        _, error = await end_of(fleet.resume(run))
        assert isinstance(error, BudgetError)
        _, error = await end_of(fleet.run("x", agent="slow", budget=RunBudget(seconds=0.05)))
        assert isinstance(error, DeadlineError)
        assert await fleet.run_agent("ask", "x", budget=RunBudget(tokens=100_000)) == "an answer"


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (RunBudget(tokens=0), "budget.tokens is a number from 1"),
        (RunBudget(usd=float("nan")), "budget.usd is a number from 0"),
        ({"tokens": 5}, "budget is a RunBudget, got dict"),
    ],
)
async def test_what_is_no_budget_is_refused(tmp_path: Path, budget: RunBudget, told: str) -> None:
    """A wrong budget is named before anything runs."""
    async with fleet_in(tmp_path) as fleet:
        _, error = await end_of(fleet.run("x", agent="echo", budget=budget))
        assert told in str(error)
        assert fleet.runs() == []


async def test_a_graph_with_an_unknown_agent_does_not_begin(tmp_path: Path) -> None:
    """Also behind a step that joins after failures an unknown agent is an error, before anything runs."""
    steps = [
        Step(name="find", agent="finder", task=Task(text="a")),
        Step(name="report", agent="echo", task=Task(text="b"), after=("find",), join="done"),
    ]
    async with fleet_in(tmp_path) as fleet:
        _, error = await end_of(fleet.run(steps))
        assert str(error).startswith("there is no agent 'finder'")
        assert fleet.runs() == []


def test_a_program_without_an_event_loop_has_the_same(tmp_path: Path) -> None:
    """`SyncFleet` takes a budget and a plan, and reads results."""
    with fleet_in(tmp_path) as fleet:
        events = list(fleet.run("hi", agent="echo", budget=RunBudget(tokens=1_000), plan=False, priority=-1))
        assert fleet.result(events[0].run) == "hi!"
        assert fleet.check_replay(events[0].run).difference == ""
