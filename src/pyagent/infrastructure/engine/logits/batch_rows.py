"""Which row of a batch processor is whose, from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class RowChanges(NamedTuple, Generic[T]):
    """The rows after a change, and how they came about: removed, then added, then moved (from, to)."""

    rows: list[T]
    removed: list[int]
    added: list[tuple[int, T]]
    moved: list[tuple[int, int]]

    @property
    def is_none(self) -> bool:
        """Whether all is as it was."""
        return not (self.removed or self.added)


def change_rows(rows: Sequence[T], wanted: Sequence[T]) -> RowChanges[T]:
    """Return how `rows` become those `wanted`, in whatever order leaves most of them where they are."""
    staying = set(wanted)
    left: list[T | None] = [row if row in staying else None for row in rows]
    removed = [place for place, row in enumerate(left) if row is None]
    known = set(rows)
    coming = [row for row in wanted if row not in known]
    places = [*removed, *range(len(rows), len(rows) + len(coming) - len(removed))]
    added = list(zip(places, coming, strict=False))
    left += [None] * max(0, len(coming) - len(removed))
    for place, row in added:
        left[place] = row
    moved: list[tuple[int, int]] = []
    for free in removed[len(coming) :]:
        while left and left[-1] is None:
            left.pop()
        if free >= len(left):
            break
        moved.append((len(left) - 1, free))
        left[free] = left.pop()
    return RowChanges([row for row in left if row is not None], removed, added, moved)
