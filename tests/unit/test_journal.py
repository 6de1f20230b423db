"""The journal on disk: what survives, what is read back, and in which order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import Progress, RunFailed, RunFinished, RunStarted, ToolCalled, Totals
from pyagent.core.fleet.journal import JournalRecord
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.storage.journal import FileJournal, decode_line, encode_line, shard_name
from pyagent.testing import ScriptedBackend


def _write(journal: FileJournal, num_records: int) -> str:
    run = journal.open_run()
    for number in range(num_records):
        step = f"agent{number % 5}"
        event = Progress(run=run, step=step, agent="a", text=f"line {number} ünï\n")
        journal.append(run, f"{run}/{step}", JournalRecord(number, event))
    return run


def test_replay_gives_what_was_written(tmp_path: Path) -> None:
    """Records spread over shards come back in the order they were written, while the run is open and after."""
    journal = FileJournal(tmp_path)
    run = _write(journal, 50)
    assert [record.number for record in journal.replay(run)] == list(range(50))
    journal.close_run(run)
    texts = [record.event.text for record in FileJournal(tmp_path).replay(run) if isinstance(record.event, Progress)]
    assert texts == [f"line {number} ünï\n" for number in range(50)]
    assert len(list((tmp_path / run).glob("*.jsonl"))) > 1


class _Wordless:
    def __str__(self) -> str:
        raise ValueError("no words for it")


def test_output_that_is_no_json_is_named_in_its_record(tmp_path: Path) -> None:
    """A tool's output that cannot be written reaches its agent all the same; its record names the type."""
    circle: list[object] = []
    circle.append(circle)
    outputs = {"wordless": _Wordless(), "circle": circle, "surrogate": "\ud800"}

    class User:
        name = "user"
        description = "calls a tool"

        async def run(self, context: Context, task: Task) -> object:
            return str(await context.call_tool(task.text, {}) is outputs[task.text])

    def tool(name: str) -> FleetTool:
        async def call(_: object) -> object:
            return outputs[name]

        return FleetTool(name, "gives something odd", {}, call)

    journal = FileJournal(tmp_path)
    fleet = Fleet(ScriptedBackend([]), [User()], [tool(name) for name in outputs], journal=journal)
    for name, kind in (("wordless", "_Wordless"), ("circle", "list"), ("surrogate", "str")):
        before = {folder.name for folder in tmp_path.glob("r-*")}
        assert asyncio.run(fleet.run_agent("user", name)) == "True"
        (run,) = {folder.name for folder in tmp_path.glob("r-*")} - before
        (called,) = [each.event for each in journal.replay(run) if isinstance(each.event, ToolCalled)]
        assert (called.tool, called.output) == (name, f"<a {kind} that cannot be written as JSON>")
    partial = {"good": 1, "bad": circle}
    failed = RunFailed(run="r-1", kind="x", error="y", partial=partial, totals=Totals())
    record = decode_line(encode_line(JournalRecord(0, failed)))
    assert record is not None
    assert isinstance(record.event, RunFailed)
    assert record.event.partial == {"good": 1, "bad": "<a list that cannot be written as JSON>"}


def test_shards_are_stable() -> None:
    """A key's shard is the same in every process and version."""
    assert [shard_name(f"r-1/{name}") for name in ("math", "summarize", "")] == ["05.jsonl", "0a.jsonl", "07.jsonl"]


@given(st.text(max_size=300), st.integers(0, 2**40))
def test_line_round_trip(text: str, number: int) -> None:
    """Any text comes back from its line, and the line is one line of JSON."""
    record = JournalRecord(number, Progress(run="r", step="s", agent="a", text=text))
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert json.loads(line)["event"]["text"] == text
    assert decode_line(line) == record


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_record(line: bytes) -> None:
    """Bytes that are no record are refused, not raised about."""
    assert decode_line(line) is None


@given(st.data())
def test_damaged_line_is_no_record(data: st.DataObject) -> None:
    """A record with one byte changed, or cut short, is not taken for a record."""
    line = encode_line(JournalRecord(7, Progress(run="r", step="s", agent="a", text="hello", at=1.5)))
    place = data.draw(st.integers(0, len(line) - 1))
    assert decode_line(line[:place]) is None
    changed = bytearray(line)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_line(bytes(changed)) is None


