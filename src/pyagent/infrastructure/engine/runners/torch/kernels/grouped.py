"""Products with weights that stay quantised: numbers become weights in registers, on their way to the product.

One row of input reads the weights once and multiplies as it goes: its time is that of the memory. More rows multiply
tiles on matrix units, in the input's type. Many rows have the matrix dequantised once, for the library's product.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.launch import (
    columns_of_split,
    configured,
    divide_up,
    next_power_of_2,
    widens,
)
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix

_MOST_TILE_ROWS = 128

ROW_CONFIGS = [
    triton.Config({"BLOCK_N": block_n, "BLOCK_K": block_k}, num_warps=num_warps)
    for block_n, block_k, num_warps in ((16, 512, 4), (8, 512, 4), (8, 256, 2), (4, 128, 1))
]
TILE_CONFIGS = [
    triton.Config({"BLOCK_N": block_n, "BLOCK_K": 128}, num_warps=num_warps, num_stages=num_stages)
    for block_n, num_warps, num_stages in ((128, 8, 3), (64, 4, 4), (64, 4, 2), (16, 2, 1))
]
DENSE_CONFIGS = [
    triton.Config({"BLOCK_N": block_n, "BLOCK_K": 128}, num_warps=num_warps) for block_n, num_warps in ((32, 4), (4, 1))
]

_MOST_BLOCK_K = max(entry.kwargs["BLOCK_K"] for entry in ROW_CONFIGS + TILE_CONFIGS)
"""What parts of the columns are a multiple of, whichever entry is taken: no column is in two."""


class Format(NamedTuple):
    """What a kernel is compiled for: of each of K columns the bits, and how many of them share which scale."""

    K: int
    BITS: int
    IS_FLOAT: bool
    """Whether numbers are floats (e4m3): made by their bits, as GPUs before 8.9 have no such type."""
    OFFSET: int
    GROUP: int
    STEP: int
    """Places whose columns are neighbours and share a scale."""
    SUPER: int
    HAS_MINIMUM: bool
    HAS_SUPER_MINIMUM: bool


def _fits_tile(shape: dict[str, Any], config: triton.Config) -> bool:
    """Large tiles of weights for many rows alone: else too few programs share the work."""
    return shape["BLOCK_M"] >= 64 or config.kwargs["BLOCK_N"] <= 64


@triton.jit
def _weights_columns(first, places, FORMAT: tl.constexpr, HALF: tl.constexpr):
    """The columns of a tile's bytes at some places, of their lower or upper halves."""
    if FORMAT.BITS != 8:
        places = places // 32 * 64 + HALF * 32 + places % 32
    return first + places


@triton.jit
def _packed_bytes(quants, rows, first, is_row, FORMAT: tl.constexpr, PLACES: tl.constexpr):
    places = tl.arange(0, PLACES)
    if FORMAT.BITS == 8:
        start, stride = first, FORMAT.K
    else:
        start, stride = first // 2, FORMAT.K // 2
    inside = is_row[:, None] & (start + places < stride)[None, :]
    return tl.load(quants + rows[:, None] * stride + start + places[None, :], mask=inside, other=0)


