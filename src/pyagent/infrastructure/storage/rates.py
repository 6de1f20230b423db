"""The levels of rates on disk: a SQLite file beside the journal, so that a restart is no new allowance.

Processes that share the journal share the rates. A level that is full again is deleted. Where the file cannot be used,
rates hold in this process alone, with a warning.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from pyagent.core.errors import RequestError
from pyagent.core.fleet.rate_store import RatesInMemory, RateStore
from pyagent.core.rates import Rate, full_at_after, wait_seconds
from pyagent.infrastructure.storage.database import Database, Schema

T = TypeVar("T")
_SCHEMA = Schema(1, ("CREATE TABLE IF NOT EXISTS rates (name TEXT PRIMARY KEY, full_at REAL NOT NULL) WITHOUT ROWID",))
logger = logging.getLogger("pyagent.journal")


class SqliteRates:
    """Levels of rates in one file, which is made when the first turn is taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = Database(path, _SCHEMA)
        self._here: RatesInMemory | None = None

    def take(self, name: str, rate: Rate) -> float:
        """Take a turn and return 0; or return the seconds until there may be one, and take nothing."""
        return self._used(lambda: self._take(name, rate), lambda here: here.take(name, rate))

    def wait_seconds(self, name: str, rate: Rate, place: int = 1) -> float:
        """Return the seconds until the turn of who is at this place of the queue."""
        return self._used(
            lambda: wait_seconds(rate, self._full_at(name), time.time(), place),
            lambda here: here.wait_seconds(name, rate, place),
        )

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _take(self, name: str, rate: Rate) -> float:
        with self._database.transaction():
            now, full_at = time.time(), self._full_at(name)
            if wait := wait_seconds(rate, full_at, now):
                return wait
            self._database.execute("DELETE FROM rates WHERE full_at <= ?", (now,))
            self._database.execute(
                "INSERT OR REPLACE INTO rates VALUES (?, ?)", (name, full_at_after(rate, full_at, now))
            )
        return 0.0

    def _full_at(self, name: str) -> float:
        rows = self._database.rows("SELECT full_at FROM rates WHERE name = ?", (name,))
        return cast("float", rows[0][0]) if rows else 0.0

    def _used(self, on_disk: Callable[[], T], in_memory: Callable[[RateStore], T]) -> T:
        if self._here is None:
            try:
                return on_disk()
            except (sqlite3.Error, OSError, RequestError) as error:
                logger.warning("rates hold in this process alone: %s cannot be used: %s", self._path, error)
                self._here = RatesInMemory()
        return in_memory(self._here)
