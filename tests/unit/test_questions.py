"""Questions of a run to people: asked, answered, refused, and unanswered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from support.elsewhere import Elsewhere
from support.fleets import Custom, events_of, fleet_of

from pyagent.core.errors import AgentError, DeadlineError, NeedsAnswerError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.replay_check import check_replay
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.testing import ScriptedBackend


class Command(msgspec.Struct):
    text: str


async def choose(context: Context, task: Task) -> object:
    return await context.ask("Which colour?", options=("red", "blue"))


async def ask_twice(context: Context, task: Task) -> object:
    return [await context.ask("First?"), await context.ask("Second?")]


async def _answered(fleet: Fleet, agent: str, answers: Sequence[str]) -> tuple[object, list[ev.Question]]:
    """Run an agent and answer its questions in turn."""
    asked: list[ev.Question] = []
    left = list(answers)
    async for event in fleet.run("go", agent=agent, waits_for_answers=True):
        if isinstance(event, ev.QuestionAsked):
            asked.append(event.question)
            assert fleet.questions(event.run) == [event.question]
            fleet.answer(event.run, event.question.id, left.pop(0))
        if isinstance(event, ev.RunFinished):
            return event.output, asked
    raise AssertionError


@pytest.mark.parametrize("executor", [None, Elsewhere()], ids=["here", "elsewhere"])
def test_question_is_answered_by_its_id(executor: Elsewhere | None) -> None:
    """An agent gets what a person answers, wherever it runs; each question has an id of its own."""
    fleet = Fleet(ScriptedBackend(()), [Custom("twice", ask_twice)], executor=executor)
    output, asked = asyncio.run(_answered(fleet, "twice", ["one", "two"]))
    assert output == ["one", "two"]
    assert [question.text for question in asked] == ["First?", "Second?"]
    assert len({question.id for question in asked}) == 2


def test_questions_of_all_runs_have_ids_of_their_own() -> None:
    """What is asked at the same place of two runs, or of two steps of one, are two questions."""
    fleet = fleet_of(Custom("twice", ask_twice), waits_for_answers=True)
    steps = [Step(name=name, agent="twice", task=Task(text="go")) for name in ("a", "b")]

    async def asked(task: str | list[Step]) -> list[str]:
        ids: list[str] = []
        async for event in fleet.run(task):
            if isinstance(event, ev.QuestionAsked):
                ids.append(event.question.id)
                fleet.answer(event.run, event.question.id, "yes")
        return ids

    ids = [*asyncio.run(asked("go")), *asyncio.run(asked("go")), *asyncio.run(asked(steps))]
    assert len(set(ids)) == len(ids) == 8


def test_answer_must_be_one_of_the_options() -> None:
    """An answer that is none of the options is refused, and the question stays open."""

    async def main() -> None:
        fleet = fleet_of(Custom("choose", choose), waits_for_answers=True)
        async for event in fleet.run("go"):
            if isinstance(event, ev.QuestionAsked):
                with pytest.raises(RequestError, match="one of red, blue, got 'green'"):
                    fleet.answer(event.run, event.question.id, "green")
                with pytest.raises(RequestError, match="there is no question 'q-1'"):
                    fleet.answer(event.run, "q-1", "red")
                fleet.answer(event.run, event.question.id, "red")
        assert isinstance(event, ev.RunFinished)
        assert event.output == "red"
        with pytest.raises(RequestError, match="there is no run"):
            fleet.answer(event.run, "q-1", "red")

    asyncio.run(main())


def test_question_that_no_answer_can_reach_ends_the_run() -> None:
    """Where runs do not wait, a question ends the run with its id, its options and what can be done."""
    seen, error = asyncio.run(events_of(fleet_of(Custom("choose", choose)), "go"))
    assert isinstance(error, NeedsAnswerError)
    (asked,) = [event.question for event in seen if isinstance(event, ev.QuestionAsked)]
    assert (error.question, error.options) == (asked.id, ("red", "blue"))
    assert "Which colour? (red, blue)" in str(error)
    assert isinstance(seen[-1], ev.RunFailed)
    assert seen[-1].kind == "NeedsAnswerError"


def test_waiting_for_an_answer_ends_with_the_deadline() -> None:
    """A run's seconds hold while it waits for a person."""
    fleet = fleet_of(Custom("choose", choose), waits_for_answers=True)
    with pytest.raises(DeadlineError, match="Which colour"):
        asyncio.run(fleet.run_agent("choose", "go", timeout_seconds=0.05))


