"""Rollups of runs: equal to a plain recomputation, kept when runs go, bounded, and what `runs stats` shows."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import Custom, ask

from pyagent.cli.root import run as run_command
from pyagent.core.backends import Backend
from pyagent.core.chain.chain import Chain
from pyagent.core.errors import BackendError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.events import (
    AgentFailed,
    AgentFinished,
    Event,
    ModelCalled,
    RunFinished,
    RunStarted,
    ToolCalled,
    Totals,
)
from pyagent.core.fleet.journal import JournalRecord
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.reliability import failing, failure_rates
from pyagent.core.fleet.rollups import (
    ACCURACY,
    KINDS,
    Measure,
    Observation,
    Rollup,
    RollupRow,
    observations_of,
    stats_of,
)
from pyagent.core.fleet.steps import RunSpec, Step
from pyagent.core.messages import FailedAttempt, Usage
from pyagent.infrastructure.storage.database import JOURNAL_SCHEMA, Database, prepare
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.rollups import OTHER_KEY, Rollups
from pyagent.testing import Reply, ScriptedBackend

SPEC = RunSpec(steps=(Step(name="a", task=Task(text="t")),))
BASE = 1_700_000_000.0 // 86_400 * 86_400
NAMES = st.sampled_from(["a", "b", "c"])
AT = st.floats(BASE, BASE + 40_000).map(lambda at: round(at, 6))
SECONDS = st.floats(0, 1_000).map(lambda seconds: round(seconds, 6))
COUNTS = st.integers(0, 100_000)


def _totals(seconds: float, tokens: int, usd: float) -> Totals:
    return Totals(seconds=seconds, prompt_tokens=tokens, usd=usd)


EVENTS = st.one_of(
    st.builds(
        lambda at, name, seconds, tokens: AgentFinished(
            run="r", at=at, step="a", agent=name, output="x", totals=_totals(seconds, tokens, seconds / 7)
        ),
        AT, NAMES, SECONDS, COUNTS,
    ),
    st.builds(
        lambda at, name, kind: AgentFailed(
            run="r", at=at, step="a", agent=name, kind=kind, error="x", totals=_totals(1.0, 5, 0.0)
        ),
        AT, NAMES, st.sampled_from(["AgentError", "CancelledError", "BackendError"]),
    ),
    st.builds(
        lambda at, name, seconds, error: ToolCalled(
            run="r", at=at, step="a", agent="a", tool=name, arguments={}, seconds=seconds, error=error
        ),
        AT, NAMES, SECONDS, st.sampled_from([None, None, "cancelled", "broken"]),
    ),
    st.builds(
        lambda at, name, seconds, tokens, kinds, error: ModelCalled(
            run="r", at=at, step="a", agent="a", backend=name, model=f"m{name}", messages=[], answer="x", error=error,
            usage=Usage(prompt_tokens=tokens, cost_usd=0.25), seconds=seconds,
            attempts=[FailedAttempt("link", "why", kind) for kind in kinds],
        ),
        AT, NAMES, SECONDS, COUNTS, st.lists(st.sampled_from(["backend", "open", "timeout", "rate"]), max_size=3),
        st.sampled_from([None, None, "gone"]),
    ),
)  # fmt: skip


def _write(journal: SqliteJournal, events: Sequence[Event], *, closes: bool = True) -> str:
    run = journal.open_run(SPEC)
    for number, event in enumerate([RunStarted(run=run, at=BASE, task="t"), *events]):
        journal.append(run, JournalRecord(number, msgspec.structs.replace(event, run=run)))
    if closes:
        journal.close_run(run)
    return run


Plain = dict[tuple[int, str, str], list[Observation]]


def _plainly(runs: Sequence[Sequence[Event]], window: int) -> Plain:
    found: Plain = defaultdict(list)
    for events in runs:
        for event in events:
            for one in observations_of(event):
                found[int(round(one.at, 3) // window) * window, one.kind, one.key].append(one)
    return found


def _check(journal: SqliteJournal, runs: Sequence[Sequence[Event]], window: int) -> None:
    """Compare the journal's rows with sums of the events themselves."""
    expected = _plainly(runs, window)
    rows = stats_of(journal.rollups(KINDS), window)
    assert {(int(row.start), row.kind, row.key) for row in rows} == set(expected)
    for row in rows:
        found = expected[int(row.start), row.kind, row.key]
        assert (row.count, row.failures) == (len(found), sum(one.is_failure for one in found))
        for spread, values in (
            (row.seconds, [one.seconds for one in found if one.seconds is not None]),
            (row.tokens, [one.tokens for one in found if one.tokens is not None]),
            (row.usd, [one.usd for one in found if one.usd is not None]),
        ):
            micros = sorted(round(value * 1e6) for value in values)
            assert spread.sum == sum(micros) / 1e6
            assert (spread.min, spread.max) == ((micros[0] / 1e6, micros[-1] / 1e6) if micros else (0.0, 0.0))
            assert spread.mean == (sum(micros) / len(micros) / 1e6 if micros else 0.0)
            for part, quantile in ((0.5, spread.p50), (0.95, spread.p95), (0.99, spread.p99)):
                exact = micros[math.ceil(part * len(micros)) - 1] / 1e6 if micros else 0.0
                assert abs(quantile - exact) <= ACCURACY * exact + 1e-9