@triton.jit
def _numbers(
    bytes_read,
    planes,
    rows,
    first,
    is_row,
    FORMAT: tl.constexpr,
    HALF: tl.constexpr,
    PLACES: tl.constexpr,
):
    """Numbers less the offset [BLOCK_N, PLACES], in float32."""
    if FORMAT.IS_FLOAT:
        # The same sign, exponent and fraction as 16 bits, whose exponents begin 8 lower.
        halves = ((bytes_read & 128).to(tl.uint16) << 8) | ((bytes_read & 127).to(tl.uint16) << 7)
        numbers = halves.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    elif FORMAT.BITS == 8:
        numbers = bytes_read.to(tl.float32)
    else:
        lower = (bytes_read >> (4 * HALF)) & 15
        if FORMAT.BITS == 6:
            places = tl.arange(0, PLACES)
            at = first // 4 + places // 64 * 32 + places % 32
            inside = is_row[:, None] & (first // 2 + places < FORMAT.K // 2)[None, :]
            upper = tl.load(planes[0] + rows[:, None] * (FORMAT.K // 4) + at[None, :], mask=inside, other=0)
            shift = (places // 32 % 2 * 4 + HALF * 2).to(tl.uint8)
            lower = lower | (((upper >> shift[None, :]) & 3) << 4)
        numbers = lower.to(tl.float32)
    return numbers - FORMAT.OFFSET


@triton.jit
def _scales(
    planes,
    rows,
    first,
    is_row,
    FORMAT: tl.constexpr,
    HALF: tl.constexpr,
    PLACES: tl.constexpr,
):
    """Scales and minimums [BLOCK_N, PLACES / STEP] of each STEP places, in float32."""
    _, scales, minimums, super_scales, super_minimums = planes
    columns = _weights_columns(first, tl.arange(0, PLACES // FORMAT.STEP) * FORMAT.STEP, FORMAT, HALF)
    inside = is_row[:, None] & (columns < FORMAT.K)[None, :]
    at = rows[:, None] * (FORMAT.K // FORMAT.GROUP) + (columns // FORMAT.GROUP)[None, :]
    scale = tl.load(scales + at, mask=inside, other=0).to(tl.float32)
    super_at = at
    if FORMAT.SUPER:
        super_at = rows[:, None] * (FORMAT.K // FORMAT.SUPER) + (columns // FORMAT.SUPER)[None, :]
        scale *= tl.load(super_scales + super_at, mask=inside, other=0).to(tl.float32)
    minimum = tl.zeros_like(scale)
    if FORMAT.HAS_MINIMUM:
        minimum = tl.load(minimums + at, mask=inside, other=0).to(tl.float32)
        if FORMAT.HAS_SUPER_MINIMUM:
            minimum *= tl.load(super_minimums + super_at, mask=inside, other=0).to(tl.float32)
        else:
            minimum *= scale
    return scale, minimum


@configured(ROW_CONFIGS, key=["N", "FORMAT"])
@triton.jit
def _one_row(
    x,
    quants,
    planes,
    out,  # [splits, N]
    N: tl.constexpr,
    FORMAT: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    HALVES: tl.constexpr = 1 if FORMAT.BITS == 8 else 2
    PLACES: tl.constexpr = BLOCK_K // HALVES
    STEPS: tl.constexpr = PLACES // FORMAT.STEP
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row = rows < N
    start = tl.program_id(1) * SPLIT_K
    total = tl.zeros((BLOCK_N, STEPS), dtype=tl.float32)
    for first in range(start, min(start + SPLIT_K, FORMAT.K), BLOCK_K):
        read = _packed_bytes(quants, rows, first, is_row, FORMAT, PLACES)
        for half in tl.static_range(HALVES):
            columns = _weights_columns(first, tl.arange(0, PLACES), FORMAT, half)
            values = tl.load(x + columns, mask=columns < FORMAT.K, other=0.0).to(tl.float32)
            numbers = _numbers(read, planes, rows, first, is_row, FORMAT, half, PLACES)
            products = tl.sum(tl.reshape(numbers * values[None, :], (BLOCK_N, STEPS, FORMAT.STEP)), 2)
            scale, minimum = _scales(planes, rows, first, is_row, FORMAT, half, PLACES)
            total += scale * products
            if FORMAT.HAS_MINIMUM:
                total -= minimum * tl.sum(tl.reshape(values, (STEPS, FORMAT.STEP)), 1)[None, :]
    result = tl.sum(total, 1).to(out.dtype.element_ty)
    tl.store(out + tl.program_id(1) * N + rows, result, mask=is_row)


@triton.jit
def _tile_weights(
    read,
    planes,
    rows,
    first,
    is_row,
    FORMAT: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PLACES: tl.constexpr,
):
    """Weights [BLOCK_N, PLACES] in float32."""
    numbers = _numbers(read, planes, rows, first, is_row, FORMAT, HALF, PLACES)
    scale, minimum = _scales(planes, rows, first, is_row, FORMAT, HALF, PLACES)
    steps = tl.reshape(numbers, (BLOCK_N, PLACES // FORMAT.STEP, FORMAT.STEP)) * scale[:, :, None]
    if FORMAT.HAS_MINIMUM:
        steps -= minimum[:, :, None]
    return tl.reshape(steps, (BLOCK_N, PLACES))


@configured(TILE_CONFIGS, key=["N", "FORMAT", "BLOCK_M"], fits=_fits_tile)
@triton.jit
def _rows(
    x,
    quants,
    planes,
    out,  # [splits, M, N]
    num_tokens,
    out_token_stride,
    out_split_stride,
    N: tl.constexpr,
    FORMAT: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    HALVES: tl.constexpr = 1 if FORMAT.BITS == 8 else 2
    PLACES: tl.constexpr = BLOCK_K // HALVES
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    tokens = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_row, is_token = rows < N, tokens < num_tokens
    start = tl.program_id(2) * SPLIT_K
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for first in range(start, min(start + SPLIT_K, FORMAT.K), BLOCK_K):
        read = _packed_bytes(quants, rows, first, is_row, FORMAT, PLACES)
        for half in tl.static_range(HALVES):
            columns = _weights_columns(first, tl.arange(0, PLACES), FORMAT, half)
            inside = (columns < FORMAT.K)[:, None] & is_token[None, :]
            values = tl.load(x + tokens[None, :] * FORMAT.K + columns[:, None], mask=inside, other=0.0)
            weights = _tile_weights(read, planes, rows, first, is_row, FORMAT, half, BLOCK_N, PLACES).to(
                x.dtype.element_ty
            )
            if WIDEN:
                weights, values = weights.to(tl.float32), values.to(tl.float32)
            total = tl.dot(weights, values, total, input_precision="ieee")
    result = tl.trans(total).to(out.dtype.element_ty)  # [BLOCK_M, BLOCK_N]
    target = out + tl.program_id(2) * out_split_stride + tokens[:, None] * out_token_stride + rows[None, :]
    tl.store(target, result, mask=is_token[:, None] & is_row[None, :])


@configured(DENSE_CONFIGS, key=["N", "FORMAT"])
@triton.jit
def _dequantise(
    quants,
    planes,
    out,  # [N, K]
    N: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    HALVES: tl.constexpr = 1 if FORMAT.BITS == 8 else 2
    PLACES: tl.constexpr = BLOCK_K // HALVES
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row = rows < N
    first = tl.program_id(1) * BLOCK_K
    read = _packed_bytes(quants, rows, first, is_row, FORMAT, PLACES)
    for half in tl.static_range(HALVES):
        weights = _tile_weights(read, planes, rows, first, is_row, FORMAT, half, BLOCK_N, PLACES)
        columns = _weights_columns(first, tl.arange(0, PLACES), FORMAT, half)
        inside = is_row[:, None] & (columns < FORMAT.K)[None, :]
        tl.store(out + rows[:, None] * FORMAT.K + columns[None, :], weights.to(out.dtype.element_ty), mask=inside)


def _quants(matrix: GroupedMatrix) -> Tensor:
    """The numbers, those that are floats as their bits."""
    return matrix.quants.view(torch.uint8) if matrix.quants.is_floating_point() else matrix.quants


def _planes(matrix: GroupedMatrix) -> tuple[Tensor, ...]:
    """What belongs to the quants, in the kernels' order; planes that there are not, are not read."""
    others = (matrix.high, matrix.scales, matrix.minimums, matrix.super_scales, matrix.super_minimums)
    return tuple(matrix.scales if plane is None else plane for plane in others)


def _format(matrix: GroupedMatrix) -> Format:
    return Format(
        K=matrix.num_columns,
        BITS=matrix.bits,
        IS_FLOAT=matrix.quants.is_floating_point(),
        OFFSET=matrix.offset,
        GROUP=matrix.group,
        STEP=min(32, matrix.group),
        SUPER=matrix.super_group,
        HAS_MINIMUM=matrix.minimums is not None,
        HAS_SUPER_MINIMUM=matrix.super_minimums is not None,
    )


def product(x: Tensor, matrix: GroupedMatrix, out: Tensor) -> None:
    """Put `x` [M, K] times the weights, transposed, into `out` [M, N], whose rows may be parts of longer ones."""
    num_tokens, (num_rows, num_columns) = len(x), (matrix.num_rows, matrix.num_columns)
    x = x.contiguous()
    block_m = min(_MOST_TILE_ROWS, max(16, next_power_of_2(num_tokens)))
    tiles = divide_up(num_rows, 16 if num_tokens == 1 else 64) * divide_up(num_tokens, block_m)
    split_columns = columns_of_split(num_columns, _MOST_BLOCK_K, tiles, x.device)
    num_splits = divide_up(num_columns, split_columns)
    parts = out[None]
    if num_splits > 1:
        parts = torch.empty((num_splits, num_tokens, num_rows), dtype=torch.float32, device=x.device)
    shape = {"N": num_rows, "FORMAT": _format(matrix), "SPLIT_K": split_columns}

    def grid(chosen: dict[str, Any]) -> tuple[int, int, int]:
        blocks = divide_up(num_rows, chosen["BLOCK_N"])
        return (blocks, num_splits, 1) if num_tokens == 1 else (blocks, divide_up(num_tokens, block_m), num_splits)

    planes = (_quants(matrix), _planes(matrix), parts)
    if num_tokens == 1:
        _one_row[grid](x, *planes, **shape)
    else:
        strides, widen = (parts.stride(1), parts.stride(0)), widens(x.dtype)
        _rows[grid](x, *planes, num_tokens, *strides, **shape, BLOCK_M=block_m, WIDEN=widen)
    if num_splits > 1:
        torch.sum(parts, 0, out=out) if out.dtype == torch.float32 else out.copy_(parts.sum(0))


def dequantise(matrix: GroupedMatrix, out: Tensor) -> None:
    """Put the weights into `out` [N, K]."""
    rows, columns = out.shape

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return divide_up(rows, chosen["BLOCK_N"]), divide_up(columns, chosen["BLOCK_K"])

    _dequantise[grid](_quants(matrix), _planes(matrix), out, N=rows, FORMAT=_format(matrix))
