"""Answers in memory by key, bounded in bytes and in age.

Knows no requests: a key is bytes, compared in full, so that no two can be mixed up. Invariant: the entries take at most
`max_bytes`, counted as encoded text and a fixed sum each, and none is older than `ttl_seconds`. The least recently used
is evicted first, pinned entries after all others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pyagent.core.messages import ChatDelta
from pyagent.core.resilience.deadline import Clock

_ENTRY_BYTES = 700
"""Three slots in dictionaries, the entry, and the headers of its two byte strings."""
_DECODER = msgspec.msgpack.Decoder(list[ChatDelta])


@dataclass(frozen=True, slots=True)
class _Entry:
    deltas: bytes
    expires_at: float
    num_bytes: int
    is_pinned: bool
    tenant: str


class Held(NamedTuple):
    """Counts of entries, and their bytes."""

    num_entries: int
    num_pinned: int
    num_bytes: int


def _entries() -> OrderedDict[bytes, _Entry]:
    return OrderedDict()


@dataclass(slots=True)
class ResponseStore:
    """Whole answers by key. One event loop owns it."""

    max_bytes: int
    ttl_seconds: float
    clock: Clock = time.monotonic
    num_bytes: int = 0
    num_evicted: int = 0
    num_expired: int = 0
    _plain: OrderedDict[bytes, _Entry] = field(default_factory=_entries)
    _pinned: OrderedDict[bytes, _Entry] = field(default_factory=_entries)
    _by_age: OrderedDict[bytes, _Entry] = field(default_factory=_entries)

    def __len__(self) -> int:
        return len(self._by_age)

    def held(self, tenant: str | None = None) -> Held:
        """Return the counts of a tenant's entries, or of all."""
        if tenant is None:
            return Held(len(self), len(self._pinned), self.num_bytes)
        own = [entry for entry in self._by_age.values() if entry.tenant == tenant]
        return Held(len(own), sum(entry.is_pinned for entry in own), sum(entry.num_bytes for entry in own))

    def get(self, key: bytes) -> list[ChatDelta] | None:
        """Return a copy of an answer's deltas, or None."""
        self.expire()
        entry = self._by_age.get(key)
        if entry is None:
            return None
        self._table_of(entry).move_to_end(key)
        return _DECODER.decode(entry.deltas)

    def put(self, key: bytes, deltas: list[ChatDelta], *, is_pinned: bool = False, tenant: str = "") -> None:
        """Store a tenant's answer, unless it is larger than the cache."""
        self.expire()
        if key in self._by_age:
            self._drop(key)
        encoded = msgspec.msgpack.encode(deltas)
        num_bytes = len(key) + len(encoded) + _ENTRY_BYTES
        if num_bytes > self.max_bytes:
            return
        entry = _Entry(encoded, self.clock() + self.ttl_seconds, num_bytes, is_pinned, tenant)
        self._by_age[key] = self._table_of(entry)[key] = entry
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._plain or self._pinned)))
            self.num_evicted += 1

    def expire(self) -> None:
        """Remove expired entries: all live equally long, so the first stored expire first."""
        now = self.clock()
        while self._by_age and (oldest := next(iter(self._by_age.items())))[1].expires_at <= now:
            self._drop(oldest[0])
            self.num_expired += 1

    def clear(self, tenant: str | None = None) -> int:
        """Remove a tenant's entries, or all; return how many there were."""
        keys = [key for key, entry in self._by_age.items() if tenant in {None, entry.tenant}]
        for key in keys:
            self._drop(key)
        return len(keys)

    def _drop(self, key: bytes) -> None:
        entry = self._by_age.pop(key)
        del self._table_of(entry)[key]
        self.num_bytes -= entry.num_bytes

    def _table_of(self, entry: _Entry) -> OrderedDict[bytes, _Entry]:
        return self._pinned if entry.is_pinned else self._plain
