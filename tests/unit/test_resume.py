"""Runs that go on: what a resumed run repeats, what it does not, and what it asks. A prefix of a journal is a kill."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.fleets import Custom

from pyagent.core.errors import AgentError, NeedsAnswerError, ReplayError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet, FleetLimits
from pyagent.core.fleet.past import Past
from pyagent.core.fleet.people import question_id
from pyagent.core.fleet.steps import Step
from pyagent.core.fleet.tool_run import idempotency_key
from pyagent.core.fleet.tools import Effect, FleetTool
from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

pytestmark = pytest.mark.anyio


class Numbers(msgspec.Struct, frozen=True):
    values: tuple[int, ...]


class Note(msgspec.Struct):
    text: str


class World:
    """What tools did: the texts noted, and the keys they were noted with."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.keys: list[str] = []
        self.prompts: list[str] = []
        self.is_broken = False

    def tool(self, name: str = "note", effect: Effect = "once") -> FleetTool:
        async def note(arguments: Note) -> Numbers:
            if self.is_broken:
                raise ValueError("out of ink")
            self.notes.append(arguments.text)
            self.keys.append(idempotency_key())
            await asyncio.sleep(0)
            return Numbers((len(arguments.text),))

        return FleetTool(name, "notes", Note, note, effect=effect)

    def fleet(self, journal: Journal, *agents: Custom, tools: Sequence[FleetTool] = ()) -> Fleet:
        def reply(request: ChatRequest) -> str:
            self.prompts.append(request.messages[-1].text)
            return f"answer to {request.messages[-1].text}"

        agents = agents or (Custom("work", work), Custom("child", child), Custom("join", join))
        tools = tools or [self.tool(), self.tool("look", "none"), self.tool("put", "idempotent")]
        return Fleet(ScriptedBackend(reply), agents, tools, journal=journal, limits=FleetLimits(max_concurrency=3))


async def work(context: Context, task: Task) -> Numbers:
    """Use all that a context has, side by side too."""
    said = await context.generate(f"first {task.text}")
    looked = await context.call_tool("look", Note(said))
    assert isinstance(looked, Numbers)
    children = await context.map(lambda n: context.spawn("child", f"{task.text}{n}"), range(3))
    streamed = [piece async for piece in context.stream("tell")]
    try:
        await context.call_tool("look", {"text": 1})
    except RequestError:
        context.progress("went on")
    both = await asyncio.gather(context.generate("left"), context.generate("right"))
    noted = await context.call_tool("note", Note("the end"))
    assert isinstance(noted, Numbers)
    return Numbers((len(children), len("".join(streamed)), *map(len, both), *noted.values))


async def child(context: Context, task: Task) -> object:
    await context.call_tool("put", Note(task.text))
    return await context.generate(f"child {task.text}")


async def join(context: Context, task: Task) -> object:
    return f"joined {sorted(task.results)}"


STEPS = [
    Step(name="a", agent="work", task=Task(text="x")),
    Step(name="b", agent="work", task=Task(text="y"), after=("a",)),
    Step(name="c", agent="join", task=Task(text="z"), after=("a", "b")),
]


async def events_of(run: AsyncGenerator[ev.Event, None]) -> tuple[list[ev.Event], Exception | None]:
    seen: list[ev.Event] = []
    try:
        async for event in run:
            seen.append(event)  # noqa: PERF401 - what came before an error counts
    except Exception as error:
        return seen, error
    return seen, None


def story(journal: Journal, run: str) -> list[str]:
    """What a run's records say, without their times, order and the run's name."""
    return sorted(_plain(record.event) for record in journal.replay(run) if not isinstance(record.event, ev.RunResumed))


def _plain(event: ev.Event) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(event, enc_hook=str)
    return repr(
        {name: value for name, value in fields.items() if name not in {"run", "at", "seconds", "totals", "key"}}
    )


