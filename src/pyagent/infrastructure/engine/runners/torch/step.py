"""A step's numbers on the device: one array is written on the host and copied once; all else is computed there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch

if TYPE_CHECKING:
    from pyagent._rust import BlockPool
    from pyagent.core.runners.batch import Batch
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens of several sequences, one's after the other's. T tokens, m of which give logits.

    `attention` and `rows` have an entry for each of the model's page tables: what attention reads, and where the
    tokens' keys and values go (int64 [T], page * BLOCK_TOKENS + place in the page).
    """

    tokens: Tensor  # [T] int32
    positions: Tensor  # [T] int32
    outputs: Tensor  # [m] int32, which tokens give logits
    attention: tuple[AttentionBatch, ...]
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, packed: PackedStep, layers: KvLayers, device: torch.device) -> Step:
        """Lay a step out on the device."""
        num_queries, num_tokens = packed.num_queries, packed.num_tokens
        tokens, starts_there, lengths, *tables_there = packed.to(device)

        new = torch.arange(len(tokens), dtype=torch.int32, device=device)
        # [T], whose token each is; told its size, it need not wait for the device.
        sequences = torch.repeat_interleave(starts_there.diff(), output_size=len(tokens))
        positions = new - (starts_there[1:] - lengths)[sequences]
        attention: list[AttentionBatch] = []
        rows: list[Tensor] = []
        blocks, places = positions // BLOCK_TOKENS, positions % BLOCK_TOKENS
        for group, page_in_block in layers.tables:
            pages_per_block = layers.groups[group][2]
            tables = tables_there[group].clamp(min=0)[:, page_in_block::pages_per_block].contiguous()
            shared = packed.shared[group]
            attention.append(AttentionBatch(starts_there, lengths, tables, num_queries, num_tokens, shared))
            rows.append((tables[sequences, blocks] * BLOCK_TOKENS + places).long())
        outputs = starts_there[1 : packed.num_outputs + 1] - 1
        return cls(tokens, positions, outputs, tuple(attention), tuple(rows))


class PackedStep(msgspec.Struct, frozen=True, array_like=True):
    """A step on the host, as it crosses to the device and to other ranks.

    `numbers`, 32 bits each, are the tokens, `n + 1` starts, `n` lengths, and for each group of layers `n` rows of
    `widths[group]` pages. `num_queries` and `num_tokens` are those of the `n` sequences, the first `num_outputs` of
    which give logits; `shared` are the tokens that those which decode begin with alike, for each group.
    """

    numbers: bytearray
    num_queries: list[int]
    num_tokens: list[int]
    num_outputs: int
    widths: list[int]
    shared: list[int]

    @classmethod
    def of(cls, batch: Batch, pool: BlockPool, layers: KvLayers) -> PackedStep:
        """Read from the pool where a batch's sequences are."""
        num_queries = batch.lengths
        num_tokens = [pool.num_tokens(one) + new for one, new in zip(batch.sequence_ids, num_queries, strict=True)]
        numbers = array("I", batch.tokens)
        numbers.extend(accumulate(num_queries, initial=0))
        numbers.extend(num_tokens)
        of_sequences = [pool.tables(sequence_id) for sequence_id in batch.sequence_ids]
        widths: list[int] = []
        shared: list[int] = []
        for group, (_, window, pages_per_block) in enumerate(layers.groups):
            rows = [tables[group] for tables in of_sequences]
            widths.append(_put_rows(numbers, rows))
            # Out of a window's sight pages are none, which is no prefix.
            shared.append(0 if window else shared_tokens(rows, num_queries, num_tokens, pages_per_block))
        return cls(bytearray(numbers), num_queries, num_tokens, len(batch.samplers), widths, shared)

    def to(self, device: torch.device) -> list[Tensor]:
        """Return the columns on the device. The number that stands for no page becomes -1."""
        numbers = torch.frombuffer(self.numbers, dtype=torch.int32)
        if device.type == "cuda":
            numbers = numbers.pin_memory()
        there = numbers.to(device, non_blocking=True)
        num = len(self.num_queries)
        sizes = [sum(self.num_queries), num + 1, num, *(num * width for width in self.widths)]
        columns = there.split(sizes)
        tables = [table.view(num, width) for table, width in zip(columns[3:], self.widths, strict=True)]
        return [*columns[:3], *tables]


def _put_rows(numbers: array[int], rows: Sequence[Sequence[int]]) -> int:
    """Add rows of different lengths, filled up with zeros; returns how long they are then."""
    width = max(len(row) for row in rows)
    for row in rows:
        numbers.extend(row)
        numbers.frombytes(bytes(numbers.itemsize * (width - len(row))))
    return width


def shared_tokens(
    tables: Sequence[list[int]], num_queries: Sequence[int], num_tokens: Sequence[int], pages_per_block: int
) -> int:
    """Return how many tokens, whole blocks, all sequences with one query have in the same pages, that one left out."""
    decoding = [row for row, num in enumerate(num_queries) if num == 1]
    if len(decoding) < 2:
        return 0
    ordered = [tables[row] for row in decoding]
    first, last = min(ordered), max(ordered)  # what these begin with alike, all between them do
    num_pages = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    fewest = min(num_tokens[row] for row in decoding) - 1
    return min(num_pages // pages_per_block, fewest // BLOCK_TOKENS) * BLOCK_TOKENS
