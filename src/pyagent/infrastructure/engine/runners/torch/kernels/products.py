"""Products of which each row is the same bits however many rows there are: `engine.batch_invariant`.

The columns of a weight's row are added up block by block in one order, of a size that follows from the data type. How
many rows and weights a tile has is in the table: of two entries, for few rows and for many, a trial tells whether they
give the same bits on a device.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, divide_up, widens

WIDE_ROWS = 192
"""Rows from which larger tiles are taken."""
_COLUMN_BYTES = 128
_GROUP_TILES = 8
"""Tiles of rows that pass by the same weights one after the other, while a GPU's cache has them."""
_MANY_WEIGHTS = 8192

PRODUCT_CONFIGS = [
    triton.Config({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps=num_warps, num_stages=num_stages)
    for block_m, block_n, num_warps, num_stages in (
        (128, 128, 8, 3),
        (128, 128, 8, 2),
        (64, 64, 4, 4),
        (64, 32, 4, 4),
        (64, 32, 4, 2),
    )
]


def _fits(shape: dict[str, Any], config: triton.Config) -> bool:
    """Whether a tile is meant for so many rows; of few rows, small ones share out a matrix among all processors."""
    block_m, block_n = config.kwargs["BLOCK_M"], config.kwargs["BLOCK_N"]
    if shape["IS_WIDE"]:
        return block_m == 128
    return block_m == 64 and (block_n == 32 or shape["N"] >= _MANY_WEIGHTS)


@configured(PRODUCT_CONFIGS, key=["N", "K", "IS_WIDE"], fits=_fits)
@triton.jit(do_not_specialize=["num_rows"])
def _fixed_product(
    x,
    weight,
    bias,
    out,
    num_rows,
    x_stride,
    weight_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_WIDE: tl.constexpr,  # for the table
    WIDEN: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tile = tl.program_id(0)
    num_row_tiles, num_column_tiles = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first_row_tile = tile // (GROUP_TILES * num_column_tiles) * GROUP_TILES
    in_group = tile % (GROUP_TILES * num_column_tiles)
    num_grouped = tl.minimum(num_row_tiles - first_row_tile, GROUP_TILES)
    rows = (first_row_tile + in_group % num_grouped) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = in_group // num_grouped * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = rows < num_rows, columns < N
    x_rows = x + rows.to(tl.int64)[:, None] * x_stride
    weight_rows = weight + columns.to(tl.int64)[:, None] * weight_stride
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        places = first + tl.arange(0, BLOCK_K)
        is_place = (places < K)[None, :]
        inputs = tl.load(x_rows + places[None, :], mask=is_row[:, None] & is_place, other=0.0)
        weights = tl.load(weight_rows + places[None, :], mask=is_column[:, None] & is_place, other=0.0)
        if WIDEN:
            inputs, weights = inputs.to(tl.float32), weights.to(tl.float32)
        acc = tl.dot(inputs, tl.trans(weights), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    places = rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def product(x: Tensor, weight: Tensor, bias: Tensor | None, *, is_wide: bool) -> Tensor:
    """Return [T, N]: `x` [T, K] times `weight` [N, K] transposed, and `bias` [N]; larger tiles if `is_wide`."""
    (num_rows, num_in), num_out = x.shape, len(weight)
    out = torch.empty(num_rows, num_out, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    if x.stride(1) != 1 or weight.stride(1) != 1:
        raise ValueError("products take rows of neighbouring numbers")

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        return (divide_up(num_rows, chosen["BLOCK_M"]) * divide_up(num_out, chosen["BLOCK_N"]),)

    _fixed_product[grid](
        x,
        weight,
        weight if bias is None else bias,
        out,
        num_rows,
        x.stride(0),
        weight.stride(0),
        N=num_out,
        K=num_in,
        BLOCK_K=_COLUMN_BYTES // x.element_size(),
        HAS_BIAS=bias is not None,
        IS_WIDE=is_wide,
        WIDEN=widens(x.dtype),
        GROUP_TILES=_GROUP_TILES,
    )
    return out