async def test_run_killed_at_any_record_goes_on_as_if_it_was_not(tmp_path: Path) -> None:
    """After each prefix of its journal a resumed run ends with the same journal, and repeats nothing that was kept."""
    journal, whole = SqliteJournal(tmp_path), World()
    async with whole.fleet(journal) as fleet:
        seen, error = await events_of(fleet.run(STEPS))
    assert error is None, error
    run, records = seen[0].run, list(journal.replay(seen[0].run))
    expected = story(journal, run)
    for num_kept in range(1, len(records), 3):
        kept = [record.event for record in records[:num_kept]]
        journal.close_run(fork := journal.fork(run, journal.spec(run), num_kept))
        world = World()
        async with world.fleet(journal) as fleet:
            seen, error = await events_of(fleet.resume(fork))
            while isinstance(error, NeedsAnswerError):  # the kill was between an intent and its outcome
                seen, error = await events_of(fleet.resume(fork, answers={error.question: "no"}))
        assert error is None, (num_kept, error)
        asked = sum(isinstance(event, ev.ModelCalled) for event in kept)
        assert len(world.prompts) == len(whole.prompts) - asked, num_kept
        noted = sum(isinstance(event, ev.ToolCalled) and event.error is None for event in kept)
        assert len(world.notes) == len(whole.notes) - noted, num_kept
        told = [line for line in story(journal, fork) if "question" not in line and "needs_answer" not in line.lower()]
        begun_again = {line for line in told if "'attempt': 2" in line}
        failed = {line for line in told if "NeedsAnswerError" in line}
        assert [line for line in told if line not in begun_again | failed] == expected, num_kept
        last, first = seen[-1], records[-1].event
        assert isinstance(last, ev.RunFinished)
        assert isinstance(first, ev.RunFinished)
        assert (last.totals.model_calls, last.totals.prompt_tokens) == (
            first.totals.model_calls,
            first.totals.prompt_tokens,
        )


async def test_changed_agent_is_told_by_its_call(tmp_path: Path) -> None:
    """An agent that asks something else than before ends the run with the call's number, whatever it catches."""

    async def before(context: Context, task: Task) -> object:
        await context.generate("one")
        await context.generate("two")
        raise AgentError("stopped", agent="work")

    async def after(context: Context, task: Task) -> object:
        await context.generate("one")
        try:
            await context.generate("three")
        except ReplayError:
            return "went on all the same"
        return "never"

    journal = MemoryJournal()
    async with World().fleet(journal, Custom("work", before)) as fleet:
        seen, _ = await events_of(fleet.run("go"))
    async with World().fleet(journal, Custom("work", after)) as fleet:
        _, error = await events_of(fleet.resume(seen[0].run))
    assert isinstance(error, ReplayError)
    assert (error.call, error.step) == ("2", "task")
    assert "code changed" in str(error)


async def test_a_run_of_agents_that_are_not_here_is_left_as_it_is() -> None:
    """Another program cannot go on with it: that is said, and the question that it waits with stays."""

    async def curious(context: Context, task: Task) -> object:
        return await context.ask("Which colour?")

    journal = MemoryJournal()
    async with World().fleet(journal, Custom("work", curious)) as fleet:
        seen, _ = await events_of(fleet.run("go", agent="work"))
    run, before = seen[0].run, journal.num_records(seen[0].run)
    async with World().fleet(journal, Custom("other", curious)) as fleet:
        for again in (fleet.resume(run), fleet.fork(run, "work")):
            with pytest.raises(RequestError, match=r"no agent 'work'.*goes on in that program, by Fleet.resume"):
                await anext(again)
    assert [row.state for row in journal.runs()] == ["needs_answer"]
    assert journal.num_records(run) == before


