"""The journal on disk: what survives, what is read back, in which order, and how little room it takes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import (
    AgentFinished,
    AgentStarted,
    ModelCalled,
    Progress,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolCalled,
    Totals,
)
from pyagent.core.fleet.journal import JournalRecord, MemoryJournal, fair_share
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.steps import RunSpec, Step
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.messages import FunctionCall, Message, ToolCall, Usage
from pyagent.infrastructure.storage.database import Database
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.record_codec import RecordCodec
from pyagent.infrastructure.storage.search.files import follow_folder
from pyagent.infrastructure.storage.search.index import SqliteIndex
from pyagent.infrastructure.tools.folder import Folder
from pyagent.testing import ScriptedBackend

SPEC = RunSpec(steps=(Step(name="a", task=Task(text="sum")),))


def _write(journal: SqliteJournal, num_records: int) -> str:
    run = journal.open_run(SPEC)
    for number in range(num_records):
        event = Progress(run=run, step=f"agent{number % 5}", agent="a", text=f"line {number} ünï\n")
        journal.append(run, JournalRecord(number, event))
    return run


def _texts(journal: SqliteJournal, run: str, start: int = 0) -> list[str]:
    return [record.event.text for record in journal.replay(run, start) if isinstance(record.event, Progress)]


def _change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "runs.db")) as database, database:
        database.execute(statement)


def _holds(folder: Path, text: bytes) -> bool:
    return any(text in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_replay_gives_what_was_written(tmp_path: Path) -> None:
    """Records come back in the order they were written, from any number on, while the run is open and after."""
    journal = SqliteJournal(tmp_path)
    run = _write(journal, 600)
    assert [record.number for record in journal.replay(run)] == list(range(600))
    journal.close_run(run)
    assert _texts(SqliteJournal(tmp_path), run) == [f"line {number} ünï\n" for number in range(600)]
    assert _texts(journal, run, start=597) == [f"line {number} ünï\n" for number in (597, 598, 599)]
    assert journal.spec(run) == SPEC
    assert [record and record.number for record in (journal.record(run, 599), journal.record(run, 600))] == [599, None]


class _Wordless:
    def __str__(self) -> str:
        raise ValueError("no words for it")


def test_output_that_cannot_be_written_is_named_in_its_record(tmp_path: Path) -> None:
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

    journal = SqliteJournal(tmp_path)
    fleet = Fleet(ScriptedBackend([]), [User()], [tool(name) for name in outputs], journal=journal)
    for name, kind in (("wordless", "_Wordless"), ("circle", "list"), ("surrogate", "str")):
        assert asyncio.run(fleet.run_agent("user", name)) == "True"
        records = list(journal.replay(journal.runs()[0].run))
        (called,) = [each.event for each in records if isinstance(each.event, ToolCalled)]
        assert (called.tool, called.output) == (name, f"<a {kind} that cannot be written>")
        assert not all(record.is_exact for record in records)


@cache
def _codec() -> RecordCodec:
    """Return a codec whose file goes with this process."""
    return RecordCodec(Database(Path(mkdtemp(prefix="pyagent-journal-")) / "runs.db"))


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    """Every field of an event comes back: conversations, calls, numbers of any size, and what only JSON carries."""
    codec = RecordCodec(Database(tmp_path / "runs.db"))
    call = ToolCall(id="1", function=FunctionCall(name="f", arguments="{}"))
    messages = [Message("system", "be good"), Message("assistant", None, tool_calls=[call])]
    asked = ModelCalled(
        run="r-1", step="s", agent="a", backend="b", messages=messages, answer="x", usage=Usage(1, 2, 3), at=2.5
    )
    called = ToolCalled(
        run="r-1", step="s", agent="a", tool="t", arguments={"n": 2**200}, output=[1.5, None, b"\0"], at=3.0
    )
    failed = RunFailed(
        run="r-1",
        kind="x",
        error="y",
        partial={"good": 1, "odd": {"deep": "x" * 9000}},
        totals=Totals(seconds=2.25),
        at=0.5,
    )
    for number, event in enumerate((asked, called, failed)):
        assert codec.decode("r-1", 0.0, number, codec.record(1, codec.draft(0.0, event))) == JournalRecord(
            number, event
        )


@given(st.text(max_size=600), st.integers(0, 2**40))
def test_record_round_trip(text: str, number: int) -> None:
    """Any text comes back from its record."""
    codec = _codec()
    event = Progress(run="r", step="s", agent="a", text=text, at=1.5)
    assert codec.decode("r", 0.0, number, codec.record(1, codec.draft(0.0, event))) == JournalRecord(number, event)


_NAMES = st.sampled_from(["", "a", "b.c", "loop", "x/y", "4[0].1"]) | st.text(max_size=6)


@given(_NAMES, _NAMES, st.none() | _NAMES)
def test_names_that_a_step_says_come_back(begin: str, agent: str, parent: str | None) -> None:
    """An agent and a parent come back, also from a record that leaves them to the step, and also odd ones."""
    codec = _codec()
    for step in (f"{begin}/4.{agent}", f"{parent}/1.{agent}", begin):
        event = AgentStarted(run="r", step=step, agent=agent, task="t", parent=parent, at=1.5)
        assert codec.decode("r", 0.0, 1, codec.record(1, codec.draft(0.0, event))) == JournalRecord(1, event)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_record(record: bytes) -> None:
    """Bytes that are no record are refused, not raised about, with a right checksum too."""
    codec = _codec()
    assert codec.decode("r", 0.0, 0, record) is None
    assert codec.decode("r", 0.0, 0, zlib.crc32(record).to_bytes(4) + record) is None


@given(st.data())
def test_damaged_record_is_no_record(data: st.DataObject) -> None:
    """A record with one byte changed, or cut short, is not taken for a record."""
    codec = _codec()
    record = codec.record(1, codec.draft(0.0, Progress(run="r", step="s", agent="a", text="hello", at=1.5)))
    place = data.draw(st.integers(0, len(record) - 1))
    assert codec.decode("r", 0.0, 0, record[:place]) is None
    changed = bytearray(record)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    assert codec.decode("r", 0.0, 0, bytes(changed)) is None


@pytest.mark.parametrize(
    "damage",
    ["UPDATE records SET body = CAST(body || 'x' AS BLOB)", "DELETE FROM records"],
)
def test_damage_is_told_and_the_rest_is_read(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A record lost or changed: reading names it and gives the rest, replaying ends before it with a warning."""
    journal = SqliteJournal(tmp_path)
    run = _write(journal, 15)
    journal.close_run(run)
    assert journal.read(run).is_whole
    _change(tmp_path, f"{damage} WHERE id % 4294967296 = 7")
    kept = journal.read(run)
    assert (kept.missing, len(kept.records)) == ([7], 14)
    assert [record.number for record in journal.replay(run)] == list(range(7))
    assert "used up to record 7" in caplog.text


