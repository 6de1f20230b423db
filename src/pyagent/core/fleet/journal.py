"""The journal's interface: what a run did, in order, to look at and to replay.

A record is an event with its number in the run. The journal keeps records as they come; replaying a run gives them in
order up to the first that is missing, which after a crash is a prefix of what was written. Private runs have an id and
no records. How records are stored is `infrastructure.storage.journal`'s business; `MemoryJournal` is for programs that
keep nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.events import Event, RunFailed, RunFinished, RunStarted, Totals


class JournalRecord(msgspec.Struct, frozen=True):
    """An event and its number in its run, from 0 without gaps."""

    number: int
    event: Event


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `pyagent runs list`. A run whose end was never written is `unfinished`; without its start, `damaged`."""

    run: str
    started_at: float
    task: str
    state: Literal["done", "failed", "unfinished", "damaged"]
    totals: Totals | None = None


class Journal(Protocol):
    """Keeps records of runs."""

    def open_run(self, *, is_private: bool = False) -> str:
        """Return a new run's id, `r-7f3a`, unlike all others kept; nothing is kept of a private run."""
        ...

    def append(self, run: str, shard_key: str, record: JournalRecord) -> None:
        """Keep a record; it is safe from the death of this process when this returns."""
        ...

    def close_run(self, run: str) -> None:
        """Nothing more comes for this run."""
        ...

    def replay(self, run: str) -> list[JournalRecord]:
        """Return the run's records in order, up to the first one missing. Raises `RequestError` for an unknown run."""
        ...

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        ...

    def loss(self, run: str) -> str:
        """Say why not all of a run is kept; empty when all of it is."""
        ...


class MemoryJournal:
    """Keeps the last `max_runs` runs in memory."""

    def __init__(self, max_runs: int = 100) -> None:
        self._max_runs = max_runs
        self._num_opened = 0
        self._records: dict[str, list[JournalRecord]] = {}

    def open_run(self, *, is_private: bool = False) -> str:
        """Return a new run's id."""
        if is_private:
            return private_run_id()
        self._num_opened += 1
        run = f"r-{self._num_opened:04x}"
        self._records[run] = []
        while len(self._records) > self._max_runs:
            del self._records[next(iter(self._records))]
        return run

    def append(self, run: str, shard_key: str, record: JournalRecord) -> None:
        """Keep a record."""
        if run in self._records:
            self._records[run].append(record)

    def close_run(self, run: str) -> None:
        """Nothing to do."""

    def replay(self, run: str) -> list[JournalRecord]:
        """Return the run's records."""
        if run not in self._records:
            raise unknown_name("run", run, list(self._records))
        return list(self._records[run])

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        rows = (summarize_run(run, records) for run, records in reversed(self._records.items()))
        return [row for row in rows if row]

    def loss(self, run: str) -> str:
        """Say why not all of a run is kept; empty when all of it is."""
        return PRIVATE_LOSS if run.startswith(PRIVATE_PREFIX) else ""


PRIVATE_PREFIX = "p-"
PRIVATE_LOSS = "it is private"


def private_run_id() -> str:
    """Return an id for a run of which nothing is kept, unlike any of those kept."""
    return f"{PRIVATE_PREFIX}{secrets.token_hex(6)}"


def summarize_run(run: str, records: Sequence[JournalRecord]) -> RunSummary | None:
    """Return the row of a run from its own first and last records; None when not even its start was kept."""
    first = records[0].event if records else None
    if not isinstance(first, RunStarted):
        return None
    state: Literal["done", "failed", "unfinished"] = "unfinished"
    totals = None
    for record in reversed(records):
        if isinstance(record.event, RunFinished | RunFailed):
            state = "done" if isinstance(record.event, RunFinished) else "failed"
            totals = record.event.totals
            break
    return RunSummary(run=run, started_at=first.at, task=first.task, state=state, totals=totals)