@given(
    st.lists(st.lists(EVENTS, max_size=12), min_size=1, max_size=4), st.sampled_from([300, 3_600, 86_400]), st.data()
)
@settings(max_examples=40, deadline=None)
def test_rows_equal_a_plain_recomputation(runs: list[list[Event]], window: int, data: st.DataObject) -> None:
    """Whatever runs did, counts, sums and bounds are exact and quantiles within 1 %, also of deleted runs."""
    with TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder))
        names = [_write(journal, events) for events in runs]
        _check(journal, runs, window)
        for name in names:
            if data.draw(st.booleans()):
                journal.remove(name)
        _check(journal, runs, window)
        journal.close()


def _tool(number: int, name: str = "look") -> ToolCalled:
    return ToolCalled(run="r", at=BASE + number, step="a", agent="a", tool=name, arguments={}, seconds=1.0)


def test_each_record_is_counted_once(tmp_path: Path) -> None:
    """Runs under way, forked, reopened, resumed elsewhere and left by a process that died are counted once."""
    journal = SqliteJournal(tmp_path)
    run = _write(journal, [_tool(number) for number in range(4)], closes=False)
    assert journal.rollups(["tool"])[0].rollup.count == 4
    journal.append(run, JournalRecord(5, _tool(5)))
    other = SqliteJournal(tmp_path)
    assert other.rollups(["tool"])[0].rollup.count == 4  # its writer lives, and will count it
    journal.close_run(run)
    assert other.rollups(["tool"])[0].rollup.count == 5
    other.close_run(fork := other.fork(run, SPEC, 4))
    assert other.rollups(["tool"])[0].rollup.count == 5
    other.reopen(fork)
    other.append(fork, JournalRecord(4, _tool(9)))
    other.close_run(fork)
    assert journal.rollups(["tool"])[0].rollup.count == 6
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.execute("UPDATE runs SET num_rolled = 0")  # as after a process's death
        database.execute("DELETE FROM rollups")
    assert not journal.rollups(["tool"], is_complete=False)
    assert journal.rollups(["tool"])[0].rollup.count == 5 + 4  # of the fork what it copied, too
    assert journal.rollups(["tool"])[0].rollup.count == 9


def test_many_records_are_counted_before_the_end(tmp_path: Path) -> None:
    """What waits in memory is bounded: a long run's numbers are in the file before it ends."""
    journal = SqliteJournal(tmp_path)
    _write(journal, [_tool(number % 200) for number in range(1_100)], closes=False)
    reader = SqliteJournal(tmp_path)
    assert sum(row.rollup.count for row in reader.rollups(["tool"], is_complete=False)) == 1_024


def test_journal_of_an_earlier_release_is_counted(tmp_path: Path) -> None:
    """A file without rollups gets them, and its runs are counted when they are first asked for."""
    journal = SqliteJournal(tmp_path)
    _write(journal, [_tool(1)])
    journal.close()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.executescript("DROP TABLE rollups; ALTER TABLE runs DROP COLUMN num_rolled; PRAGMA user_version = 1")
    assert SqliteJournal(tmp_path).rollups(["tool"])[0].rollup.count == 1


class Overtaken(sqlite3.Connection):
    """Finds, when it may write, that another has just brought the file up to date."""

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:  # type: ignore[override]
        if sql == "BEGIN IMMEDIATE":
            [(_, _, path)] = super().execute("PRAGMA database_list").fetchall()
            Database(Path(path)).execute("SELECT num_rolled FROM runs")
        return super().execute(sql, *values)


def test_processes_bring_an_earlier_file_up_to_date_at_once(tmp_path: Path) -> None:
    """One that waited while another added what is new does not add it again."""
    journal = SqliteJournal(tmp_path)
    _write(journal, [_tool(1)])
    journal.close()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.executescript("ALTER TABLE runs DROP COLUMN num_rolled; PRAGMA user_version = 1")
    with closing(sqlite3.connect(tmp_path / "runs.db", factory=Overtaken, isolation_level=None)) as late:
        prepare(late, tmp_path / "runs.db", JOURNAL_SCHEMA)
    assert len(SqliteJournal(tmp_path).runs()) == 1


def test_failures_of_a_clock_that_was_set_back_say_nothing() -> None:
    """They would count as new until that time comes, and keep an agent out of the choice for as long."""
    failed = Rollup(count=20, failures=20, last_at=BASE)
    rows = [RollupRow(tenant="", kind="agent", key="a", start=int(BASE), grain=300, rollup=failed)]
    assert failing(failure_rates(rows, BASE - 10.0))
    assert not failing(failure_rates(rows, BASE - 3_600.0))


