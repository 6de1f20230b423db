"""A SQLite file, the journal's or another: how it is opened, its tables, and its transactions.

Write-ahead log, so that readers and a writer do not wait for each other; `synchronous = NORMAL`, so that what a
transaction wrote survives the death of the process when it has returned, and of the machine after the next checkpoint.
A transaction that asks for it (`is_forced`) survives both. One connection, shared by threads under a lock.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pyagent.core.errors import RequestError
from pyagent.infrastructure.live_files import note_closed, note_opened
from pyagent.infrastructure.private_files import close_to_others, make_private_folder

_BUSY_SECONDS = 10.0
_PAUSE_SECONDS = 0.02
_PAGE_BYTES = 2048
"""A record is some 50 bytes, and each transaction writes the page it goes to: half of SQLite's own page."""
_LOG_BYTES = 4 << 20
_CREATING = threading.Lock()
"""Held while a new file is closed, before any thread connects to it."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a file, each made where it is missing; `version` grows when what is there has to change.

    `changes` are the statements that bring a file to a version from the one before.
    """

    version: int
    statements: tuple[str, ...]
    changes: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, "tuple[str, ...]"])


JOURNAL_SCHEMA = Schema(
    4,
    (
        """CREATE TABLE IF NOT EXISTS runs (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, writer TEXT NOT NULL,
        epoch REAL NOT NULL, started_at REAL NOT NULL, used_at REAL NOT NULL, task TEXT, state TEXT NOT NULL,
        totals BLOB, is_to_cancel INTEGER NOT NULL DEFAULT 0, spec BLOB NOT NULL,
        num_rolled INTEGER NOT NULL DEFAULT 0)""",
        "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        "CREATE TABLE IF NOT EXISTS blobs (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
        """CREATE TABLE IF NOT EXISTS uses (
        run INTEGER NOT NULL, blob INTEGER NOT NULL, PRIMARY KEY (run, blob)) WITHOUT ROWID""",
        "CREATE INDEX IF NOT EXISTS uses_of_blob ON uses (blob)",
        "CREATE TABLE IF NOT EXISTS shapes (id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE)",
        """CREATE TABLE IF NOT EXISTS rollups (
        tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, grain INTEGER NOT NULL, start INTEGER NOT NULL,
        body BLOB NOT NULL, PRIMARY KEY (tenant, kind, key, grain, start)) WITHOUT ROWID""",
        """CREATE TABLE IF NOT EXISTS request_keys (
        key TEXT PRIMARY KEY, asked TEXT NOT NULL, run INTEGER NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE IF NOT EXISTS webhook_endpoints (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, url TEXT NOT NULL, events TEXT NOT NULL, secret TEXT NOT NULL,
        old_secret TEXT NOT NULL DEFAULT '', old_until REAL NOT NULL DEFAULT 0, created_at REAL NOT NULL,
        reason TEXT NOT NULL DEFAULT '', failing_since REAL, paused_until REAL NOT NULL DEFAULT 0,
        leased_by TEXT NOT NULL DEFAULT '', origin TEXT NOT NULL DEFAULT '')""",
        """CREATE TABLE IF NOT EXISTS webhook_messages (
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, endpoint TEXT NOT NULL, type TEXT NOT NULL,
        body BLOB NOT NULL, created_at REAL NOT NULL, due_at REAL NOT NULL, attempts INTEGER NOT NULL,
        state TEXT NOT NULL, status INTEGER, error TEXT NOT NULL)""",
        "CREATE INDEX IF NOT EXISTS webhook_messages_of ON webhook_messages (endpoint, state, number)",
        "CREATE INDEX IF NOT EXISTS webhook_messages_due ON webhook_messages (state, due_at)",
        """CREATE TABLE IF NOT EXISTS webhook_inbox (
        number INTEGER PRIMARY KEY AUTOINCREMENT, hook TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL,
        received_at REAL NOT NULL, state TEXT NOT NULL, run TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '',
        UNIQUE (hook, id))""",
        "CREATE INDEX IF NOT EXISTS webhook_inbox_of ON webhook_inbox (state, number)",
    ),
    {2: ("ALTER TABLE runs ADD COLUMN num_rolled INTEGER NOT NULL DEFAULT 0",)},
)
Row = tuple[object, ...]
RECORDS_A_RUN = 2**32
"""A record's id is its run's times this, plus its number: records of a run lie beside each other, in order."""


class Database:
    """A file that is opened when it is first used. `sqlite3.Error` comes out of every call as it is."""

    def __init__(self, path: Path, schema: Schema | None = None) -> None:
        self.path = path
        self._schema = schema or JOURNAL_SCHEMA
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._depth = 0

    @property
    def exists(self) -> bool:
        """Whether there is a file; reading does not make one."""
        return self._connection is not None or self.path.is_file()

    def rows(self, query: str, values: Iterable[object] = ()) -> list[Row]:
        """Return what a query finds; nothing where there is no file."""
        if not self.exists:
            return []
        with self._lock:
            return self._opened().execute(query, tuple(values)).fetchall()

    def execute(self, statement: str, values: Iterable[object] = ()) -> int:
        """Run one statement, in the transaction under way or in its own; return the last row's id."""
        with self._lock:
            return self._opened().execute(statement, tuple(values)).lastrowid or 0

    @contextmanager
    def transaction(self, *, is_forced: bool = False) -> Generator[None]:
        """Write all that follows, or on an error nothing. A transaction inside another is part of it."""
        with self._lock:
            connection = self._opened()
            if self._depth:
                yield
                return
            if is_forced:
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._depth = 0
                if is_forced:
                    connection.execute("PRAGMA synchronous = NORMAL")

    def shrink(self) -> None:
        """Give the space of what was deleted back to the disk, and leave no trace of it in the log."""
        with self._lock:
            connection = self._opened()
            connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Let go of the file; it is opened again when it is next used."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                note_closed(self)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            make_private_folder(self.path.parent)
            _create(self.path)
            for end in ("", "-wal", "-shm"):  # SQLite makes the log with the file's mode, and finds an old one as it is
                close_to_others(Path(f"{self.path}{end}"))
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
            )
            note_opened(self)
            try:
                prepare(connection, self.path, self._schema)
            except BaseException:
                connection.close()
                note_closed(self)
                raise
            self._connection = connection
        return self._connection


def _create(path: Path) -> None:
    """Make a file that only this user can read, where there is none.

    One that is there is not opened: closing a descriptor takes away all locks that this process holds on the file by
    whatever connection (fcntl(2)), and another process would then delete the log that is still written to.
    """
    with _CREATING, suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def prepare(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Set a connection up, and bring the file to the schema's version."""
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # this and the next take effect before there are tables
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_BYTES // _PAGE_BYTES}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > schema.version:
        raise RequestError(f"{path} was written by another release of pyagent (version {version})", param="run")
    if version < schema.version:
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # another process may have been first
        changes = (
            [schema.changes.get(number, ()) for number in range(version + 1, schema.version + 1)] if version else []
        )
        for statement in (*schema.statements, *chain.from_iterable(changes)):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {schema.version}")
        connection.execute("COMMIT")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on. SQLite does not wait by itself for another process that does so too."""
    give_up_at = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