def test_damaged_blob_is_damage(tmp_path: Path) -> None:
    """A large value whose bytes changed on the disk is told as damage, not given as what was written."""
    journal = SqliteJournal(tmp_path)
    run = journal.open_run(SPEC)
    journal.append(run, JournalRecord(0, Progress(run=run, step="s", agent="a", text=os.urandom(400).hex())))
    journal.close()
    _change(tmp_path, "UPDATE blobs SET body = CAST('something else' AS BLOB)")
    assert journal.read(run).missing == [0]


def test_runs_lists_state_and_totals(tmp_path: Path) -> None:
    """A run is listed with its task: running, unfinished when its process is gone, done once its end is written."""
    journal, reader = SqliteJournal(tmp_path), SqliteJournal(tmp_path)
    run = journal.open_run(SPEC)
    assert [row.state for row in reader.runs()] == ["running"]
    journal.append(run, JournalRecord(0, RunStarted(run=run, task="sum")))
    assert [(row.run, row.task, row.state) for row in reader.runs()] == [(run, "sum", "running")]
    journal.close()
    assert reader.runs()[0].state == "unfinished"
    journal.reopen(run)
    journal.append(run, JournalRecord(1, RunFinished(run=run, output=4, totals=Totals(model_calls=2))))
    journal.close_run(run)
    row = reader.runs()[0]
    assert row.state == "done"
    assert row.totals == Totals(model_calls=2)


