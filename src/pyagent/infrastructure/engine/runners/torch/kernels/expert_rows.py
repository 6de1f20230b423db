"""Rows that each have a matrix of their own, an expert's in MXFP4: read once, in 4 bits, and dequantised in registers.

A program has some columns of the output of one row. What an expert's matrix is times a row is the same whatever rows
are beside it, and which expert a row has is read on the device.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, divide_up

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import Mxfp4

EXPERT_CONFIGS = [
    triton.Config({"BLOCK_ROWS": block_rows, "BLOCK_BYTES": block_bytes}, num_warps=num_warps, num_stages=num_stages)
    for block_rows, block_bytes, num_warps, num_stages in ((16, 256, 4, 3), (8, 256, 4, 3), (16, 128, 4, 2))
]


@triton.jit
def _numbers(nibbles):
    """Return what 4 bits stand for: a sign, two bits of exponent, one of fraction."""
    exponents = nibbles >> 1 & 3
    halves = (nibbles & 1).to(tl.float32) * 0.5
    sizes = tl.where(exponents == 0, halves, (1.0 + halves) * (1 << exponents).to(tl.float32) * 0.5)
    return tl.where(nibbles >= 8, -sizes, sizes)


@triton.jit
def _scales(exponents):
    """Return 2 to the power of bytes less 127; 0 for the least, which is too small for any sum."""
    return (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@configured(EXPERT_CONFIGS, key=["NUM_ROWS", "NUM_BYTES"])
@triton.jit
def _expert_rows(
    x,
    numbers,
    scales,
    chosen,
    biases,
    out,
    x_stride,
    NUM_ROWS: tl.constexpr,  # of a matrix
    NUM_BYTES: tl.constexpr,  # of a row of it
    HAS_BIASES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    expert = tl.load(chosen + row).to(tl.int64)
    columns = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_column = columns < NUM_ROWS
    of_matrix = expert * NUM_ROWS + columns
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    for start in range(0, NUM_BYTES, BLOCK_BYTES):
        places = start + tl.arange(0, BLOCK_BYTES)
        is_place = places < NUM_BYTES
        is_byte = is_column[:, None] & is_place[None, :]
        pairs = tl.load(numbers + of_matrix[:, None] * NUM_BYTES + places[None, :], mask=is_byte, other=0).to(tl.int32)
        at_scales = of_matrix[:, None] * (NUM_BYTES // 16) + (places // 16)[None, :]
        weights = _scales(tl.load(scales + at_scales, mask=is_byte, other=0))
        first = tl.load(x + row * x_stride + 2 * places, mask=is_place, other=0.0).to(tl.float32)
        second = tl.load(x + row * x_stride + 2 * places + 1, mask=is_place, other=0.0).to(tl.float32)
        products = _numbers(pairs & 15) * first[None, :] + _numbers(pairs >> 4) * second[None, :]
        total += tl.sum(products * weights, 1)
    if HAS_BIASES:
        total += tl.load(biases + of_matrix, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * NUM_ROWS + columns, total.to(out.dtype.element_ty), mask=is_column)


def expert_rows(x: Tensor, matrices: Mxfp4, biases: Tensor | None, chosen: Tensor) -> Tensor:
    """Return each row's [n, in] product with the matrix of its expert `chosen` [n], and its bias: [n, out]."""
    num_rows, num_bytes = matrices.numbers.shape[1:]
    if x.stride(1) != 1 or not all(part.is_contiguous() for part in matrices):
        raise ValueError("a row's numbers must lie together, and matrices one after the other")
    out = torch.empty((len(x), num_rows), dtype=x.dtype, device=x.device)

    def grid(entry: dict[str, Any]) -> tuple[int, int]:
        return len(x), divide_up(num_rows, entry["BLOCK_ROWS"])

    _expert_rows[grid](
        x,
        *matrices,
        chosen,
        x if biases is None else biases,
        out,
        x.stride(0),
        NUM_ROWS=num_rows,
        NUM_BYTES=num_bytes,
        HAS_BIASES=biases is not None,
    )
    return out
