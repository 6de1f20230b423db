"""What decoders are made of: norms, rotary positions, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.architectures.brought import Shape


class ClampedSwiglu(NamedTuple):
    """gpt-oss's: SiLU with `alpha` in its sigmoid, of gates up to `limit`, times one more than what it lets through."""

    alpha: float
    limit: float


Activation = str | ClampedSwiglu
"""What a gate is: `silu`, `gelu_tanh`, or one with constants."""


def activation_of(config: Shape) -> Activation:
    """Return what a model's gates are."""
    return config.activation if config.swiglu_limits is None else ClampedSwiglu(*config.swiglu_limits)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return `x` [..., D] with a root mean square of 1, times `weight` [D]. Computed in float32."""
    return functional.rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)


def rotary(
    positions: Tensor, frequencies: Tensor, factor: float = 1, axes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [T, 1, R / 2] of positions [T], for frequencies [R / 2] in radians a position.

    Positions may be of three numbers [3, T] where `axes` [R / 2] say which of them a frequency turns by (M-RoPE).

    Angles are products of float32 rounded to float32, as where the models were trained. `factor` multiplies both, as
    YaRN and LongRoPE do to make attention sharper.
    """
    turned_by = positions[:, None] if axes is None or positions.dim() == 1 else positions.index_select(0, axes).t()
    angles = turned_by.float() * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return (cos, sin) if factor == 1 else (cos.mul_(factor), sin.mul_(factor))


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor], *, is_interleaved: bool) -> Tensor:
    """Return heads [T, H, D] turned by their positions' angles: the first R numbers of each, the others are kept.

    Pairs are halves of R numbers apart (GPT-NeoX), or interleaved: neighbours (GPT-J, Llama's weights in GGUF files).
    """
    cos, sin = cos_sin
    exact, kept = x[..., : 2 * cos.shape[-1]].float(), x[..., 2 * cos.shape[-1] :]
    first, second = exact.unflatten(-1, (-1, 2)).unbind(-1) if is_interleaved else exact.chunk(2, -1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    whole = (torch.stack(turned, -1).flatten(-2) if is_interleaved else torch.cat(turned, -1)).to(x.dtype)
    return torch.cat((whole, kept), -1) if kept.shape[-1] else whole


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return the activated first half of the columns times the second: SwiGLU for `silu`, GeGLU for `gelu_tanh`."""
    gate, up = gate_up.chunk(2, -1)
    if isinstance(activation, ClampedSwiglu):
        return clamped_swiglu(gate, up, activation)
    active = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return active * up


def clamped_swiglu(gate: Tensor, up: Tensor, constants: ClampedSwiglu) -> Tensor:
    """Return `gate * sigmoid(alpha * gate) * (up + 1)`, of gates up to the limit and ups within it.

    By the exponential: torch's sigmoid of what fills no vector of the CPU's is another.
    """
    alpha, limit = constants
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate / ((gate * -alpha).exp() + 1) * (up + 1)
