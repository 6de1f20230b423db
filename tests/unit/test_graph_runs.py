"""Graphs that branch, loop and map: what runs, what does not, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom, fleet_of
from support.graphs import AGENTS, Score, ran, started, step

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.graph_file import read_graph
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.step_options import Repeat, Retries, StepBudget
from pyagent.core.fleet.steps import Step


def test_a_branch_is_taken_by_a_result() -> None:
    """A step whose condition is false is skipped with it; what joins any goes on, and the result is of what ran."""
    seen, output, error = ran(
        [
            step("better", "better"),
            step("low", after=["better"], when="better.score < 5"),
            step("high", after=["better"], when="better.score >= 5"),
            step("never", after=["high"]),
            step("end", after=["low", "high"], join="any"),
        ]
    )
    assert error is None
    assert output == "end ['low']"
    skipped = {event.step: (event.cause, event.condition) for event in seen if isinstance(event, ev.StepSkipped)}
    assert skipped == {"high": ("", "better.score >= 5"), "never": ("high", "")}


@pytest.mark.parametrize(
    ("join", "befores", "runs"),
    [
        ("all", ["say", "say"], True),
        ("all", ["say", "fail"], False),
        ("any", ["say", "fail"], True),
        ("any", ["fail", "fail"], False),
        ("done", ["fail", "fail"], True),
    ],
)
def test_a_join_decides(join: str, befores: list[str], *, runs: bool) -> None:
    """A step runs after all that are done, any that is, or all that have ended; a failure it went on after is none."""
    steps = [step(f"s{number}", agent) for number, agent in enumerate(befores)]
    seen, output, error = ran([*steps, step("end", after=["s0", "s1"], join=join)])
    assert ("end" in started(seen)) is runs
    assert (error is None) is runs
    if runs and "fail" in befores:
        assert isinstance(output, str)
        tolerated = [event.failed for event in seen if isinstance(event, ev.FailureTolerated)]
        assert tolerated == [tuple(f"s{number}" for number, agent in enumerate(befores) if agent == "fail")]


def test_a_failure_that_nothing_goes_on_after_fails_the_run() -> None:
    """A step that would go on, but whose condition is false, leaves the failure what it is."""
    _, _, error = ran([step("bad", "fail"), step("end", after=["bad"], join="done", when="done bad")])
    assert isinstance(error, AgentError)


def test_a_loop_ends_by_its_condition_or_its_bound() -> None:
    """Rounds have their own paths, and each gets what the one before gave."""
    for until, rounds, is_met in (("better.score >= 3", 3, True), ("better.score > 9", 4, False), ("", 4, False)):
        seen, output, _ = ran([step("better", "better", repeat=Repeat(max=4, until=until))])
        assert output == Score(rounds)
        assert started(seen) == [f"better#{number}" for number in range(1, rounds + 1)]
        [ended] = [event for event in seen if isinstance(event, ev.LoopEnded)]
        assert (ended.rounds, ended.is_met) == (rounds, is_met)


def test_a_group_loops_as_one() -> None:
    """A group's steps run in order in each round, its condition looks at them, and the last gives its result."""
    inner = (
        step("draft"),
        step("better", "better", ["draft"]),
        step("extra", after=["draft"], when="draft == 'x'"),
    )
    group = Step(name="fix", steps=inner, repeat=Repeat(max=3, until="better.score == 1 and skipped extra"))
    seen, output, error = ran(
        [step("begin"), msgspec.structs.replace(group, after=("begin",)), step("end", after=["fix"])]
    )
    assert error is None
    assert started(seen) == ["begin", "draft#1", "better#1", "end"]
    assert output == "end ['fix']"


