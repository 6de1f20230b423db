"""The keys of requests in the journal's file; a run's go with the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from pyagent.core.errors import RequestError
from pyagent.infrastructure.storage.database import Database


@dataclass(frozen=True, slots=True)
class SqliteRequestKeys:
    """The keys that requests came with, of all runs."""

    database: Database

    def keep(self, key: str, asked: str, run: str) -> str | None:
        """Keep what a key asks of a run; return what it asked before, and keep nothing, where it did."""
        with self._usable(), self.database.transaction():
            before = self.find(key)
            if before is None:
                insert = "INSERT INTO request_keys SELECT ?, ?, id FROM runs WHERE name = ?"
                self.database.execute(insert, (key, asked, run))
        return before

    def find(self, key: str) -> str | None:
        """Return what a key asked; None for a new one."""
        with self._usable():
            rows = self.database.rows("SELECT asked FROM request_keys WHERE key = ?", (key,))
        return cast("str", rows[0][0]) if rows else None

    def drop(self, key: str) -> None:
        """Forget a key whose request came to nothing."""
        with self._usable():
            self.database.execute("DELETE FROM request_keys WHERE key = ?", (key,))

    @contextmanager
    def _usable(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            text = f"the keys of requests in {self.database.path} cannot be used: {error}"
            raise RequestError(text, param="Idempotency-Key", code="journal_unreadable") from error
