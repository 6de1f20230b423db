"""The journal on disk: a SQLite file in which runs, their records and their large values are kept.

    journal/runs.db     runs, records, blobs (see `database`)
    journal/writers/    a lock for each process that writes
    journal/notes.db    what agents keep across runs (see `notes`)
    journal/rates.db    the levels of rates (see `rates`)
    journal/outcomes.db what choices earned (see `outcomes`)
    journal/search/     what search has read of runs (see `search`); it loses a run with the journal

A record is one transaction: it is kept when `append` returns, whatever happens to the process then. Other processes
read beside it, and write runs of their own. A checksum tells a damaged record: replaying ends before it, with a
warning. A journal that cannot be written does not stop a run: what is lost is warned of, and `loss` says why. Only a
tool with an effect is not called any more (`core.fleet.tool_run`), so that such a run can be resumed.

Old runs are deleted when new ones begin, by number and age; never one whose writer lives. Their space is given back.
Tenants share the number fairly: one that begins many loses its own.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.events import QuestionAsked, RunFailed, RunFinished, RunResumed, RunStarted, Totals
from pyagent.core.fleet.journal import (
    PRIVATE_LOSS,
    PRIVATE_PREFIX,
    JournalRecord,
    RunSummary,
    State,
    already_done,
    already_there,
    fair_share,
    private_run_id,
    state_of,
    still_running,
)
from pyagent.core.fleet.rollups import OBSERVED, Kind, RollupRow
from pyagent.core.fleet.steps import RunSpec
from pyagent.core.settings.webhooks import Webhooks
from pyagent.infrastructure.storage.blobs import Blobs
from pyagent.infrastructure.storage.database import RECORDS_A_RUN, Database, Row
from pyagent.infrastructure.storage.notes import SqliteNotes
from pyagent.infrastructure.storage.outcomes import SqliteOutcomes
from pyagent.infrastructure.storage.rates import SqliteRates
from pyagent.infrastructure.storage.record_codec import RecordCodec
from pyagent.infrastructure.storage.request_keys import SqliteRequestKeys
from pyagent.infrastructure.storage.rollups import Rollups
from pyagent.infrastructure.storage.webhooks.endpoints import SqliteWebhooks
from pyagent.infrastructure.storage.writers import Writers

_RUNS_BETWEEN_PRUNINGS = 32
_MAX_LOSSES = 100
_RECORDS_A_QUERY = 256
_OPEN = "open"
_SUMMARIES = "SELECT name, started_at, task, state, totals, tenant, writer FROM runs"
_INSERT = "INSERT INTO records VALUES (?, ?)"
_NOTED = RunStarted | RunResumed | QuestionAsked | RunFinished | RunFailed
"""Events that the run's row, or webhooks, tell of, too."""

logger = logging.getLogger("pyagent.journal")


@dataclass(slots=True)
class _OpenRun:
    id: int
    epoch: float
    tenant: str = ""
    is_broken: bool = False
    num_records: int = 0


@dataclass(frozen=True, slots=True)
class KeptRun:
    """What is left of a run: its whole records in order, and the numbers of those missing or damaged."""

    records: list[JournalRecord]
    missing: list[int]

    @property
    def is_whole(self) -> bool:
        """Whether nothing that was kept is damaged."""
        return not self.missing


class JournalSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much room runs take: as JSON lines, as `runs export` writes them, and in the journal's file."""

    num_runs: int
    num_records: int
    json_bytes: int
    file_bytes: int