def test_torn_end_is_cut_and_the_rest_kept(tmp_path: Path) -> None:
    """A half-written last line disappears from the file; the records before it stay."""
    journal = FileJournal(tmp_path)
    run = _write(journal, 10)
    journal.close_run(run)
    shard = max((tmp_path / run).glob("*.jsonl"), key=lambda path: path.stat().st_size)
    with shard.open("ab") as file:
        file.write(b'{"number":10,"event":{"ev')
    assert len(journal.replay(run)) == 10
    assert all(json.loads(line) for line in shard.read_text().splitlines())
    assert shard.read_bytes().endswith(b"\n")


def test_living_writer_is_not_cut(tmp_path: Path) -> None:
    """A reader does not shorten the file of a run that is being written."""
    journal = FileJournal(tmp_path)
    run = _write(journal, 3)
    shard = next((tmp_path / run).glob("*.jsonl"))
    with shard.open("ab") as file:
        file.write(b"half")
    FileJournal(tmp_path).replay(run)
    assert shard.read_bytes().endswith(b"half")
    journal.close_run(run)


def test_damage_ends_the_replay(tmp_path: Path) -> None:
    """After a record lost in the middle nothing is replayed: a run is a prefix or nothing."""
    journal = FileJournal(tmp_path)
    run = _write(journal, 30)
    journal.close_run(run)
    shard = tmp_path / run / shard_name(f"{run}/agent2")
    lines = shard.read_bytes().split(b"\n")
    lines[1] = b"damaged"
    number = json.loads(shard.read_bytes().split(b"\n")[1])["number"]
    shard.write_bytes(b"\n".join(lines))
    assert [record.number for record in journal.replay(run)] == list(range(number))


def test_runs_lists_state_and_totals(tmp_path: Path) -> None:
    """A run is listed with its task; done once its end is written, unfinished before."""
    journal = FileJournal(tmp_path)
    run = journal.open_run()
    journal.append(run, f"{run}/", JournalRecord(0, RunStarted(run=run, task="sum")))
    assert [(row.run, row.task, row.state) for row in journal.runs()] == [(run, "sum", "unfinished")]
    journal.append(run, f"{run}/", JournalRecord(1, RunFinished(run=run, output=4, totals=Totals(model_calls=2))))
    row = FileJournal(tmp_path).runs()[0]
    assert row.state == "done"
    assert row.totals == Totals(model_calls=2)


@pytest.mark.parametrize("name", ["r-none", "../etc", ""])
def test_unknown_run_is_refused(tmp_path: Path, name: str) -> None:
    """A run nobody has, and a path out of the journal, are refused."""
    with pytest.raises(RequestError, match="there is no run"):
        FileJournal(tmp_path).replay(name)


