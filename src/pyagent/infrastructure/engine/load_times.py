"""How long a model's way into memory takes, by its phases: what a start-up waits for."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager


class LoadTimes:
    """Seconds of each phase, in their order. For one thread."""

    def __init__(self) -> None:
        """With no phase yet."""
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count what is done meanwhile to a phase, which may come in several parts."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds to phases."""
        for name, more in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + more

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, to a millisecond."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}


def told(seconds: Mapping[str, float]) -> str:
    """Return phases in words, those that took no time left out."""
    return ", ".join(f"{name} {each:.1f} s" for name, each in seconds.items() if each >= 0.05) or "at once"