def test_items_of_a_result_run_side_by_side() -> None:
    """A step runs for each item that an earlier step returned; places in its texts are the item and its parts."""
    find = Step(name="find", agent="items", task=Task(text="a bb"))
    each = Step(name="each", task=Task(text="{item.name} of {item.size} in {item}"), agent="say", after=("find",))
    each = msgspec.structs.replace(each, for_each="{find.items}")
    seen, output, _ = ran([find, each])
    assert sorted(started(seen)) == ["each[1]", "each[2]", "find"]
    assert output == [
        'a of 1 in {"name":"a","size":1} [\'find\']',
        'bb of 2 in {"name":"bb","size":2} [\'find\']',
    ]


def test_no_items_are_an_empty_result() -> None:
    """A step for the items of an empty list is done."""
    find = Step(name="find", agent="items", task=Task(text="none"))
    each = step("each", after=["find"], for_each="{find.items}")
    assert (
        ran([msgspec.structs.replace(find, task=Task(text="\u2003", arguments={})), each])[2] is not None
    )  # empty task
    empty = Custom("empty", _nothing)
    assert ran([step("find", "empty"), each], empty)[1] == []


async def _nothing(context: Context, task: Task) -> object:
    return {"items": []}


@pytest.mark.parametrize(
    ("reference", "told"),
    [("{find}", "needs a list in find"), ("{find.items[0].name}", "needs a list"), ("{find.nope}", "needs a list")],
)
def test_items_that_are_no_list_fail_the_step(reference: str, told: str) -> None:
    """What is mapped over has to be a list, and the error has what it is."""
    find = Step(name="find", agent="items", task=Task(text="a"))
    _, _, error = ran([find, step("each", after=["find"], for_each=reference)])
    assert isinstance(error, RequestError)
    assert told in str(error)


def test_too_many_items_are_refused() -> None:
    """A list of a result has a bound."""

    async def many(context: Context, task: Task) -> object:
        return ["x"] * 1_001

    _, _, error = ran([step("find", "many"), step("each", after=["find"], for_each="{find}")], Custom("many", many))
    assert "at most 1,000 items, find has 1,001" in str(error)


def test_item_of_a_result_names_no_file_elsewhere(tmp_path: Path) -> None:
    """An item that comes of a result leads to no file outside the folder of the step's files."""

    async def names(context: Context, task: Task) -> object:
        return ["a.txt", "../secret.txt"]

    async def read(context: Context, task: Task) -> object:
        return task.files[0]

    steps = read_graph(
        '[[steps]]\nname = "names"\nagent = "names"\ntask = "go"\n'
        '[[steps]]\nname = "read"\nagent = "read"\nafter = ["names"]\nfor_each = "{names}"\nfiles = ["{item}"]\n',
        "",
        tmp_path,
    )
    seen, _, error = ran(steps, Custom("names", names), Custom("read", read))
    assert isinstance(error, RequestError)
    assert "../secret.txt" in str(error)
    finished = [event.output for event in seen if isinstance(event, ev.AgentFinished) and event.step == "read[1]"]
    assert finished == [str(tmp_path / "a.txt")]


