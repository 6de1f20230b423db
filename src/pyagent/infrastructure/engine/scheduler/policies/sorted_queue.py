"""Requests in the order of a key that holds while they wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from pyagent.core.scheduling import Queued

Key = tuple[float, ...]


class SortedQueue:
    """Waiting requests by key, ties by id. A change costs a binary search and a move of pointers."""

    def __init__(self) -> None:
        self._order: list[tuple[Key, int]] = []
        self._requests: dict[int, tuple[Key, Queued]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Queued]:
        for _, request_id in self._order:
            yield self._requests[request_id][1]

    def add(self, key: Key, request: Queued) -> None:
        """Put a request in its place."""
        self._requests[request.id] = (key, request)
        insort(self._order, (key, request.id))

    def remove(self, request: Queued) -> Key:
        """Take a request out; returns the key it had."""
        key, _ = self._requests.pop(request.id)
        del self._order[bisect_left(self._order, (key, request.id))]
        return key
