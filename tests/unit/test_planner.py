"""The planner: what a model may plan, what becomes of it, who is asked before, and that it is planned once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import Custom

from pyagent.core.errors import BackendError, BudgetError, Decline, NeedsAnswerError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.graph_file import read_graph
from pyagent.core.fleet.graph_text import toml_of
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.planner import plan_schema, steps_of
from pyagent.core.fleet.steps import Step
from pyagent.core.messages import ChatRequest
from pyagent.testing import Reply, ScriptedBackend

pytestmark = pytest.mark.anyio

PLAN = {
    "step_1": {"agent": "read", "task": "read it"},
    "step_2": {"agent": "count", "task": "count {task}", "after": []},
    "step_3": {"agent": "join", "task": "answer", "after": ["step_2", "step_1"]},
}
ONE = {"step_1": {"agent": "read", "task": "all of it"}}


async def say(context: Context, task: Task) -> str:
    return f"{task.text} {list(task.files)} {sorted(task.results)}"


AGENTS = [Custom(name, say) for name in ("read", "count", "join")]


class Model:
    """Plans in turn, and answers nothing else."""

    def __init__(self, *plans: object) -> None:
        self.plans = list(plans)
        self.prompts: list[ChatRequest] = []

    def fleet(self, journal: MemoryJournal, **limits: Any) -> Fleet:
        def reply(request: ChatRequest) -> Reply | str:
            self.prompts.append(request)
            plan = self.plans.pop(0)
            if isinstance(plan, Exception):
                return Reply("no", error=plan)
            return plan if isinstance(plan, str) else json.dumps(plan)

        return Fleet(ScriptedBackend(reply), AGENTS, journal=journal, limits=FleetLimits(**limits))


async def events_of(run: AsyncGenerator[ev.Event, None]) -> tuple[list[ev.Event], Exception | None]:
    seen: list[ev.Event] = []
    try:
        async for event in run:
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except Exception as error:
        return seen, error
    return seen, None


def started(seen: Sequence[ev.Event]) -> list[str]:
    return [event.step for event in seen if isinstance(event, ev.AgentStarted)]


def output(seen: Sequence[ev.Event]) -> object:
    return cast("ev.RunFinished", seen[-1]).output


async def test_a_task_is_planned_and_run() -> None:
    """The model's steps run in their order with the task's files, and the last gives the result."""
    model = Model(PLAN)
    seen, error = await events_of(model.fleet(MemoryJournal()).run("the task", files=["a.txt"], plan=True))
    assert error is None
    assert started(seen) == ["planner", "step_1", "step_2", "step_3"]
    assert output(seen) == "answer ['a.txt'] ['step_1', 'step_2']"
    finished = {event.step: event.output for event in seen if isinstance(event, ev.AgentFinished)}
    assert finished["step_2"] == "count the task ['a.txt'] []"
    [asked] = model.prompts
    assert "- read: does read" in asked.messages[-1].text
    assert asked.response_format is not None


async def test_the_planner_is_no_agent_for_others() -> None:
    """An agent of the plan cannot spawn the planner, which would plan without end."""

    async def spawn(context: Context, task: Task) -> object:
        return await context.spawn("planner", "more")

    model = ScriptedBackend([json.dumps({"step_1": {"agent": "spawn", "task": "x"}})])
    _, error = await events_of(Fleet(model, [Custom("spawn", spawn)]).run("x", plan=True))
    assert isinstance(error, RequestError)
    assert "no agent 'planner'" in str(error)


async def test_a_plan_is_held_to_what_there_is() -> None:
    """The schema names the agents there are and, for each step, the steps before it: no plan is circular."""
    schema = cast("Any", plan_schema(["a", "b"]))
    assert schema["properties"]["step_3"]["properties"]["after"]["items"]["enum"] == ["step_1", "step_2"]
    assert "after" not in schema["properties"]["step_1"]["properties"]
    assert schema["properties"]["step_8"]["properties"]["agent"]["enum"] == ["a", "b"]
    assert (len(schema["properties"]), schema["additionalProperties"]) == (8, False)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {
                **ONE,
                "step_2": {"agent": "join", "task": "x", "after": ["step_1"]},
                "step_1": {"agent": "read", "task": "  "},
            },
            "step_1 does not say",
        ),
        ({**ONE, "step_3": {"agent": "join", "task": "x", "after": ["step_2"]}}, "'step_2', which does not exist"),
    ],
)
async def test_a_plan_that_cannot_run_is_asked_for_again(wrong: object, told: str) -> None:
    """The model is told once what is wrong with its plan."""
    model = Model(wrong, ONE)
    seen, error = await events_of(model.fleet(MemoryJournal()).run("x", plan=True))
    assert error is None
    assert started(seen) == ["planner", "step_1"]
    assert told in model.prompts[1].messages[-1].text


@pytest.mark.parametrize(
    "plans",
    [
        ["no plan", "no plan"],
        [{**ONE, "step_3": {"agent": "join", "task": "x", "after": ["step_2"]}}] * 2,
        [BackendError("down", backend="b")],
        [{"step_1": {"agent": "nobody", "task": "x"}}] * 2,
    ],
)
async def test_without_a_plan_one_agent_gets_the_task(plans: list[object]) -> None:
    """What the model cannot plan goes to one agent, and a note says why."""
    model = Model(*plans, "read")
    seen, error = await events_of(model.fleet(MemoryJournal()).run("read this", plan="ask"))
    assert error is None
    assert started(seen) == ["planner", "task"]
    notes = [event.text for event in seen if isinstance(event, ev.Progress)]
    assert any("one agent gets the whole task" in note for note in notes)


async def decline(context: Context, task: Task) -> str:
    raise Decline("not for me")


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_planned_step_whose_agent_declines_goes_to_another(*, is_resumed: bool) -> None:
    """The router finds the next agent and its route says who declined; a resumed run goes the same way."""
    plan = {"step_1": {"agent": "read", "task": "one"}, "step_2": {"agent": "count", "task": "two", "after": []}}
    journal, fails = MemoryJournal(), [BackendError("down", backend="b")]

    async def fall(context: Context, task: Task) -> str:
        if is_resumed and fails:
            raise fails.pop()
        return await say(context, task)

    agents = [Custom("read", decline), Custom("count", fall), Custom("join", decline)]

    def reply(request: ChatRequest) -> str:
        is_plan = request.messages[0].text.startswith("You plan")
        return json.dumps(plan) if is_plan else "count"

    async with Fleet(ScriptedBackend(reply), agents, journal=journal) as fleet:
        seen, error = await events_of(fleet.run("x", plan=True))
        if is_resumed:
            assert isinstance(error, BackendError)
            seen, error = await events_of(fleet.resume(seen[0].run))
    assert error is None
    routes = [event for event in seen if isinstance(event, ev.RouteChosen) and event.step == "step_1"]
    if not is_resumed:
        assert (routes[0].agent, routes[0].reason) == ("read", "the plan names it")
        assert [event.agent for event in seen if isinstance(event, ev.AgentDeclined)][:1] == ["read"]
    assert routes[-1].agent == "count"
    assert routes[-1].reason.startswith("read")
    assert "did not take it; " in routes[-1].reason
    assert output(seen) == {"step_1": "one [] []", "step_2": "two [] []"}


async def test_a_planned_step_that_all_decline_says_why() -> None:
    """Where no agent is left the run fails with each one's reason."""
    agents = [Custom(name, decline) for name in ("read", "count")]
    answers = iter([json.dumps(ONE), "count"])
    async with Fleet(ScriptedBackend(lambda _: next(answers)), agents) as fleet:
        _, error = await events_of(fleet.run("x", plan=True))
    assert str(error) == "no agent takes the task (read: not for me; count: not for me)"


