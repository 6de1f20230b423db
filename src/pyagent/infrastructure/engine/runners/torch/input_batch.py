"""What the host knows of the batch that lies on devices: whose each slot is, and what a step changes there.

A sequence's pages change where tokens go into a block that had none, and where a block became whole: the pool may have
the same one already. With steps launched ahead the second is seen a step late. How many tokens a sequence has after a
step that verified drafts, or computed a draft model's own, only the pool knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from pyagent.core.runners.batch import BLOCK_TOKENS, Batch
from pyagent.infrastructure.engine.runners.torch.attention.batch import FEWEST_SHARED
from pyagent.infrastructure.engine.runners.torch.draft_rows import by_rows, row_counts
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyagent._rust import BlockPool
    from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers

    Numbers = NDArray[np.int64]

_NO_PAGE = 0xFFFFFFFF


class InputBatch:
    """Pack steps. One thread at a time; `forget` may be called by another."""

    def __init__(self, shape: BatchShape, layers: KvLayers) -> None:
        self._shape = shape
        self._layers = layers
        self._slot_of: dict[int, int] = {}
        self._free = list(range(shape.num_slots - 1, -1, -1))
        self._forgotten: deque[int] = deque()
        self._ids: list[int] = []
        self._slots = np.zeros(0, np.int64)
        self._num_rows = 0
        self._draft_slots: list[int] = []
        self._drafted: set[int] = set()
        """Sequences whose last step had drafts, or was ahead of the pool."""
        self._num_computed = np.zeros(shape.height, np.int64)
        self._before = np.zeros((2, shape.height), np.int64)
        """Tokens computed before the last step, and before the one before it: later pages may have changed."""
        self._pages = np.zeros((shape.num_tables, shape.height, shape.num_blocks), np.int32)
        self._shared: list[int] | None = None
        self._places: list[Numbers] = []
        self._numbers: list[Numbers] = []

    def forget(self, sequence_id: int) -> None:
        """Free a sequence's slot before the next step."""
        self._forgotten.append(sequence_id)

    def forget_all(self) -> None:
        """Free all slots: after a step that failed, nothing is known of what lies on devices."""
        self._forgotten.extend(self._slot_of)
        self._num_rows = self._shape.num_slots
        self._places, self._numbers = [], []  # twice in one copy, a place gets either number on a GPU

    def pack(self, batch: Batch, pool: BlockPool) -> PackedStep:
        """Return what a batch's step changes and computes."""
        self._free_forgotten()
        ids = batch.sequence_ids
        if not batch.tokens and not self._slot_of.keys() >= set(ids):
            raise RuntimeError("the step before this one failed")
        if self._drafted:
            self._read_accepted(batch, pool)
        if ids != self._ids or batch.num_drafts:
            self._order(batch, pool)
        slots, rows = self._slots, by_rows(batch)
        after = self._num_computed[slots] + batch.lengths
        before = self._before[1, slots]
        for row in np.flatnonzero((before == 0) | (before // BLOCK_TOKENS != (after - 1) // BLOCK_TOKENS)):
            self._put_pages(int(slots[row]), pool.tables(ids[row]), int(after[row]))
        is_decode = not batch.tokens or (max(rows.lengths) == 1 and len(batch.samplers) == len(ids))
        row_slots, num_tokens, copied = slots, after, []
        if batch.num_drafts:
            row_slots, num_tokens, copied = self._put_drafts(batch, after)
        if is_decode and batch.tokens:
            self._put(row_slots + self._shape.height, np.array(batch.tokens, np.int64))
        num_drafts = np.array(row_counts(batch)) - 1 if batch.num_drafts else 0
        shared = self._shared_tokens(np.array(batch.lengths) - num_drafts, after - num_drafts, is_decode=is_decode)
        num_written = sum(map(len, self._places))
        columns = [] if is_decode else [np.array(batch.tokens, np.int64), np.cumsum([0, *rows.lengths])]
        parts = [*self._places, *self._numbers, *copied, *columns]
        packed = bytearray(np.concatenate(parts).astype(np.int32)) if parts else bytearray()
        self._places, self._numbers = [], []
        self._before[1, slots], self._before[0, slots] = self._before[0, slots], self._num_computed[slots]
        self._num_computed[slots] = after
        for segment in batch.num_ahead:
            self._before[:, slots[segment]] = pool.num_tokens(ids[segment])
            self._drafted.add(ids[segment])
        return PackedStep(
            packed,
            num_written,
            rows.lengths,
            num_tokens.tolist(),
            len(rows.samplers),
            shared,
            not is_decode,
            num_copied=len(self._draft_slots),
        )

    def _free_forgotten(self) -> None:
        if self._draft_slots:
            self._free += self._draft_slots
            self._draft_slots, self._ids = [], []
        while self._forgotten:
            sequence_id = self._forgotten.popleft()
            self._drafted.discard(sequence_id)
            slot = self._slot_of.pop(sequence_id, None)
            if slot is not None:
                self._free.append(slot)
                self._ids = []

    def _read_accepted(self, batch: Batch, pool: BlockPool) -> None:
        """Put how many tokens sequences have of which drafts were verified, or computed ahead."""
        for segment, sequence_id in enumerate(batch.sequence_ids):
            if sequence_id in self._drafted:
                self._drafted.discard(sequence_id)
                slot = self._slot_of.get(sequence_id)
                if slot is not None:
                    self._put_length(slot, pool.num_tokens(sequence_id) + batch.num_ahead.get(segment, 0))

    def _order(self, batch: Batch, pool: BlockPool) -> None:
        """Have the rows be a batch's sequences and drafts; those after them are padding."""
        ids, num_before = batch.sequence_ids, self._num_rows
        num_drafts = sum(batch.num_drafts.values())
        if len(self._free) < len(set(ids).difference(self._slot_of)) + num_drafts:
            self._make_room(set(ids))
        aheads = (batch.num_ahead.get(segment, 0) for segment in range(len(ids)))
        self._slots = np.fromiter(map(self._slot, ids, repeat(pool), aheads), np.int64, len(ids))
        self._ids = list(ids)
        self._shared = None
        self._draft_slots = [self._free.pop() for _ in range(num_drafts)]
        self._num_rows = len(ids) + num_drafts
        padding = np.full(max(0, num_before - self._num_rows), self._shape.padding)
        order = np.concatenate([self._slots_of_rows(batch), padding])
        self._put(np.arange(len(order)), order)

    def _slots_of_rows(self, batch: Batch) -> Numbers:
        counts = np.array(row_counts(batch))
        slots = np.repeat(self._slots, counts)
        is_draft = np.ones(len(slots), bool)
        is_draft[np.cumsum(counts) - counts] = False
        slots[is_draft] = self._draft_slots
        return slots

    def _put_drafts(self, batch: Batch, after: Numbers) -> tuple[Numbers, Numbers, list[Numbers]]:
        """Put how many tokens come before each draft; sequences have so many `after` the step.

        Return the slots of all rows, their tokens with these, and the slots of drafts beside their sequences'.
        """
        counts = np.array(row_counts(batch))
        ends = np.cumsum(counts)
        slots = self._slots_of_rows(batch)
        num_tokens = np.repeat(after - ends + 1, counts) + np.arange(len(slots))
        is_draft = slots != np.repeat(self._slots, counts)
        drafts = slots[is_draft]
        self._put(drafts + 2 * self._shape.height, num_tokens[is_draft] - 1)
        self._drafted.update(batch.sequence_ids[segment] for segment in batch.num_drafts)
        return slots, num_tokens, [drafts, np.repeat(self._slots, counts - 1)]

    def _make_room(self, ids: set[int]) -> None:
        """Free the slots of sequences that are not in the step; they are put anew when they are."""
        for sequence_id in [one for one in self._slot_of if one not in ids]:
            self._free.append(self._slot_of.pop(sequence_id))

    def _slot(self, sequence_id: int, pool: BlockPool, num_ahead: int) -> int:
        slot = self._slot_of.get(sequence_id)
        if slot is None:
            slot = self._slot_of[sequence_id] = self._free.pop()
            self._before[:, slot] = 0
            self._put_length(slot, pool.num_tokens(sequence_id) + num_ahead)
        return slot

    def _put_length(self, slot: int, num_tokens: int) -> None:
        self._num_computed[slot] = num_tokens
        self._put(np.array([2 * self._shape.height + slot]), np.array([num_tokens]))

    def _put_pages(self, slot: int, tables: Sequence[Sequence[int]], num_tokens: int) -> None:
        """Put the pages of the blocks that may have changed, up to the last that is written."""
        first, end = int(self._before[1, slot]) // BLOCK_TOKENS, -(-num_tokens // BLOCK_TOKENS)
        for table, (group, page) in enumerate(self._layers.tables):
            num_pages = self._layers.groups[group][2]
            pages = np.array(tables[group][first * num_pages + page : end * num_pages : num_pages], np.int64)
            pages[pages == _NO_PAGE] = 0  # out of its window's sight, it may be any
            place = self._shape.pages_of(table, slot) + first
            self._put(np.arange(place, place + len(pages)), pages)
            self._pages[table, slot, first : first + len(pages)] = pages
        self._shared = None

    def _put(self, places: Numbers, numbers: Numbers) -> None:
        self._places.append(places)
        self._numbers.append(numbers)

    def _shared_tokens(self, lengths: Numbers, num_tokens: Numbers, *, is_decode: bool) -> list[int]:
        """Return what is `read_once` of each table, as before where rows and pages are; a window's are no beginning."""
        if self._shared is not None and is_decode:
            return self._shared
        pages = self._pages[:, self._slots, : -(-int(num_tokens.max()) // BLOCK_TOKENS)]
        shared = [
            0 if self._layers.groups[group][1] else read_once(shared_tokens(pages[table], lengths, num_tokens))
            for table, (group, _) in enumerate(self._layers.tables)
        ]
        self._shared = shared if is_decode else None
        return shared


def shared_tokens(
    pages: NDArray[np.int32], num_queries: Sequence[int] | Numbers, num_tokens: Sequence[int] | Numbers
) -> int:
    """Return how many tokens, whole blocks, all sequences [n, blocks] with one query have in the same pages.

    No sequence's last token is one of them.
    """
    is_decoding = np.array(num_queries) == 1
    if is_decoding.sum() < 2:
        return 0
    fewest = (int(np.array(num_tokens)[is_decoding].min()) - 1) // BLOCK_TOKENS
    decoding = pages[is_decoding, :fewest]
    is_alike = (decoding == decoding[0]).all(0)
    return BLOCK_TOKENS * (fewest if is_alike.all() else int(is_alike.argmin()))


def read_once(num_shared: int) -> int:
    """Return how many of the shared tokens are read once for all: graphs are for one number, so there are few of them.

    Four for each power of two, and none where they are not worth a pass of their own.
    """
    unit = 1 << max(0, num_shared.bit_length() - 3)
    return num_shared // unit * unit if num_shared >= FEWEST_SHARED else 0
