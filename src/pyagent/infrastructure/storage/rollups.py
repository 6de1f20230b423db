"""Rollups in the journal's file: what runs did by window, kept when the runs themselves are deleted.

A run's observations wait in memory and are merged into the rows with its end, or after some hundred; how many of its
records are in the rows is kept in the same transaction, so each is counted once. What a process that died left out is
read from its records. Windows of five minutes become hours after a week and days after ninety; after two years they go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec

from pyagent.core.fleet.events import Event
from pyagent.core.fleet.journal import JournalRecord
from pyagent.core.fleet.rollups import (
    MAX_KEY_CHARACTERS,
    Kind,
    Observation,
    Rollup,
    RollupRow,
    observations_of,
)
from pyagent.infrastructure.storage.database import RECORDS_A_RUN, Database

GRAIN_SECONDS = 300
_HOUR, _DAY = 3_600, 86_400
_COARSER = ((GRAIN_SECONDS, _HOUR, 7 * _DAY), (_HOUR, _DAY, 90 * _DAY))
"""Rows of a grain become rows of another when they are so old."""
_MAX_AGE_SECONDS = 730 * _DAY
_MAX_KEYS = 256
OTHER_KEY = "(other)"
"""What keys beyond the most of a tenant's kind are counted as."""
_MAX_PENDING = 512
_Window = tuple[str, str, int]
_Row = tuple[str, str, str, int, int]
"""Tenant, kind, key, grain, start."""
_ROWS = "SELECT tenant, kind, key, start, grain, body FROM rollups"


class Rollups:
    """The rollups of a journal. `take` and `flush` are for runs of this process, `catch_up` for what others left."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: defaultdict[int, list[Observation]] = defaultdict(list)

    def begin(self, run: int, num_records: int) -> None:
        """Count a run's records from this one on: those before are counted elsewhere."""
        self._database.execute("UPDATE runs SET num_rolled = ? WHERE id = ?", (num_records, run))

    def take(self, run: int, event: Event) -> bool:
        """Note what an event says; return whether so much waits that it should be flushed."""
        pending = self._pending[run]
        pending += observations_of(event)
        return len(pending) >= _MAX_PENDING

    def flush(self, run: int, tenant: str, num_records: int) -> None:
        """Merge what waits of a run into the rows, which then have so many of its records."""
        with self._database.transaction():
            self._merge(tenant, self._pending.pop(run, []))
            self.begin(run, num_records)

    def drop(self, run: int) -> None:
        """Forget what waits of a run: its records are read again when it matters."""
        self._pending.pop(run, None)

    def behind(self) -> list[tuple[int, str]]:
        """Return the runs that have records which are not counted: number and writer."""
        query = (
            "SELECT id, writer FROM runs WHERE num_rolled <= (SELECT MAX(records.id) FROM records"
            " WHERE records.id >= runs.id * ?1 AND records.id < (runs.id + 1) * ?1) - runs.id * ?1"
        )
        return cast("list[tuple[int, str]]", self._database.rows(query, (RECORDS_A_RUN,)))

    def num_rolled(self, run: int) -> int:
        """Return how many of a run's records are counted."""
        rows = self._database.rows("SELECT num_rolled FROM runs WHERE id = ?", (run,))
        return cast("int", rows[0][0]) if rows else 0

    def catch_up(self, run: int, tenant: str, records: Iterable[tuple[int, JournalRecord | None]]) -> None:
        """Count records that were not, in the transaction under way; damaged ones say nothing."""
        observed, num_records = list[Observation](), self.num_rolled(run)
        for number, record in records:
            observed += () if record is None else observations_of(record.event)
            num_records = number + 1
        self.drop(run)
        self._merge(tenant, observed)
        self.begin(run, num_records)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rows(self, kinds: Sequence[Kind], since: float = 0.0, tenant: str | None = None) -> list[RollupRow]:
        """Return the rows of these kinds whose window ends after `since`, oldest first; of one tenant, or of all."""
        marks = ", ".join("?" * len(kinds))
        query = f"{_ROWS} WHERE kind IN ({marks}) AND start + grain > ?"
        values: list[object] = [*kinds, since]
        if tenant is not None:
            query, values = f"{query} AND tenant = ?", [*values, tenant]
        found = self._database.rows(f"{query} ORDER BY start, kind, key", values)
        return [row for row in map(_decoded, found) if row is not None]

    def _merge(self, tenant: str, observed: Iterable[Observation]) -> None:
        merged: defaultdict[_Window, Rollup] = defaultdict(Rollup)
        for one in observed:
            key = one.key[:MAX_KEY_CHARACTERS].encode(errors="replace").decode()
            merged[one.kind, key, _window_of(one.at)].add(one)
        for (kind, key, start), rollup in merged.items():
            self._put((tenant, kind, self._known(tenant, kind, key), GRAIN_SECONDS, start), rollup)

    def _known(self, tenant: str, kind: str, key: str) -> str:
        """Return the key, or `OTHER_KEY` when there are too many already."""
        rows = self._database.rows
        if rows("SELECT 1 FROM rollups WHERE tenant = ? AND kind = ? AND key = ? LIMIT 1", (tenant, kind, key)):
            return key
        [(count,)] = rows("SELECT COUNT(DISTINCT key) FROM rollups WHERE tenant = ? AND kind = ?", (tenant, kind))
        return key if cast("int", count) < _MAX_KEYS else OTHER_KEY

    def _put(self, place: _Row, rollup: Rollup) -> None:
        """Add a rollup to the row of its place."""
        query = f"{_ROWS} WHERE tenant = ? AND kind = ? AND key = ? AND grain = ? AND start = ?"
        for row in self._database.rows(query, place):
            if (before := _decoded(row)) is not None:
                rollup.merge(before.rollup)
        self._database.execute(
            "INSERT OR REPLACE INTO rollups (tenant, kind, key, grain, start, body) VALUES (?, ?, ?, ?, ?, ?)",
            (*place, msgspec.msgpack.encode(rollup)),
        )

    def compact(self, now: float) -> None:
        """Make old windows longer, and delete those of more than two years."""
        with self._database.transaction():
            for grain, coarser, age in _COARSER:
                end = int((now - age) // coarser) * coarser
                query = f"{_ROWS} WHERE grain = ? AND start < ?"
                for row in map(_decoded, self._database.rows(query, (grain, end))):
                    if row is not None:
                        start = row.start - row.start % coarser
                        self._put((row.tenant, row.kind, row.key, coarser, start), row.rollup)
                self._database.execute("DELETE FROM rollups WHERE grain = ? AND start < ?", (grain, end))
            self._database.execute("DELETE FROM rollups WHERE start < ?", (now - _MAX_AGE_SECONDS,))


def _window_of(at: float) -> int:
    """Return the start of a time's window. A time from the journal may differ by less than a microsecond."""
    return int(round(at, 3) // GRAIN_SECONDS) * GRAIN_SECONDS


def _decoded(row: tuple[object, ...]) -> RollupRow | None:
    tenant, kind, key, start, grain, body = cast("tuple[str, Kind, str, int, int, bytes]", row)
    try:
        rollup = msgspec.msgpack.decode(body, type=Rollup)
    except msgspec.DecodeError:  # damaged: its numbers are lost
        return None
    return RollupRow(tenant=tenant, kind=kind, key=key, start=start, grain=grain, rollup=rollup)