async def test_spent_budget_is_no_reason_to_go_on_without_a_plan() -> None:
    """What ends runs ends this one."""
    _, error = await events_of(Model(PLAN).fleet(MemoryJournal(), run_tokens=10).run("x", plan=True))
    assert isinstance(error, BudgetError)


async def test_a_person_accepts_and_it_is_planned_once() -> None:
    """With `ask` the run waits with the plan; resumed with the word it runs, without planning again."""
    model, journal = Model(PLAN), MemoryJournal()
    seen, error = await events_of(model.fleet(journal).run("x", plan="ask"))
    assert isinstance(error, NeedsAnswerError)
    [asked] = [event.question for event in seen if isinstance(event, ev.QuestionAsked)]
    assert asked.kind == "plan"
    assert '[[steps]]\nname = "step_3"\nagent = "join"\nafter = ["step_2", "step_1"]\ntask = "answer"' in asked.text
    run = seen[0].run
    seen, error = await events_of(model.fleet(journal).resume(run, answers={asked.id: " Accept "}))
    assert error is None
    assert started(seen)[1:] == ["step_1", "step_2", "step_3"]
    assert len(model.prompts) == 1


async def test_a_plan_killed_at_any_record_is_made_once() -> None:
    """After each prefix of the journal the resumed run has the same plan, and asks the model and the person no more."""
    model, journal = Model(PLAN), MemoryJournal()
    seen, error = await events_of(model.fleet(journal).run("x", plan="ask"))
    assert isinstance(error, NeedsAnswerError)
    seen, _ = await events_of(model.fleet(journal).resume(run := seen[0].run, answers={error.question: "accept"}))
    records = list(journal.replay(run))
    for num_kept in range(1, len(records)):
        journal.close_run(fork := journal.fork(run, journal.spec(run), num_kept))
        again = Model(PLAN)
        seen, error = await events_of(again.fleet(journal).resume(fork))
        kept = [record.event for record in records[:num_kept]]
        assert len(again.prompts) == 1 - sum(isinstance(event, ev.ModelCalled) for event in kept), num_kept
        if any(isinstance(event, ev.QuestionAnswered) for event in kept):
            assert error is None, (num_kept, error)
            assert output(seen) == "answer [] ['step_1', 'step_2']"
        else:
            assert isinstance(error, NeedsAnswerError), num_kept


