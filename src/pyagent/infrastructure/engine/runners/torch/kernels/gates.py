"""The gate of an MLP: SiLU or GeLU (by its tanh) of one half of a row, times the other half; or gpt-oss's."""

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
    from pyagent.infrastructure.engine.runners.torch.layers import Activation

GATE_CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=num_warps)
    for block, num_warps in ((2048, 4), (1024, 4), (4096, 8), (512, 2), (128, 1))
]


@triton.jit
def _gated(x, up, ACTIVATION: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    if ACTIVATION == "silu":
        y = x * tl.sigmoid(x)
    elif ACTIVATION == "clamped_swiglu":
        x = tl.minimum(x, LIMIT)
        y = x * tl.sigmoid(ALPHA * x)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        # 0.5 * (1 + tanh(u)) is the sigmoid of 2u.
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return y * up


@configured(GATE_CONFIGS, key=["size"])
@triton.jit
def _gate(
    x,
    out,
    size,
    x_stride,
    out_stride,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_place = places < size
    gate = tl.load(x + token * x_stride + places, mask=is_place, other=0.0).to(tl.float32)
    up = tl.load(x + token * x_stride + size + places, mask=is_place, other=0.0).to(tl.float32)
    result = _gated(gate, up, ACTIVATION, ALPHA, LIMIT).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + places, result, mask=is_place)


def gate(x: Tensor, activation: Activation) -> Tensor:
    """Return `activation(x[:, :I]) * x[:, I:]` [T, I] of `x` [T, 2 I], in float32 inside."""
    name, alpha, limit = (activation, 0.0, 0.0) if isinstance(activation, str) else ("clamped_swiglu", *activation)
    num_tokens, size = x.shape[0], x.shape[1] // 2
    if x.stride(1) != 1:
        raise ValueError("a row's numbers must lie together")
    out = torch.empty((num_tokens, size), dtype=x.dtype, device=x.device)

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return num_tokens, divide_up(size, chosen["BLOCK"])

    _gate[grid](x, out, size, x.stride(0), out.stride(0), ACTIVATION=name, ALPHA=alpha, LIMIT=limit)
    return out
