"""Large values by their content: each is kept once, however many records and runs have it.

A value's key is the blake2b of its bytes. A list kept as a chain has a key for each of its beginnings: an entry is kept
with the key of what comes before it, so a conversation that grows by a message grows by that message. Keys check what
is read. A value goes when the last run that uses it is deleted.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import cast

import msgspec

from pyagent.infrastructure.storage.database import Database

KEY_BYTES = 16
_COMPRESSED_FROM = 256
_PLAIN, _ZLIB = b"\0", b"\1"


class Blobs:
    """The values of a database. Writing goes into the transaction under way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, run: int, value: bytes) -> bytes:
        """Keep a value for a run; return its key."""
        key = blake2b(value, digest_size=KEY_BYTES).digest()
        execute = self._database.execute
        found = self._database.rows("SELECT id FROM blobs WHERE hash = ?", (key,))
        blob = found[0][0] if found else execute("INSERT INTO blobs (hash, body) VALUES (?, ?)", (key, _packed(value)))
        execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (run, blob))
        return key

    def put_chain(self, run: int, entries: Sequence[bytes]) -> bytes:
        """Keep a list, of which beginnings that are kept already take no more room; return its key."""
        key = b""
        for entry in entries:
            key = self.put(run, msgspec.msgpack.encode((key, entry)))
        return key

    def get(self, key: bytes) -> bytes:
        """Return the value of a key; raises `ValueError` when it is gone or damaged."""
        found = self._database.rows("SELECT body FROM blobs WHERE hash = ?", (key,))
        if not found:
            raise ValueError(f"the value {key.hex()} is gone")
        body = cast("bytes", found[0][0])
        try:
            value = zlib.decompress(body[1:]) if body[:1] == _ZLIB else body[1:]
        except zlib.error as error:
            raise ValueError(f"the value {key.hex()} is damaged") from error
        if blake2b(value, digest_size=KEY_BYTES).digest() != key:
            raise ValueError(f"the value {key.hex()} is damaged")
        return value

    def get_chain(self, key: bytes) -> list[bytes]:
        """Return the entries of a list, first to last; raises `ValueError` when one is gone or damaged."""
        entries: list[bytes] = []
        while key:
            key, entry = msgspec.msgpack.decode(self.get(key), type=tuple[bytes, bytes])
            entries.append(entry)
        return entries[::-1]

    def share(self, run: int, other: int) -> None:
        """Let another run use all that a run uses."""
        self._database.execute("INSERT OR IGNORE INTO uses SELECT ?, blob FROM uses WHERE run = ?", (other, run))

    def release(self, run: int) -> None:
        """Delete the values that no run but this one uses."""
        lonely = (
            "DELETE FROM blobs WHERE id IN (SELECT mine.blob FROM uses AS mine WHERE mine.run = ? AND NOT EXISTS"
            " (SELECT 1 FROM uses AS other WHERE other.blob = mine.blob AND other.run != mine.run))"
        )
        self._database.execute(lonely, (run,))
        self._database.execute("DELETE FROM uses WHERE run = ?", (run,))


def _packed(value: bytes) -> bytes:
    if len(value) >= _COMPRESSED_FROM:
        small = zlib.compress(value, 1)
        if len(small) < len(value):
            return _ZLIB + small
    return _PLAIN + value
