"""RMSNorm, alone or with the residual stream added first: each row is read once and written once."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, next_power_of_2

NORM_CONFIGS = [triton.Config({}, num_warps=num_warps) for num_warps in (1, 2, 4, 8, 16)]


def _fits(shape: dict[str, Any], config: triton.Config) -> bool:
    """Whether a row is at most 32 numbers a thread, which stay in registers."""
    return shape["BLOCK"] <= 32 * 32 * config.num_warps


@configured(NORM_CONFIGS, key=["SIZE"], fits=_fits, changes=["residual"])
@triton.jit
def _rms_norm(
    x,
    residual,  # read and written with ADDS
    weight,
    out,
    epsilon,
    x_stride,
    x_head_stride,
    residual_stride,
    out_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    places = tl.arange(0, BLOCK)
    is_place = places < SIZE
    row = tl.load(x + token * x_stride + head * x_head_stride + places, mask=is_place, other=0.0).to(tl.float32)
    if ADDS:
        residual_row = residual + token * residual_stride + places
        kept = (row + tl.load(residual_row, mask=is_place, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual_row, kept, mask=is_place)
        row = kept.to(tl.float32)  # what the next layer reads is what is normalised
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / SIZE + epsilon)
    weights = tl.load(weight + places, mask=is_place, other=0.0).to(tl.float32)
    result = (row * scale * weights).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + head * SIZE + places, result, mask=is_place)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None = None) -> Tensor:
    """Return `x` [T, H] or [T, heads, H] over the root of its mean square, times `weight` [H], in float32 inside.

    With `residual` [T, H], `x` is added to it first, in place, and the sum is what is normalised.
    """
    rows = x if x.dim() == 3 else x[:, None]  # [T, heads, H]
    num_tokens, num_heads, size = rows.shape
    if rows.stride(2) != 1 or (residual is not None and (num_heads != 1 or residual.stride(1) != 1)):
        raise ValueError("RMSNorm takes rows of neighbouring numbers, and a residual for [T, H] alone")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    other = rows if residual is None else residual
    _rms_norm[(num_tokens, num_heads)](
        rows,
        other,
        weight,
        out,
        epsilon,
        rows.stride(0),
        rows.stride(1),
        other.stride(0),
        out.stride(0),
        SIZE=size,
        BLOCK=next_power_of_2(size),
        ADDS=residual is not None,
    )
    return out