def test_unwritable_folder_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where no folder can be made a run goes on unkept; the warning says which setting to change."""
    (tmp_path / "file").write_text("")
    journal = FileJournal(tmp_path / "file" / "journal")
    run = journal.open_run()
    journal.append(run, f"{run}/", JournalRecord(0, RunStarted(run=run, task="sum")))
    journal.close_run(run)
    assert "set paths.data" in caplog.text
    assert "cannot be written" in journal.loss(run)


def test_private_runs_are_not_kept(tmp_path: Path) -> None:
    """A private run has an id of its own and leaves nothing on the disk."""
    journal = FileJournal(tmp_path)
    runs = {journal.open_run(is_private=True) for _ in range(3)}
    for run in runs:
        journal.append(run, f"{run}/", JournalRecord(0, RunStarted(run=run, task="a secret")))
        journal.close_run(run)
        assert journal.loss(run) == "it is private"
    assert len(runs) == 3
    assert list(tmp_path.iterdir()) == []


def _aged(folder: Path, run: str, days: float) -> str:
    then = time.time() - days * 86_400
    os.utime(folder / run, (then, then))
    return run


def test_old_runs_go_by_number_and_age(tmp_path: Path) -> None:
    """The newest are kept up to a number and an age; one that is still written stays; new runs prune by themselves."""
    journal = FileJournal(tmp_path)
    runs = []
    for days in (5.0, 4.0, 3.0, 2.0, 1.0):
        run = _write(journal, 3)
        journal.close_run(run)
        runs.append(_aged(tmp_path, run, days))
    writing = _aged(tmp_path, _write(journal, 1), 9.0)
    assert set(FileJournal(tmp_path).prune(None, 3.5)) == set(runs[:2])
    assert FileJournal(tmp_path).prune(2, None) == [runs[2]]
    assert {folder.name for folder in tmp_path.iterdir()} == {*runs[3:], writing}
    journal.close_run(writing)
    started = FileJournal(tmp_path, max_runs=1, max_age_days=1.5).open_run()
    assert {folder.name for folder in tmp_path.iterdir()} == {runs[4], started}


def test_removing_a_run(tmp_path: Path) -> None:
    """A run is deleted with all it holds; an unknown one and one that is still written are refused."""
    journal = FileJournal(tmp_path)
    run = _write(journal, 3)
    with pytest.raises(RequestError, match="still running"):
        FileJournal(tmp_path).remove(run)
    journal.close_run(run)
    FileJournal(tmp_path).remove(run)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match="there is no run"):
        journal.remove(run)


def test_damage_is_told_and_the_rest_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One changed byte loses one record: reading names it and gives the rest, replaying warns of what it leaves out."""
    journal = FileJournal(tmp_path)
    run = _write(journal, 15)
    journal.close_run(run)
    assert journal.read(run).is_whole
    shard = tmp_path / run / shard_name(f"{run}/agent2")
    first = min(number for number in range(5) if shard_name(f"{run}/agent{number}") == shard.name)  # steps share shards
    text = bytearray(shard.read_bytes())
    text[20] ^= 1
    shard.write_bytes(text)
    kept = journal.read(run)
    assert (kept.missing, kept.num_damaged, len(kept.records)) == ([first], 1, 14)
    assert len(journal.replay(run)) == first
    assert f"{first} of 14 records are used" in caplog.text


def test_a_run_without_its_start_is_listed_as_damaged(tmp_path: Path) -> None:
    """A run whose first record is damaged is listed, so that it can be looked at and deleted."""
    journal = FileJournal(tmp_path)
    run = journal.open_run()
    journal.append(run, f"{run}/", JournalRecord(0, RunStarted(run=run, task="sum")))
    journal.close_run(run)
    shard = tmp_path / run / shard_name(f"{run}/")
    shard.write_bytes(shard.read_bytes().replace(b"sum", b"sun"))
    assert [(row.run, row.state) for row in journal.runs()] == [(run, "damaged")]


_WRITER = """
import sys
from pathlib import Path
from pyagent.core.fleet.events import Progress
from pyagent.core.fleet.journal import JournalRecord
from pyagent.infrastructure.storage.journal import FileJournal
journal = FileJournal(Path(sys.argv[1]))
run = journal.open_run()
print(run, flush=True)
for number in range(10**9):
    step = f"agent{number % 7}"
    text = str(number) + "x" * (number * 7919 % 60_000)
    journal.append(run, f"{run}/{step}", JournalRecord(number, Progress(run=run, step=step, agent="a", text=text)))
"""


def test_kill_in_mid_write_leaves_a_prefix(tmp_path: Path) -> None:
    """Killed at random moments while it writes, a process leaves valid JSON lines: a gapless prefix of its records."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        time.sleep(draw.uniform(0.005, 0.08))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        records = FileJournal(tmp_path).replay(run)
        assert [record.number for record in records] == list(range(len(records)))
        for shard in (tmp_path / run).glob("*.jsonl"):
            assert all(json.loads(line) for line in shard.read_text().splitlines())
        num_lines = sum(len(shard.read_text().splitlines()) for shard in (tmp_path / run).glob("*.jsonl"))
        assert num_lines == len(records)
        for record in records:
            assert isinstance(record.event, Progress)
            assert record.event.text.rstrip("x") == str(record.number)
