"""How far a rank's weights are read, and what that takes of reading files and of moving what was read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent._rust import LoadProgress


class ReadProgress:
    """Counts what several threads read of a model, and move to its device."""

    def __init__(
        self,
        load: LoadProgress | None = None,
        num_ranks: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Count to a load what the rank reads, as a part of what all ranks do, who read as much at the same time."""
        self._load = load
        self._num_ranks = num_ranks
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._thread_seconds = {"read": 0.0, "move": 0.0}

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count what a thread does meanwhile as reading a file."""
        with self._counting("read"):
            yield

    @contextmanager
    def moving(self) -> Generator[None]:
        """Count what a thread does meanwhile as moving what was read, or laying it out."""
        with self._counting("move"):
            yield

    def note(self, num_bytes: int) -> None:
        """Count bytes of weights that are there."""
        if self._load is not None:
            self._load.add(num_bytes * self._num_ranks)

    @contextmanager
    def _counting(self, name: str) -> Generator[None]:
        start = self._clock()
        yield
        with self._lock:
            self._thread_seconds[name] += self._clock() - start

    def phases(self) -> dict[str, float]:
        """Return the seconds since the start, divided as those of all threads are."""
        whole, all_threads = self._clock() - self._started, sum(self._thread_seconds.values())
        if not all_threads:
            return {"read": whole}
        return {name: whole * seconds / all_threads for name, seconds in self._thread_seconds.items()}
