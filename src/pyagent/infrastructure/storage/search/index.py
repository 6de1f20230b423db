"""One index on disk: documents, their passages, the words of these (FTS5, BM25) and their vectors.

    search/NAME.db     documents, passages, words; which row of the vectors is whose
    search/NAME.f32    vectors (see `vector_file`)

Words are stemmed and lose accents. What is deleted is written over, in the words' index too: a merge of its segments
leaves no trace. The file can be made again from the runs or files it is about, so one that is damaged is thrown away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import cast

from pyagent.core.search import Passage, match_of
from pyagent.infrastructure.storage.database import Database, Schema
from pyagent.infrastructure.storage.search.vector_file import VectorFile, unit

_SCHEMA = Schema(
    1,
    (
        "CREATE TABLE IF NOT EXISTS documents (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL)",
        """CREATE TABLE IF NOT EXISTS passages (
        id INTEGER PRIMARY KEY, document INTEGER NOT NULL, place INTEGER NOT NULL, hash BLOB NOT NULL,
        text TEXT NOT NULL)""",
        "CREATE INDEX IF NOT EXISTS passages_of_document ON passages (document)",
        """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
        text, content = 'passages', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2')""",
        "CREATE TABLE IF NOT EXISTS vectors (slot INTEGER PRIMARY KEY, passage INTEGER UNIQUE)",
        "CREATE TABLE IF NOT EXISTS embedder (name TEXT NOT NULL, num_dimensions INTEGER NOT NULL)",
    ),
)
_HASH_BYTES = 16
Found = tuple[str, int, str]
"""A passage's document, place and text."""


