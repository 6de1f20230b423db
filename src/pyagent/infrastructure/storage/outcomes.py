"""What choices earned, on disk: a SQLite file beside the journal, so that learning goes on after a restart.

A row is a choice of a run's step, with what is known of it: names and numbers, no text of a task. Rows of one tenant
are never counted for another. The newest `window` of a tenant and kind are kept, and all are counted alike: what is
older is forgotten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import Totals
from pyagent.core.fleet.learner import window_of
from pyagent.core.learning.outcomes import RANKS, Choice, Outcome, Source
from pyagent.infrastructure.storage.database import Database, Schema

_SCHEMA = Schema(
    2,
    (
        """CREATE TABLE IF NOT EXISTS choices (
        tenant TEXT NOT NULL, kind TEXT NOT NULL, turn INTEGER NOT NULL, run TEXT NOT NULL, step TEXT NOT NULL,
        attempt INTEGER NOT NULL DEFAULT 1, state TEXT NOT NULL DEFAULT '', arm TEXT NOT NULL, reward REAL,
        rank INTEGER NOT NULL DEFAULT 0, judged INTEGER NOT NULL DEFAULT 0, seconds REAL, usd REAL, tokens REAL,
        PRIMARY KEY (tenant, kind, turn)) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX IF NOT EXISTS choice_of_attempt ON choices (tenant, kind, run, step, attempt)",
        "CREATE INDEX IF NOT EXISTS choices_of_run ON choices (tenant, run)",
    ),
    {
        2: (
            """INSERT INTO choices (tenant, kind, turn, run, step, arm, reward, rank, judged)
            SELECT tenant, kind, turn, run, step, arm, reward, iif(reward IS NULL, 0, 3), iif(reward IS NULL, 0, turn)
            FROM outcomes""",
            "DROP TABLE outcomes",
        )
    },
)
_INSERT = """INSERT INTO choices (tenant, kind, turn, run, step, attempt, state, arm) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, kind, run, step, attempt) """
_ANEW = f"{_INSERT} DO UPDATE SET arm = excluded.arm, state = excluded.state, reward = NULL, rank = 0, judged = 0"
_IF_NEW = f"{_INSERT} DO NOTHING"
_REWARD = """UPDATE choices SET reward = ?, rank = ?, judged = CASE judged WHEN 0 THEN
(SELECT MAX(judged) + 1 FROM choices WHERE tenant = ? AND kind = ?) ELSE judged END
WHERE tenant = ? AND kind = ? AND run = ? AND step = ? AND attempt = ? AND rank <= ?"""
_ADD = """UPDATE choices SET seconds = COALESCE(seconds, 0) + ?, usd = COALESCE(usd, 0) + ?,
tokens = COALESCE(tokens, 0) + ? WHERE tenant = ? AND run = ? AND """


class OutcomesOf(msgspec.Struct, frozen=True):
    """The outcomes of one tenant and kind of choice."""

    tenant: str
    kind: str
    rows: tuple[Outcome, ...]


class SqliteOutcomes:
    """Outcomes in one file, which is made with the first."""

    def __init__(self, path: Path, window: int | None = None) -> None:
        self._path = path
        self._window = window
        self._database = Database(path, _SCHEMA)

    def rows(self, tenant: str, kind: str) -> list[Outcome]:
        """Return the outcomes kept of a tenant and kind, the oldest first."""
        query = """SELECT run, step, attempt, state, arm, reward, judged, seconds, usd, tokens FROM choices
        WHERE tenant = ? AND kind = ? ORDER BY turn"""
        names = ("run", "step", "attempt", "state", "arm", "quality", "judged", "seconds", "usd", "tokens")
        with self._usable():
            found = self._database.rows(query, (tenant, kind))
            return [msgspec.convert(dict(zip(names, row, strict=True)), Outcome) for row in found]

    def turn(self, tenant: str, kind: str) -> int:
        """Return the number of the tenant's next choice of this kind."""
        with self._usable():
            query = "SELECT COALESCE(MAX(turn), 0) + 1 FROM choices WHERE tenant = ? AND kind = ?"
            rows = self._database.rows(query, (tenant, kind))
            return cast("int", rows[0][0]) if rows else 1

    def of_run(self, tenant: str, run: str) -> list[Choice]:
        """Return the choices of a tenant's run, in their order."""
        query = "SELECT kind, step, arm, state, attempt FROM choices WHERE tenant = ? AND run = ? ORDER BY kind, turn"
        with self._usable():
            found = self._database.rows(query, (tenant, run))
            rows = msgspec.convert(found, list[tuple[str, str, str, str, int]])
        return [
            Choice(tenant=tenant, kind=kind, run=run, step=step, arm=arm, state=state, attempt=attempt)
            for kind, step, arm, state, attempt in rows
        ]

    def chosen(self, choice: Choice) -> None:
        """Record that a step of a run chose an arm; what comes of it is not known yet."""
        with self._usable(), self._database.transaction():
            self._insert(choice, _ANEW)

    def reward(self, choice: Choice, reward: float, source: Source) -> None:
        """Record what a choice earned, unless a reward of a higher rank is there.

        Raises `RequestError` for what is no number from 0 to 1.
        """
        if not 0 <= reward <= 1:
            raise RequestError(f"a reward is a number from 0 to 1, got {reward}", param="reward")
        tenant, kind, rank = choice.tenant, choice.kind, RANKS[source]
        with self._usable(), self._database.transaction():
            self._insert(choice, _IF_NEW)
            self._database.execute(
                _REWARD,
                (reward, rank, tenant, kind, tenant, kind, choice.run, choice.step, choice.attempt, rank),
            )

    def measured(self, tenant: str, run: str, step: str, kinds: Sequence[str], totals: Totals) -> None:
        """Record what a step took: for its open choices, and added for those kinds that are chosen once for a run."""
        tokens = totals.prompt_tokens + totals.completion_tokens
        with self._usable():
            if not self._database.exists:
                return
            used = (totals.seconds, totals.usd, tokens, tenant, run)
            self._database.execute(f"{_ADD} step = ? AND seconds IS NULL", (*used, step))
            for kind in kinds:
                self._database.execute(f"{_ADD} step = '' AND kind = ?", (*used, kind))

    def all(self, tenant: str | None = None) -> list[OutcomesOf]:
        """Return the outcomes of every tenant and kind, or of one tenant."""
        with self._usable():
            pairs = self._database.rows("SELECT DISTINCT tenant, kind FROM choices ORDER BY tenant, kind")
        found = [(str(of), str(kind)) for of, kind in pairs if tenant is None or of == tenant]
        return [OutcomesOf(of, kind, tuple(self.rows(of, kind))) for of, kind in found]

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _insert(self, choice: Choice, statement: str) -> None:
        tenant, kind = choice.tenant, choice.kind
        turn = self.turn(tenant, kind)
        self._database.execute(
            statement,
            (tenant, kind, turn, choice.run, choice.step, choice.attempt, choice.state, choice.arm),
        )
        oldest = turn - (window_of(kind) if self._window is None else self._window)
        self._database.execute(
            "DELETE FROM choices WHERE tenant = ? AND kind = ? AND turn <= ?", (tenant, kind, oldest)
        )

    @contextmanager
    def _usable(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, msgspec.ValidationError) as error:
            raise RequestError(f"outcomes cannot be kept in {self._path}: {error}", param="learning") from error
