"""Sequences whose KV is kept in files while others need the memory, and how long moving it takes.

What is kept is bounded by the size of the KV memory itself. Files are unlinked: nothing of them outlives the process.
They lie in the system's temporary folder and take disk, not memory of the process, so the ledger does not hold them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyagent import _rust
from pyagent.core.moving_average import moving_average
from pyagent.core.runners.batch import PrefixKey

logger = logging.getLogger(__name__)

_FIRST_SECONDS_PER_BYTE = 1e-9
"""Assumed until something was moved: a gigabyte a second."""
_WEIGHT = 0.3
"""Of the newest measurement in the average."""


@dataclass(frozen=True, slots=True)
class _Swapped:
    tokens: list[int]
    handle: _rust.SwapHandle


class SwapSpace:
    """The swapped sequences of one model."""

    def __init__(self, model: _rust.CpuModel, pool: _rust.BlockPool, page_bytes: int) -> None:
        self._model = model
        self._pool = pool
        self._page_bytes = page_bytes
        self._kept: dict[int, _Swapped] = {}
        self._seconds_per_byte = _FIRST_SECONDS_PER_BYTE
        self._is_broken = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the files; may be asked from any thread."""
        return sum(swapped.handle.bytes for swapped in [*self._kept.values()])

    def seconds(self, num_pages: int) -> float:
        """Return what moving so many pages out and in again takes; infinite when nothing can be kept."""
        return math.inf if self._is_broken else 2 * num_pages * self._page_bytes * self._seconds_per_byte

    def move_out(self, sequence_id: int) -> bool:
        """Keep a sequence's KV and end it in the pool; False, and nothing changed, when it cannot be kept."""
        pages = self._pool.pages_in_use(sequence_id)
        kept = sum(swapped.handle.num_pages for swapped in self._kept.values())
        if kept + len(pages) > self._pool.stats().num_pages:
            return False
        started = time.perf_counter()
        try:
            handle = self._model.swap_out(pages)
        except OSError as error:
            logger.warning("KV memory cannot be swapped out, requests that yield are computed again: %s", error)
            self._is_broken = True
            return False
        self._note(handle.bytes, time.perf_counter() - started)
        self._kept[sequence_id] = _Swapped(self._pool.tokens(sequence_id), handle)
        self._pool.release(sequence_id)
        return True

    def move_in(self, sequence_id: int, key: PrefixKey, take: Callable[[int, Callable[[], None]], bool]) -> bool:
        """Start a sequence where it was. `take` does what takes so many pages, or says that there are not enough.

        Raises `OSError` when what was kept cannot be read; the sequence is not started then.
        """
        swapped = self._kept[sequence_id]
        started = time.perf_counter()
        if not take(swapped.handle.num_pages, lambda: self._restore(sequence_id, swapped, key)):
            return False
        self._note(swapped.handle.bytes, time.perf_counter() - started)
        del self._kept[sequence_id]
        return True

    def _restore(self, sequence_id: int, swapped: _Swapped, key: PrefixKey) -> None:
        num_cached, pages = self._pool.restore(
            sequence_id,
            swapped.tokens,
            adapter_id=key.adapter_id,
            media_hash=key.media_hash,
            tenant=key.tenant,
            priority=key.priority,
        )
        try:
            self._model.swap_in(swapped.handle, pages)
        except OSError:
            self._pool.release(sequence_id)
            raise
        self._pool.commit(sequence_id, swapped.tokens[num_cached:])

    def drop(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._kept.pop(sequence_id, None)

    def _note(self, num_bytes: int, seconds: float) -> None:
        if num_bytes:
            self._seconds_per_byte = moving_average(self._seconds_per_byte, seconds / num_bytes, _WEIGHT)
