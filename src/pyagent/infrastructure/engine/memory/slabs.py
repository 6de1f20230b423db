"""KV memory that grows by slabs as long as the ledger has room, and is given back when others need it.

The pool's address space is there from the start; how many of its pages may be used is a limit, and the ledger holds the
bytes up to that limit. Growing comes before evicting what is cached (but not what is demoted), evicting before asking
other holders. Whatever
takes pages and whatever gives memory back hold one lock: a page must not be taken between being found empty and being
given back. Others are asked without it, so that two engines that ask each other cannot lock each other out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from pyagent import _rust
from pyagent.core.runners.factory import KvReservation
from pyagent.core.runners.runner import StepMemoryError

logger = logging.getLogger(__name__)

SLAB_BYTES = 32 << 20
_ASK_SECONDS = 1.0
"""Others are not asked again so soon after they had nothing to give."""


class KvSlabs:
    """The pages of a block pool that may be used now. Safe from any thread."""

    def __init__(
        self,
        pool: _rust.BlockPool,
        page_bytes: int,
        give_back: Callable[[Sequence[int]], None],
        reservation: KvReservation,
    ) -> None:
        """`give_back` returns the memory of empty pages to the system; `reservation` holds the first slab."""
        self._pool = pool
        self._page_bytes = page_bytes
        self._give_back = give_back
        self._reservation = reservation
        self._slab_pages = max(1, SLAB_BYTES // page_bytes)
        self._num_pages = pool.stats().num_pages
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        pool.set_limit(min(self._num_pages, reservation.num_bytes // page_bytes))

    @property
    def free_pages(self) -> int:
        """Pages that can be had now: within the limit, those of unused prefixes included, or by growing."""
        stats = self._pool.stats()
        room = min(self._num_pages - stats.limit, self._reservation.free_bytes // self._page_bytes)
        return stats.free + max(0, room)

    def take(self, num_pages: int, take: Callable[[], None]) -> bool:
        """Call `take`, which takes up to `num_pages` pages from the pool, with as much memory as can be had.

        False, and nothing changed, when it raises `OutOfBlocks` all the same.
        """
        return self._try_take(num_pages, take) or (self._ask_others(num_pages) and self._try_take(num_pages, take))

    def _try_take(self, num_pages: int, take: Callable[[], None]) -> bool:
        with self._lock:
            self._grow(num_pages)
            try:
                take()
            except _rust.OutOfBlocks:
                return False
            return True

    def _grow(self, num_pages: int) -> None:
        """Make so many pages empty by raising the limit, as far as the ledger has room."""
        stats = self._pool.stats()
        # Demoted pages, such as those a window has left behind, are as good as empty.
        missing = num_pages - (stats.limit - stats.active - stats.cached + stats.demoted)
        if missing <= 0 or stats.limit == self._num_pages:
            return
        slabs = -(-missing // self._slab_pages)
        for more in (slabs * self._slab_pages, missing):
            limit = min(stats.limit + more, self._num_pages)
            if self._reservation.try_resize(limit * self._page_bytes):
                self._pool.set_limit(limit)
                return

    def _ask_others(self, num_pages: int) -> bool:
        now = time.monotonic()
        if now - self._asked_at < _ASK_SECONDS or self._pool.limit == self._num_pages:
            return False
        has_given = self._reservation.ask_others(num_pages * self._page_bytes)
        self._asked_at = float("-inf") if has_given else now
        return has_given

    def give_back(self, num_bytes: int | None = None) -> None:
        """Free so many bytes, or all, of what no sequence holds: empty pages first, then cached ones."""
        with self._lock:
            if self._reservation.is_released:
                return
            stats = self._pool.stats()
            spare = stats.limit - stats.active
            num_pages = spare if num_bytes is None else min(spare, -(-num_bytes // self._page_bytes))
            limit = stats.limit - max(0, num_pages)
            limit += self._pool.set_limit(limit)  # pinned pages stay
            self._pool.set_limit(limit)
            self._give_back(self._pool.take_freed())
            self._reservation.try_resize(limit * self._page_bytes)


class WholeKv:
    """KV memory that is there whole or not at all: a device's, of which no pages can be given back. Any thread.

    It is given back while no sequence holds any, with what is cached in it, and taken again when one needs it.
    """

    def __init__(
        self,
        pool: _rust.BlockPool,
        num_bytes: int,
        allocate: Callable[[], None],
        drop: Callable[[], None],
        reservation: KvReservation,
    ) -> None:
        """For memory that is there. `allocate` raises `StepMemoryError` where the device lacks it."""
        self._pool = pool
        self._num_bytes = num_bytes
        self._allocate = allocate
        self._drop = drop
        self._reservation = reservation
        self._num_pages = pool.stats().num_pages
        self._is_there, self._is_told = True, False
        self._asked_at = float("-inf")
        self._lock = threading.Lock()
        reservation.try_resize(num_bytes)

    @property
    def free_pages(self) -> int:
        """Pages that can be had now."""
        if self._is_there:
            return self._pool.stats().free
        return self._num_pages if self._reservation.free_bytes >= self._num_bytes else 0

    def take(self, num_pages: int, take: Callable[[], None]) -> bool:
        """As `KvSlabs.take`."""
        del num_pages
        return self._try_take(take) or (self._ask_others() and self._try_take(take))

    def _try_take(self, take: Callable[[], None]) -> bool:
        with self._lock:
            if not self._is_there and not self._come_back():
                return False
            try:
                take()
            except _rust.OutOfBlocks:
                return False
            return True

    def _come_back(self) -> bool:
        if not self._reservation.try_resize(self._num_bytes):
            return False
        try:
            self._allocate()
        except StepMemoryError as error:  # another program has it
            if not self._is_told:
                logger.warning("the device has no room for the KV memory that it had: %s", error)
            self._is_told = True
            self._reservation.try_resize(0)
            return False
        self._pool.set_limit(self._num_pages)
        self._is_there, self._is_told = True, False
        return True

    def _ask_others(self) -> bool:
        now = time.monotonic()
        if self._is_there or now - self._asked_at < _ASK_SECONDS:
            return False
        has_given = self._reservation.ask_others(self._num_bytes)
        self._asked_at = float("-inf") if has_given else now
        return has_given

    def give_back(self, num_bytes: int | None = None) -> None:
        """Free all of it, where no sequence holds any and nothing is pinned there."""
        del num_bytes
        with self._lock:
            if self._reservation.is_released or not self._is_there or self._pool.stats().active:
                return
            if self._pool.set_limit(0):
                self._pool.set_limit(self._num_pages)
                return
            self._pool.take_freed()
            self._drop()
            self._is_there = False
            self._reservation.try_resize(0)
