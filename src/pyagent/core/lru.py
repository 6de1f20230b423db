"""Values within a bound of bytes; the least recently used go first. Each use has its own lock, where it needs one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class ByteBoundedLru(Generic[Key, Value]):
    """A map that evicts. `num_bytes` is what all its values take, as told when they were put in."""

    def __init__(self, has_room: Callable[[int], bool], max_entries: int | None = None) -> None:
        """`has_room` says whether so many bytes may be held in all: a number compared, or memory reserved."""
        self._has_room = has_room
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return a key's value, which is now the most recently used; None when it is not held."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def peek(self, key: Key) -> Value | None:
        """Return a key's value without using it."""
        return self._entries[key][0] if key in self._entries else None

    def oldest(self) -> Value | None:
        """Return the value that goes next; None when there is none."""
        return next(iter(self._entries.values()))[0] if self._entries else None

    def put(self, key: Key, value: Value, num_bytes: int) -> None:
        """Hold a value as the most recently used, in place of the key's other, and evict until all have room."""
        self.pop(key)
        self._entries[key] = value, num_bytes
        self.num_bytes += num_bytes
        while self._entries and not self._fits():
            self.pop_oldest()

    def pop(self, key: Key) -> None:
        """Let go of a key's value, if there is one."""
        self.num_bytes -= self._entries.pop(key, (None, 0))[1]

    def pop_oldest(self) -> None:
        """Let go of the least recently used."""
        self.num_bytes -= self._entries.popitem(last=False)[1][1]

    def _fits(self) -> bool:
        is_few = self._max_entries is None or len(self._entries) <= self._max_entries
        return is_few and self._has_room(self.num_bytes)
