"""Reads a rank's share of a GGUF matrix onto the device as it is quantised, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES, BlockType
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix

if TYPE_CHECKING:
    from pyagent._rust import ModelFile

_PIECE_BYTES = 8 << 20
"""Of a file; what it is unpacked through takes up to ten times that."""


class GgufBlocks:
    """As `QuantisedMatrices`: a matrix of blocks stays as it is, whole or by columns that are whole blocks."""

    def __init__(self, file: ModelFile) -> None:
        """Over an open file."""
        self._file = file

    def find(self, name: str, rows: Span, columns: Span) -> BlockMatrix | None:
        """As `QuantisedMatrices.find`. The shape is looked at by who reads."""
        found = self._file.find(f"{name}.weight")
        about = None if found is None or found[0] != [columns.total, rows.total] else BLOCK_TYPES.get(found[1])
        is_divided = about is not None and about.keeps(columns.total) and about.keeps(columns.num)
        if about is None or not is_divided or columns.first % about.columns:
            return None
        return BlockMatrix(self._file, f"{name}.weight", about)

    def fill(self, name: str, target: Tensor, rows: Span, columns: Span) -> bool:
        """As `QuantisedMatrices.fill`: the file is read by the CPU runner's code."""
        return False


class BlockMatrix(NamedTuple):
    """As `StoredMatrix`: a matrix of blocks."""

    file: ModelFile
    name: str
    about: BlockType

    def row_bytes(self, columns: Span) -> int:
        """As `StoredMatrix.row_bytes`."""
        return _row_bytes(self.about, columns.num)

    def read(self, rows: Span, columns: Span, device: torch.device) -> Iterator[GroupedMatrix]:
        """As `StoredMatrix.read`."""
        about = self.about
        num_blocks = columns.total // about.columns
        wanted = slice(columns.first // about.columns, columns.end // about.columns)
        step = max(1, _PIECE_BYTES // (num_blocks * about.num_bytes))
        is_pinned = device.type == "cuda"
        piece = torch.empty(min(step, rows.num), num_blocks, about.num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        for start in range(0, rows.num, step):
            part = piece[: min(step, rows.num - start)]
            self.file.read_bytes(self.name, rows.first + start, part.numpy().data)
            yield about.planes(part[:, wanted].to(device, copy=True))


@lru_cache
def _row_bytes(about: BlockType, num_columns: int) -> int:
    blocks = torch.zeros(1, num_columns // about.columns, about.num_bytes, dtype=torch.uint8)
    return about.planes(blocks).num_bytes