class SqliteJournal:
    """Runs in `folder`, which is made when the first run is opened; None keeps runs of any number or age."""

    def __init__(
        self,
        folder: Path,
        *,
        max_runs: int | None = None,
        max_age_days: float | None = None,
        webhooks: Webhooks | None = None,
    ) -> None:
        self._folder = folder
        self._max_runs = max_runs
        self._max_age_days = max_age_days
        self._database = Database(folder / "runs.db")
        self._codec = RecordCodec(self._database)
        self._blobs = Blobs(self._database)
        self._rollups = Rollups(self._database)
        self._writers = Writers(folder / "writers")
        self.webhooks = SqliteWebhooks(self._database, self._writers, webhooks)
        self.search_folder = folder / "search"
        self.memory = SqliteNotes(folder / "notes.db")
        self.keys = SqliteRequestKeys(self._database)
        self.rates = SqliteRates(folder / "rates.db")
        self.outcomes = SqliteOutcomes(folder / "outcomes.db")
        self._open: dict[str, _OpenRun] = {}
        self._losses: dict[str, str] = {}
        self._num_opened = 0

    # -- writing ------------------------------------------------------------------------------------------------------

    def open_run(self, spec: RunSpec, *, is_private: bool = False, name: str | None = None) -> str:
        """Return a new run's id. Where the folder cannot be written, the run goes on unkept, with a warning.

        A run whose `name` was chosen is one that is looked for by it, so that it begins once: then it is an error.
        """
        if is_private:
            return name or private_run_id()
        try:
            if self._num_opened % _RUNS_BETWEEN_PRUNINGS == 0:
                self.prune(self._max_runs, self._max_age_days)
            self._num_opened += 1
            return self._new_run(spec, name=name)
        except (sqlite3.Error, OSError, RequestError) as error:
            if getattr(error, "code", "") == "run_exists":
                raise
            why = f"{self._folder} cannot be written ({_why(error)}); set paths.data"
            if name is not None:
                raise RequestError(f"the run is not begun: {why}", param="run", code="journal_unreadable") from error
            run = private_run_id()
            self._lose(run, why)
            return run

    def _new_run(self, spec: RunSpec, epoch: float | None = None, name: str | None = None) -> str:
        now, writer = time.time(), self._writers.own_name()
        epoch = now if epoch is None else epoch
        row = (spec.tenant, writer, epoch, now, now, _OPEN, _encoded(spec))
        insert = (
            "INSERT INTO runs (name, tenant, writer, epoch, started_at, used_at, state, spec)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        names = (f"r-{secrets.token_hex(num_bytes)}" for num_bytes in range(2, 16))
        with self._database.transaction():
            for chosen in [name] if name is not None else names:
                if not self._database.rows("SELECT 1 FROM runs WHERE name = ?", (chosen,)):
                    self._open[chosen] = _OpenRun(self._database.execute(insert, (chosen, *row)), epoch, spec.tenant)
                    return chosen
        assert name is not None, "14 random names, each longer, are all taken"
        raise already_there(name)

    def append(self, run: str, record: JournalRecord, *, is_forced: bool = False) -> None:
        """Keep a record. A full disk does not end the run: the journal of this run ends instead, with one warning."""
        opened = self._open.get(run)
        if opened is None or opened.is_broken:
            return
        try:
            self._keep(opened, record, is_forced=is_forced)
            opened.num_records = record.number + 1
            if type(record.event) in OBSERVED and self._rollups.take(opened.id, record.event):
                self._rollups.flush(opened.id, opened.tenant, opened.num_records)
        except sqlite3.Error as error:
            opened.is_broken = True
            self._codec.forget()
            self._lose(run, f"{_why(error)}, from record {record.number} on")
            if record.number == 0:
                with suppress(sqlite3.Error):
                    self._delete(opened.id)  # there is nothing to show

    def _keep(self, opened: _OpenRun, record: JournalRecord, *, is_forced: bool) -> None:
        """Insert a record in one transaction, which for most is the statement's own: BEGIN and COMMIT cost as much."""
        event, place = record.event, opened.id * RECORDS_A_RUN + record.number
        draft = self._codec.draft(opened.epoch, event)
        if draft.is_small and not is_forced and not isinstance(event, _NOTED):
            self._database.execute(_INSERT, (place, self._codec.record(opened.id, draft)))
            return
        with self._database.transaction(is_forced=is_forced):
            self._database.execute(_INSERT, (place, self._codec.record(opened.id, draft)))
            self._note(opened, record)

    def _note(self, opened: _OpenRun, record: JournalRecord) -> None:
        """Keep in the run's row what a list of runs shows of it, and what webhooks are to tell."""
        run, event, execute = opened.id, record.event, self._database.execute
        if isinstance(event, _NOTED):
            self.webhooks.outbox.tell(opened.tenant, event)
        if isinstance(event, RunStarted):
            execute("UPDATE runs SET task = ? WHERE id = ?", (_storable(event.task), run))
        elif isinstance(event, RunFinished | RunFailed):
            totals = msgspec.json.encode(event.totals)
            execute("UPDATE runs SET state = ?, totals = ? WHERE id = ?", (state_of(event), totals, run))

    def close_run(self, run: str) -> None:
        """Nothing more comes."""
        opened = self._open.pop(run, None)
        if opened is not None:
            with suppress(sqlite3.Error), self._database.transaction():
                if opened.num_records:
                    self._rollups.flush(opened.id, opened.tenant, opened.num_records)
                self._database.execute(
                    "UPDATE runs SET writer = '', is_to_cancel = 0, used_at = ? WHERE id = ?", (time.time(), opened.id)
                )

    def close(self) -> None:
        """Close the runs and let go of the file."""
        for run in list(self._open):
            self.close_run(run)
        self._database.close()
        self.memory.close()
        self.rates.close()
        self.outcomes.close()
        self._writers.close()

    def reopen(self, run: str) -> None:
        """Write a run again that has ended or died. Raises `RequestError` for one that is done, or still written."""
        with _readable(self._folder), self._database.transaction():
            number, writer, epoch = self._found(run)
            if self._is_written(run, writer):
                raise still_running(run)
            if self._database.rows("SELECT 1 FROM runs WHERE id = ? AND state = 'done'", (number,)):
                raise already_done(run)
            if self._database.rows("SELECT 1 FROM runs WHERE id = ? AND state = 'damaged'", (number,)):
                text = f"{run} could not be kept to its end, and may have had effects since; fork it from a step"
                raise RequestError(text, param="run", code="damaged")
            update = "UPDATE runs SET writer = ?, state = ?, totals = NULL, is_to_cancel = 0 WHERE id = ?"
            self._database.execute(update, (self._writers.own_name(), _OPEN, number))
            tenant = self._count(number)
        self._losses.pop(run, None)
        self._open[run] = _OpenRun(number, epoch, tenant)

    def fork(self, run: str, spec: RunSpec, before: int, name: str | None = None) -> str:
        """Return a new run's id, open, which begins with the records of `run` before a number."""
        with _readable(self._folder), self._database.transaction():
            number, _, epoch = self._found(run)
            fork = self._new_run(spec, epoch, name)
            new = self._open[fork].id
            first = number * RECORDS_A_RUN
            copied = "INSERT INTO records SELECT id + ?, body FROM records WHERE id >= ? AND id < ?"
            self._database.execute(copied, ((new - number) * RECORDS_A_RUN, first, first + before))
            self._database.execute(
                "UPDATE runs SET task = (SELECT task FROM runs WHERE id = ?) WHERE id = ?", (number, new)
            )
            self._blobs.share(number, new)
            self._rollups.begin(new, before)
        return fork

    def cancel(self, run: str) -> None:
        """Ask the process that writes a run to cancel it; a run without one is cancelled when this returns.

        Raises `RequestError` for a run that is over.
        """
        with _readable(self._folder), self._database.transaction():
            number, writer, _ = self._found(run)
            row = self.summary(run)
            state = row.state if row else "damaged"
            if state not in {"running", "unfinished"}:
                raise RequestError(f"{run} is over: {state}", param="run", code="over")
            if self._is_written(run, writer):
                self._database.execute("UPDATE runs SET is_to_cancel = 1 WHERE id = ?", (number,))
            else:
                self._database.execute("UPDATE runs SET state = 'cancelled' WHERE id = ?", (number,))
                self.webhooks.outbox.tell_cancelled(row.tenant if row else "", run)

    def cancelled(self) -> list[str]:
        """Return the runs of this process that are to be cancelled."""
        if not self._open:
            return []
        try:
            query = "SELECT name FROM runs WHERE is_to_cancel AND writer = ?"
            return [str(name) for (name,) in self._database.rows(query, (self._writers.own_name(),))]
        except (sqlite3.Error, OSError, RequestError) as error:
            logger.debug("what is to be cancelled cannot be read: %s", error)
            return []

    def _lose(self, run: str, why: str) -> None:
        logger.warning("the journal of %s is not kept: %s", run, why)
        self._losses[run] = why
        for old in [run for run in self._losses if run not in self._open][:-_MAX_LOSSES]:
            del self._losses[old]

    def loss(self, run: str) -> str:
        """Say why not all of a run of this process is kept; empty when all of it is."""
        return self._losses.get(run, PRIVATE_LOSS if run.startswith(PRIVATE_PREFIX) else "")

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(self, run: str, start: int = 0) -> Iterator[JournalRecord]:
        """Return the run's records from `start` on, in order, up to the first one missing."""
        return self._whole(run, start, self._read(run, start))

    def _whole(
        self, run: str, expected: int, found: Iterator[tuple[int, JournalRecord | None]]
    ) -> Iterator[JournalRecord]:
        for number, record in found:
            if record is None or number != expected:
                logger.warning("the journal of %s is damaged: it is used up to record %d", run, expected)
                return
            yield record
            expected += 1

    def read(self, run: str) -> KeptRun:
        """Read all that is left of a run, also after damage; raises `RequestError` for an unknown run."""
        found = dict(self._read(run, 0))
        records = [record for record in found.values() if record is not None]
        return KeptRun(records, [number for number in range(max(found, default=-1) + 1) if found.get(number) is None])

    def _read(self, run: str, start: int) -> Iterator[tuple[int, JournalRecord | None]]:
        """Return numbers with records, None where one is damaged. Few are in memory at once."""
        with _readable(self._folder):
            found, _, epoch = self._found(run)
        return self._pages(run, found * RECORDS_A_RUN, epoch, start)

    def _pages(self, run: str, first: int, epoch: float, start: int) -> Iterator[tuple[int, JournalRecord | None]]:
        query = "SELECT id - ?, body FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        while True:
            with _readable(self._folder):
                found = self._database.rows(query, (first, first + start, first + RECORDS_A_RUN, _RECORDS_A_QUERY))
                rows = cast("list[tuple[int, bytes]]", found)
                records = [(number, self._codec.decode(run, epoch, number, body)) for number, body in rows]
            yield from records
            start = records[-1][0] + 1 if records else start
            if len(rows) < _RECORDS_A_QUERY:
                return

    def record(self, run: str, number: int) -> JournalRecord | None:
        """Return one record of the run; None when it is missing or damaged."""
        with _readable(self._folder):
            found, _, epoch = self._found(run)
            query = "SELECT body FROM records WHERE id = ?"
            rows = cast("list[tuple[bytes]]", self._database.rows(query, (found * RECORDS_A_RUN + number,)))
            return self._codec.decode(run, epoch, number, rows[0][0]) if rows else None

    def num_records(self, run: str) -> int:
        """Return how many records were kept of a run, damaged ones too."""
        with _readable(self._folder):
            number, *_ = self._found(run)
            first = number * RECORDS_A_RUN
            query = "SELECT MAX(id) FROM records WHERE id >= ? AND id < ?"
            [(last,)] = cast("list[tuple[int | None]]", self._database.rows(query, (first, first + RECORDS_A_RUN)))
        return 0 if last is None else last - first + 1

    def spec(self, run: str) -> RunSpec:
        """Return what the run was asked. Raises `RequestError` for an unknown run."""
        with _readable(self._folder):
            number, *_ = self._found(run)
            [(spec,)] = self._database.rows("SELECT spec FROM runs WHERE id = ?", (number,))
        try:
            return msgspec.json.decode(zlib.decompress(cast("bytes", spec)), type=RunSpec)
        except (zlib.error, ValueError) as error:
            raise RequestError(f"what {run} was asked could not be kept, or is damaged", param="run") from error

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        with _readable(self._folder):
            return [
                self._summary(row) for row in self._database.rows(f"{_SUMMARIES} ORDER BY started_at DESC, id DESC")
            ]

    def summary(self, run: str) -> RunSummary | None:
        """Return a run's row; None when there is no such run."""
        with _readable(self._folder):
            rows = self._database.rows(f"{_SUMMARIES} WHERE name = ?", (run,))
            return self._summary(rows[0]) if rows else None

    def _summary(self, row: Row) -> RunSummary:
        name, started_at, task, state, totals, tenant, writer = cast(
            "tuple[str, float, str, str, bytes, str, str]", row
        )
        if state == _OPEN:
            state = "running" if self._is_written(name, writer) else "unfinished" if task else "damaged"
        return RunSummary(
            run=name,
            started_at=started_at,
            task=task or "",
            state=cast("State", state),
            totals=msgspec.json.decode(totals, type=Totals) if totals else None,
            tenant=tenant,
        )

    def _is_written(self, run: str, writer: str) -> bool:
        """Whether a run's writer lives and still writes it: an end for which the disk has no room is not kept."""
        if self._writers.is_own(writer):
            return run in self._open
        return bool(writer) and self._writers.is_alive(writer)

    def _found(self, run: str) -> tuple[int, str, float]:
        """Return a run's number, writer and epoch."""
        rows = self._database.rows("SELECT id, writer, epoch FROM runs WHERE name = ?", (run,))
        if not rows:
            names = [str(name) for (name,) in self._database.rows("SELECT name FROM runs")]
            raise unknown_name("run", run, names)
        return cast("tuple[int, str, float]", rows[0])

    # -- numbers ------------------------------------------------------------------------------------------------------

    def rollups(
        self, kinds: Sequence[Kind], *, since: float = 0.0, tenant: str | None = None, is_complete: bool = True
    ) -> list[RollupRow]:
        """Return what runs did by window, deleted runs too. Unless `is_complete`, what waits to be counted is not."""
        with _readable(self._folder):
            if is_complete and self._database.exists:
                for opened in self._open.values():
                    self._rollups.flush(opened.id, opened.tenant, opened.num_records)
                for number, writer in self._rollups.behind():
                    if not (writer and self._writers.is_alive(writer)):
                        with self._database.transaction():
                            self._count(number)
            return self._rollups.rows(kinds, since, tenant)

    def size(self) -> JournalSize:
        """Read all runs, and return how much room they take."""
        num_records = json_bytes = 0
        runs = self.runs()
        for row in runs:
            for record in self.read(row.run).records:
                num_records += 1
                json_bytes += len(msgspec.json.encode(record, enc_hook=str)) + 1
        with _readable(self._folder):
            pages = self._database.rows("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        file_bytes = cast("int", pages[0][0]) if pages else 0
        return JournalSize(num_runs=len(runs), num_records=num_records, json_bytes=json_bytes, file_bytes=file_bytes)

    def _count(self, run: int) -> str:
        """Count the records of a run that its process left out; return its tenant."""
        [(name, epoch, tenant)] = cast(
            "list[tuple[str, float, str]]",
            self._database.rows("SELECT name, epoch, tenant FROM runs WHERE id = ?", (run,)),
        )
        start = self._rollups.num_rolled(run)
        found = self._pages(name, run * RECORDS_A_RUN, epoch, start)
        self._rollups.catch_up(run, tenant, found)
        return tenant

    # -- deleting ------------------------------------------------------------------------------------------------------

    def remove(self, run: str) -> None:
        """Delete a run; raises `RequestError` for an unknown one, and for one that is still written."""
        with _readable(self._folder):
            number, writer, _ = self._found(run)
            if self._is_written(run, writer):
                raise still_running(run)
            self._delete(number)
            self._database.shrink()
        self._forget([run])

    def prune(self, max_runs: int | None, max_age_days: float | None) -> list[str]:
        """Delete all but the newest `max_runs` runs, and those older than `max_age_days`; return their ids."""
        with _readable(self._folder):
            query = "SELECT id, name, used_at, writer, tenant FROM runs ORDER BY used_at DESC, id DESC"
            runs = cast("list[tuple[int, str, float, str, str]]", self._database.rows(query))
            since = float("-inf") if max_age_days is None else time.time() - max_age_days * 86_400
            kept = fair_share([run[4] for run in runs], len(runs) if max_runs is None else max_runs)
            old = [run for run, is_kept in zip(runs, kept, strict=True) if not is_kept or run[2] < since]
            over = [run for run in old if not self._is_written(run[1], run[3])]
            for number, *_ in over:
                self._delete(number)
            if self._database.exists:
                self._rollups.compact(time.time())
            if over:
                self._database.shrink()
        names = [name for _, name, *_ in over]
        self._forget(names)
        return names

    def _forget(self, runs: list[str]) -> None:
        """Delete what search has of runs."""
        if not (runs and self.search_folder.is_dir()):
            return
        from pyagent.infrastructure.storage.search.runs import forget_runs

        try:
            forget_runs(self.search_folder, runs)
        except (sqlite3.Error, OSError, RequestError) as error:
            logger.warning("what search has of deleted runs stays until the next search: %s", _why(error))

    def _delete(self, run: int) -> None:
        with self._database.transaction():
            if self._database.rows("SELECT 1 FROM runs WHERE id = ?", (run,)):
                self._count(run)
            self._rollups.drop(run)
            self._blobs.release(run)
            self._database.execute("DELETE FROM request_keys WHERE run = ?", (run,))
            first = run * RECORDS_A_RUN
            self._database.execute("DELETE FROM records WHERE id >= ? AND id < ?", (first, first + RECORDS_A_RUN))
            self._database.execute("DELETE FROM runs WHERE id = ?", (run,))


@contextmanager
def _readable(folder: Path) -> Generator[None]:
    """Map what SQLite says to an error that names the folder."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = f"the journal in {folder} cannot be used: {_why(error)}"
        raise RequestError(text, param="run", code="journal_unreadable") from error


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _encoded(spec: RunSpec) -> bytes:
    """Return what a run was asked; nothing where it holds what cannot be written."""
    try:
        return zlib.compress(msgspec.json.encode(spec, enc_hook=str), 1)
    except Exception:  # noqa: BLE001 - results of steps are of other people's types
        return b""


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode()
