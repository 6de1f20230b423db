"""Python's garbage collector beside models: what loading left stays out of its sight, and its pauses are counted.

A full collection looks at each object that may be in a cycle, and all threads of Python wait meanwhile, the loop of
steps too. What a model brought (vocabulary, templates, torch's modules) is there until the model goes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from functools import cache

import msgspec


class GarbageStats(msgspec.Struct, frozen=True):
    """Garbage collections of a process since its engine was made: their pauses, and the objects left alone."""

    num_collections: int = 0
    pause_seconds: float = 0.0
    longest_pause_seconds: float = 0.0
    num_frozen: int = 0


def freeze_heap() -> None:
    """Leave alone what there is now, young garbage aside: after a model is loaded."""
    gc.collect(1)
    gc.freeze()
    num_frozen.cache_clear()


def collect_frozen() -> None:
    """Collect all, what was left alone too, and leave alone what is there then: after a model was closed."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    num_frozen.cache_clear()


@cache
def num_frozen() -> int:
    """Return how many objects were left alone the last time; Python counts them one by one, milliseconds in all."""
    return gc.get_freeze_count()


class GarbageWatch:
    """Counts this process's collections from `start` to `stop`."""

    def __init__(self) -> None:
        """With none counted."""
        self._started = self._total = self._longest = 0.0
        self._num = 0

    def start(self) -> None:
        """Count from now on."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Count no more; again is no fault."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    @property
    def stats(self) -> GarbageStats:
        """What was counted."""
        return GarbageStats(self._num, round(self._total, 6), round(self._longest, 6), num_frozen())

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        del info
        if phase == "start":
            self._started = time.perf_counter()
        elif self._started:
            pause = time.perf_counter() - self._started
            self._num, self._total, self._longest = self._num + 1, self._total + pause, max(self._longest, pause)
