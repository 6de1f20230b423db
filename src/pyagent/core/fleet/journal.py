"""The journal's interface: what a run was asked, and what it did, in order: to look at, to go on from, to fork.

A record is an event with its number in the run. The journal keeps records as they come; replaying a run gives them in
order up to the first that is missing, so it is a prefix of what was written. Private runs have an id and no records.
How records are stored is `infrastructure.storage.journal`'s business; `MemoryJournal` keeps them in memory.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.events import Event, RunFailed, RunFinished, RunStarted, Totals
from pyagent.core.fleet.long_memory import LongMemory, NotesInMemory
from pyagent.core.fleet.rate_store import RatesInMemory, RateStore
from pyagent.core.fleet.request_keys import KeysInMemory, RequestKeys
from pyagent.core.fleet.steps import RunSpec

State = Literal["running", "done", "failed", "needs_answer", "cancelled", "unfinished", "damaged"]


class JournalRecord(msgspec.Struct, frozen=True):
    """An event and its number in its run, from 0 without gaps. What could not be kept as it was is not `is_exact`."""

    number: int
    event: Event
    is_exact: bool = True


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `pyagent runs list`. A run whose process died is `unfinished`; without its start, `damaged`."""

    run: str
    started_at: float
    task: str
    state: State
    totals: Totals | None = None
    tenant: str = ""


class Journal(Protocol):
    """Keeps records of runs. `memory` keeps notes across them."""

    @property
    def memory(self) -> LongMemory:
        """The notes of tenants."""
        ...

    @property
    def keys(self) -> RequestKeys:
        """The idempotency keys of requests that went on with runs."""
        ...

    @property
    def rates(self) -> RateStore:
        """The levels of rates."""
        ...

    def open_run(self, spec: RunSpec, *, is_private: bool = False, name: str | None = None) -> str:
        """Return a new run's id, `r-7f3a`, unlike all others kept; nothing is kept of a private run.

        Raises `RequestError` where there is a run of the `name` that was chosen for it.
        """
        ...

    def append(self, run: str, record: JournalRecord, *, is_forced: bool = False) -> None:
        """Keep a record: safe from the death of this process when this returns, `is_forced` from the machine's too."""
        ...

    def close_run(self, run: str) -> None:
        """Nothing more comes for this run."""
        ...

    def replay(self, run: str, start: int = 0) -> Iterator[JournalRecord]:
        """Return the run's records from `start` on, in order, up to the first one missing.

        Raises `RequestError` for an unknown run.
        """
        ...

    def record(self, run: str, number: int) -> JournalRecord | None:
        """Return one record of the run; None when it is missing or damaged."""
        ...

    def num_records(self, run: str) -> int:
        """Return how many records were kept of a run, damaged ones too; a replay that gives fewer has lost some."""
        ...

    def spec(self, run: str) -> RunSpec:
        """Return what the run was asked. Raises `RequestError` for an unknown run."""
        ...

    def reopen(self, run: str) -> None:
        """Write a run again that has ended or died. Raises `RequestError` for one that is done, or still written."""
        ...

    def fork(self, run: str, spec: RunSpec, before: int, name: str | None = None) -> str:
        """Return a new run's id, open, which begins with the records of `run` before a number.

        Raises `RequestError` where there is a run of the `name` that was chosen for it.
        """
        ...

    def cancel(self, run: str) -> None:
        """Ask the process that writes a run to cancel it; a run without one is cancelled when this returns."""
        ...

    def cancelled(self) -> list[str]:
        """Return the runs of this process that are to be cancelled."""
        ...

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        ...

    def summary(self, run: str) -> RunSummary | None:
        """Return a run's row; None when there is no such run."""
        ...

    def remove(self, run: str) -> None:
        """Delete a run. Raises `RequestError` for an unknown one, and for one that is still written."""
        ...

    def loss(self, run: str) -> str:
        """Say why not all of a run is kept; empty when all of it is."""
        ...


def fair_share(tenants: Sequence[str], most: int) -> list[bool]:
    """Return which of some runs are kept where `most` may be, by their tenants, newest first.

    Each tenant has its newest, then each its second: no tenant's runs push out those of one that has fewer.
    """
    num_of = Counter[str]()
    places: list[tuple[int, int]] = []
    for index, tenant in enumerate(tenants):
        places.append((num_of[tenant], index))
        num_of[tenant] += 1
    kept = {index for _, index in sorted(places)[: max(0, most)]}
    return [index in kept for index in range(len(tenants))]


