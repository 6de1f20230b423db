"""A graph killed at any record goes on as if it was not."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from support.fleets import Custom, events_of, fleet_of
from support.graphs import AGENTS, DOWN, Flaky, Note, Score, fail, flaky_agent, started, step

from pyagent.core.errors import AgentError, BackendError, NeedsAnswerError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.step_options import Repeat, Retries, StepBudget
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import ChatRequest
from pyagent.testing import ScriptedBackend


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
    last = flaky_agent(ValueError("once"))
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
