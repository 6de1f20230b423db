"""The torch runner's attention backends and architectures do what every one must."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.suites import add_suites, check_rule_is_kept

from pyagent.core.runners.attention import AttentionShape
from pyagent.infrastructure.engine.runners.torch.architectures import pyagent_register_architectures
from pyagent.infrastructure.engine.runners.torch.attention_backends import pyagent_register_attention_backends
from pyagent.testing import ArchitectureConformance, AttentionBackendConformance

pytestmark = pytest.mark.oracle

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "pyagent-granite"), str(EXAMPLES / "pyagent-mpt")]
SIZES = {"vocab_size": 325, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
NEOX = {"model_type": "gpt_neox", **SIZES, "intermediate_size": 80, "max_position_embeddings": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 325, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "gpt_neox": {**NEOX, "rotary_pct": 0.5, "layer_norm_eps": 1e-5},
}
BUILT_IN = {one.name: one for one in pyagent_register_architectures()}
ATTENTION = {one.name: one for one in pyagent_register_attention_backends() if one.name not in {"triton", "flex"}}


def few_shapes(self: AttentionBackendConformance) -> list[AttentionShape]:
    """One of a window, and one of a softcap. FlexAttention and Triton have tests of their own: they take too long."""
    return [
        AttentionShape("cpu", "f32", "f32", 8, 2, 32, frozenset({24}), None),
        AttentionShape("cpu", "f32", "f32", 4, 4, 16, frozenset({None}), 30.0),
    ]


add_suites(
    AttentionBackendConformance,
    {name: (lambda one=one: one) for name, one in ATTENTION.items()},
    shapes=dict.fromkeys(ATTENTION, few_shapes),
)
add_suites(ArchitectureConformance, {name: (lambda name=name: BUILT_IN[name]) for name in CONFIGS}, config=CONFIGS)


# -- what the suites notice ------------------------------------------------------------------------------------------

Granite = runpy.run_path(str(EXAMPLES / "pyagent-granite/pyagent_granite.py"))["Granite"]
GRANITE = runpy.run_path(str(EXAMPLES / "pyagent-granite/test_granite_conformance.py"))["TestGranite"].config


Mpt = runpy.run_path(str(EXAMPLES / "pyagent-mpt/pyagent_mpt.py"))["Mpt"]
MPT = runpy.run_path(str(EXAMPLES / "pyagent-mpt/test_mpt_conformance.py"))["TestMpt"]


class Flat(Mpt):  # type: ignore[misc, valid-type]
    """MPT, of which the description adds nothing to scores."""

    def describe(self, config: Any) -> Any:
        return replace(super().describe(config), score_functions=[lambda head, distance: 0 * distance] * 2)


class Changed:
    """Granite's network, of which a fault changes a part."""

    name = "granite"

    def shape(self, config: Any) -> Any:
        return Granite().shape(config)

    def load(self, config: Any, shape: Any, layers: Any) -> Any:
        self.inner = Granite().load(config, shape, layers)
        return self


class AttendsTwice(Changed):
    def hidden(self, step: Any) -> Any:
        self.inner.hidden(step)
        return self.inner.hidden(step)


class Narrow(Changed):
    def hidden(self, step: Any) -> Any:
        return self.inner.hidden(step)

    def logits(self, hidden: Any) -> Any:
        return self.inner.logits(hidden)[:, :-1]


class SeesAll(Changed):
    def hidden(self, step: Any) -> Any:
        hidden = self.inner.hidden(step)
        return hidden + hidden.mean(0)


class Attention:
    """The plain form, of which a fault changes a part."""

    name = "faulty"

    def unavailable_reason(self, shape: Any) -> str | None:
        return None

    def open(self, shape: Any) -> Any:
        return ATTENTION["torch"].open(shape)

    def open_invariant(self, shape: Any) -> Any:
        return ATTENTION["torch"].open(shape)


class Raising(Attention):
    def unavailable_reason(self, shape: Any) -> str | None:
        assert shape.head_dim % 8 == 0
        return None


class Unscaled(Attention):
    def open(self, shape: Any) -> Any:
        attend = super().open(shape)
        return lambda q, cache, batch, scale, *more: attend(q, cache, batch, 1.0, *more)


@pytest.mark.parametrize(
    ("suite", "rule", "make", "told"),
    [
        (ArchitectureConformance, "each_layer_attends_once_in_order", AttendsTwice, "it attends in the layers"),
        (ArchitectureConformance, "outputs_have_the_shapes_sizes", Narrow, "`logits` gives (2, 319)"),
        (ArchitectureConformance, "a_token_does_not_see_later_ones", SeesAll, "later tokens change earlier ones"),
        (AttentionBackendConformance, "it_says_what_it_cannot_do", Raising, "it fails"),
        (AttentionBackendConformance, "it_computes_the_formula", Unscaled, "is wrong by"),
        (AttentionBackendConformance, "invariant_form_does_not_vary", Attention, "differ"),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_fault_is_noticed(suite: type, rule: str, make: Callable[[], object], told: str) -> None:
    """The rule fails with what is wrong; what has no fault is above."""
    with pytest.raises(AssertionError) as noticed:
        check_rule_is_kept(suite, f"test_{rule}", make, {"config": GRANITE})
    assert told in str(noticed.value)


def test_other_description_is_noticed() -> None:
    """One whose scores are not those of the network beside it."""
    with pytest.raises(AssertionError, match="of its description and of its network differ by"):
        check_rule_is_kept(
            ArchitectureConformance,
            "test_description_and_network_agree",
            Flat,
            {"config": MPT.config, "tensors": MPT.tensors},
        )


class TestMpt(ArchitectureConformance):
    """The example's, of both forms."""

    config, tensors = MPT.config, MPT.tensors

    def make(self) -> Any:
        return Mpt()


class TestGranite(ArchitectureConformance):
    """The example's."""

    config = GRANITE

    def make(self) -> Any:
        return Granite()
