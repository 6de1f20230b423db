"""Whom to probe next, and whom to pick at random: the live members without this node."""

from __future__ import annotations

import random
from collections.abc import Collection


class ProbeOrder:
    """Whom to probe next: all in turn, shuffled anew each round, new ones at a random place (SWIM, section 4.3)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ids: list[str] = []
        self._next = 0
        self._told = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: str) -> None:  # noqa: A002
        """Take a member in."""
        place = self._rng.randint(0, len(self._ids))
        self._ids.insert(place, id)
        if place < self._next:
            self._next += 1

    def remove(self, id: str) -> None:  # noqa: A002
        """Leave a member out."""
        place = self._ids.index(id)
        del self._ids[place]
        if place < self._next:
            self._next -= 1

    def next(self) -> str | None:
        """Return the member whose turn it is."""
        if self._next >= len(self._ids):
            self._rng.shuffle(self._ids)
            self._next = 0
        if not self._ids:
            return None
        self._next += 1
        return self._ids[self._next - 1]

    def some(self, most: int, without: Collection[str] = ()) -> list[str]:
        """Return up to so many members, other ones each time until all had their turn."""
        found: list[str] = []
        for _ in range(len(self._ids)):
            if len(found) == most:
                break
            self._told = (self._told + 1) % len(self._ids)
            if self._ids[self._told] not in without:
                found.append(self._ids[self._told])
        return found

    def sample(self, most: int, without: Collection[str] = ()) -> list[str]:
        """Return up to so many members at random."""
        found = self._rng.sample(self._ids, min(len(self._ids), most + len(without)))
        return [one for one in found if one not in without][:most]