def test_what_becomes_of_a_text_is_bounded() -> None:
    """A short text with many places for a long item is refused before it is made."""

    async def long(context: Context, task: Task) -> object:
        return ["x" * 100_000]

    each = Step(name="each", agent="say", task=Task(text="{item}" * 1_000), after=("find",), for_each="{find}")
    _, _, error = ran([step("find", "long"), each], Custom("long", long))
    assert "at most 1,000,000 characters" in str(error)
    with pytest.raises(RequestError, match="at most 1,000,000 characters"):
        read_graph(f"[[steps]]\nname = 'a'\ntask = '{'{task}' * 1000}'", "x" * 2_000, Path())
    text = f"[[steps]]\nname = 'a'\nfor_each = {['x'] * 1000}\ntask = '{'{task}' * 10}'"
    with pytest.raises(RequestError, match="at most 20,000,000 characters"):
        read_graph(text, "x" * 2_001, Path())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([step("a", when="b.x == 1")], "the step a: when looks at 'b', which is not before it"),
        ([step("a"), step("b", when="a == 1")], "name others in after"),
        ([step("a", when="a ==")], "the step a: the condition"),
        ([step("a", repeat=Repeat(max=0))], "repeat.max is a number from 1 to 1,000, got 0"),
        ([step("a", repeat=Repeat(max=10**9))], "repeat.max"),
        ([step("a", repeat=Repeat(max=2, until="z == 1"))], "repeat.until looks at 'z'"),
        ([step("a", retries=Retries(max=99))], "retries.max is a number from 1 to 20"),
        ([step("a", retries=Retries(seconds=float("nan")))], "retries.seconds"),
        ([step("a", retries={"max": 3})], "retries is a Retries, got dict"),
        ([step("a", deadline_seconds=-1.0)], "deadline_seconds"),
        ([step("a", budget=StepBudget(tokens=0))], "budget.tokens"),
        ([step("a", join="any")], "after names none"),
        ([step("a", for_each="find.items")], "written like {find.items}"),
        ([step("a", for_each="{find}")], "for_each looks at 'find'"),
        ([step("a", for_each=())], "1 to 1000 items"),
        ([step("a[1]")], "without a slash"),
        ([step("a#2")], "without a slash"),
        ([step("a", steps=(step("b"),))], "has no agent and no task"),
        ([Step(name="a", steps=(step("b"),)), step("b")], "different names"),
        ([Step(name="a", steps=(step("b", after=["c"]),)), step("c")], "'c', which does not exist"),
        ([Step(name="a", steps=(step("b", after=["b"]),))], "wait for each other"),
    ],
)
def test_graph_that_cannot_run_is_refused(given: list[Step], told: str) -> None:
    """What is wrong with a graph is said before anything runs, with the step and what would be right."""
    with pytest.raises(RequestError) as caught:
        asyncio.run(_first(fleet_of(*AGENTS), given))
    assert told in str(caught.value)


async def _first(fleet: Fleet, steps: list[Step]) -> None:
    async for _ in fleet.run(steps):
        pass


def test_groups_too_deep_are_refused() -> None:
    """Groups in groups end."""
    deep = step("s")
    for number in range(10):
        deep = Step(name=f"g{number}", steps=(deep,))
    with pytest.raises(RequestError, match="more than 8 deep"):
        asyncio.run(_first(fleet_of(*AGENTS), [deep]))


def test_options_stand_in_the_file() -> None:
    """All that a step may say is said in TOML too, in groups as well."""
    [find, fix] = read_graph(
        """
        [[steps]]
        name = "find"
        agent = "items"
        task = "{task}"
        retries = { max = 2, seconds = 0.5, on = ["timeout", "backend"] }
        budget = { tokens = 100, usd = 0.5, seconds = 3 }
        priority = -1
        request_class = "fast"
        deadline_seconds = 5

        [[steps]]
        name = "fix"
        after = ["find"]
        when = "exists find.items"
        join = "any"
        for_each = "{find.items}"
        repeat = { max = 3, until = "better.score > 2" }

        [[steps.steps]]
        name = "better"
        agent = "better"
        task = "{task}: {item.name}"
        """,
        "go",
        Path(),
    )
    assert find.retries == Retries(max=2, seconds=0.5, on=("timeout", "backend"))
    assert find.budget == StepBudget(tokens=100, usd=0.5, seconds=3)
    assert (find.priority, find.request_class, find.deadline_seconds) == (-1, "fast", 5)
    assert (fix.when, fix.join, fix.for_each) == ("exists find.items", "any", "{find.items}")
    assert fix.repeat == Repeat(max=3, until="better.score > 2")
    assert fix.steps == (Step(name="better", agent="better", task=Task(text="go: {item.name}")),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('retries = { max = 3, on = ["always"] }', "on"),
        ("repeat = { min = 3 }", "min"),
        ('join = "some"', "join"),
        ("for_each = 3", "for_each"),
    ],
)
def test_option_that_is_none_is_named(text: str, told: str) -> None:
    """A wrong word or key in the file is named."""
    with pytest.raises(RequestError, match=told):
        read_graph(f'[[steps]]\nname = "a"\n{text}', "", Path())
