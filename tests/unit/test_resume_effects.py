"""Effects of parts that run side by side, and of spawned agents that are cancelled, when their run goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom
from support.waiting import until

from pyagent.core.errors import NeedsAnswerError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, JournalRecord, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.storage.database import Database
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

pytestmark = pytest.mark.anyio


class Note(msgspec.Struct):
    text: str


class World:
    """What was noted, and what holds a note up."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.held: set[str] = set()

    def fleet(self, journal: Journal, *agents: Custom) -> Fleet:
        async def note(arguments: Note) -> str:
            self.notes.append(arguments.text)
            await until(lambda: arguments.text not in self.held)
            return arguments.text.upper()

        return Fleet(
            ScriptedBackend(lambda request: "ok"),
            agents,
            [FleetTool("note", "notes", Note, note, effect="once")],
            journal=journal,
        )


async def _last(fleet: Fleet, run: str, **answers: str) -> ev.Event | Exception:
    """Go on with a run; return its result, or what it ended with."""
    last: ev.Event | None = None
    try:
        async for event in fleet.resume(run, answers=answers):
            last = event
    except Exception as error:
        return error
    assert last is not None
    return last


async def test_effects_in_a_map_happen_once_each_wherever_it_was_killed(tmp_path: Path) -> None:
    """Calls with effects in a map, killed after any record: what has an outcome stays, the rest is asked."""

    async def many(context: Context, task: Task) -> object:
        return await context.map(lambda n: context.call_tool("note", Note(f"n{n}")), range(4))

    journal, whole = SqliteJournal(tmp_path), World()
    async with whole.fleet(journal, Custom("many", many)) as fleet:
        seen = [event async for event in fleet.run("go")]
    assert isinstance(seen[-1], ev.RunFinished)
    run, expected = seen[0].run, seen[-1].output
    records = [record.event for record in journal.replay(run)]
    for num_kept in range(1, len(records)):
        kept = records[:num_kept]
        journal.close_run(fork := journal.fork(run, journal.spec(run), num_kept))
        world = World()
        done = Counter(event.call for event in kept if isinstance(event, ev.ToolCalled))
        begun = Counter(event.call for event in kept if isinstance(event, ev.ToolStarted))
        async with world.fleet(journal, Custom("many", many)) as fleet:
            last, num_asked = await _last(fleet, fork), 0
            while isinstance(last, NeedsAnswerError):
                num_asked += 1
                assert num_asked <= 4, "each answer brings the run on"
                last = await _last(fleet, fork, **{last.question: "no"})
        assert isinstance(last, ev.RunFinished), (num_kept, last)
        assert last.output == expected, num_kept
        assert num_asked == len(begun - done), "what began and has no outcome is asked of a person, each once"
        assert len(world.notes) == 4 - len(done), num_kept
        assert len(set(world.notes)) == len(world.notes)


async def test_a_spawned_child_that_is_cancelled_runs_again_and_its_effects_do_not() -> None:
    """The run is cancelled while a child works: resumed, the child goes on after what it had finished."""

    async def parent(context: Context, task: Task) -> object:
        return f"parent of {await context.spawn('child', 'x')}"

    async def child(context: Context, task: Task) -> object:
        return [await context.call_tool("note", Note("first")), await context.call_tool("note", Note("second"))]

    agents = Custom("parent", parent), Custom("child", child)
    journal, world = MemoryJournal(), World()
    world.held.add("second")
    async with world.fleet(journal, *agents) as fleet:
        run = ""
        with suppress(RequestError):
            async for event in fleet.run("go", agent="parent"):
                run = event.run
                if isinstance(event, ev.ToolStarted) and "second" in str(event.arguments):
                    fleet.cancel(run)
        ends = [record.event for record in journal.replay(run)]
        assert [event.agent for event in ends if isinstance(event, ev.AgentFailed)] == ["child", "parent"]
        assert isinstance(ends[-1], ev.RunFailed)
        assert ends[-1].reason == "cancelled"
        world.held.clear()
        asked = await _last(fleet, run)
        assert isinstance(asked, NeedsAnswerError), "the second call had begun, and nothing says what became of it"
        last = await _last(fleet, run, **{asked.question: "no"})
    assert isinstance(last, ev.RunFinished)
    assert last.output == "parent of ['FIRST', 'SECOND']"
    assert world.notes == ["first", "second", "second"]


