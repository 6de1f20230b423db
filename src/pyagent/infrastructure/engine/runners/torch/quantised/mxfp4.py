"""Matrices in MXFP4 (OCP Microscaling 1.0) as they are kept: 4-bit floats, 32 of which share a power of two.

Two neighbours are a byte, the first in its low half. That is how OpenAI's safetensors have them; GGUF's blocks are put
in this order. Dequantised they are what the CPU runner reads, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span

GROUP = 32
"""Numbers with a scale."""
GGUF_BYTES = 1 + GROUP // 2
"""Of a group in a GGUF file: its scale, then numbers `i` and `i + 16` in a byte."""
UNPACKED_BYTES = 2
"""What a number takes beside itself while it is dequantised: two share an index."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LEAST_SCALE = 0x00400000
"""The bits of 2 to the power of -127, which has no exponent of its own in float32."""


class Mxfp4(NamedTuple):
    """Matrices: `numbers` uint8 [..., out, in / 2], and exponents of groups, `scales` uint8 [..., out, in / 32]."""

    numbers: Tensor
    scales: Tensor

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the weights [..., out, in]."""
        numbers, scales = self
        pairs = _pairs(dtype, numbers.device).index_select(0, numbers.flatten().int())
        groups = pairs.view(dtype).view(*scales.shape, GROUP)
        return groups.mul_(_power_of_2(scales)[..., None]).flatten(-2)

    def columns(self, span: Span) -> Mxfp4:
        """Return some columns, whole groups."""
        numbers = self.numbers[..., span.first // 2 : span.end // 2]
        return Mxfp4(numbers, self.scales[..., span.first // GROUP : span.end // GROUP])


ExpertRows = Callable[[Tensor, Mxfp4, Tensor | None, Tensor], Tensor]
"""Gives each row's [n, in] product with its expert's matrix, of matrices [E, out, in], biases and `chosen` [n]."""


def of_gguf(blocks: Tensor) -> Mxfp4:
    """Return matrices of a GGUF file's blocks uint8 [..., out, in / 32, 17]."""
    halves = blocks[..., 1:]
    groups = torch.cat((halves & 15, halves >> 4), -1)  # [..., out, in / 32, 32]
    numbers = groups[..., ::2] | groups[..., 1::2] << 4
    return Mxfp4(numbers.flatten(-2), blocks[..., 0].contiguous())


def empty(shape: tuple[int, int, int], device: torch.device) -> Mxfp4:
    """Return room for matrices [E, out, in]."""
    *rows, num_columns = shape
    parts = (torch.empty(*rows, num_columns // each, dtype=torch.uint8, device=device) for each in (2, GROUP))
    return Mxfp4(*parts)


def num_bytes(num_rows: int, num_columns: int) -> int:
    """Return what a matrix takes."""
    return num_rows * (num_columns // 2 + num_columns // GROUP)


@cache
def _pairs(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Two neighbours for each byte, as one whole number [256] of twice their size."""
    magnitudes = torch.tensor(_MAGNITUDES, dtype=dtype)
    values = torch.cat((magnitudes, -magnitudes))
    places = torch.arange(256)
    pairs = torch.stack((values[places & 15], values[places >> 4]), -1)
    whole = torch.int64 if dtype == torch.float32 else torch.int32
    return pairs.view(whole).flatten().to(device)


def _power_of_2(exponents: Tensor) -> Tensor:
    """Return 2 to the power of bytes less 127, float32."""
    bits = exponents.int() << 23
    return bits.masked_fill_(exponents == 0, _LEAST_SCALE).view(torch.float32)
