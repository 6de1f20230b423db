"""The sequences being computed, as they lie on a device from step to step: only what changes crosses.

Each sequence has a slot: its last token, how many of its tokens are computed, its pages. All slots are one array of
int32, so that whatever changed is one copy of places and numbers. A step's rows are slots in an order, which lies there
too; where order and pages stay, as in most steps that decode, nothing crosses. A draft that a step verifies is a row,
and has a slot for that step, with its sequence's pages. The last slot is the padding: rows that fill up a graph have
it, and compute into a page of their own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
from pyagent.infrastructure.engine.runners.torch.step import PackedStep, Step

if TYPE_CHECKING:
    from pyagent.core.runners.factory import LargestStep


class BatchShape(NamedTuple):
    """Places in the array: `num_slots + 1` of order, last tokens and lengths, then for each table slots' pages.

    Host and devices have it from the same numbers.
    """

    num_slots: int
    num_blocks: int
    num_tables: int

    @classmethod
    def of(cls, step: LargestStep, context_length: int, num_tables: int) -> BatchShape:
        """For steps up to the largest."""
        return cls(step.num_outputs, -(-(step.num_positions or context_length) // BLOCK_TOKENS), num_tables)

    @property
    def padding(self) -> int:
        """The slot that is no sequence's."""
        return self.num_slots

    @property
    def height(self) -> int:
        """Slots in all."""
        return self.num_slots + 1

    def pages_of(self, table: int, slot: int) -> int:
        """The place of a slot's first page."""
        return 3 * self.height + (table * self.height + slot) * self.num_blocks

    @property
    def size(self) -> int:
        """Numbers in all."""
        return self.pages_of(self.num_tables, 0)


class DeviceBatch:
    """The array on one device."""

    def __init__(self, shape: BatchShape, spare_page: int, device: torch.device) -> None:
        """With no sequences; `spare_page` is never one's."""
        self._device, self._padding = device, shape.padding
        self._numbers = torch.zeros(shape.size, dtype=torch.int32, device=device)
        first = shape.pages_of(0, 0)
        self._order, self._last_tokens, self._lengths = self._numbers[:first].view(3, shape.height)
        self._tables = self._numbers[first:].view(shape.num_tables, shape.height, shape.num_blocks)
        self._tables[:, shape.padding] = spare_page
        self._order.fill_(shape.padding)

    def take(self, packed: PackedStep) -> list[Tensor]:
        """Write what a step changes; returns its tokens and starts, where it brings them."""
        if not packed.numbers:
            return []
        numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
        if self._device.type == "cuda":
            numbers = numbers.pin_memory()
        there = numbers.to(self._device, non_blocking=True)
        written, copied = packed.num_written, packed.num_copied
        if written:
            self._numbers.index_copy_(0, there[:written].long(), there[written : 2 * written])
        if copied:
            drafts, sequences = there[2 * written : 2 * (written + copied)].long().split(copied)
            tables = self._tables[:, :, : -(-max(packed.num_tokens) // BLOCK_TOKENS)]
            tables.index_copy_(1, drafts, tables.index_select(1, sequences))
        if not packed.has_tokens:
            return []
        columns, num_starts = there[2 * (written + copied) :], len(packed.num_queries) + 1
        return list(columns.split([len(columns) - num_starts, num_starts]))

    def step(self, packed: PackedStep) -> Step:
        """Lay a step out, once what it changes is written."""
        if columns := self.take(packed):
            return self.segments(packed, *columns)
        return self.decode(packed.num_tokens, packed.shared, packed.first_row)

    def decode(self, num_tokens: Sequence[int], shared: Sequence[int], first_row: int = 0) -> Step:
        """Lay out the next token of rows of the order, whose sequences have up to `num_tokens` with it."""
        num_rows = len(num_tokens)
        self._lengths[self._padding :].zero_()
        slots = self._order[first_row : first_row + num_rows].long()
        computed = self._lengths.index_select(0, slots)
        starts = torch.arange(num_rows + 1, dtype=torch.int32, device=self._device)
        rows = _Rows(slots, computed, starts, [1] * num_rows, num_tokens, shared)
        return self._laid_out(rows, self._last_tokens.index_select(0, slots), starts[:-1], computed, num_rows)

    def segments(self, packed: PackedStep, tokens: Tensor, starts: Tensor) -> Step:
        """Lay out segments of any length: `tokens` [T] from `starts` [n + 1] on, one for each row of the order."""
        slots = self._order[packed.first_row : packed.first_row + len(packed.num_queries)].long()
        computed = self._lengths.index_select(0, slots)
        # [T], whose token each is; told its size, it need not wait for the device.
        sequences = torch.repeat_interleave(starts.diff(), output_size=len(tokens))
        new = torch.arange(len(tokens), dtype=torch.int32, device=self._device)
        positions = new - (starts[:-1] - computed)[sequences]
        rows = _Rows(slots, computed, starts, packed.num_queries, packed.num_tokens, packed.shared)
        return self._laid_out(rows, tokens, sequences, positions, packed.num_outputs)

    def _laid_out(self, rows: _Rows, tokens: Tensor, sequences: Tensor, positions: Tensor, num_outputs: int) -> Step:
        lengths = rows.num_computed + rows.starts.diff()
        width = -(-max(rows.num_tokens) // BLOCK_TOKENS)
        tables = self._tables[:, :, :width].index_select(1, rows.slots)
        pages = tables[:, sequences, positions // BLOCK_TOKENS]  # [tables, T]
        places = (pages * BLOCK_TOKENS + positions % BLOCK_TOKENS).long()
        attention = tuple(
            AttentionBatch(rows.starts, lengths, table, rows.num_queries, rows.num_tokens, num_shared)
            for table, num_shared in zip(tables, rows.shared, strict=True)
        )
        outputs = rows.starts[1 : num_outputs + 1] - 1
        return Step(tokens, positions, outputs, attention, tuple(places), rows.slots, lengths)

    @contextmanager
    def without_rows(self) -> Generator[None]:
        """Have all rows be padding meanwhile."""
        order = self._order.clone()
        self._order.fill_(self._padding)
        try:
            yield
        finally:
            self._order.copy_(order)

    def note(self, step: Step) -> None:
        """Note that a step's tokens are computed."""
        self._lengths.index_copy_(0, step.slots, step.lengths)

    def note_tokens(self, tokens: Tensor) -> None:
        """Note the tokens [m] with which the first rows of the order go on."""
        self._last_tokens.index_copy_(0, self._order[: len(tokens)].long(), tokens.int())


class _Rows(NamedTuple):
    """A step's sequences [n]: slots, tokens computed before; the first places of their queries [n + 1].

    On the host, how many queries and tokens they have, and for each table how many of those are shared.
    """

    slots: Tensor
    num_computed: Tensor
    starts: Tensor
    num_queries: Sequence[int]
    num_tokens: Sequence[int]
    shared: Sequence[int]
