"""Notes across runs on disk: a SQLite file beside the journal. Deleted notes are written over."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.long_memory import new_note_id
from pyagent.core.fleet.notes import Note, with_note
from pyagent.infrastructure.storage.database import Database, Schema

_SCHEMA = Schema(
    1,
    (
        "CREATE TABLE IF NOT EXISTS notes (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, body BLOB NOT NULL)",
        "CREATE INDEX IF NOT EXISTS notes_of_tenant ON notes (tenant)",
    ),
)


class SqliteNotes:
    """The notes of all tenants in one file, each tenant's apart."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA)

    def keep(self, tenant: str, note: Note) -> Note:
        """Keep a note; the least important of too many goes, and so do expired ones."""
        note = msgspec.structs.replace(note, id=new_note_id(), text=note.text.encode(errors="replace").decode())
        with self._usable(), self._database.transaction():
            before = self.notes(tenant)
            after = with_note([each for each in before if (each.expires_at or time.time() + 1) > time.time()], note)
            for each in before:
                if each not in after:
                    self._database.execute("DELETE FROM notes WHERE id = ?", (each.id,))
            [note] = [each for each in after if each.id == note.id] or [note]
            if note in after:
                insert = "INSERT INTO notes VALUES (?, ?, ?)"
                self._database.execute(insert, (note.id, tenant, msgspec.msgpack.encode(note)))
        return note

    def notes(self, tenant: str) -> list[Note]:
        """Return a tenant's notes, oldest first; what cannot be read is none."""
        query = "SELECT body FROM notes WHERE tenant = ? ORDER BY rowid"
        with self._usable():
            bodies = [cast("bytes", body) for (body,) in self._database.rows(query, (tenant,))]
        return [note for note in map(_decoded, bodies) if note is not None]

    def tenants(self) -> list[str]:
        """Return the tenants that have notes."""
        with self._usable():
            rows = self._database.rows("SELECT DISTINCT tenant FROM notes ORDER BY tenant")
        return [str(tenant) for (tenant,) in rows]

    def remove(self, tenant: str, note: str) -> None:
        """Delete a note, so that nothing of it is left on disk; raises `RequestError` for an unknown one."""
        known = [each.id for each in self.notes(tenant)]
        if note not in known:
            raise unknown_name("note", note, known)
        with self._usable():
            self._database.execute("DELETE FROM notes WHERE tenant = ? AND id = ?", (tenant, note))
            self._database.shrink()

    def clear(self, tenant: str) -> int:
        """Delete a tenant's notes; return how many there were."""
        with self._usable():
            if not self._database.exists:
                return 0
            [(count,)] = self._database.rows("SELECT COUNT(*) FROM notes WHERE tenant = ?", (tenant,))
            self._database.execute("DELETE FROM notes WHERE tenant = ?", (tenant,))
            self._database.shrink()
        return cast("int", count)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    @contextmanager
    def _usable(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            text = f"the notes in {self._database.path} cannot be used: {error}"
            raise RequestError(text, param="note", code="notes_unusable") from error


def _decoded(body: bytes) -> Note | None:
    try:
        return msgspec.msgpack.decode(body, type=Note)
    except msgspec.DecodeError:
        return None
