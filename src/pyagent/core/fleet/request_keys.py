"""What the idempotency keys of requests stand for: that a request was taken is kept with the run that it went on with.

A key that begins a run needs no place here: it is the run's id. On disk it is `infrastructure.storage.request_keys`'s
business.
"""

from __future__ import annotations

from typing import Protocol


class RequestKeys(Protocol):
    """Keeps, for each key, what was asked by it (a hash), as long as the run is kept."""

    def keep(self, key: str, asked: str, run: str) -> str | None:
        """Keep what a key asks of a run; return what it asked before, and keep nothing, where it did."""
        ...

    def find(self, key: str) -> str | None:
        """Return what a key asked; None for a new one."""
        ...

    def drop(self, key: str) -> None:
        """Forget a key whose request came to nothing."""
        ...


class KeysInMemory:
    """Keeps keys as long as the program runs, and their runs are kept."""

    def __init__(self) -> None:
        self._key_to_asked: dict[str, tuple[str, str]] = {}

    def keep(self, key: str, asked: str, run: str) -> str | None:
        """Keep a new key."""
        if (before := self.find(key)) is None:
            self._key_to_asked[key] = (asked, run)
        return before

    def find(self, key: str) -> str | None:
        """Return what a key asked."""
        return self._key_to_asked[key][0] if key in self._key_to_asked else None

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._key_to_asked.pop(key, None)

    def forget(self, run: str) -> None:
        """Forget the keys of a run that is deleted."""
        self._key_to_asked = {key: kept for key, kept in self._key_to_asked.items() if kept[1] != run}