def test_growth_is_bounded(tmp_path: Path) -> None:
    """Old windows become hours, then days, and go after two years; keys beyond a number are counted together."""
    journal = SqliteJournal(tmp_path)
    _write(journal, [_tool(number * 300) for number in range(36)])
    assert len(journal.rollups(["tool"])) == 36
    rollups = Rollups(Database(tmp_path / "runs.db"))
    for days, num_rows in ((6, 36), (8, 3), (100, 1), (800, 0)):
        rollups.compact(BASE + days * 86_400)
        rows = journal.rollups(["tool"])
        assert len(rows) == num_rows, days
        assert sum(row.rollup.count for row in rows) == (36 if num_rows else 0)
    _write(journal, [_tool(1, f"tool {number}") for number in range(300)])
    keys = [row.key for row in journal.rollups(["tool"])]
    assert len(keys) == 257
    assert OTHER_KEY in keys


@given(st.lists(st.integers(0, 10**12), max_size=60), st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_merged_measures_are_those_of_all_values(values: list[int], cut: int) -> None:
    """Two parts merged, in either order, are the measure of the whole."""

    def measure(some: list[int]) -> Measure:
        made = Measure()
        for value in some:
            made.add(value)
        return made

    left, right = measure(values[:cut]), measure(values[cut:])
    left.merge(measure(values[cut:]))
    right.merge(measure(values[:cut]))
    assert left == right == measure(values)


def test_values_that_are_none_of_a_quantity_are_passed_over() -> None:
    """NaN and infinity say nothing, and less than zero is zero."""
    rollup = Rollup()
    for seconds in (math.nan, math.inf, -1.0):
        rollup.add(Observation(kind="tool", key="x", at=0.0, seconds=seconds))
    assert (rollup.count, rollup.seconds.count, rollup.seconds.most) == (3, 1, 0)


def test_failing_links_are_told_apart(tmp_path: Path) -> None:
    """Of a call that another link answered, and of one that none did, each link's failure is counted."""

    def chain(*texts: str | Exception) -> Backend:
        links = [
            ScriptedBackend(
                lambda _, text=text: Reply(error=text) if isinstance(text, Exception) else Reply(text), name=f"link{n}"
            )
            for n, text in enumerate(texts)
        ]
        return Chain(links)

    journal = SqliteJournal(tmp_path)

    async def work(backend: Backend) -> None:
        async with Fleet(backend, [Custom("a", ask)], journal=journal) as fleet:
            try:
                await fleet.run_agent("a", "hello")
            except BackendError:
                return

    gone = [BackendError("gone", backend=f"link{n}", retryable=False) for n in range(2)]
    asyncio.run(work(chain(gone[0], "answer")))
    asyncio.run(work(chain(*gone)))
    found = {row.key: (row.rollup.count, row.rollup.failures) for row in journal.rollups(["link"])}
    assert found == {"link0": (2, 2), "link1": (2, 1)}
    assert [row.key for row in journal.rollups(["model"])] == ["scripted"]


def test_stats_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`runs stats` shows windows and failures, as lines and JSON; --size has the room; wrong windows are refused."""
    (tmp_path / "p.toml").write_text(f'[paths]\ndata = "{tmp_path}"\n')
    config = ["--config", str(tmp_path / "p.toml")]
    assert run_command(["runs", "stats", *config]) == 0
    assert capsys.readouterr().out == "no runs in these windows; --last looks further back\n"
    journal = SqliteJournal(tmp_path / "journal")
    run = journal.open_run(SPEC)
    now = time.time()
    events = [
        RunStarted(run=run, at=now, task="t"),
        ToolCalled(run=run, at=now, step="a", agent="a", tool="look", arguments={}, seconds=2.0, error="broken"),
        RunFinished(run=run, at=now, output="x" * 5_000, totals=_totals(3.0, 70, 0.5)),
    ]
    for number, event in enumerate(events):
        journal.append(run, JournalRecord(number, event))
    journal.close_run(run)
    assert run_command(["runs", "stats", "--by", "tool", "--window", "1d", *config]) == 0
    [_, line] = capsys.readouterr().out.splitlines()
    assert line.split()[2:5] == ["look", "1", "1"]
    assert run_command(["runs", "stats", "--json", *config]) == 0
    [row] = msgspec.json.decode(capsys.readouterr().out)
    assert (row["tokens"]["sum"], row["usd"]["sum"], row["seconds"]["p95"]) == (70.0, 0.5, 3.0)
    assert run_command(["runs", "stats", "--size", *config]) == 0
    assert capsys.readouterr().out.startswith("1 runs, 3 records: 5.")
    for window in ("7m", "1y", "0h", "99999d", "x"):
        assert run_command(["runs", "stats", "--window", window, *config]) == 2
        assert "multiple of five minutes" in capsys.readouterr().err