@pytest.mark.parametrize(
    ("effect", "answer", "num_notes"), [("once", "no", 2), ("once", "yes", 1), ("idempotent", "", 2)]
)
async def test_unknown_outcome_of_an_effect(effect: Effect, answer: str, num_notes: int) -> None:
    """A killed tool runs again with the same key where that is safe; else a person says whether it happened."""

    async def once(context: Context, task: Task) -> object:
        return f"got {await context.call_tool('note', Note('hello'))}"

    journal, world = MemoryJournal(), World()
    async with world.fleet(journal, Custom("work", once), tools=[world.tool(effect=effect)]) as fleet:
        seen, _ = await events_of(fleet.run("go"))
        [begun] = [
            n for n, record in enumerate(journal.replay(seen[0].run)) if isinstance(record.event, ev.ToolStarted)
        ]
        killed = journal.fork(seen[0].run, journal.spec(seen[0].run), begun + 1)
        journal.close_run(killed)
        _, error = await events_of(fleet.resume(killed))
        if effect == "once":
            assert isinstance(error, NeedsAnswerError)
            assert "did that happen?" in str(error)
            assert [row.state for row in journal.runs() if row.run == killed] == ["needs_answer"]
            assert len(world.notes) == 1
            _, error = await events_of(fleet.resume(killed, answers={error.question: answer}))
        assert error is None
    assert len(world.notes) == num_notes
    started = [record.event for record in journal.replay(killed) if isinstance(record.event, ev.ToolStarted)]
    assert [event.attempt for event in started] == [1, 2][: len(started)]
    assert len({event.key for event in started} | set(world.keys)) == 1  # the fork repeats it as the run began it


async def test_failure_is_tried_again_and_one_gone_on_from_is_not() -> None:
    """A run that failed at a tool goes on at that tool; a failure that its agent had caught stays as it was."""
    calls: list[str] = []

    async def careful(context: Context, task: Task) -> object:
        for name in ("first", "second"):
            try:
                await context.call_tool("look", Note(name))
            except AgentError as error:
                calls.append(str(error))
                if name == "second":
                    raise
        return "done"

    journal, world = MemoryJournal(), World()
    world.is_broken = True
    async with world.fleet(journal, Custom("work", careful)) as fleet:
        seen, error = await events_of(fleet.run("go"))
        assert error is not None
        world.is_broken = False
        _, error = await events_of(fleet.resume(seen[0].run))
        assert error is None
        assert world.notes == ["second"]
        assert calls == ["the tool look failed: ValueError: out of ink"] * 3
        with pytest.raises(RequestError, match="is done; fork it"):
            await anext(fleet.resume(seen[0].run))


async def test_fork_from_a_step_with_another_task() -> None:
    """A fork keeps what came before a step, gives the step another task, and leaves the old run as it was."""
    journal, world = MemoryJournal(), World()
    async with world.fleet(journal) as fleet:
        seen, _ = await events_of(fleet.run(STEPS))
        run, before = seen[0].run, story(journal, seen[0].run)
        world.prompts.clear()
        forked, error = await events_of(fleet.fork(run, "b", "other"))
        assert error is None
        assert forked[0].run != run
        assert world.prompts[0] == "first other"
        assert not any("x" in prompt.split() for prompt in world.prompts)
        assert story(journal, run) == before
        world.prompts.clear()
        nested, error = await events_of(fleet.fork(run, "a/3[1].1.child", "changed"))
        assert error is None, error
        assert "child changed" in world.prompts
        with pytest.raises(RequestError, match="did you mean"):
            await anext(fleet.fork(run, "a/3[1].1.chld"))
        assert journal.spec(nested[0].run).forked_from == run


async def test_answers_of_people_are_kept() -> None:
    """A question that was answered is not asked again; an open one is answered when the run is resumed."""

    async def curious(context: Context, task: Task) -> object:
        return f"{await context.ask('who?')} {await context.ask('where?')}"

    journal = MemoryJournal()
    async with World().fleet(journal, Custom("work", curious)) as fleet:
        seen, who = await events_of(fleet.run("go"))
        assert isinstance(who, NeedsAnswerError)
        _, where = await events_of(fleet.resume(seen[0].run, answers={who.question: "Ada"}))
        assert isinstance(where, NeedsAnswerError)
        seen, error = await events_of(fleet.resume(seen[0].run, answers={where.question: "here"}))
        assert error is None
        assert isinstance(seen[-1], ev.RunFinished)
        assert seen[-1].output == "Ada here"


