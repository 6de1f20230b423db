"""The torch runner's attention backends and architectures do what every one must."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from support.suites import add_suites

from pyagent.core.runners.attention import AttentionShape
from pyagent.infrastructure.engine.runners.torch.architectures import pyagent_register_architectures
from pyagent.infrastructure.engine.runners.torch.attention_backends import pyagent_register_attention_backends
from pyagent.testing import ArchitectureConformance, AttentionBackendConformance

pytestmark = pytest.mark.oracle

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"vocab_size": 325, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
NEOX = {"model_type": "gpt_neox", **SIZES, "intermediate_size": 80, "max_position_embeddings": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 325, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "gpt_neox": {**NEOX, "rotary_pct": 0.5, "layer_norm_eps": 1e-5},
}
BUILT_IN = {one.name: one for one in pyagent_register_architectures()}
ATTENTION = {one.name: one for one in pyagent_register_attention_backends() if one.name not in {"triton", "flex"}}
sinks = runpy.run_path(str(EXAMPLES / "pyagent-sinks/pyagent_sinks.py"))["pyagent_register_attention_backends"]()[0]


def few_shapes(self: AttentionBackendConformance) -> list[AttentionShape]:
    """One of a window, and one of a softcap. FlexAttention is tried by `sinks`; Triton's interpreter takes too long."""
    shapes = [
        AttentionShape("cpu", "f32", "f32", 8, 2, 32, frozenset({24}), None),
        AttentionShape("cpu", "f32", "f32", 4, 4, 16, frozenset({None}), 30.0),
    ]
    return shapes[:1] if self.make().name == "sinks" else shapes


add_suites(
    AttentionBackendConformance,
    {name: (lambda one=one: one) for name, one in {**ATTENTION, "sinks": sinks}.items()},
    shapes=dict.fromkeys([*ATTENTION, "sinks"], few_shapes),
)
add_suites(ArchitectureConformance, {name: (lambda name=name: BUILT_IN[name]) for name in CONFIGS}, config=CONFIGS)
