"""Blocks of GGUF files as planes, a rank's rows and columns of them: the same numbers, bit for bit.

The layouts are those of ggml's `block_q*`. Numbers of 5 bits are kept as 6, those of Q4_1 and Q5_1 with scales of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.quantised.groups import COLUMNS_OF_BITS, GroupedMatrix, packed


class BlockType(NamedTuple):
    """An element type: the columns and bytes of a block, the bits of a number here, and how planes come of blocks."""

    columns: int
    num_bytes: int
    bits: int
    planes: Callable[[Tensor], GroupedMatrix]  # of uint8 [N, blocks, num_bytes]

    def keeps(self, num_columns: int) -> bool:
        """Whether rows of so many columns can stay quantised."""
        return num_columns % self.columns == 0 and num_columns % COLUMNS_OF_BITS[self.bits] == 0


def _halves(blocks: Tensor, first: int) -> Tensor:
    """Floats of 16 bits at a place of each block [N, blocks]."""
    return blocks[..., first : first + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(quants: Tensor) -> Tensor:
    """Numbers [N, K] of bytes [N, blocks, n] whose low halves come first in a block."""
    return torch.cat((quants & 15, quants >> 4), 2).flatten(1)


def _fifth_bits(blocks: Tensor, first: int) -> Tensor:
    """The upper bit, as 16, of each of a block's 32 numbers [N, K]."""
    bits = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    return (blocks[..., first : first + 4, None] >> bits & 1).flatten(1) << 4


def _q8_0(blocks: Tensor) -> GroupedMatrix:
    quants = blocks[..., 2:].contiguous().view(torch.int8).flatten(1)
    return GroupedMatrix(8, quants.shape[1], 32, quants, _halves(blocks, 0))


def _simple(blocks: Tensor, numbers: Tensor, bits: int, *, has_minimum: bool) -> GroupedMatrix:
    """Blocks of 32 with a scale each, and a minimum (added, in files) or the middle of the numbers for 0."""
    num_columns = numbers.shape[1]
    quants, high = packed(numbers, bits)
    scales = _halves(blocks, 0)
    if not has_minimum:
        offset = 8 if bits == 4 else 16
        return GroupedMatrix(bits, num_columns, 32, quants, scales, offset, high)
    ones = torch.ones(scales.shape, dtype=torch.uint8, device=blocks.device)
    return GroupedMatrix(bits, num_columns, 32, quants, ones, 0, high, ones, 32, scales, -_halves(blocks, 2))


def _q4_0(blocks: Tensor) -> GroupedMatrix:
    return _simple(blocks, _nibbles(blocks[..., 2:]), 4, has_minimum=False)


def _q4_1(blocks: Tensor) -> GroupedMatrix:
    return _simple(blocks, _nibbles(blocks[..., 4:]), 4, has_minimum=True)


def _q5_0(blocks: Tensor) -> GroupedMatrix:
    return _simple(blocks, _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2), 6, has_minimum=False)


def _q5_1(blocks: Tensor) -> GroupedMatrix:
    return _simple(blocks, _nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4), 6, has_minimum=True)


def _six_bit_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums [N, K / 32] of Q4_K and Q5_K, eight of each in 12 bytes."""
    first, second, last = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, last & 15 | first >> 6 << 4), 2)
    minimums = torch.cat((second & 63, last >> 4 | second >> 6 << 4), 2)
    return scales.flatten(1), minimums.flatten(1)


def _with_minimums(blocks: Tensor, quants: Tensor, high: Tensor | None, bits: int) -> GroupedMatrix:
    scales, minimums = _six_bit_scales(blocks)
    supers = (_halves(blocks, 0), _halves(blocks, 2))
    return GroupedMatrix(bits, 2 * quants.shape[1], 32, quants, scales, 0, high, minimums, 256, *supers)


def _q4_k(blocks: Tensor) -> GroupedMatrix:
    return _with_minimums(blocks, blocks[..., 16:].flatten(1).contiguous(), None, 4)


def _q5_k(blocks: Tensor) -> GroupedMatrix:
    lower = _chunks(blocks[..., 48:])
    upper = torch.stack([blocks[..., 16:48] >> bit & 1 for bit in range(8)], 2).flatten(1)
    quants, high = packed(lower | upper << 4, 6)
    return _with_minimums(blocks, quants, high, 6)


def _chunks(quants: Tensor) -> Tensor:
    """Numbers [N, K] of bytes [N, blocks, n] whose every 32 are 64 columns."""
    chunks = quants.unflatten(2, (-1, 32))
    return torch.stack((chunks & 15, chunks >> 4), 3).flatten(1)


def _q6_k(blocks: Tensor) -> GroupedMatrix:
    lower = blocks[..., :128].unflatten(2, (2, 64))  # [N, blocks, 2, 64]: of 128 columns
    lower = torch.cat((lower & 15, lower >> 4), 3).flatten(1)
    upper = blocks[..., 128:192].unflatten(2, (2, 32))
    upper = torch.cat([upper >> shift & 3 for shift in (0, 2, 4, 6)], 3).flatten(1)
    quants, high = packed(lower | upper << 4, 6)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return GroupedMatrix(6, lower.shape[1], 16, quants, scales, 32, high, None, 256, _halves(blocks, 208))


BLOCK_TYPES = {
    "Q4_0": BlockType(32, 18, 4, _q4_0),
    "Q4_1": BlockType(32, 20, 4, _q4_1),
    "Q5_0": BlockType(32, 22, 6, _q5_0),
    "Q5_1": BlockType(32, 24, 6, _q5_1),
    "Q8_0": BlockType(32, 34, 8, _q8_0),
    "Q4_K": BlockType(256, 144, 4, _q4_k),
    "Q5_K": BlockType(256, 176, 6, _q5_k),
    "Q6_K": BlockType(256, 210, 6, _q6_k),
}
"""What stays quantised; other types are dequantised when they are loaded."""
