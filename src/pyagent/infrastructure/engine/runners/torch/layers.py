"""What decoders are made of: norms, rotary positions, gates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return `x` [..., D] with a root mean square of 1, times `weight` [D]. Computed in float32."""
    return functional.rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)


def rotary(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [T, 1, D / 2] of positions [T], for frequencies [D / 2] in radians a position.

    Angles are products of float32 rounded to float32, as where the models were trained.
    """
    angles = positions[:, None].float() * frequencies
    return angles.cos()[:, None], angles.sin()[:, None]


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor], *, is_interleaved: bool) -> Tensor:
    """Return heads [T, H, D] turned by their positions' angles.

    Pairs are halves of a head apart (GPT-NeoX), or interleaved: neighbours (GPT-J, and Llama's weights in GGUF files).
    """
    cos, sin = cos_sin
    exact = x.float()
    first, second = exact.unflatten(-1, (-1, 2)).unbind(-1) if is_interleaved else exact.chunk(2, -1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return (torch.stack(turned, -1).flatten(-2) if is_interleaved else torch.cat(turned, -1)).to(x.dtype)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """Return the activated first half of the columns times the second: SwiGLU for `silu`, GeGLU for `gelu_tanh`."""
    gate, up = gate_up.chunk(2, -1)
    active = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return active * up