async def test_a_person_changes_the_plan() -> None:
    """A plan that is given instead runs, with all that graphs may say; one that cannot run is asked for again."""
    fleet = Model(PLAN).fleet(MemoryJournal(), waits_for_answers=True)
    answers = [
        "yes please",
        '[[steps]]\nname = "a"\nagent = "reed"',
        '[[steps]]\nname = "a"\nagent = "read"\ntask = "{task}: {item}"\nfor_each = ["p", "q"]',
    ]
    questions: list[str] = []
    seen: list[ev.Event] = []
    async for event in fleet.run("x", plan="ask"):
        seen.append(event)
        if isinstance(event, ev.QuestionAsked):
            questions.append(event.question.text)
            await asyncio.sleep(0.01)  # the question waits as soon as its event was told
            fleet.answer(event.run, event.question.id, answers.pop(0))
    assert started(seen) == ["planner", "a-1", "a-2"]
    assert "no plan: the graph is no TOML" in questions[1]
    assert "did you mean 'read'" in questions[2] or "read" in questions[2]
    assert output(seen) == {"a-1": "x: p [] []", "a-2": "x: q [] []"}


async def test_a_person_refuses_the_plan() -> None:
    """A refused plan ends the run, and nothing of it has run."""
    model, journal = Model(PLAN), MemoryJournal()
    seen, error = await events_of(model.fleet(journal).run("x", plan="ask"))
    assert isinstance(error, NeedsAnswerError)
    seen, error = await events_of(model.fleet(journal).resume(seen[0].run, answers={error.question: "refuse"}))
    assert isinstance(error, RequestError)
    assert error.code == "refused"
    assert "step_1" not in started(seen)


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        ([Step(name="a", agent="read", task=Task(text="x"))], {"plan": True}, "nothing to plan"),
        ("x", {"plan": True, "agent": "read"}, "nothing to plan"),
        ("x", {"plan": "maybe"}, "plan is true, false, auto, ask or off"),
    ],
)
async def test_what_cannot_be_planned_is_refused(task: Any, options: Any, told: str) -> None:
    """Steps and a named agent leave nothing to plan, and a wrong word is named."""
    _, error = await events_of(Model().fleet(MemoryJournal()).run(task, **options))
    assert isinstance(error, RequestError)
    assert told in str(error)


async def test_limits_say_what_is_planned() -> None:
    """Tasks that do not say are planned as the limits say, unless they are for an agent or are steps."""
    model = Model(ONE)
    fleet = model.fleet(MemoryJournal(), plan="auto")
    assert started((await events_of(fleet.run("x")))[0]) == ["planner", "step_1"]
    assert started((await events_of(fleet.run("x", agent="read")))[0]) == ["read"]
    assert started((await events_of(fleet.run("read x", plan=False)))[0]) == ["task"]
    assert len(model.prompts) == 1


async def test_an_agent_of_that_name_is_named() -> None:
    """A fleet with a planner of its own is told which name is needed."""
    fleet = Fleet(ScriptedBackend(()), [*AGENTS, Custom("planner", say)], limits=FleetLimits())
    _, error = await events_of(fleet.run("x", plan=True))
    assert isinstance(error, RequestError)
    assert "an agent of the fleet has" in str(error)


_TEXT = st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and "{" not in text)


@given(st.lists(_TEXT, min_size=1, max_size=4), _TEXT)
def test_plans_are_written_as_they_are_read(texts: list[str], file: str) -> None:
    """Whatever a model or a file's name says, the TOML of a plan reads as the same steps: it ends no text early."""
    steps = [
        Step(
            name=f"s{number}",
            agent="read",
            task=Task(text=text, files=(file,)),
            after=(f"s{number - 1}",) * (number > 0),
        )
        for number, text in enumerate(texts)
    ]
    whole = read_graph(toml_of(steps), "", None)
    clean = [text.encode(errors="replace").decode() for text in texts]
    assert [step.task.text for step in whole] == clean
    assert [step.after for step in whole] == [step.after for step in steps]


def test_drafted_steps_are_steps() -> None:
    """What fits the schema becomes steps."""
    steps = steps_of(cast("Any", PLAN), Task(text="t", files=("f",)))
    assert [(step.name, step.after, step.task.files) for step in steps][2] == ("step_3", ("step_2", "step_1"), ("f",))