@pytest.mark.parametrize("name", ["r-none", "../etc", ""])
def test_unknown_run_is_refused(tmp_path: Path, name: str) -> None:
    """A run that is not kept is refused, and looking for it makes no file."""
    with pytest.raises(RequestError, match="there is no run"):
        SqliteJournal(tmp_path).replay(name)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_stops_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where no folder can be made a run goes on unkept; the warning says which setting to change."""
    (tmp_path / "file").write_text("")
    journal = SqliteJournal(tmp_path / "file" / "journal")
    run = journal.open_run(SPEC)
    journal.append(run, JournalRecord(0, RunStarted(run=run, task="sum")))
    journal.close_run(run)
    assert "set paths.data" in caplog.text
    assert "cannot be written" in journal.loss(run)


def test_newer_journal_is_left_alone(tmp_path: Path) -> None:
    """A file of another release is neither read nor written; runs go on unkept and say why."""
    journal = SqliteJournal(tmp_path)
    _write(journal, 1)
    journal.close()
    _change(tmp_path, "PRAGMA user_version = 99")
    assert "another release" in journal.loss(journal.open_run(SPEC))
    with pytest.raises(RequestError, match="another release"):
        journal.runs()


def test_private_runs_are_not_kept(tmp_path: Path) -> None:
    """A private run has an id of its own and leaves nothing on the disk."""
    journal = SqliteJournal(tmp_path)
    runs = {journal.open_run(SPEC, is_private=True) for _ in range(3)}
    for run in runs:
        journal.append(run, JournalRecord(0, RunStarted(run=run, task="a secret")))
        journal.close_run(run)
        assert journal.loss(run) == "it is private"
    assert len(runs) == 3
    assert list(tmp_path.iterdir()) == []


def test_old_runs_go_by_number_and_age(tmp_path: Path) -> None:
    """The newest are kept up to a number and an age; one that is still written stays; new runs prune by themselves."""
    journal = SqliteJournal(tmp_path)
    runs = []
    for days in (5.0, 4.0, 3.0, 2.0, 1.0):
        run = _write(journal, 3)
        journal.close_run(run)
        _change(tmp_path, f"UPDATE runs SET used_at = {time.time() - days * 86_400} WHERE name = '{run}'")
        runs.append(run)
    writing = _write(journal, 1)
    _change(tmp_path, f"UPDATE runs SET used_at = 0 WHERE name = '{writing}'")
    assert set(SqliteJournal(tmp_path).prune(None, 3.5)) == set(runs[:2])
    assert SqliteJournal(tmp_path).prune(2, None) == [runs[2]]
    assert {row.run for row in journal.runs()} == {*runs[3:], writing}
    journal.close_run(writing)
    _change(tmp_path, f"UPDATE runs SET used_at = 0 WHERE name = '{writing}'")
    started = SqliteJournal(tmp_path, max_runs=1, max_age_days=1.5).open_run(SPEC)
    assert {row.run for row in journal.runs()} == {runs[4], started}


def test_one_tenants_runs_push_out_its_own(tmp_path: Path) -> None:
    """A tenant that begins many runs loses its oldest, and no tenant of fewer loses any; in memory, too."""
    for journal in (SqliteJournal(tmp_path), MemoryJournal(6)):
        runs: dict[str, list[str]] = {}
        for tenant in ["quiet"] * 2 + ["loud"] * 20:
            run = journal.open_run(msgspec.structs.replace(SPEC, tenant=tenant))
            journal.append(run, JournalRecord(0, RunStarted(run=run, task="t", at=1.0)))
            journal.close_run(run)
            runs.setdefault(tenant, []).append(run)
        if isinstance(journal, SqliteJournal):
            journal.prune(6, None)
        assert {row.run for row in journal.runs()} == {*runs["quiet"], *runs["loud"][-4:]}


@given(st.lists(st.sampled_from("abc"), max_size=20), st.integers(0, 25))
def test_shares_of_a_journal_are_fair(tenants: list[str], most: int) -> None:
    """As many are kept as may be; no tenant has more than one over another that loses some, and each its newest."""
    kept = fair_share(tenants, most)
    assert sum(kept) == min(most, len(tenants))
    flags = {tenant: [flag for flag, other in zip(kept, tenants, strict=True) if other == tenant] for tenant in tenants}
    for each in flags.values():
        assert each == sorted(each, reverse=True)
        if not all(each):
            assert all(sum(other) <= sum(each) + 1 for other in flags.values())


def test_removing_a_run(tmp_path: Path) -> None:
    """A run is deleted with every byte of what it held; an unknown one and one that is still written are refused."""
    journal = SqliteJournal(tmp_path)
    run, other = _write(journal, 3), _write(journal, 1)
    secret = random.randbytes(3000).hex()
    journal.append(run, JournalRecord(3, Progress(run=run, step="s", agent="a", text=f"short secret {secret[:9]}")))
    journal.append(run, JournalRecord(4, Progress(run=run, step="s", agent="a", text=secret)))
    with pytest.raises(RequestError, match="still running"):
        SqliteJournal(tmp_path).remove(run)
    journal.close_run(run)
    SqliteJournal(tmp_path).remove(run)
    assert [row.run for row in journal.runs()] == [other]
    assert not _holds(tmp_path, secret[:9].encode())
    assert Database(tmp_path / "runs.db").rows("SELECT count(*) FROM blobs") == [(0,)]
    with pytest.raises(RequestError, match="there is no run"):
        journal.remove(run)


def test_deleted_runs_give_their_space_back(tmp_path: Path) -> None:
    """The file shrinks when runs are deleted, without a command."""
    journal = SqliteJournal(tmp_path)
    run = journal.open_run(SPEC)
    for number in range(200):
        journal.append(run, JournalRecord(number, Progress(run=run, step="s", agent="a", text=os.urandom(4000).hex())))
    journal.close_run(run)
    Database(tmp_path / "runs.db").shrink()
    full = (tmp_path / "runs.db").stat().st_size
    journal.prune(0, None)
    assert (tmp_path / "runs.db").stat().st_size < full / 10


def test_conversation_grows_by_what_is_new(tmp_path: Path) -> None:
    """Calls whose conversations begin alike keep each message once, in the run and in its fork."""
    journal = SqliteJournal(tmp_path)
    run = journal.open_run(SPEC)
    messages = [Message("user", os.urandom(500).hex())]
    for number in range(60):
        event = ModelCalled(run=run, step="s", agent="a", backend="b", messages=list(messages), answer=f"{number}")
        journal.append(run, JournalRecord(number, event))
        messages.append(Message("user", os.urandom(500).hex()))
    fork = journal.fork(run, SPEC, 30)
    journal.close()
    database = Database(tmp_path / "runs.db")
    [(num_bytes,)] = database.rows("SELECT sum(length(body)) FROM blobs")
    assert isinstance(num_bytes, int)
    assert num_bytes < 60 * 1200  # 60 messages of 1,000 characters, not 1,830
    journal.remove(run)
    last = list(journal.replay(fork))[-1].event
    assert isinstance(last, ModelCalled)
    assert last.messages == messages[:30]


def test_step_that_does_nothing_takes_little_room(tmp_path: Path) -> None:
    """A spawned agent's two records take less than 105 bytes of the file, its own place in it included."""
    journal = SqliteJournal(tmp_path)
    run, totals = journal.open_run(SPEC), Totals(seconds=0.001)

    def size_after(first: int, last: int) -> int:
        for step in range(first, last):
            path = f"loop/{step}.noop"
            started = AgentStarted(run=run, step=path, agent="noop", task=f"{step}", parent="loop", asked="12345678")
            finished = AgentFinished(run=run, step=path, agent="noop", output=step, totals=totals)
            journal.append(run, JournalRecord(2 * step, started))
            journal.append(run, JournalRecord(2 * step + 1, finished))
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return (tmp_path / "runs.db").stat().st_size

    grown = -size_after(0, 500) + size_after(500, 1_500)
    journal.close()
    assert grown / 1_000 < 105
    assert size_after(0, 0) / 1_500 < 140  # with all that an empty journal has: pages of rollups and of webhooks


