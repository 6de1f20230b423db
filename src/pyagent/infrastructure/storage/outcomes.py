"""What choices earned, on disk: a SQLite file beside the journal, so that learning goes on after a restart.

A row is a choice of a run's step, with its reward once that is known: names and numbers, no text of a task. Rows of one
tenant are never counted for another. The newest `window` of a tenant and kind are kept, and all are counted alike: what
is older is forgotten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.learning.bandits import Arm, Choice
from pyagent.infrastructure.storage.database import Database, Schema

DEFAULT_WINDOW = 500
_SCHEMA = Schema(
    1,
    (
        """CREATE TABLE IF NOT EXISTS outcomes (
        tenant TEXT NOT NULL, kind TEXT NOT NULL, turn INTEGER NOT NULL, arm TEXT NOT NULL, run TEXT NOT NULL,
        step TEXT NOT NULL, reward REAL, PRIMARY KEY (tenant, kind, turn)) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX IF NOT EXISTS outcome_of_step ON outcomes (tenant, kind, run, step)",
    ),
)
_ARMS = """SELECT arm, COUNT(*), COUNT(reward), TOTAL(reward), TOTAL(reward * reward) FROM outcomes
WHERE tenant = ? AND kind = ? GROUP BY arm ORDER BY arm"""


class ArmsOf(msgspec.Struct, frozen=True):
    """The arms of one tenant and kind of choice."""

    tenant: str
    kind: str
    arms: tuple[Arm, ...]


class SqliteOutcomes:
    """Outcomes in one file, which is made with the first."""

    def __init__(self, path: Path, window: int = DEFAULT_WINDOW) -> None:
        self._path = path
        self._window = window
        self._database = Database(path, _SCHEMA)

    def arms(self, tenant: str, kind: str, names: Sequence[str]) -> list[Arm]:
        """Return the arms of these names, those never chosen too."""
        known = {arm.name: arm for arm in self._arms(tenant, kind)}
        return [known.get(name, Arm(name)) for name in names]

    def turn(self, tenant: str, kind: str) -> int:
        """Return the number of the tenant's next choice of this kind."""
        with self._usable():
            query = "SELECT COALESCE(MAX(turn), 0) + 1 FROM outcomes WHERE tenant = ? AND kind = ?"
            rows = self._database.rows(query, (tenant, kind))
            return cast("int", rows[0][0]) if rows else 1

    def chosen(self, choice: Choice) -> None:
        """Record that a step of a run chose an arm; its reward is not known yet."""
        self._write(choice, None)

    def reward(self, choice: Choice, reward: float) -> None:
        """Record what a step's choice earned; raise `RequestError` for what is no number from 0 to 1."""
        if not 0 <= reward <= 1:
            raise RequestError(f"a reward is a number from 0 to 1, got {reward}", param="reward")
        self._write(choice, reward)

    def all(self, tenant: str | None = None) -> list[ArmsOf]:
        """Return the arms of every tenant and kind, or of one tenant."""
        with self._usable():
            pairs = self._database.rows("SELECT DISTINCT tenant, kind FROM outcomes ORDER BY tenant, kind")
        found = [(str(of), str(kind)) for of, kind in pairs if tenant is None or of == tenant]
        return [ArmsOf(of, kind, tuple(self._arms(of, kind))) for of, kind in found]

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _arms(self, tenant: str, kind: str) -> list[Arm]:
        with self._usable():
            rows = self._database.rows(_ARMS, (tenant, kind))
        return [Arm(*msgspec.convert(row, tuple[str, int, int, float, float])) for row in rows]

    def _write(self, choice: Choice, reward: float | None) -> None:
        tenant, kind = choice.tenant, choice.kind
        with self._usable(), self._database.transaction():
            turn = self.turn(tenant, kind)
            self._database.execute(
                "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, kind, run, step) "
                "DO UPDATE SET arm = excluded.arm, reward = excluded.reward",
                (tenant, kind, turn, choice.arm, choice.run, choice.step, reward),
            )
            self._database.execute(
                "DELETE FROM outcomes WHERE tenant = ? AND kind = ? AND turn <= ?", (tenant, kind, turn - self._window)
            )

    @contextmanager
    def _usable(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RequestError(f"outcomes cannot be kept in {self._path}: {error}", param="learning") from error