async def test_a_child_that_its_parent_cancels_stays_cancelled() -> None:
    """A parent that gives a child up and goes on finds the same when its run is resumed, and does not wait for it."""

    async def parent(context: Context, task: Task) -> object:
        slow = asyncio.create_task(context.spawn("slow", "x"))
        await context.call_tool("note", Note("meanwhile"))
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return await context.call_tool("note", Note(task.text if task.text != "fail" else "end"))

    async def slow(context: Context, task: Task) -> object:
        await asyncio.sleep(3600)
        return "never"

    journal, world = MemoryJournal(), World()
    async with world.fleet(journal, Custom("parent", parent), Custom("slow", slow)) as fleet:
        seen = [event async for event in fleet.run("end", agent="parent")]
        run = seen[0].run
        [cancelled] = [event for event in seen if isinstance(event, ev.AgentFailed)]
        assert (cancelled.agent, cancelled.kind) == ("slow", "CancelledError")
        number = len(list(journal.replay(run))) - 4  # before the last note's intent
        journal.close_run(fork := journal.fork(run, journal.spec(run), number))
        last = await _last(fleet, fork)
    assert isinstance(last, ev.RunFinished), last
    assert last.output == "END"
    assert world.notes == ["meanwhile", "end", "end"]


class Forcing(MemoryJournal):
    """A journal that notes which events it was to force to the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.forced: list[type[ev.Event]] = []

    def append(self, run: str, record: JournalRecord, *, is_forced: bool = False) -> None:
        if is_forced:
            self.forced.append(type(record.event))
        super().append(run, record, is_forced=is_forced)


async def test_what_is_to_be_done_is_on_the_disk_before_it_is_done(tmp_path: Path) -> None:
    """The intent of each effect is forced, and nothing else, which would cost a disk's time; SQLite waits for it."""

    async def note(context: Context, task: Task) -> object:
        return [await context.call_tool("note", Note(text)) for text in "ab"]

    journal = Forcing()
    await World().fleet(journal, Custom("work", note)).run_agent("work", "go")
    assert journal.forced == [ev.ToolStarted, ev.ToolStarted]
    database = Database(tmp_path / "runs.db")
    with database.transaction(is_forced=True):
        assert database.rows("PRAGMA synchronous") == [(2,)]  # FULL
    assert database.rows("PRAGMA synchronous") == [(1,)]
    database.close()


async def test_what_a_person_said_had_happened_is_kept_when_the_run_is_resumed_again() -> None:
    """The call has no output then, whatever type its tool declares; that is no reason to refuse the run for ever."""

    async def noting(context: Context, task: Task) -> object:
        outputs = [await context.call_tool("note", Note(text)) for text in ("one", "two")]
        return [*outputs, await context.ask("and now?")]

    journal, world = MemoryJournal(), World()
    world.held.add("one")
    async with world.fleet(journal, Custom("noting", noting)) as fleet:
        run = ""
        with suppress(asyncio.CancelledError):
            async for event in fleet.run("go"):
                run = event.run
                if isinstance(event, ev.ToolStarted):
                    await until(lambda: bool(world.notes))
                    left = fleet.under_way(run)
                    assert left is not None
                    left.leave()  # as by a kill
        world.held.clear()
        for answer in ("yes", "blue"):
            asked = await _last(fleet, run)
            assert isinstance(asked, NeedsAnswerError)
            ended = await _last(fleet, run, **{asked.question: answer})
        assert isinstance(ended, ev.RunFinished), ended
    assert ended.output == [None, "TWO", "blue"]
    assert world.notes == ["one", "two"]