def test_records_between_large_ones_are_kept_in_order(tmp_path: Path) -> None:
    """Records that are one statement and those that bring blobs, forced ones too, come back as they were written."""
    journal = SqliteJournal(tmp_path)
    run = journal.open_run(SPEC)
    texts = [f"{number} " + "word " * (300 if number % 3 else 1) for number in range(30)]
    for number, text in enumerate(texts):
        event = Progress(run=run, step="a", agent="a", text=text)
        journal.append(run, JournalRecord(number, event), is_forced=number % 7 == 0)
    journal.close()
    assert _texts(SqliteJournal(tmp_path), run) == texts


def test_record_that_is_not_kept_leaves_no_large_value(tmp_path: Path) -> None:
    """A record and its large values are one transaction: where the record fails, they are not kept either."""
    journal = SqliteJournal(tmp_path)
    run = journal.open_run(SPEC)
    for number, text in ((0, "begun"), (1, "first " * 300), (1, "second " * 300)):
        journal.append(run, JournalRecord(number, Progress(run=run, step="a", agent="a", text=text)))
    assert journal.loss(run)
    journal.close()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        assert database.execute("SELECT COUNT(*) FROM blobs").fetchone() == (1,)


def test_two_journals_of_a_process_keep_their_locks(tmp_path: Path) -> None:
    """Opening the file again leaves the first connection its locks: another process that closes it deletes no log."""
    first, second = SqliteJournal(tmp_path), SqliteJournal(tmp_path)
    path = tmp_path / "runs.db"
    look = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(len(c.execute('SELECT * FROM runs').fetchall()))"
    )
    for number, journal in enumerate((first, second, first, second), 1):
        journal.open_run(SPEC)
        seen = subprocess.run([sys.executable, "-c", f"{look}; c.close()", path], capture_output=True, check=True)
        assert int(seen.stdout) == number
        assert Path(f"{path}-wal").exists(), "another process deleted the log that is written to"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    second.close()
    first.close()


