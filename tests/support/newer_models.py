"""Small models of families of 2025 and 2026: configurations, and what llama.cpp's files of them say."""

from __future__ import annotations

from typing import Any

from support.small_shapes import FACTORS, SHAPE, WIDE

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_WINDOWS = {"num_hidden_layers": 4, "sliding_window": 24}
_GRANITE = {**SHAPE, **FACTORS, **_WINDOWS}
_FEW = {"num_experts": 6, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "ministral": {
        **WIDE,
        "num_hidden_layers": 3,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "cwm": {**WIDE, **_WINDOWS, "rope_parameters": _LLAMA3},
    "iquestcoder": WIDE,
    "jais2": SHAPE,
    "hy_v3": {
        **WIDE,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 2,
        "moe_intermediate_size": 32,
        "router_scaling_factor": 2.5,
        "initializer_range": 0.02,
    },
    "flex_olmo": {**SHAPE, **_FEW},
    "hyperclovax": {**SHAPE, **FACTORS},
    "vaultgemma": {**WIDE, "sliding_window": 24, "query_pre_attn_scalar": 32},
    "axk1": {
        **SHAPE,
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 32,
    },
    "granite_swa": {**_GRANITE, "layer_rope_theta": [0, 10_000.0, 0, 10_000.0], "rms_norm_eps": 1e-5},
    "granite_swa, two bases": {**_GRANITE, "layer_rope_theta": [500_000.0, 10_000.0, 0, 10_000.0]},
    "granitemoe_swa": {
        **_GRANITE,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 80,
    },
    "cohere2_moe": {
        **WIDE,
        **_WINDOWS,
        **_FEW,
        "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid",
        "first_k_dense_replace": 1,
        "prefix_dense_intermediate_size": 128,
        "sliding_window_pattern": 2,
        "rms_norm_eps": 1e-5,
        "logit_scale": 2.0,
    },
    "cohere2_moe, softmax": {
        **WIDE,
        **_WINDOWS,
        **_FEW,
        "num_shared_experts": 1,
        "shared_expert_combination_strategy": "sum",
        "logit_scale": 2.0,
    },
    "nanochat": SHAPE,
    "llama, as Pangu": {**WIDE, "attention_bias": True},
    "llama, as PaddleOCR": {**WIDE, "rms_norm_eps": 1e-5},
    "hunyuan_v1_dense, as Maincoder": WIDE,
    "granitemoeshared, as Ling": {
        **SHAPE,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 192,
        "attention_multiplier": 0.25,
    },
    "qwen3_moe, as Qwen3-VL": {**WIDE, **_FEW, "moe_intermediate_size": 32, "norm_topk_prob": True},
}
"""What is peculiar to each family is in its configuration; 500 positions pass windows."""

SLOW_FOLDERS = {
    *("iquestcoder", "jais2", "granite_swa", "llama, as Pangu", "llama, as PaddleOCR"),
    *("hunyuan_v1_dense, as Maincoder", "granitemoeshared, as Ling", "qwen3_moe, as Qwen3-VL"),
}
SLOW_FILES = {"llama, as PaddleOCR", "qwen3_moe, as Qwen3-VL", "granite_swa"}
"""Compared where there is time: what they have of their own, the others have too."""

_OF_GRANITE: dict[str, object] = {
    "embedding_scale": 3.0,
    "attention.scale": 0.2,
    "residual_scale": 0.5,
    "logit_scale": 0.7,
    "attention.sliding_window": 24,
    "attention.sliding_window_pattern": [False, True, True, True],
}
_EXPERTS: dict[str, object] = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 96}
KEYS: dict[str, tuple[str, dict[str, object]]] = {
    "jais2": (
        "jais2",
        {
            "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": None,
            "rope.dimension_count": 16,
        },
    ),
    "hy_v3": (
        "hy_v3",
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "expert_gating_func": 2,
            "rope.freq_base": 11_158_840.0,
        },
    ),
    "granite_swa": (
        "granite_swa",
        _OF_GRANITE | {"attention.rope_pattern": [False, True, False, True]},
    ),
    "granitemoe_swa": (
        "granite_swa",
        _OF_GRANITE
        | {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_shared_feed_forward_length": 80,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "cohere2_moe": (
        "cohere2moe",
        _EXPERTS
        | {
            "feed_forward_length": 128,
            "logit_scale": 2.0,
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": [False, True, False, True],
            "leading_dense_block_count": 1,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 192,
            "expert_weights_norm": True,
            "expert_gating_func": 2,
            "rope.dimension_count": 32,
            "rope.scaling.type": "none",
        },
    ),
    "llama, as Pangu": (
        "pangu-embedded",
        {"rope.dimension_count": 32, "attention.layer_norm_rms_epsilon": 1e-6},
    ),
    "llama, as PaddleOCR": ("paddleocr", {"rope.dimension_sections": [8, 12, 12, 0]}),
    "hunyuan_v1_dense, as Maincoder": ("maincoder", {"rope.dimension_count": 32}),
    "granitemoeshared, as Ling": (
        "bailingmoe",
        _EXPERTS
        | {
            "expert_shared_count": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.0,
            "leading_dense_block_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "qwen3_moe, as Qwen3-VL": (
        "qwen3vlmoe",
        {
            **_EXPERTS,
            "expert_feed_forward_length": 32,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "n_deepstack_layers": 3,
            "rope.dimension_sections": [6, 5, 5, 0],
        },
    ),
}
"""What llama.cpp calls the families, and the keys that are not those of every model."""

REARRANGED = {"granite_swa", "granitemoe_swa", "granitemoeshared, as Ling"}
"""Families whose heads' pairs its converter makes neighbours."""


def as_llama_cpp_has_it(name: str, block: str, part: str, end: str, values: Any) -> dict[str, Any] | None:
    """A layer's tensor of these families under llama.cpp's names, where they are not those of others."""
    if (name, end) == ("hy_v3", "expert_bias"):
        return {f"{block}.exp_probs_b": values}
    if name == "granitemoe_swa" and part in _OF_GRANITEMOE:
        return {f"{block}.{_OF_GRANITEMOE[part]}.weight": values}
    if part == "block_sparse_moe.experts":
        return {f"{block}.ffn_{end.removesuffix('_proj')}_exps.weight": values}
    if name.endswith("as Maincoder") and part in _AFTER_ROPE:
        heads = values.reshape(-1, 2, 16, *values.shape[1:]).transpose(1, 2)
        return {f"{block}.{_AFTER_ROPE[part]}.{end}": heads.reshape(values.shape)}
    return None


_OF_GRANITEMOE = {
    "block_sparse_moe.router": "ffn_gate_inp",
    "shared_mlp.input_linear": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
_AFTER_ROPE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
}