async def test_running_run_is_not_resumed(tmp_path: Path) -> None:
    """A run that another process, or this one, still writes is refused."""
    journal = SqliteJournal(tmp_path)
    async with World().fleet(journal) as fleet:
        running = fleet.run(STEPS)
        first = await anext(running)
        with pytest.raises(RequestError, match="still running"):
            await anext(World().fleet(SqliteJournal(tmp_path)).resume(first.run))
        await running.aclose()


async def test_death_while_a_question_ends_the_run(tmp_path: Path) -> None:
    """A run whose process died between the question's end of its agent and its own asks again, and takes the answer."""

    async def curious(context: Context, task: Task) -> object:
        return await context.ask("who?")

    async def many(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.spawn("curious" if n == 0 else "child", f"{n}"), range(3))

    journal = SqliteJournal(tmp_path)
    agents = Custom("many", many), Custom("curious", curious), Custom("child", child)
    async with World().fleet(journal, *agents) as fleet:
        seen, _ = await events_of(fleet.run("go", agent="many"))
        records = list(journal.replay(seen[0].run))
        for num_kept in range(2, len(records)):
            journal.close_run(fork := journal.fork(seen[0].run, journal.spec(seen[0].run), num_kept))
            _, error = await events_of(fleet.resume(fork))
            for _ in range(3):
                if isinstance(error, NeedsAnswerError):
                    answer = "Ada" if "who?" in str(error) else "no"
                    _, error = await events_of(fleet.resume(fork, answers={error.question: answer}))
            assert error is None, (num_kept, error)


async def test_cancelling_what_died_does_not_cancel_what_goes_on(tmp_path: Path) -> None:
    """A run that was to be cancelled when its process died goes on to its end when it is resumed."""
    folder, writing = tmp_path / "journal", SqliteJournal(tmp_path / "journal")
    async with World().fleet(writing) as fleet:
        seen, _ = await events_of(fleet.run(STEPS))
    run = writing.fork(seen[0].run, writing.spec(seen[0].run), 5)
    reading = SqliteJournal(folder)
    reading.cancel(run)
    assert writing.cancelled() == [run]
    for lock in (folder / "writers").iterdir():
        lock.unlink()  # as the kernel drops it with its process
    reading.reopen(run)
    assert reading.cancelled() == []
    reading.close()
    writing.close()


async def test_question_that_ended_an_agent_is_no_result_of_it() -> None:
    """An agent that a question ended, before its run's end was kept, runs again: the answer reaches it at once."""

    async def curious(context: Context, task: Task) -> object:
        return await context.ask("who?")

    async def careful(context: Context, task: Task) -> object:
        try:
            return await context.spawn("curious", "go")
        except NeedsAnswerError:
            return "nobody"

    journal = MemoryJournal()
    async with World().fleet(journal, Custom("careful", careful), Custom("curious", curious)) as fleet:
        seen, asked = await events_of(fleet.run("go", agent="careful"))
        assert isinstance(asked, NeedsAnswerError)
        run, asking = seen[0].run, next(event for event in seen if isinstance(event, ev.QuestionAsked))
        kinds = [type(record.event) for record in journal.replay(run)]
        killed = journal.fork(run, journal.spec(run), kinds.index(ev.AgentFailed) + 1)
        journal.close_run(killed)
        question = question_id(killed, f"{asking.step}:{asking.agent}", asking.call)
        seen, error = await events_of(fleet.resume(killed, answers={question: "Ada"}))
    assert error is None
    assert isinstance(seen[-1], ev.RunFinished)
    assert seen[-1].output == "Ada"


