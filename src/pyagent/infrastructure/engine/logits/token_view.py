"""Token ids as plugins see them: those of a request's log, which they cannot change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload


class TokenView(Sequence[int]):
    """A part of a token log, to its end or up to `stop`. Nothing is copied; it grows as the log does."""

    __slots__ = ("_log", "_start", "_stop")

    def __init__(self, log: list[int], start: int = 0, stop: int | None = None) -> None:
        self._log = log
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        end = len(self._log) if self._stop is None else self._stop
        return max(0, end - self._start)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """Return a token, or a list of some."""
        length = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step > 0:
                return self._log[self._start + start : self._start + max(start, stop) : step]
            return [self._log[self._start + place] for place in range(start, stop, step)]
        place = index + length if index < 0 else index
        if not 0 <= place < length:
            raise IndexError(f"token {index} of {length}")
        return self._log[self._start + place]

    def __iter__(self) -> Iterator[int]:
        return islice(self._log, self._start, self._start + len(self))

    def __repr__(self) -> str:
        return repr(self[:])
