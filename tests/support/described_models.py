"""Small models of families that are descriptions over shared layers: configurations, and llama.cpp's form of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support import newer_models
from support.small_shapes import FACTORS, SHAPE, WIDE

_MANY = {**SHAPE, "num_key_value_heads": 4}
_GROUPED = {
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 2.5,
}
_LATENT: dict[str, Any] = {
    **_MANY,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma": WIDE,
    "glm4": {**WIDE, "attention_bias": True},
    "arcee": {**WIDE, "mlp_bias": True},
    "apertus": {
        **WIDE,
        "hidden_act": "xielu",
        "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 12_000_000.0},
    },
    "mellum": {
        **WIDE,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.2,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "internlm3": WIDE,
    "granitemoe": {**SHAPE, **FACTORS, "num_local_experts": 6, "num_experts_per_tok": 2},
    "granitemoeshared": {
        **SHAPE,
        **FACTORS,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 80,
    },
    "dots1": {
        **WIDE,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "attention_bias": True,
    },
    "minimax_m2": {
        **WIDE,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    },
    "cohere": {**SHAPE, "logit_scale": 2.0, "attention_bias": True},
    "cohere2": {**WIDE, "num_hidden_layers": 4, "logit_scale": 2.0, "sliding_window": 24},
    "starcoder2": {**SHAPE, "sliding_window": 24},
    "phi": {**_MANY, "hidden_act": "gelu_new"},
    "stablelm": {**SHAPE, "use_qkv_bias": True},
    "stablelm, parallel": {**SHAPE, "use_parallel_residual": True},
    "nemotron": WIDE,
    "olmo": SHAPE,
    "gpt_neox": _MANY,
    "gpt_neox, in turn": {**_MANY, "use_parallel_residual": False},
    "afmoe": {
        **WIDE,
        "num_hidden_layers": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "route_scale": 2.5,
        "sliding_window": 24,
        "mup_enabled": True,
    },
    "exaone_moe": {
        **WIDE,
        **_GROUPED,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_shared_experts": 2,
        "sliding_window": 24,
    },
    "glm4_moe, as Ling": {
        **WIDE,
        **_GROUPED,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
    "granite, as MiniCPM": {
        **SHAPE,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.5,
        "logits_scaling": 0.5,
    },
    "solar_open": {**WIDE, **_GROUPED, "n_routed_experts": 8, "n_shared_experts": 1},
    "youtu": {**_LATENT, "tie_word_embeddings": True},
    "minicpm3": {**_LATENT, "scale_emb": 5, "scale_depth": 1.1, "dim_model_base": 32, "tie_word_embeddings": False},
    "minicpm3, as published": {**_LATENT, "q_lora_rank": 32},
    "mistral4": {
        **_LATENT,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
            "llama_4_scaling_beta": 0.3,
        },
    },
}
CONFIGS |= newer_models.CONFIGS
"""What is peculiar to each family is in its configuration; 500 positions pass windows."""

SLOW_FOLDERS = {
    *("gemma", "arcee", "internlm3", "granitemoe", "dots1", "cohere", "stablelm", "stablelm, parallel"),
    *("nemotron", "olmo", "gpt_neox, in turn", "solar_open", "minicpm3, as published"),
    "granite, as MiniCPM",
    "glm4_moe, as Ling",
    *newer_models.SLOW_FOLDERS,
}
SLOW_FILES = {
    *("gemma", "glm4", "granitemoe", "minimax_m2", "cohere", "starcoder2", "stablelm", "olmo", "gpt_neox", "arcee"),
    *("exaone_moe", "solar_open"),
    *newer_models.SLOW_FILES,
}
"""Compared where there is time: what they have of their own, the others have too."""

_EXPERTS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 96}
_GRANITE = _EXPERTS | {
    "embedding_scale": 3.0,
    "attention.scale": 0.2,
    "residual_scale": 0.5,
    "logit_scale": 0.7,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
_LAYER_NORM: dict[str, object] = {"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": None}
_GROUPS: dict[str, object] = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 32,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
}
KEYS: dict[str, tuple[str, dict[str, object]]] = {
    "gemma": ("gemma", {"attention.layer_norm_rms_epsilon": 1e-6}),
    "glm4": ("glm4", {"rope.dimension_count": 16, "attention.layer_norm_rms_epsilon": 1.5625e-7}),
    "mellum": (
        "mellum",
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": [True, True, True, False],
            "rope.freq_base": 500_000.0,
            "rope.freq_base_swa": 10_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_attn_factor": 1.2,
        },
    ),
    "arcee": ("arcee", {}),
    "apertus": ("apertus", {"rope.freq_base": 12_000_000.0}),
    "granitemoe": ("granitemoe", {**_GRANITE}),
    "granitemoeshared": ("granitemoe", {**_GRANITE, "expert_shared_feed_forward_length": 80}),
    "dots1": (
        "dots1",
        {
            "attention.layer_norm_rms_epsilon": 1e-6,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 32,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "leading_dense_block_count": 1,
        },
    ),
    "minimax_m2": (
        "minimax-m2",
        {
            **_EXPERTS,
            "expert_gating_func": 2,
            "rope.dimension_count": 16,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "cohere": (
        "command-r",
        {**_LAYER_NORM, "logit_scale": 2.0, "rope.scaling.type": "none", "rope.freq_base": 500_000.0},
    ),
    "cohere2": (
        "cohere2",
        {
            **_LAYER_NORM,
            "logit_scale": 2.0,
            "attention.sliding_window": 24,
            "rope.dimension_count": 32,
            "rope.scaling.type": "none",
        },
    ),
    "starcoder2": ("starcoder2", {**_LAYER_NORM, "attention.sliding_window": 24}),
    "phi": ("phi2", {**_LAYER_NORM, "rope.dimension_count": 8}),
    "stablelm": ("stablelm", {**_LAYER_NORM, "rope.dimension_count": 4, "use_parallel_residual": True}),
    "stablelm, parallel": ("stablelm", {**_LAYER_NORM, "rope.dimension_count": 4, "use_parallel_residual": True}),
    "nemotron": ("nemotron", {**_LAYER_NORM, "rope.dimension_count": 16}),
    "olmo": ("olmo", _LAYER_NORM),
    "gpt_neox": ("gptneox", {**_LAYER_NORM, "rope.dimension_count": 4, "use_parallel_residual": True}),
    "afmoe": (
        "afmoe",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 32,
            "expert_weights_scale": 2.5,
            "leading_dense_block_count": 1,
            "attention.sliding_window": 24,
        },
    ),
    "exaone_moe": (
        "exaone-moe",
        {
            **_GROUPS,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 64,
            "leading_dense_block_count": 1,
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": [True, True, True, False],
            "nextn_predict_layers": 0,
            "rope.scaling.type": "none",
        },
    ),
    "solar_open": (
        "glm4moe",
        {**_GROUPS, "expert_shared_count": 1, "leading_dense_block_count": 0, "rope.freq_base": 1_000_000.0},
    ),
    "glm4_moe, as Ling": (
        "bailingmoe2",
        {
            **_GROUPS,
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": 32,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 16,
        },
    ),
    "granite, as MiniCPM": (
        "minicpm",
        {
            "embedding_scale": 3.0,
            "residual_scale": 0.5,
            "logit_scale": 0.5,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
    ),
    "minicpm3, as published": (
        "minicpm3",
        {
            "attention.kv_lora_rank": 32,
            "attention.q_lora_rank": 32,
            "attention.key_length": 48,
            "rope.dimension_count": 16,
        },
    ),
    "mistral4": (
        "mistral4",
        {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": 32,
            "attention.q_lora_rank": 48,
            "attention.key_length": 48,
            "attention.value_length": 32,
            "attention.key_length_mla": 48,
            "attention.value_length_mla": 16,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.temperature_scale": 0.3,
            "rope.dimension_count": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "leading_dense_block_count": 1,
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 32,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
        },
    ),
}
KEYS |= newer_models.KEYS
"""What llama.cpp calls the families, and the keys that are not those of every model."""

_NAMES = {
    "attention.dense": "attn_output",
    "self_attn.dense": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.router.gate": "ffn_gate_inp",
    "self_attn.gate_proj": "attn_gate",
    "pre_mlp_layernorm": "ffn_norm",
    "attention_layernorm": "attn_norm",
    "feedforward_layernorm": "ffn_norm",
}
CURVE = "mlp.act_fn"
"""What Apertus's layers have the numbers of their activation's curve under."""
_OF_EXPERTS = {"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}
_REARRANGED = {"arcee", "olmo", "granitemoe", "granitemoeshared", "granite, as MiniCPM", *newer_models.REARRANGED}
ADDED_TO_NORMS = {"gemma", "nemotron"}
"""Families to whose norms' weights llama.cpp's converter adds one."""


def as_llama_cpp_has_it(name: str, block: str, part: str, end: str, values: Any) -> dict[str, Any] | None:
    """A layer's tensor under llama.cpp's names, where they are not every model's; an expert's has its number behind."""
    last = part.rpartition(".")[2]
    if part == CURVE:
        return {}
    newer = newer_models.as_llama_cpp_has_it(name, block, part, end, values)
    if newer is not None:
        return newer
    if part in _NAMES:
        return {f"{block}.{_NAMES[part]}.{end}": values}
    if last in _OF_EXPERTS:
        return {f"{block}.{_OF_EXPERTS[last]}_exps.weight {part.split('.')[2]}": values}
    if end == "e_score_correction_bias" or (part, end) == ("mlp", "expert_bias"):
        return {f"{block}.exp_probs_b.bias": values}
    if part == "mlp.experts":  # gates, then ups, of all experts
        return {f"{block}.ffn_{end.removesuffix('_proj')}_exps.weight": values}
    if (name, part) == ("afmoe", "post_attention_layernorm"):
        return {f"{block}.post_attention_norm.{end}": values}
    if last in {"input_linear", "output_linear"}:
        return _of_granite(block, part, values)
    if part == "attention.query_key_value":
        heads = values.reshape(4, 3, 16, -1).transpose(0, 1)
        return {f"{block}.attn_qkv.{end}": heads.reshape(values.shape)}
    if name in {"phi", "glm4_moe, as Ling"} and last in {"q_proj", "k_proj", "v_proj"}:
        return {f"{block}.attn_qkv.{end} {'qkv'.index(last[0])}": values}
    if name in _REARRANGED and last in {"q_proj", "k_proj"}:
        size = CONFIGS[name].get("head_dim", 16)
        heads = values.reshape(-1, 2, size // 2, values.shape[-1]).transpose(1, 2)
        return {f"{block}.attn_{last[0]}.{end}": heads.reshape(values.shape)}
    return None


def curves(tensors: Mapping[str, Any]) -> dict[str, list[float]]:
    """The numbers of activations' curves, which llama.cpp's files have in their metadata, layer by layer."""
    found: dict[str, list[float]] = {}
    for key in sorted(key for key in tensors if f".{CURVE}." in key):
        found.setdefault(f"xielu.{key.rpartition('.')[2]}", []).append(float(tensors[key]))
    return found


def _of_granite(block: str, part: str, values: Any) -> dict[str, Any]:
    kind = "exps" if part.startswith("block_sparse_moe") else "shexp"
    if part.endswith("output_linear"):
        return {f"{block}.ffn_down_{kind}.weight": values}
    gates, ups = values.chunk(2, dim=-2)
    return {f"{block}.ffn_gate_{kind}.weight": gates, f"{block}.ffn_up_{kind}.weight": ups}


def joined(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Queries, keys and values in one matrix, as Phi-2's first files and Ling's have them."""
    import torch

    found = {key: values for key, values in tensors.items() if "attn_qkv." not in key or " " not in key}
    names = {key.partition(" ")[0] for key in tensors.keys() - found.keys()}
    return found | {name: torch.cat([tensors[f"{name} {place}"] for place in range(3)]) for name in names}