class MemoryJournal:
    """Keeps the last `max_runs` runs in memory, shared fairly by tenants, and those under way."""

    def __init__(self, max_runs: int = 100) -> None:
        self.memory = NotesInMemory()
        self.keys = KeysInMemory()
        self.rates = RatesInMemory()
        self._max_runs = max_runs
        self._num_opened = 0
        self._records: dict[str, list[JournalRecord]] = {}
        self._specs: dict[str, RunSpec] = {}
        self._open: set[str] = set()
        self._cancelled: set[str] = set()

    def open_run(self, spec: RunSpec, *, is_private: bool = False, name: str | None = None) -> str:
        """Return a new run's id."""
        if is_private:
            return name or private_run_id()
        if name in self._records:
            raise already_there(name)
        self._num_opened += 1
        run = name or f"r-{self._num_opened:04x}"
        self._records[run], self._specs[run] = [], spec
        self._open.add(run)
        if len(self._records) > self._max_runs:
            self._drop_old()
        return run

    def _drop_old(self) -> None:
        """Drop runs that are over, as many as are too many."""
        newest_first = list(reversed(self._records))
        kept = fair_share([self._specs[run].tenant for run in newest_first], self._max_runs)
        for run, is_kept in zip(newest_first, kept, strict=True):
            if not is_kept and run not in self._open:
                del self._records[run], self._specs[run]
                self.keys.forget(run)

    def append(self, run: str, record: JournalRecord, *, is_forced: bool = False) -> None:
        """Keep a record."""
        if run in self._records:
            self._records[run].append(record)

    def close_run(self, run: str) -> None:
        """Let it be opened again."""
        self._open.discard(run)
        self._cancelled.discard(run)

    def replay(self, run: str, start: int = 0) -> Iterator[JournalRecord]:
        """Return the run's records."""
        return iter(self._found(run)[start:])

    def record(self, run: str, number: int) -> JournalRecord | None:
        """Return one record of the run."""
        records = self._found(run)
        return records[number] if number < len(records) else None

    def num_records(self, run: str) -> int:
        """Return how many records there are of a run."""
        return len(self._found(run))

    def spec(self, run: str) -> RunSpec:
        """Return what the run was asked."""
        self._found(run)
        return self._specs[run]

    def reopen(self, run: str) -> None:
        """Write a run again."""
        self._found(run)
        if run in self._open:
            raise still_running(run)
        if (row := self._summary(run)) is not None and row.state == "done":
            raise already_done(run)
        self._open.add(run)

    def fork(self, run: str, spec: RunSpec, before: int, name: str | None = None) -> str:
        """Return a new run's id, which begins with the records of `run` before a number."""
        records = self._found(run)[:before]
        fork = self.open_run(spec, name=name)
        self._records[fork] = [renamed(record, fork) for record in records]
        return fork

    def cancel(self, run: str) -> None:
        """Ask for a run's end; one that is over is left as it is."""
        self._found(run)
        if run in self._open:
            self._cancelled.add(run)

    def cancelled(self) -> list[str]:
        """Return the runs that are to be cancelled."""
        return [run for run in self._cancelled if run in self._open]

    def runs(self) -> list[RunSummary]:
        """Return the runs kept, newest first."""
        rows = (self._summary(run) for run in reversed(self._records))
        return [row for row in rows if row]

    def summary(self, run: str) -> RunSummary | None:
        """Return a run's row."""
        return self._summary(run) if run in self._records else None

    def remove(self, run: str) -> None:
        """Delete a run."""
        self._found(run)
        if run in self._open:
            raise still_running(run)
        del self._records[run], self._specs[run]
        self.keys.forget(run)

    def loss(self, run: str) -> str:
        """Say why not all of a run is kept; empty when all of it is."""
        return PRIVATE_LOSS if run.startswith(PRIVATE_PREFIX) else ""

    def _found(self, run: str) -> list[JournalRecord]:
        if run not in self._records:
            raise unknown_name("run", run, list(self._records))
        return self._records[run]

    def _summary(self, run: str) -> RunSummary | None:
        events = [record.event for record in self._records[run]]
        if not events or not isinstance(first := events[0], RunStarted):
            return None
        ends = [event for event in events if isinstance(event, RunFinished | RunFailed)]
        state: State = "running" if run in self._open else state_of(ends[-1]) if ends else "unfinished"
        return RunSummary(
            run=run,
            started_at=first.at,
            task=first.task,
            state=state,
            totals=ends[-1].totals if ends else None,
            tenant=self._specs[run].tenant,
        )


_KIND_TO_STATE: dict[str, State] = {"CancelledError": "cancelled", "NeedsAnswerError": "needs_answer"}
PRIVATE_PREFIX = "p-"
PRIVATE_LOSS = "it is private"


def private_run_id() -> str:
    """Return an id for a run of which nothing is kept, unlike any of those kept."""
    return f"{PRIVATE_PREFIX}{secrets.token_hex(6)}"


def state_of(end: RunFinished | RunFailed) -> State:
    """Return the state of a run whose last event this is."""
    if isinstance(end, RunFinished):
        return "done"
    return _KIND_TO_STATE.get(end.kind, "failed")


def still_running(run: str) -> RequestError:
    """Return the error for what cannot be done with a run under way."""
    return RequestError(f"{run} is still running; cancel it first", param="run", code="still_running")


def already_done(run: str) -> RequestError:
    """Return the error for going on with a run that has its result."""
    return RequestError(f"{run} is done; fork it to run a part of it again", param="run", code="done")


def already_there(run: str) -> RequestError:
    """Return the error for a run whose chosen id is taken."""
    return RequestError(
        f"there is a run {run} already; look at it, or choose another id", param="run", code="run_exists"
    )


def renamed(record: JournalRecord, run: str) -> JournalRecord:
    """Return a record as one of another run."""
    return msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, run=run))
