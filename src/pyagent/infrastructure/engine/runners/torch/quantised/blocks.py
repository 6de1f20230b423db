"""Reads a rank's share of a GGUF matrix onto the device as it is quantised, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.gguf import BLOCK_TYPES, BlockType
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix

if TYPE_CHECKING:
    from pyagent._rust import ModelFile

_PIECE_BYTES = 8 << 20
"""Of a file; what it is unpacked through takes up to ten times that."""


def kept_type(kind: str, columns: Span) -> BlockType | None:
    """Return how a matrix of an element type stays quantised; None where it does not, whole or by these columns."""
    about = BLOCK_TYPES.get(kind)
    is_divided = about is not None and about.keeps(columns.total) and about.keeps(columns.num)
    return about if about is not None and is_divided and columns.first % about.columns == 0 else None


@lru_cache
def row_bytes(about: BlockType, num_columns: int) -> int:
    """Return the bytes that a row takes on the device."""
    blocks = torch.zeros(1, num_columns // about.columns, about.num_bytes, dtype=torch.uint8)
    return about.planes(blocks).num_bytes


def read_blocks(
    file: ModelFile, name: str, rows: Span, columns: Span, about: BlockType, device: torch.device
) -> Iterator[GroupedMatrix]:
    """Yield a matrix's rows, some at a time."""
    num_blocks = columns.total // about.columns
    wanted = slice(columns.first // about.columns, columns.end // about.columns)
    step = max(1, _PIECE_BYTES // (num_blocks * about.num_bytes))
    is_pinned = device.type == "cuda"
    piece = torch.empty(min(step, rows.num), num_blocks, about.num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
    for start in range(0, rows.num, step):
        part = piece[: min(step, rows.num - start)]
        file.read_bytes(name, rows.first + start, part.numpy().data)
        yield about.planes(part[:, wanted].to(device, copy=True))
