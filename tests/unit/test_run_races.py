"""Two that want one run at once, in one process and in two: one has it, the other is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from support.fleets import Custom, events_of

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.journal import Journal, MemoryJournal
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.steps import RunSpec, Step
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

SPEC = RunSpec(steps=(Step(name="a", task=Task(text="sum")),))
RESUMER = """
import asyncio, sys
from pathlib import Path
from support.fleets import Custom
from pyagent.core.errors import RequestError
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

folder, run = Path(sys.argv[1]), sys.argv[2]

async def work(context, task):
    await asyncio.to_thread(sys.stdin.readline)
    return "whole"

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    fleet = Fleet(ScriptedBackend([]), [Custom("work", work)], journal=SqliteJournal(folder))
    try:
        async for event in fleet.resume(run):
            print(type(event).__name__, flush=True)
    except RequestError as error:
        print(error.code, flush=True)

asyncio.run(main())
"""


async def _fail(context: Context, task: Task) -> object:
    raise ValueError("not yet")


def _failed_run(journal: Journal) -> str:
    async def main() -> str:
        events, error = await events_of(Fleet(ScriptedBackend([]), [Custom("work", _fail)], journal=journal), "x")
        assert isinstance(error, AgentError)
        return events[0].run

    return asyncio.run(main())


def test_of_two_processes_that_resume_a_run_one_is_told(tmp_path: Path) -> None:
    """Both begin at once: one goes on with the run, the other hears that it is still running, and writes nothing."""
    journal = SqliteJournal(tmp_path)
    run = _failed_run(journal)
    command = [sys.executable, "-c", RESUMER, str(tmp_path), run]
    both = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        for _ in range(2)
    ]
    try:
        assert [each.stdout.readline() for each in both if each.stdout] == ["ready\n"] * 2
        for each in both:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        said = [each.stdout.readline().strip() for each in both if each.stdout]
        assert sorted(said) == ["RunStarted", "still_running"]
        winner = both[said.index("RunStarted")]
        out, _ = winner.communicate("\n", timeout=30)
        assert out.splitlines()[-1] == "RunFinished"
    finally:
        for each in both:
            each.kill()
            each.communicate()
    assert [type(record.event).__name__ for record in journal.replay(run)].count("RunResumed") == 1
    row = journal.summary(run)
    assert row is not None
    assert row.state == "done"


def test_a_run_that_is_done_is_not_gone_on_with(tmp_path: Path) -> None:
    """Between a look at a run and its resumption it may have ended: what opens it decides."""
    for journal in (MemoryJournal(), SqliteJournal(tmp_path)):

        async def main(journal: Journal = journal) -> str:
            run = ""
            async for event in Fleet(ScriptedBackend(["ok"]), [Custom("work", _ask)], journal=journal).run("x"):
                run = event.run
            return run

        run = asyncio.run(main())
        with pytest.raises(RequestError, match="is done; fork it") as caught:
            journal.reopen(run)
        assert caught.value.code == "done"


async def _ask(context: Context, task: Task) -> object:
    return await context.generate(task.text)


def test_of_two_runs_of_one_chosen_id_there_is_one(tmp_path: Path) -> None:
    """A chosen id is taken once, also by two journals over one file, and a deleted run's is free again."""
    first, second, memory = SqliteJournal(tmp_path), SqliteJournal(tmp_path), MemoryJournal()
    for one, other in ((first, second), (memory, memory)):
        assert one.open_run(SPEC, name="r-chosen") == "r-chosen"
        with pytest.raises(RequestError, match="already") as caught:
            other.open_run(SPEC, name="r-chosen")
        assert caught.value.code == "run_exists"
        with pytest.raises(RequestError, match="still running"):
            other.remove("r-chosen")
        one.close_run("r-chosen")
        other.remove("r-chosen")
        assert other.summary("r-chosen") is None
        assert other.open_run(SPEC, name="r-chosen") == "r-chosen"