async def test_open_question_of_a_fork_is_one(tmp_path: Path) -> None:
    """A question that a fork has from its run, and asks again under its own name, is open once."""

    async def curious(context: Context, task: Task) -> object:
        return await context.ask("who?")

    journal = SqliteJournal(tmp_path)
    async with World().fleet(journal, Custom("curious", curious)) as fleet:
        seen, _ = await events_of(fleet.run("go"))
        journal.close_run(fork := journal.fork(seen[0].run, journal.spec(seen[0].run), len(seen)))
        _, error = await events_of(fleet.resume(fork))
        assert isinstance(error, NeedsAnswerError)
        assert Past.of(journal, fork).open_questions == [error.question]


async def test_damaged_run_is_not_resumed(tmp_path: Path) -> None:
    """A run with a damaged record is refused, as effects after it would happen twice; it stays as it is."""
    journal, world = SqliteJournal(tmp_path), World()
    async with world.fleet(journal) as fleet:
        seen, _ = await events_of(fleet.run(STEPS))
        run = seen[0].run
        journal.close_run(fork := journal.fork(run, journal.spec(run), num_kept := len(list(journal.replay(run))) - 2))
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
            latest = "(SELECT id FROM runs ORDER BY id DESC LIMIT 1)"
            database.execute(
                f"UPDATE records SET body = CAST(body || 'x' AS BLOB) WHERE id = {latest} * 4294967296 + 3"
            )
        notes = list(world.notes)
        for _ in range(2):
            _, error = await events_of(fleet.resume(fork))
            assert isinstance(error, RequestError)
            assert error.code == "damaged"
            assert "from record 3 on; fork it" in str(error)
    assert world.notes == notes
    assert journal.num_records(fork) == num_kept
    assert [row.state for row in journal.runs() if row.run == fork] == ["unfinished"]


async def test_run_that_cannot_be_kept_has_no_more_effects(tmp_path: Path) -> None:
    """Where the journal breaks off the run ends before its next effect, whatever its agent makes of that; resumed in
    the same process, it has each effect once."""
    full, roomy = "INSERT INTO records SELECT MAX(id) + 2, x'00' FROM records", "DELETE FROM records WHERE body = x'00'"

    def change(statement: str) -> None:
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
            database.execute(statement)

    async def noting(context: Context, task: Task) -> object:
        if not world.notes:
            change(full)  # there is no room for the record after the next
        for text in ("one", "two"):
            with suppress(RequestError):
                await context.call_tool("put", Note(text))
        return await context.generate("go on")

    journal, world = SqliteJournal(tmp_path), World()
    async with world.fleet(journal, Custom("noting", noting)) as fleet:
        seen, error = await events_of(fleet.run("go"))
        run = seen[0].run
        assert isinstance(error, RequestError)
        assert (error.code, world.notes, world.prompts) == ("not_kept", ["one"], [])
        assert f"then resume {run}" in str(error)
        assert [row.state for row in journal.runs()] == ["unfinished"]
        change(roomy)
        _, error = await events_of(fleet.resume(run))
    assert (error, [row.state for row in journal.runs()]) == (None, ["done"])
    assert [*world.notes, world.keys[0]] == ["one", "one", "two", world.keys[1]]
    assert world.prompts == ["go on"]


async def test_run_of_a_chosen_name_begins_only_where_it_is_kept(tmp_path: Path) -> None:
    """Its name is how a request that is sent again finds it: unkept, it would begin twice."""
    (tmp_path / "runs.db").mkdir()
    world = World()
    async with world.fleet(SqliteJournal(tmp_path)) as fleet:
        _, error = await events_of(fleet.run("x", agent="work", run_id="r-chosen"))
        assert isinstance(error, RequestError)
        assert error.code == "journal_unreadable"
        assert world.prompts == []
        _, error = await events_of(fleet.run("x", agent="work"))  # looked for by nothing, it goes on unkept
    assert error is None