class SqliteIndex:
    """The index of one tenant's runs, or of one folder. `name` is its own among those of the folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.db"
        self._vector_path = folder / f"{name}.f32"
        self._database = Database(self.path, _SCHEMA)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def discard(self) -> None:
        """Delete the index: it is damaged, or what it is about is gone."""
        self.close()
        for path in (self.path, *(Path(f"{self.path}-{end}") for end in ("wal", "shm")), self._vector_path):
            path.unlink(missing_ok=True)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, name: str, stamp: str, passages: Sequence[Passage]) -> None:
        """Replace a document's passages; those that are equal keep their vectors."""
        rows, execute = self._database.rows, self._database.execute
        with self._database.transaction():
            execute(
                "INSERT INTO documents (name, stamp) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET stamp = ?2",
                (name, stamp),
            )
            [(document,)] = rows("SELECT id FROM documents WHERE name = ?", (name,))
            found = rows("SELECT hash, id FROM passages WHERE document = ?", (document,))
            kept = dict(cast("list[tuple[bytes, int]]", found))
            wanted = {_hash(each): each for each in passages}
            self._drop([number for key, number in kept.items() if key not in wanted])
            for key, passage in wanted.items():
                if key not in kept:
                    text = passage.text.encode(errors="replace").decode()
                    number = execute(
                        "INSERT INTO passages (document, place, hash, text) VALUES (?, ?, ?, ?)",
                        (document, passage.place, key, text),
                    )
                    execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, text))

    def remove(self, names: Sequence[str]) -> None:
        """Delete documents, so that nothing of their text is left on disk."""
        if not self._database.exists:
            return
        with self._database.transaction():
            num_dropped = 0
            for name in names:
                query = (
                    "SELECT passages.id FROM passages JOIN documents ON document = documents.id"
                    " WHERE documents.name = ?"
                )
                passages = [cast("int", number) for (number,) in self._database.rows(query, (name,))]
                self._drop(passages)
                num_dropped += len(passages)
                self._database.execute("DELETE FROM documents WHERE name = ?", (name,))
            if num_dropped:
                self._database.execute("INSERT INTO words (words) VALUES ('optimize')")
        if num_dropped:
            self._database.shrink()

    def _drop(self, passages: Iterable[int]) -> None:
        for number in passages:
            delete = "INSERT INTO words (words, rowid, text) SELECT 'delete', id, text FROM passages WHERE id = ?"
            self._database.execute(delete, (number,))
            self._database.execute("DELETE FROM passages WHERE id = ?", (number,))
            slots = [cast("int", slot) for (slot,) in self._slots_of(number)]
            if (vectors := self._vectors()) is not None:
                vectors.delete(slots)
            self._database.execute("UPDATE vectors SET passage = NULL WHERE passage = ?", (number,))

    def _slots_of(self, passage: int) -> list[tuple[object, ...]]:
        return self._database.rows("SELECT slot FROM vectors WHERE passage = ?", (passage,))

    # -- vectors ------------------------------------------------------------------------------------------------------

    def use_embedder(self, name: str) -> None:
        """Forget the vectors of another embedder: they are not to be compared."""
        with self._database.transaction():
            if self._database.rows("SELECT 1 FROM embedder WHERE name != ?", (name,)):
                self._database.execute("DELETE FROM embedder")
                self._database.execute("DELETE FROM vectors")
                self._vector_path.unlink(missing_ok=True)

    def without_vector(self, limit: int) -> list[tuple[int, str]]:
        """Return passages that have no vector yet, newest first: number and text."""
        query = (
            "SELECT id, text FROM passages WHERE NOT EXISTS (SELECT 1 FROM vectors WHERE passage = passages.id)"
            " ORDER BY id DESC LIMIT ?"
        )
        return cast("list[tuple[int, str]]", self._database.rows(query, (limit,)))

    def put_vectors(self, embedder: str, vectors: Sequence[tuple[int, Sequence[float]]]) -> int:
        """Keep vectors of passages; return how many were kept. One of another length, or without direction, is not."""
        num_kept = 0
        with self._database.transaction():
            for passage, given in vectors:
                vector = unit(given)
                there = self._database.rows("SELECT 1 FROM passages WHERE id = ?", (passage,))
                if vector is None or not there or not self._takes(embedder, len(vector)):
                    continue
                slot = self._free_slot()
                cast("VectorFile", self._vectors()).write(slot, vector)
                self._database.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (slot, passage))
                num_kept += 1
        return num_kept

    def _takes(self, embedder: str, num_dimensions: int) -> bool:
        found = self._database.rows("SELECT name, num_dimensions FROM embedder")
        if not found:
            self._database.execute("INSERT INTO embedder VALUES (?, ?)", (embedder, num_dimensions))
        return not found or found[0] == (embedder, num_dimensions)

    def _free_slot(self) -> int:
        free = self._database.rows("SELECT slot FROM vectors WHERE passage IS NULL LIMIT 1")
        if free:
            return cast("int", free[0][0])
        [(last,)] = self._database.rows("SELECT MAX(slot) FROM vectors")
        return 0 if last is None else cast("int", last) + 1

    def _vectors(self) -> VectorFile | None:
        found = self._database.rows("SELECT num_dimensions FROM embedder")
        return VectorFile(self._vector_path, cast("int", found[0][0])) if found else None

    # -- reading ------------------------------------------------------------------------------------------------------

    def stamps(self) -> dict[str, str]:
        """Return the documents there are, each with its stamp."""
        return dict(cast("list[tuple[str, str]]", self._database.rows("SELECT name, stamp FROM documents")))

    def by_words(self, query: str, limit: int) -> list[int]:
        """Return the passages that fit the words best, by number."""
        match = match_of(query)
        if not match:
            return []
        statement = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [cast("int", number) for (number,) in self._database.rows(statement, (match, limit))]

    def by_vector(self, vector: Sequence[float], limit: int) -> list[int]:
        """Return the passages whose vectors are nearest, exactly, by number."""
        vectors, wanted = self._vectors(), unit(vector)
        found = self._database.rows("SELECT num_dimensions FROM embedder")
        if vectors is None or wanted is None or found != [(len(wanted),)]:
            return []
        passages: list[int] = []
        for slot in vectors.nearest(wanted, limit + 16):
            row = self._database.rows("SELECT passage FROM vectors WHERE slot = ? AND passage NOT NULL", (slot,))
            passages += [cast("int", number) for (number,) in row]
        return passages[:limit]

    def found(self, passages: Sequence[int]) -> dict[int, Found]:
        """Return the passages of these numbers that are there: document, place and text."""
        query = "SELECT name, place, text FROM passages JOIN documents ON document = documents.id WHERE passages.id = ?"
        rows = ((number, self._database.rows(query, (number,))) for number in passages)
        return {number: cast("Found", row[0]) for number, row in rows if row}

    def counts(self) -> tuple[int, int]:
        """Return how many passages there are, and how many of these have a vector."""
        query = "SELECT (SELECT COUNT(*) FROM passages), (SELECT COUNT(passage) FROM vectors)"
        rows = self._database.rows(query)
        return cast("tuple[int, int]", rows[0]) if rows else (0, 0)


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file is damaged, and not that it is locked or that the disk is full."""
    return type(error) is sqlite3.DatabaseError


def _hash(passage: Passage) -> bytes:
    said = f"{passage.place}\0{passage.text}".encode(errors="replace")
    return blake2b(said, digest_size=_HASH_BYTES).digest()