def test_run_that_waits_for_a_person_leaves_its_place() -> None:
    """With room for one run others begin and end while one has questions open; it goes on when there is room again."""
    going_on: list[str] = []

    async def curious(context: Context, task: Task) -> object:
        both = await context.map(context.ask, ["one", "two"])
        both.append(await context.ask("three"))
        going_on.append(task.text)
        assert len(going_on) == 1
        await asyncio.sleep(0.01)
        going_on.clear()
        return both

    async def quick(context: Context, task: Task) -> object:
        return f"{task.text}!"

    async def answered(fleet: Fleet, text: str) -> object:
        asked: list[str] = []
        async for event in fleet.run(text, agent="curious", tenant="alice"):
            if isinstance(event, ev.QuestionAsked):
                asked.append(event.question.id)
                if len(asked) != 2:
                    others = [seen async for seen in fleet.run("x", agent="quick", tenant="bob")]
                    assert isinstance(others[-1], ev.RunFinished)
                if len(asked) >= 2:
                    for question in fleet.questions(event.run):
                        fleet.answer(event.run, question.id, "yes")
        assert isinstance(event, ev.RunFinished)
        return event.output

    async def main() -> None:
        agents = [Custom("curious", curious), Custom("quick", quick)]
        limits = FleetLimits(waits_for_answers=True, max_runs=1)
        fleet = Fleet(ScriptedBackend(()), agents, limits=limits)
        outputs = await asyncio.gather(*(answered(fleet, f"run {number}") for number in range(4)))
        assert outputs == [["yes", "yes", "yes"]] * 4
        assert not fleet.num_running

    asyncio.run(asyncio.wait_for(main(), 60))


def test_questions_of_children_wait_side_by_side() -> None:
    """Several agents ask at once, and each gets its own answer in whatever order they are given."""

    async def fan(context: Context, task: Task) -> object:
        return await context.map(lambda name: context.spawn("name", name), ["a", "b", "c"])

    async def name(context: Context, task: Task) -> object:
        return f"{task.text}: {await context.ask(task.text)}"

    async def main() -> object:
        fleet = Fleet(
            ScriptedBackend(()), [Custom("fan", fan), Custom("name", name)], limits=FleetLimits(waits_for_answers=True)
        )
        async for event in fleet.run("go", agent="fan"):
            if isinstance(event, ev.QuestionAsked) and len(fleet.questions(event.run)) == 3:
                for question in reversed(fleet.questions(event.run)):
                    fleet.answer(event.run, question.id, question.text.upper())
            if isinstance(event, ev.RunFinished):
                return event.output
        return None

    assert asyncio.run(main()) == ["a: A", "b: B", "c: C"]


def test_agent_that_ended_asks_nothing() -> None:
    """An agent that goes on after its end is told so instead of asking."""
    kept: list[Context] = []

    async def keep(context: Context, task: Task) -> object:
        kept.append(context)
        return "done"

    async def main() -> None:
        await fleet_of(Custom("keep", keep)).run_agent("keep", "go")
        with pytest.raises(AgentError, match="after its end"):
            await kept[0].ask("Still?")

    asyncio.run(main())


@pytest.mark.parametrize("num_chars", [50_000, 200_000])
def test_a_call_is_approved_whole_or_not_at_all(num_chars: int) -> None:
    """A person sees every letter of what is approved; a call too long to be read is refused, and the agent is told."""
    text, done = "x" * num_chars + "; rm -rf /", list[str]()

    async def shell(arguments: Command) -> str:
        done.append(arguments.text)
        return "did it"

    async def call(context: Context, task: Task) -> object:
        return await context.call_tool("shell", Command(text))

    async def main() -> tuple[list[ev.Event], Exception | None]:
        tool = FleetTool("shell", "does it", Command, shell, needs_approval=True)
        fleet = Fleet(ScriptedBackend(()), [Custom("call", call)], [tool])
        return await events_of(fleet, "go", waits_for_answers=False)

    events, error = asyncio.run(main())
    asked = [event.question.text for event in events if isinstance(event, ev.QuestionAsked)]
    if num_chars < 100_000:
        assert isinstance(error, NeedsAnswerError)
        assert text in asked[0]
    else:
        assert isinstance(error, RequestError)
        assert "200,021 characters of arguments" in str(error)
        assert not asked
    assert not done


def test_a_run_goes_on_where_no_answer_can_come() -> None:
    """A model that was offered `ask_user` is offered it again: a run of a terminal is resumed and checked in a pipe."""
    has_failed: list[bool] = []

    async def work(context: Context, task: Task) -> object:
        said = (await context.complete("go on", tools=["*"])).text
        if not has_failed:
            has_failed.append(True)
            raise ValueError("once")
        return said

    async def both(waits: bool) -> list[bool]:
        has_failed.clear()
        backend = ScriptedBackend(["said"])
        fleet = Fleet(backend, [Custom("work", work)])
        events, error = await events_of(fleet, "go", agent="work", waits_for_answers=waits)
        assert isinstance(error, AgentError)
        resumed = [event async for event in fleet.resume(events[0].run, waits_for_answers=not waits)]
        assert isinstance(resumed[-1], ev.RunFinished)
        assert (await check_replay(fleet, events[0].run)).difference == ""
        return [tool.function.name == "ask_user" for request in backend.requests for tool in request.tools]

    assert asyncio.run(both(waits=True)) == [True]
    assert asyncio.run(both(waits=False)) == []
