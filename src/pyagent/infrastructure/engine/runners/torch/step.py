"""A step's numbers on the device: one array is written on the host and copied once; all else is computed there."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    def of(cls, batch: Batch, pool: BlockPool, layers: KvLayers, device: torch.device) -> Step:
        """Read from the pool where a batch's sequences are, and lay the batch out on the device."""
        packed = _Packed()
        num_queries = batch.lengths
        num_tokens = [pool.num_tokens(one) + new for one, new in zip(batch.sequence_ids, num_queries, strict=True)]
        starts = [0]
        for num in num_queries:
            starts.append(starts[-1] + num)
        packed.put(batch.tokens)
        packed.put(starts)
        packed.put(num_tokens)
        of_sequences = [pool.tables(sequence_id) for sequence_id in batch.sequence_ids]
        for group in range(len(layers.groups)):
            packed.put_rows([tables[group] for tables in of_sequences])
        tokens, starts_there, lengths, *tables_there = packed.to(device)

        new = torch.arange(len(batch.tokens), dtype=torch.int32, device=device)
        # [T], whose token each is; told its size, it need not wait for the device.
        sequences = torch.repeat_interleave(starts_there.diff(), output_size=len(batch.tokens))
        positions = new - (starts_there[1:] - lengths)[sequences]
        attention: list[AttentionBatch] = []
        rows: list[Tensor] = []
        blocks, places = positions // BLOCK_TOKENS, positions % BLOCK_TOKENS
        for group, page_in_block in layers.tables:
            pages_per_block = layers.groups[group][2]
            tables = tables_there[group].clamp(min=0)[:, page_in_block::pages_per_block].contiguous()
            shared = 0
            if layers.groups[group][1] == 0:  # out of a window's sight pages are none, which is no prefix
                shared = shared_tokens([one[group] for one in of_sequences], num_queries, num_tokens, pages_per_block)
            attention.append(AttentionBatch(starts_there, lengths, tables, num_queries, num_tokens, shared))
            rows.append((tables[sequences, blocks] * BLOCK_TOKENS + places).long())
        outputs = starts_there[1 : len(batch.samplers) + 1] - 1
        return cls(tokens, positions, outputs, tuple(attention), tuple(rows))


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


class _Packed:
    """Columns of numbers that cross to the device together, as int32."""

    def __init__(self) -> None:
        self._numbers = array("I")
        self._shapes: list[tuple[int, ...]] = []

    def put(self, column: Sequence[int]) -> None:
        self._numbers.extend(column)
        self._shapes.append((len(column),))

    def put_rows(self, rows: Sequence[Sequence[int]]) -> None:
        """Rows of different lengths, filled up with zeros. The number that stands for no page becomes -1."""
        width = max(len(row) for row in rows)
        for row in rows:
            self._numbers.extend(row)
            self._numbers.frombytes(bytes(self._numbers.itemsize * (width - len(row))))
        self._shapes.append((len(rows), width))

    def to(self, device: torch.device) -> list[Tensor]:
        numbers = torch.frombuffer(self._numbers, dtype=torch.int32)
        if device.type == "cuda":
            numbers = numbers.pin_memory()
        there = numbers.to(device, non_blocking=True)
        columns = there.split([shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in self._shapes])
        return [column.view(shape) for column, shape in zip(columns, self._shapes, strict=True)]
