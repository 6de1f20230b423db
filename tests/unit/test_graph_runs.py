"""Graphs that branch, loop, try again and map: what runs, what does not, and what a kill at any record changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom, events_of, fleet_of

from pyagent.core.errors import AgentError, BackendError, BudgetError, DeadlineError, NeedsAnswerError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.graph_file import read_graph
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.step_options import Repeat, Retries, StepBudget
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest
from pyagent.testing import ScriptedBackend


class Score(msgspec.Struct, frozen=True):
    score: int


class Note(msgspec.Struct):
    text: str


async def say(context: Context, task: Task) -> object:
    return f"{task.text} {sorted(task.results)}" if task.results else task.text


async def fail(context: Context, task: Task) -> object:
    raise ValueError("no")


async def items(context: Context, task: Task) -> object:
    return {"items": [{"name": name, "size": len(name)} for name in task.text.split()]}


async def better(context: Context, task: Task) -> Score:
    """One more than the round before."""
    before = task.results.get("better", Score(0))
    return Score(getattr(before, "score", 0) + 1)


AGENTS = (Custom("say", say), Custom("fail", fail), Custom("items", items), Custom("better", better))


def step(name: str, agent: str = "say", after: Sequence[str] = (), **more: object) -> Step:
    return Step(name=name, agent=agent, task=Task(text=name), after=tuple(after), **more)  # type: ignore[arg-type]


def ran(steps: list[Step], *agents: Custom, **limits: object) -> tuple[list[ev.Event], object, Exception | None]:
    seen, error = asyncio.run(events_of(fleet_of(*AGENTS, *agents, **limits), steps))
    end = seen[-1]
    return seen, end.output if isinstance(end, ev.RunFinished) else None, error


def started(seen: Sequence[ev.Event]) -> list[str]:
    return [event.step for event in seen if isinstance(event, ev.AgentStarted)]


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


class Flaky:
    """An agent that fails the first times, in the ways given."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_runs = 0

    async def run(self, context: Context, task: Task) -> object:
        self.num_runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return f"after {self.num_runs}"


def _flaky(*errors: Exception) -> Custom:
    return Custom("flaky", Flaky(*errors).run)


DOWN = BackendError("down", backend="b")


def test_a_failed_step_is_tried_again() -> None:
    """Each try has its own path and is told with its wait; the result is that of the one that goes well."""
    retries = Retries(max=2, seconds=0.02)
    seen, output, error = ran([step("a", "flaky", retries=retries)], _flaky(DOWN, DeadlineError("late")))
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
    seen, _, ended = ran([step("a", "flaky", retries=retries, deadline_seconds=20.0)], _flaky(*[error] * 5))
    assert isinstance(ended, type(error) if not isinstance(error, ValueError) else AgentError)
    assert len(started(seen)) == num_tries


def test_a_group_is_tried_again_as_one() -> None:
    """What failed in a group begins the group again, with paths of its own."""
    group = Step(name="both", steps=(step("one"), step("two", "flaky", ["one"])), retries=Retries(max=1, seconds=0))
    seen, output, _ = ran([group], _flaky(DOWN))
    assert output == "after 2"
    assert started(seen) == ["one", "two", "one~2", "two~2"]


def test_tries_in_tries_have_paths_of_their_own() -> None:
    """A step's second try in its group's first is not its first in the group's second: each is resumed as itself."""
    retries = Retries(max=1, seconds=0)
    group = Step(name="both", steps=(step("one"), step("two", "flaky", ["one"], retries=retries)), retries=retries)
    outer = Step(name="outer", steps=(group,), retries=retries)
    seen, output, error = ran([group], _flaky(DOWN, DOWN))
    assert (error, output) == (None, "after 3")
    assert started(seen) == ["one~1", "two~1", "two~1~2", "one~2", "two~2"]
    seen, output, error = ran([outer], _flaky(*[DOWN] * 7))
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
    """What a step may use is no more than the run may; one that bounds its time alone is not what ended it."""

    async def ask(context: Context, task: Task) -> object:
        return await context.generate("x" * 30)

    steps = [step("a", "ask", repeat=Repeat(max=5), budget=budget), step("b", after=["a"], join="done")]
    model = ScriptedBackend(lambda _: "w " * 10)
    fleet = Fleet(model, [*AGENTS, Custom("ask", ask)], limits=FleetLimits(run_tokens=540))
    seen, error = asyncio.run(events_of(fleet, steps))
    told = [event.error for event in seen if isinstance(event, ev.AgentFailed)]
    assert len(told) == 1
    assert " is 540 tokens" in told[0]
    assert isinstance(error, BudgetError) is (budget.tokens is None)


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


