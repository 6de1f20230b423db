"""How far a model's weights are read: a line in the log for each five seconds of a long load, and what it went to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

_TELL_SECONDS = 5.0
_GIGABYTE = 1e9


class ReadProgress:
    """Counts what several threads read of a model, and move to its device."""

    def __init__(self, path: str, total_bytes: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """For weights that take so many bytes on the device."""
        self._path = path
        self._total_bytes = total_bytes
        self._clock = clock
        self._started = self._told = clock()
        self._lock = threading.Lock()
        self._thread_seconds = {"read": 0.0, "move": 0.0}
        self.num_bytes = 0

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
        now = self._clock()
        with self._lock:
            self.num_bytes += num_bytes
            is_due = now - self._told >= _TELL_SECONDS
            if is_due:
                self._told = now
        if is_due:
            self._tell(now - self._started)

    def _tell(self, seconds: float) -> None:
        done, total = self.num_bytes / _GIGABYTE, self._total_bytes / _GIGABYTE
        percent = min(100, 100 * self.num_bytes // max(1, self._total_bytes))
        rate = done / seconds
        logger.info("reading %s: %d %%, %.1f of %.1f GB, %.2f GB/s", self._path, percent, done, total, rate)

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
