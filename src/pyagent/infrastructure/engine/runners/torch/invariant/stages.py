"""Stages on torch's CPU device of which each row is computed alone.

Torch's activations take numbers by the vector and the rest one by one, in other roundings, and where the rest lies
depends on how threads share the rows. Sums, products and the exponential do not differ so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.invariant.products import not_invariant
from pyagent.infrastructure.engine.runners.torch.layers import (
    Activation,
    ClampedSwiglu,
    activation_of,
    clamped_swiglu,
    rotary,
)
from pyagent.infrastructure.engine.runners.torch.stages import Stages, TorchStages, Trial

_ROWS = 67
_SLICES = ((0, 1), (1, 3), (5, 22), (40, 67))


class InvariantStages(TorchStages):
    """Torch's own operations, activations by the exponential."""

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """As `Stages.gated`."""
        gate, up = gate_up.float().chunk(2, -1)
        if isinstance(activation, ClampedSwiglu):
            return clamped_swiglu(gate, up, activation).to(gate_up.dtype)
        of = gate if activation == "silu" else 2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)
        return (gate / ((-of).exp() + 1) * up).to(gate_up.dtype)


def choose_invariant_stages(stages: Stages, trial: Trial) -> Stages:
    """Return a form of these stages that computes each row alone. Raises `ConfigError` where there is none."""
    chosen = InvariantStages() if type(stages) is TorchStages else stages
    if (found := stages_variance(chosen, trial)) is not None:
        raise not_invariant(found)
    return chosen


def stages_variance(stages: Stages, trial: Trial) -> str | None:
    """Return which of the stages gives a row other bits beside other rows; None where none does."""
    config, dtype, device = trial.config, trial.dtype, trial.device
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(config.hidden_size, generator=draw).to(device)
    x, branch = (torch.randn(_ROWS, config.hidden_size, generator=draw).to(device, dtype) for _ in range(2))
    gate_up = (4 * torch.randn(_ROWS, 2 * config.ffn_size, generator=draw)).to(device, dtype)
    positions = torch.randint(config.context_length, (_ROWS,), generator=draw).to(device)
    frequencies = torch.tensor(config.rope_frequencies, dtype=torch.float32, device=device)
    computed: dict[str, Callable[[slice], Tensor]] = {
        "RMSNorm": lambda rows: stages.rms_norm(x[rows], weight, config.norm_epsilon),
        "RMSNorm with residual": lambda rows: stages.add_rms_norm(
            x[rows].clone(), branch[rows], weight, config.norm_epsilon
        )[1],
        "the gate": lambda rows: stages.gated(gate_up[rows], activation_of(config)),
        "the logits' cap": lambda rows: gate_up[rows].float().tanh(),
        "the rotation's angles": lambda rows: torch.cat(rotary(positions[rows], frequencies), -1),
    }
    for name, compute in computed.items():
        whole = compute(slice(0, _ROWS))
        if not all(torch.equal(compute(slice(*part)), whole[slice(*part)]) for part in _SLICES):
            return name
    return None
