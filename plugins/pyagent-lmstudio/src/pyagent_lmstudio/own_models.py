"""The models that a backend loaded itself, least recently used first. Pure: it names what to unload."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager


class OwnModels:
    """Keeps the order of use, and how many answers of each model are under way: such a model stays."""

    def __init__(self) -> None:
        self._key_to_num_running: OrderedDict[str, int] = OrderedDict()

    def add(self, key: str) -> None:
        """Note that a model was loaded here."""
        self._key_to_num_running.setdefault(key, 0)

    def discard(self, key: str) -> None:
        """Forget a model: it is unloaded, or gone by itself."""
        self._key_to_num_running.pop(key, None)

    @contextmanager
    def in_use(self, key: str) -> Generator[None]:
        """Hold a model while it answers; one that was not loaded here is left alone."""
        if key not in self._key_to_num_running:
            yield
            return
        self._key_to_num_running.move_to_end(key)
        self._key_to_num_running[key] += 1
        try:
            yield
        finally:
            if key in self._key_to_num_running:
                self._key_to_num_running[key] -= 1

    def surplus(self, limit: int) -> list[str]:
        """Return the models to unload so that `limit` stay: those used longest ago, of those that are idle."""
        num_surplus = len(self._key_to_num_running) - limit
        idle = [key for key, num_running in self._key_to_num_running.items() if not num_running]
        return idle[: max(0, num_surplus)]

    def keys(self) -> list[str]:
        """Return all of them."""
        return list(self._key_to_num_running)
