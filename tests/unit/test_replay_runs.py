"""A past run looked at from Python and the command line: at a glance, its events, shown again, its code checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from support.fleets import Custom, events_of
from support.waiting import until

import pyagent
from pyagent.cli.run_replay import replay
from pyagent.core.errors import NeedsAnswerError, RequestError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.plugins import PluginHost
from pyagent.core.settings import Settings
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

pytestmark = pytest.mark.anyio
Work = Callable[[Context, Task], Awaitable[object]]


class Note(msgspec.Struct):
    text: str


async def work(context: Context, task: Task) -> object:
    said = await context.generate(f"about {task.text}")
    noted = await context.call_tool("note", Note(said))
    return f"{noted} by {await context.spawn('child', 'x')}"


async def child(context: Context, task: Task) -> object:
    return await context.generate("a child asks")


class World:
    """What models and tools were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fleet(self, journal: Journal, function: Work = work) -> pyagent.Fleet:
        async def note(arguments: Note) -> str:
            self.asked.append(f"tool {arguments.text}")
            return arguments.text.upper()

        def reply(request: pyagent.ChatRequest) -> str:
            self.asked.append(request.messages[-1].text)
            return f"answer {len(self.asked)}"

        return pyagent.Fleet(
            Settings(),
            backend=ScriptedBackend(reply),
            agents=[Custom("work", function), Custom("child", child)],
            tools=[FleetTool("note", "notes", Note, note)],
            journal=journal,
            host=PluginHost(),
        )


async def _run(journal: Journal, function: Work = work) -> str:
    events, _ = await events_of(World().fleet(journal, function), "bread", agent="work")
    return events[0].run


async def test_an_unchanged_run_passes_and_nothing_is_asked(tmp_path: Path) -> None:
    """The code runs again on the journal: no model and no tool is asked, and the journal is as it was."""
    journal = SqliteJournal(tmp_path)
    run = await _run(journal)
    before, again = journal.num_records(run), World()
    report = await again.fleet(journal).check_replay(run)
    assert (report.difference, report.num_agents, report.num_calls) == ("", 2, 3)
    assert again.asked == []
    assert journal.num_records(run) == before


async def _other_question(context: Context, task: Task) -> object:
    return await context.generate("about something else")


async def _one_more_call(context: Context, task: Task) -> object:
    result = await work(context, task)
    with suppress(RequestError):  # the difference is told all the same
        await context.call_tool("note", Note("more"))
    return result


async def _one_more_answer(context: Context, task: Task) -> object:
    result = await work(context, task)
    await context.generate("one more?")
    return result


async def _other_result(context: Context, task: Task) -> object:
    return f"{await work(context, task)}!"


async def _failing(context: Context, task: Task) -> object:
    await work(context, task)
    raise ValueError("broken now")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_other_question, "asked for something else before"),
        (_one_more_call, "calls the tool note in"),
        (_one_more_answer, "asks a model for an answer"),
        (_other_result, "gives another result: 'ANSWER 1 by answer 3!'"),
        (_failing, "broken now"),
    ],
)
async def test_the_first_difference_is_told(function: Work, words: str) -> None:
    """Changed code is found by its first call, result or failure that differs; still nothing is asked."""
    journal, again = MemoryJournal(), World()
    run = await _run(journal)
    report = await again.fleet(journal, function).check_replay(run)
    assert words in report.difference
    assert again.asked == []


async def test_a_failed_run_is_checked_and_one_under_way_is_not() -> None:
    """A run that failed passes when its code fails alike; mended code is a difference; what is not over is refused."""
    journal = MemoryJournal()
    run = await _run(journal, _failing)
    assert (await World().fleet(journal, _failing).check_replay(run)).difference == ""
    assert "would not now" in (await World().fleet(journal).check_replay(run)).difference
    async with World().fleet(journal) as fleet:
        running = fleet.run("bread", agent="work")
        first = await anext(running)
        with pytest.raises(RequestError, match="only a run that is done or failed"):
            await fleet.check_replay(first.run)
        await running.aclose()
        with pytest.raises(RequestError, match="there is no run"):
            await fleet.check_replay("r-none")


