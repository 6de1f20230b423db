"""Products of inputs and weights that are both of 8 bits, FP8 or INT8, on the matrix units of that type.

A first kernel makes numbers of each row of input: its largest becomes the largest of the type (or groups of columns
have scales of their own, or the file has one for all). A second multiplies tiles, and scales its sums: once at the end
where a row of weights has one scale, after each group of columns where blocks have theirs. Sums of FP8 leave the matrix
units every `BLOCK_K` columns, as those of Hopper keep 14 bits.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.float8 import rounded_to_float8
from pyagent.infrastructure.engine.runners.torch.kernels.launch import (
    INTERPRETED,
    columns_of_split,
    configured,
    divide_up,
    next_power_of_2,
)
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import Inputs

_MOST_TILE_ROWS = 128
_MOST_BLOCK_K = 128
_MOST_ROW_BLOCK = 1024

ROW_CONFIGS = [triton.Config({}, num_warps=num_warps) for num_warps in (4, 2, 8)]
TILE_CONFIGS = [
    triton.Config({"BLOCK_N": block_n}, num_warps=num_warps, num_stages=num_stages)
    for block_n, num_warps, num_stages in ((128, 8, 3), (64, 4, 4), (64, 4, 2), (16, 2, 1))
]


def _fits_tile(shape: dict[str, Any], config: triton.Config) -> bool:
    """Large tiles of weights for many rows alone: else too few programs share the work."""
    return shape["BLOCK_M"] >= 64 or config.kwargs["BLOCK_N"] <= 64


@configured(ROW_CONFIGS, key=["K", "GROUP"])
@triton.jit
def _quantise_rows(
    x,
    out,
    scales,  # [M, K / GROUP]
    fixed_scale,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    MOST: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_FIXED: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = token * K + group * GROUP
    scale = fixed_scale
    if not IS_FIXED:
        largest = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(0, GROUP, BLOCK):
            places = first + tl.arange(0, BLOCK)
            values = tl.load(x + start + places, mask=places < GROUP, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(values))
        scale = tl.max(largest, 0) / MOST
    tl.store(scales + token * (K // GROUP) + group, scale)
    divisor = tl.maximum(scale, 1e-30)
    for first in range(0, GROUP, BLOCK):
        places = first + tl.arange(0, BLOCK)
        values = tl.load(x + start + places, mask=places < GROUP, other=0.0).to(tl.float32)
        numbers = tl.minimum(tl.maximum(values / divisor, -MOST), MOST)
        # Whole numbers by a sum that has room for no more, halves to even.
        numbers = rounded_to_float8(numbers, ROUNDS) if IS_FLOAT else (numbers + 12582912.0) - 12582912.0
        tl.store(out + start + places, numbers.to(out.dtype.element_ty), mask=places < GROUP)


@configured(TILE_CONFIGS, key=["N", "K", "GROUP", "BLOCK_M"], fits=_fits_tile)
@triton.jit
def _scaled_rows(
    x,
    quants,
    x_scales,  # [M, K / GROUP]
    scales,  # [N, K / GROUP]
    out,  # [splits, M, N]
    num_tokens,
    out_token_stride,
    out_split_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    NUM_GROUPS: tl.constexpr = K // GROUP
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    tokens = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_row, is_token = rows < N, tokens < num_tokens
    start = tl.program_id(2) * SPLIT_K
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32 if IS_FLOAT or NUM_GROUPS > 1 else tl.int32)
    for first in range(start, min(start + SPLIT_K, K), BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        is_column = columns < K
        weights = tl.load(
            quants + rows[:, None] * K + columns[None, :], mask=is_row[:, None] & is_column[None, :], other=0.0
        )
        values = tl.load(
            x + tokens[None, :] * K + columns[:, None], mask=is_column[:, None] & is_token[None, :], other=0.0
        )
        if WIDEN:
            weights, values = weights.to(tl.float32), values.to(tl.float32)
        if NUM_GROUPS > 1:
            group = first // GROUP
            row_scale = tl.load(scales + rows * NUM_GROUPS + group, mask=is_row, other=0.0).to(tl.float32)
            token_scale = tl.load(x_scales + tokens * NUM_GROUPS + group, mask=is_token, other=0.0)
            if IS_FLOAT:
                part = tl.dot(weights, values, max_num_imprecise_acc=BLOCK_K, input_precision="ieee")
            else:
                part = tl.dot(weights, values, input_precision="ieee").to(tl.float32)
            total += part * (row_scale[:, None] * token_scale[None, :])
        elif IS_FLOAT:
            total = tl.dot(weights, values, total, max_num_imprecise_acc=BLOCK_K, input_precision="ieee")
        else:
            total += tl.dot(weights, values, input_precision="ieee").to(tl.int32)
    result = total.to(tl.float32)
    if NUM_GROUPS == 1:
        row_scale = tl.load(scales + rows, mask=is_row, other=0.0).to(tl.float32)
        token_scale = tl.load(x_scales + tokens, mask=is_token, other=0.0)
        result = result * (row_scale[:, None] * token_scale[None, :])
    result = tl.trans(result).to(out.dtype.element_ty)  # [BLOCK_M, BLOCK_N]
    target = out + tl.program_id(2) * out_split_stride + tokens[:, None] * out_token_stride + rows[None, :]
    tl.store(target, result, mask=is_token[:, None] & is_row[None, :])


def quantised_rows(x: Tensor, matrix: GroupedMatrix) -> tuple[Tensor, Tensor]:
    """Return rows [M, K] as numbers of the matrix's type, and float32 scales [M, K / group]."""
    num_tokens, num_columns = x.shape
    is_float, group = matrix.quants.is_floating_point(), matrix.group
    out = torch.empty((num_tokens, num_columns), dtype=matrix.quants.dtype, device=x.device)
    scales = torch.empty((num_tokens, num_columns // group), dtype=torch.float32, device=x.device)
    _quantise_rows[(num_tokens, num_columns // group)](
        x.contiguous(),
        out,
        scales,
        matrix.input_scale,
        K=num_columns,
        GROUP=group,
        MOST=torch.finfo(out.dtype).max if is_float else 127.0,
        IS_FLOAT=is_float,
        IS_FIXED=matrix.inputs is Inputs.STATIC,
        ROUNDS=INTERPRETED,
        BLOCK=min(_MOST_ROW_BLOCK, next_power_of_2(group)),
    )
    return out, scales


def product(x: Tensor, x_scales: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
    """Put `x` [M, K], quantised, times the weights, transposed, into `out` [M, N], rows of which may be longer."""
    num_tokens, (num_rows, num_columns) = len(x), (matrix.num_rows, matrix.num_columns)
    block_m = min(_MOST_TILE_ROWS, max(16, next_power_of_2(num_tokens)))
    group = matrix.group if matrix.group < num_columns else _MOST_BLOCK_K
    tiles = divide_up(num_rows, 64) * divide_up(num_tokens, block_m)
    split_columns = columns_of_split(num_columns, max(_MOST_BLOCK_K, group), tiles, x.device)
    num_splits = divide_up(num_columns, split_columns)
    parts = out[None]
    if num_splits > 1:
        parts = torch.empty((num_splits, num_tokens, num_rows), dtype=torch.float32, device=x.device)

    def grid(chosen: dict[str, Any]) -> tuple[int, int, int]:
        return divide_up(num_rows, chosen["BLOCK_N"]), divide_up(num_tokens, block_m), num_splits

    _scaled_rows[grid](
        x,
        matrix.quants,
        x_scales,
        matrix.scales,
        parts,
        num_tokens,
        parts.stride(1),
        parts.stride(0),
        N=num_rows,
        K=num_columns,
        GROUP=matrix.group,
        SPLIT_K=split_columns,
        BLOCK_M=block_m,
        BLOCK_K=min(_MOST_BLOCK_K, group),
        IS_FLOAT=matrix.quants.is_floating_point(),
        WIDEN=INTERPRETED,
    )
    if num_splits > 1:
        torch.sum(parts, 0, out=out) if out.dtype == torch.float32 else out.copy_(parts.sum(0))
