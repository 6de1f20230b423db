"""Dual chunk attention: transformers' layers, in whose place of attention the formula stands, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.logit_sequences import expect_same, reference_logits

pytestmark = pytest.mark.oracle

_SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000.0},
}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True}


def with_formula(model: Any, dual: dict[str, int], base: float) -> Any:
    """Put the formula in place of a model's attention, and of its rotary positions."""
    import torch
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    size, length = dual["chunk_size"], dual["chunk_size"] - dual["local_size"]
    original = dual.get("original_max_position_embeddings", 0)

    def unrotated(hidden: Any, position_ids: Any) -> tuple[Any, Any]:
        flat = torch.ones(1, position_ids.shape[-1], _SHAPE["head_dim"], dtype=hidden.dtype)
        return flat, torch.zeros_like(flat)

    def turned(heads: Any, places: Any) -> Any:
        dims = heads.shape[-1]
        angles = places.double()[:, None] * base ** (-torch.arange(0, dims, 2).double() / dims)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        left, right = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-right, left), dim=-1) * sin

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> tuple[Any, None]:
        positions = torch.arange(query.shape[2])
        chunk, place = positions // length, positions % length
        growth = torch.ones(len(positions)).double()
        if original:
            growth = (0.1 * ((positions + 1).double() / original).log() + 1.0).clamp(min=1.0)
        share = query.shape[1] // key.shape[1]
        keys = turned(key.double(), place).repeat_interleave(share, dim=1)
        furthest = torch.full_like(place, min(2 * length - 1, size))
        places = (place, (place + length).clamp(max=size), furthest)
        scores = torch.stack([turned(query.double(), other) @ keys.transpose(2, 3) for other in places])
        which = (chunk[:, None] - chunk[None, :]).clamp(0, 2)
        scores = scores.gather(0, which.expand(1, *scores.shape[1:]))[0]
        scores = scores * scaling * growth[:, None] * growth[None, :]
        scores = scores.masked_fill(positions[None, :] > positions[:, None], float("-inf"))
        heads = scores.softmax(-1) @ value.double().repeat_interleave(share, dim=1)
        return heads.to(value.dtype).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("dual_chunks", attend)
    model.config._attn_implementation = "dual_chunks"
    model.model.rotary_emb.forward = unrotated
    return model


@pytest.mark.parametrize(
    ("family", "dual"),
    [
        ("qwen2", {"chunk_size": 64, "local_size": 16}),
        ("qwen3", {"chunk_size": 70, "local_size": 13, "original_max_position_embeddings": 200}),
        ("qwen3_moe", {"chunk_size": 300, "local_size": 20}),
    ],
)
def test_folders_agree_with_the_formula_at_500_positions(family: str, dual: dict[str, int], tmp_path: Path) -> None:
    """Own chunks, those before and several earlier ones, and scores that grow: as `expect_same`, of random weights.

    The torch runner refuses them by name.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from pyagent.core.errors import ModelError
    from pyagent.infrastructure.engine.runners.torch.models import DescribedModel

    torch.manual_seed(5)
    config = AutoConfig.for_model(family, **_SHAPE, **(_EXPERTS if family == "qwen3_moe" else {}))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "norm" in name or "bias" in name:
                values.add_(torch.randn_like(values) * 0.1)
            elif name.endswith(("q_proj.weight", "k_proj.weight")):  # so that it matters where a text looks
                values.mul_(6.0)
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"dual_chunk_attention_config": dual}))
    with pytest.raises(ModelError, match="dual chunk attention is not implemented for the torch runner; set engine"):
        DescribedModel(tmp_path, None, None)
    reference = with_formula(model, dual, _SHAPE["rope_parameters"]["rope_theta"])
    expect_same(tmp_path, reference_logits(reference))