async def test_a_fleet_shows_its_runs_and_follows_them() -> None:
    """`runs`, `show` and `events` tell of a run that is over, waits or is under way; `cancel` ends it."""

    async def curious(context: Context, task: Task) -> object:
        return await context.ask("Which colour?", options=("red", "blue"))

    journal = MemoryJournal()
    async with World().fleet(journal, curious) as fleet:
        done = await _run(journal)
        assert fleet.show(done).state == "done"
        assert fleet.show(done).output == "ANSWER 1 by answer 3"
        events = [event async for event in fleet.events(done)]
        assert [event async for event in fleet.events(done, 3)] == events[3:]
        assert isinstance(events[-1], ev.RunFinished)

        running = fleet.run("go", agent="work", waits_for_answers=True)
        reader = asyncio.create_task(_read(running))
        async for event in fleet.events((await _newest(fleet)).run):
            if isinstance(event, ev.QuestionAsked):
                [question] = fleet.show(event.run).questions
                assert question == event.question
                fleet.cancel(event.run)
        assert fleet.show(event.run).state == "cancelled"
        assert [row.state for row in fleet.runs()] == ["cancelled", "done"]
        assert await reader == "cancelled"
        with pytest.raises(RequestError, match="there is no run 'r-none'"):
            fleet.show("r-none")


def test_a_fleet_without_an_event_loop() -> None:
    """`with Fleet()` gives one whose methods wait: runs, questions, events and their ends."""

    async def curious(context: Context, task: Task) -> object:
        return f"so {await context.ask('Which colour?', options=('red', 'blue'))}"

    with World().fleet(MemoryJournal(), curious) as fleet:
        for event in fleet.run("go", agent="work", waits_for_answers=True):
            if isinstance(event, ev.QuestionAsked):
                with pytest.raises(RequestError, match="one of red, blue"):
                    fleet.answer(event.run, event.question.id, "green")
                assert fleet.show(event.run).questions == (event.question,)
                fleet.answer(event.run, event.question.id, "red")
        assert isinstance(event, ev.RunFinished)
        assert event.output == "so red"
        assert list(fleet.events(event.run, 1))[-1] == event
        with pytest.raises(RequestError, match="is done"):
            next(fleet.resume(event.run))
        with pytest.raises(NeedsAnswerError):
            list(fleet.fork(event.run, "work", waits_for_answers=False))
        assert [row.state for row in fleet.runs()] == ["needs_answer", "done"]
        running = fleet.run("go", agent="work", waits_for_answers=True)
        fleet.cancel(next(running).run)
        with pytest.raises(RequestError, match="was cancelled"):
            list(running)


async def _read(run: object) -> str:
    try:
        async for _ in run:  # type: ignore[attr-defined]
            pass
    except RequestError as error:
        return error.code
    return "done"


async def _newest(fleet: pyagent.Fleet) -> pyagent.RunSummary:
    await until(lambda: fleet.runs()[0].state == "running")
    return fleet.runs()[0]


def test_a_run_is_shown_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`runs replay` shows what happened and the result; at speed 0 it waits for nothing."""
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))
    run = asyncio.run(_run(SqliteJournal(tmp_path / "journal")))
    replay(run, speed=0)
    out = capsys.readouterr().out
    assert "work" in out
    assert "ANSWER 1 by answer 3" in out
    failed = asyncio.run(_run(SqliteJournal(tmp_path / "journal"), _failing))
    replay(failed, speed=0)
    assert "ended without a result" in capsys.readouterr().out


def test_show_tells_the_question_and_how_to_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`runs show` ends with what a run waits for, whole, and the command that answers it."""
    from pyagent.cli.runs import show

    async def curious(context: Context, task: Task) -> object:
        return await context.ask("Which colour? " + "x" * 300, options=("red", "blue"))

    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))
    run = asyncio.run(_run(SqliteJournal(tmp_path / "journal"), curious))
    show(run)
    out = capsys.readouterr().out
    assert "x" * 300 + " [red/blue]" in out
    assert f"pyagent runs resume {run} --answer ANSWER" in out