def test_tools_open_no_live_journal(tmp_path: Path) -> None:
    """A tool or a search that reads a folder with a journal in it leaves the journal its locks, also under links."""
    journal, path = SqliteJournal(tmp_path / "data"), tmp_path / "data" / "runs.db"
    journal.open_run(SPEC)
    os.link(path, tmp_path / "copy.db")
    index = SqliteIndex(tmp_path / "search", "files-0")
    follow_folder(index, tmp_path)
    assert "data/runs.db" in index.stamps()
    folder = Folder(tmp_path)
    for name in ("data/runs.db", "data/runs.db-wal", "data/runs.db-shm", "copy.db"):
        with pytest.raises(RequestError, match="is a database of pyagent that is in use"):
            folder.read_bytes(name)
        with pytest.raises(RequestError, match="is a database of pyagent that is in use"):
            folder.write(name, "text")
    look = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM runs').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", look, path], check=True)
    assert Path(f"{path}-wal").exists(), "another process deleted the log that is written to"
    journal.open_run(SPEC)
    assert len(journal.runs()) == 2
    index.close()
    journal.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "runs.db").write_text("mine")
    assert folder.read("other/runs.db") == "mine"
    assert folder.read_bytes("data/runs.db").startswith(b"SQLite")


def test_processes_and_threads_write_at_once(tmp_path: Path) -> None:
    """Several writers beside each other and a reader lose nothing."""
    code = _WRITER.replace("10**9", "300").replace("* 7919 % 60_000", "")
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    journal = SqliteJournal(tmp_path)
    runs: list[str] = []
    threads = [threading.Thread(target=lambda: runs.append(_write(journal, 100))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = [process.communicate(timeout=100)[0].strip() for process in processes]
    assert all(len(list(journal.replay(run))) == 100 for run in runs)
    assert all(len(list(journal.replay(run))) == 300 for run in written)


_WRITER = """
import sys
from pathlib import Path
from pyagent.core.fleet.events import Progress
from pyagent.core.fleet.journal import JournalRecord, MemoryJournal, fair_share
from pyagent.core.fleet.steps import RunSpec
from pyagent.infrastructure.storage.journal import SqliteJournal
journal = SqliteJournal(Path(sys.argv[1]))
run = journal.open_run(RunSpec(steps=()))
print(run, flush=True)
for number in range(10**9):
    text = str(number) + "x" * (number * 7919 % 60_000)
    journal.append(run, JournalRecord(number, Progress(run=run, step="s", agent="a", text=text)))
    if len(sys.argv) > 2:
        print(number, flush=True)
"""


def test_kill_in_mid_write_loses_nothing(tmp_path: Path) -> None:
    """Killed at random moments while it writes, a process leaves a gapless prefix: all that was told as kept."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(6):
        command = [sys.executable, "-c", _WRITER, str(tmp_path), "told"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        time.sleep(draw.uniform(0.005, 0.08))
        os.kill(process.pid, signal.SIGKILL)
        told = process.communicate()[0].split("\n")[:-1]
        records = list(SqliteJournal(tmp_path).replay(run))
        assert [record.number for record in records] == list(range(len(records)))
        assert len(records) >= len(told)
        for record in records:
            assert isinstance(record.event, Progress)
            assert record.event.text.rstrip("x") == str(record.number)
        assert SqliteJournal(tmp_path).runs()[0].state == "damaged"  # its start was never written