# -- kills ------------------------------------------------------------------------------------------------------------


class World:
    """Agents over a scripted model and a tool that notes; `num_failures` of the flaky agent are by its step's path."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.prompts: list[str] = []

    def fleet(self, journal: Journal) -> Fleet:
        async def note(arguments: Note) -> int:
            self.notes.append(arguments.text)
            return len(arguments.text)

        async def find(context: Context, task: Task) -> list[str]:
            return (await context.generate("find")).split()

        async def write(context: Context, task: Task) -> str:
            await context.call_tool("note", Note(f"{context.step} {task.text}"))
            return await context.generate(f"write {task.text} {sorted(map(str, task.results.values()))}")

        async def score(context: Context, task: Task) -> Score:
            await context.generate(f"score {context.step}")
            return Score(int(context.step.rpartition("#")[2][:1]))

        async def flaky(context: Context, task: Task) -> str:
            said = await context.generate(f"flaky {context.step}")
            if "~3" not in context.step:
                raise BackendError("down", backend="b")
            return said

        def reply(request: ChatRequest) -> str:
            self.prompts.append(request.messages[-1].text)
            return "a b c" if request.messages[-1].text == "find" else f"to {request.messages[-1].text}"

        agents = [Custom(each.__name__, each) for each in (find, write, score, flaky, fail)]
        tool = FleetTool("note", "notes", Note, note, effect="idempotent")
        return Fleet(ScriptedBackend(reply), agents, [tool], journal=journal, limits=FleetLimits(max_concurrency=3))


WHOLE = [
    step("find", "find"),
    Step(
        name="fix",
        after=("find",),
        for_each="{find}",
        repeat=Repeat(max=3, until="score.score >= 2"),
        steps=(
            Step(name="write", agent="write", task=Task(text="of {item}")),
            step("score", "score", ["write"]),
        ),
    ),
    step("flaky", "flaky", ["find"], retries=Retries(max=2, seconds=0.0)),
    step("bad", "fail", ["find"]),
    step("no", "write", ["find"], when="'z' in find"),
    step("clean", "write", ["bad", "no"], join="done", when="failed bad and skipped no"),
    step("end", "write", ["fix", "flaky", "clean"]),
]


async def _whole(run: object) -> tuple[list[ev.Event], Exception | None]:
    seen: list[ev.Event] = []
    try:
        async for event in run:  # type: ignore[attr-defined]
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except Exception as error:
        return seen, error
    return seen, None


def _story(journal: Journal, run: str) -> Counter[str]:
    return Counter(_line(record.event) for record in journal.replay(run) if not isinstance(record.event, ev.RunResumed))


def _line(event: ev.Event) -> str:
    fields = msgspec.to_builtins(event, enc_hook=str)
    return repr({name: fields[name] for name in fields if name not in {"run", "at", "seconds", "totals", "key"}})


async def _killed_everywhere() -> None:
    journal, whole = MemoryJournal(1_000), World()
    async with whole.fleet(journal) as fleet:
        seen, error = await _whole(fleet.run(WHOLE))
    assert error is None, error
    run, records = seen[0].run, list(journal.replay(seen[0].run))
    expected = _story(journal, run)
    for num_kept in range(1, len(records), 3):
        kept = [record.event for record in records[:num_kept]]
        journal.close_run(fork := journal.fork(run, journal.spec(run), num_kept))
        world = World()
        async with world.fleet(journal) as fleet:
            seen, error = await _whole(fleet.resume(fork))
        assert error is None, (num_kept, error)
        told = _story(journal, fork)
        again = Counter(line for line in told - expected if "'attempt': 2" in line and "tool_started" in line)
        assert told - again == expected, (num_kept, told - expected, expected - told)
        asked = sum(isinstance(event, ev.ModelCalled) for event in kept)
        assert len(world.prompts) == len(whole.prompts) - asked, num_kept
        noted = sum(isinstance(event, ev.ToolCalled) for event in kept)
        assert len(world.notes) == len(whole.notes) - noted, num_kept


def test_graph_killed_at_any_record_goes_on_as_if_it_was_not() -> None:
    """In the middle of a loop, a map, a retry or after a failure gone on after: nothing finished is done again."""
    asyncio.run(_killed_everywhere())


async def _resumed_after_failure(agents: list[Custom]) -> tuple[list[ev.Event], Exception | None]:
    journal = MemoryJournal()
    steps = [
        step("flaky", "flaky", retries=Retries(max=1, seconds=0.0)),
        step("bad", "fail"),
        step("went", after=["bad", "flaky"], join="done"),
        step("last", "last", ["went"]),
    ]
    fleet = Fleet(ScriptedBackend(()), [*AGENTS, *agents], journal=journal)
    seen, error = await events_of(fleet, steps)
    assert isinstance(error, AgentError)
    return await _whole(fleet.resume(seen[0].run))


def test_a_resumed_run_keeps_the_failures_it_went_on_after() -> None:
    """Of a run that failed in its last step only that is tried again: earlier failures had their consequences."""
    last = _flaky(ValueError("once"))
    last.name = "last"
    flaky = Flaky(DOWN)
    seen, error = asyncio.run(_resumed_after_failure([last, Custom("flaky", flaky.run)]))
    assert error is None
    assert flaky.num_runs == 2
    assert [event.output for event in seen if isinstance(event, ev.RunFinished)] == ["after 2"]


@pytest.mark.parametrize(("tokens", "is_resumable"), [(None, True), (600, False)])
def test_what_ends_the_run_is_not_gone_on_after(tokens: int | None, *, is_resumable: bool) -> None:
    """A spent budget of the run ends it whatever joins after it, and is no lasting failure; a step's own is one."""

    async def ask(context: Context, task: Task) -> object:
        return await context.generate(task.text)

    async def main() -> None:
        journal, limits = MemoryJournal(), FleetLimits(run_tokens=600 if is_resumable else None)
        backend = ScriptedBackend(lambda _: "w " * 200)
        steps = [
            step("a", "ask"),
            step("b", "ask", ["a"], budget=StepBudget(tokens=100) if tokens else None),
            step("c", after=["b"], join="done"),
        ]
        seen, error = await events_of(
            Fleet(backend, [*AGENTS, Custom("ask", ask)], journal=journal, limits=limits), steps
        )
        assert (error is None) is not is_resumable
        assert ("c" in started(seen)) is not is_resumable
        if is_resumable:
            assert not [event for event in seen if isinstance(event, ev.FailureTolerated)]
            fleet = Fleet(backend, [*AGENTS, Custom("ask", ask)], journal=journal)
            seen, error = await _whole(fleet.resume(seen[0].run))
            assert error is None
            assert {"b", "c"} <= set(started(seen))

    asyncio.run(main())


