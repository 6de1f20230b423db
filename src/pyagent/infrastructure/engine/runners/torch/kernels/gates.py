"""The gate of an MLP: SiLU or GeLU (by its tanh) of one half of a row, times the other half."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured, divide_up

GATE_CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=num_warps)
    for block, num_warps in ((2048, 4), (1024, 4), (4096, 8), (512, 2), (128, 1))
]


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        y = x * tl.sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "gelu_tanh")
        # 0.5 * (1 + tanh(u)) is the sigmoid of 2u.
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return y


@configured(GATE_CONFIGS, key=["size"])
@triton.jit
def _gate(x, out, size, x_stride, out_stride, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_place = places < size
    gate = tl.load(x + token * x_stride + places, mask=is_place, other=0.0).to(tl.float32)
    up = tl.load(x + token * x_stride + size + places, mask=is_place, other=0.0).to(tl.float32)
    result = (_activated(gate, ACTIVATION) * up).to(out.dtype.element_ty)
    tl.store(out + token * out_stride + places, result, mask=is_place)


def gate(x: Tensor, activation: str) -> Tensor:
    """Return `activation(x[:, :I]) * x[:, I:]` [T, I] of `x` [T, 2 I], in float32 inside."""
    num_tokens, size = x.shape[0], x.shape[1] // 2
    if x.stride(1) != 1:
        raise ValueError("a row's numbers must lie together")
    out = torch.empty((num_tokens, size), dtype=x.dtype, device=x.device)

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        return num_tokens, divide_up(size, chosen["BLOCK"])

    _gate[grid](x, out, size, x.stride(0), out.stride(0), ACTIVATION=activation)
    return out