def test_a_wait_that_was_begun_is_not_waited_again() -> None:
    """A run that died while a step waited for its next try begins that try at once when it is resumed."""

    async def main() -> None:
        journal = MemoryJournal()
        flaky = Flaky(DOWN)
        retries = Retries(max=1, seconds=50.0)
        run = Fleet(ScriptedBackend(()), [Custom("flaky", flaky.run)], journal=journal)
        async for event in (events := run.run([step("a", "flaky", retries=retries)])):
            if isinstance(event, ev.StepRetried):
                break
        kept = list(journal.replay(event.run))
        journal.close_run(fork := journal.fork(event.run, journal.spec(event.run), len(kept)))
        await events.aclose()
        async with asyncio.timeout(20):
            _, error = await _whole(run.resume(fork))
        assert error is None
        assert flaky.num_runs == 2

    asyncio.run(main())


def test_a_question_ends_the_run_before_what_joins() -> None:
    """A step that would go on after any end does not begin while a question is open."""

    async def ask(context: Context, task: Task) -> object:
        return await context.ask("now?")

    async def main() -> None:
        fleet = fleet_of(*AGENTS, Custom("ask", ask))
        steps = [
            step("a", "ask"),
            step("b", after=["a"], join="done"),
            step("d", after=["a"]),
            step("c", after=["a"], join="done", when="failed a"),
        ]
        seen, error = await events_of(fleet, steps)
        assert isinstance(error, NeedsAnswerError)
        assert started(seen) == ["a"]
        assert not [event for event in seen if isinstance(event, ev.StepSkipped)]
        seen, error = await _whole(fleet.resume(seen[0].run, answers={error.question: "yes"}))
        assert error is None
        assert [event.step for event in seen if isinstance(event, ev.StepSkipped)] == ["c"]

    asyncio.run(main())


def test_a_question_in_a_loop_waits_and_goes_on() -> None:
    """A round that asks a person ends the run with the question, and goes on with the answer."""

    async def ask(context: Context, task: Task) -> object:
        return {"is_over": await context.ask("again?") == "no"}

    async def main() -> None:
        fleet = fleet_of(Custom("ask", ask))
        seen, error = await events_of(fleet, [step("a", "ask", repeat=Repeat(max=9, until="a.is_over"))])
        for answer in ("yes", "yes", "no"):
            assert isinstance(error, NeedsAnswerError)
            seen, error = await _whole(fleet.resume(seen[0].run, answers={error.question: answer}))
        assert error is None
        assert [event.rounds for event in seen if isinstance(event, ev.LoopEnded)] == [3]

    asyncio.run(main())
