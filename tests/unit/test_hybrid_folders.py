"""Folders of hybrids and of Llama 4 that are refused: what is wrong is told of by name, before a tensor is read."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from pyagent import _rust

_COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
_GRANITE = {
    **_COMMON,
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "hidden_act": "silu",
}
_FALCON = {
    **_COMMON,
    "model_type": "falcon_h1",
    "hidden_act": "silu",
    "mamba_d_ssm": None,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
}
_LFM2 = {
    **_COMMON,
    "model_type": "lfm2_moe",
    "layer_types": ["conv", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


_NEMOTRON = {
    **_COMMON,
    "model_type": "nemotron_h",
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "ME*-",
    "head_dim": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
}


_LLAMA4 = {
    **_COMMON,
    "model_type": "llama4_text",
    "intermediate_size_mlp": 64,
    "hidden_act": "silu",
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
}


_JAMBA = {
    **_COMMON,
    "model_type": "jamba",
    "hidden_act": "silu",
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "num_experts": 1,
    "num_experts_per_tok": 1,
}
_MAMBA = {
    "model_type": "falcon_mamba",
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
}
_MAMBA2 = {
    "model_type": "mamba2",
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "num_heads": 4,
    "head_dim": 32,
    "n_groups": 2,
    "state_size": 16,
}
_KIMI = {
    "model_type": "kimi_linear",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "use_grouped_topk": True,
    "mla_use_nope": True,
    "first_k_dense_replace": 1,
    "model_max_length": 512,
    "rope_theta": 10000.0,
    "rope_scaling": None,
}
_KIMI_LAYERS = {"head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4, "kda_layers": [1], "full_attn_layers": [2]}
_MINIMAX = {
    **_COMMON,
    "model_type": "minimax",
    "hidden_act": "silu",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "full_attn_alpha_factor": 3.5,
}
_LFM3 = {**_COMMON, "model_type": "lfm3", "layer_types": ["conv", "sliding_attention"], "head_dim": 32}
_QWEN35 = {
    **_COMMON,
    "model_type": "qwen3_5_text",
    "hidden_act": "silu",
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}


def write(folder: Path, config: dict[str, object], *names: str) -> Path:
    """Write a folder with this configuration, and an embedding and tensors of these names in one shape."""
    names = ("model.embed_tokens.weight", *names)
    places = [[16384 * at, 16384 * (at + 1)] for at in range(len(names))]
    told = [{"dtype": "F32", "shape": [64, 64], "data_offsets": place} for place in places]
    header = json.dumps(dict(zip(names, told, strict=True)))
    whole = struct.pack("<Q", len(header)) + header.encode() + bytes(16384 * len(names))
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "config.json").write_text(json.dumps(config))  # an infinite number as the word that NVIDIA's files have
    return folder


@pytest.mark.parametrize(
    ("config", "names", "has_mtp"),
    [
        (_QWEN35, ["mtp.fc.weight"], True),
        (_QWEN35, [], False),
        (_QWEN35, ["mtp.fc.weight", "mtp.lm_head.weight"], False),
        (_QWEN35, ["mtp.fc.weight", "mtp.embed_tokens.weight"], False),
        (_QWEN35, ["mtp.fc.weight", "mtp.layers.1.mlp.up_proj.weight"], False),
        (_LFM2, ["mtp.fc.weight"], False),
        (_LFM2, ["model.layers.2.eh_proj.weight"], False),
    ],
)
def test_heads_of_the_known_kind_alone_draft(
    config: dict[str, object], names: list[str], has_mtp: bool, tmp_path: Path
) -> None:
    """One layer that shares the model's embedding and output matrix, of families whose heads are known."""
    assert _rust.describe_model(write(tmp_path, config, *names), "bf16")["has_mtp"] is has_mtp


def said_of(folder: Path, config: dict[str, object]) -> str:
    """What is said of a folder with this configuration and no tensor but the embedding, in one line."""
    write(folder, config)
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(folder, threads=1, kv_bytes=1 << 20)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.mamba.in_proj.weight"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "model.layers.0.mamba.in_proj.weight"),
        ({"layer_types": ["conv", "attention"]}, "'layer_types' must have linear_attention or full_attention"),
        ({"layer_types": ["mamba", "mamba"]}, "2 of 2 layers are recurrent"),
        ({"mamba_proj_bias": True}, "'mamba_proj_bias' is not implemented"),
        ({"mamba_d_head": 33}, "'mamba_n_heads' 4 times 'mamba_d_head' 33 must be 128"),
        ({"mamba_d_head": "auto", "mamba_n_heads": 16}, "head size is 8; expected 16 to 1024"),
        ({"mamba_d_state": 24}, "state size is 24; expected 16 to 1024, a multiple of 16"),
        ({"mamba_n_groups": 3}, "heads is 4; expected 1 to 1024, a multiple of 3"),
        ({"mamba_d_conv": 9}, "taps of the convolution is 9; expected 2 to 8"),
        ({"time_step_limit": [0.5, 0.1]}, "steps are 0.5 to 0.1; expected two numbers, the larger last"),
        ({"time_step_limit": [math.inf, math.inf]}, "steps are inf to inf; expected two numbers, the larger last"),
        ({"time_step_limit": [1e300, math.inf]}, " to inf; expected two numbers, the larger last"),
        ({"time_step_limit": [0.5]}, "'time_step_limit' must be two numbers"),
        ({"time_step_limit": [0, {"__float__": "NaN"}]}, "'time_step_limit' must be two numbers"),
        ({"position_embedding_type": "alibi"}, "'position_embedding_type' 'alibi' is not implemented"),
        ({"normalization_function": "layernorm"}, "'normalization_function' is not implemented"),
        ({"residual_multiplier": "much"}, "'residual_multiplier' must be a number"),
        ({"logits_scaling": 0}, "a factor on embeddings, scores, blocks or logits is not a number above 0"),
        ({"num_local_experts": 4}, "'num_experts_per_tok'"),
        ({"num_local_experts": 4, "num_experts_per_tok": 2}, "model.layers.0.block_sparse_moe.router.layer.weight"),
    ],
)
def test_granite_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Fields that are not implemented, shapes that no kernel computes, and tensors that are not there."""
    assert expected in said_of(tmp_path, {**_GRANITE, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.mamba.in_proj.weight"),
        ({"mamba_expand": 3}, "'mamba_n_heads' 4 times 'mamba_d_head' 32 must be 'mamba_d_ssm', 192"),
        ({"mamba_d_ssm": 64}, "'mamba_n_heads' 4 times 'mamba_d_head' 32 must be 'mamba_d_ssm', 64"),
        ({"mamba_rms_norm": True}, "'mamba_norm_before_gate' must be false where 'mamba_rms_norm' is true"),
        ({"mlp_bias": True}, "'mlp_bias' must be false for falcon_h1"),
    ],
)
def test_falcon_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """What is left to a default is twice as wide as the stream; the first is right but for its tensors."""
    assert expected in said_of(tmp_path, {**_FALCON, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.mamba.in_proj.weight"),
        ({"attn_layer_indices": [2]}, "'attn_layer_indices' must be a list of layers below 2"),
        ({"attn_layer_indices": None}, "'attn_layer_indices' must be a list of layers below 2"),
        ({"attn_layer_indices": []}, "2 of 2 layers are recurrent; expected at least one with attention"),
        ({"mamba_n_groups": 3}, "heads is 4; expected 1 to 1024, a multiple of 3"),
        ({"partial_rotary_factor": 3.0}, "96 of a head's 32 numbers are rotated"),
    ],
)
def test_bamba_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Layers that are not there, shapes that no kernel computes, and tensors that are not there."""
    config = {**_GRANITE, "model_type": "bamba", "attn_layer_indices": [1]}
    for field in ("layer_types", "num_local_experts", "shared_intermediate_size"):
        del config[field]
    assert expected in said_of(tmp_path, config | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.1.mixer.gate.weight"),
        ({"hybrid_override_pattern": "ME*X"}, "'hybrid_override_pattern' must say of each of 1 to 1000 layers"),
        ({"hybrid_override_pattern": ""}, "'hybrid_override_pattern' must say of each of 1 to 1000 layers"),
        ({"hybrid_override_pattern": "M" * 1001}, "'hybrid_override_pattern' must say of each of 1 to 1000 layers"),
        ({"hybrid_override_pattern": None}, "lacks 'hybrid_override_pattern'"),
        ({"hybrid_override_pattern": "ME*"}, "the kinds of 3 layers are told, of 4"),
        ({"hybrid_override_pattern": "MEM-"}, "2 of 4 layers are recurrent; expected at least one with attention"),
        ({"layers_block_type": ["mamba", "moe", 3, "mlp"]}, "'layers_block_type' must say of each of 1 to 1000 layers"),
        ({"layers_block_type": ["mamba", "moe", "mlp", "mlp"]}, "expected at least one with attention"),
        ({"moe_latent_size": 32}, "'moe_latent_size' is not implemented"),
        ({"mlp_hidden_act": "silu"}, "'mlp_hidden_act' must be \"relu2\""),
        ({"n_shared_experts": 2}, "'n_shared_experts' must be 1"),
        ({"use_bias": True}, "'use_bias' is not implemented for nemotron_h"),
        ({"sliding_window": 64}, "'sliding_window' is not implemented for nemotron_h"),
        ({"n_groups": 3}, "heads is 4; expected 1 to 1024, a multiple of 3"),
        ({"time_step_limit": [0.0, math.inf], "_name_or_path": 'a \\" Infinity'}, "model.layers.1.mixer.gate.weight"),
        ({"time_step_limit": [-math.inf, math.inf]}, "'time_step_limit' must be two numbers"),
        ({"n_group": 3}, "2 of 4 experts in 1 of 3 groups cannot be chosen"),
        ({"moe_shared_expert_intermediate_size": None}, "lacks 'moe_shared_expert_intermediate_size'"),
    ],
)
def test_nemotron_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Layers that are nothing known, other functions and experts in a latent, and tensors that are not there."""
    assert expected in said_of(tmp_path, {**_NEMOTRON, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.feed_forward.gate_proj.weight"),
        ({"moe_layers": [0, 1]}, "model.layers.0.feed_forward.router.weight"),
        ({"moe_layers": [2]}, "'moe_layers' must be a list of layers below 2"),
        ({"moe_layers": "all"}, "'moe_layers' must be a list of layers below 2"),
        ({"attention_chunk_size": 0}, "the window of some layers is 0 positions wide"),
        ({"attention_chunk_size": -1}, "'attention_chunk_size' must be a whole number"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "'layer_types' must have chunked_attention or"),
        ({"layer_types": ["full_attention"]}, "the kinds of 1 layers are told, of 2"),
        ({"no_rope_layers": [1]}, "'no_rope_layers' must have 1 (rotary) or 0 for each layer"),
        ({"num_experts_per_tok": 5}, "experts of a token are 5; expected 1 to 4"),
        ({"intermediate_size_mlp": None}, "lacks 'intermediate_size_mlp'"),
    ],
)
def test_llama_4_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Layers that are nothing known, chunks of nothing, more experts than there are, and tensors that are not there."""
    assert expected in said_of(tmp_path, {**_LLAMA4, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.feed_forward.w1.weight"),
        ({"num_dense_layers": 0}, "model.layers.0.feed_forward.gate.weight"),
        ({"use_expert_bias": False}, "'use_expert_bias' is not implemented"),
        ({"num_experts_per_tok": 5}, "experts of a token are 5; expected 1 to 4"),
        ({"num_dense_layers": 0, "moe_intermediate_size": 0}, "feed-forward size is 0"),
    ],
)
def test_lfm2_folders_with_experts_are_refused_by_name(
    changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """A router that is not implemented, more experts than there are, and tensors that are not there."""
    assert expected in said_of(tmp_path, {**_LFM2, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.mamba.in_proj.weight"),
        ({"attn_layer_period": 0}, "'attn_layer_offset' 1 must be below 'attn_layer_period' 0"),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, "2 of 2 layers are recurrent; expected at least one with"),
        (
            {"num_experts": 4, "num_experts_per_tok": 2, "expert_layer_offset": 0},
            "model.layers.0.feed_forward.router.weight",
        ),
        ({"num_experts": 4, "expert_layer_offset": 2}, "'expert_layer_offset' 2 must be below 'expert_layer_period' 2"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "experts of a token are 5; expected 1 to 4"),
        ({"mamba_expand": 0}, "channels is 0; expected 16 to"),
        ({"mamba_d_state": 1025}, "state size is 1025; expected 1 to 1024"),
        ({"mamba_d_conv": 9}, "taps of the convolution is 9; expected 2 to 8"),
        ({"mamba_dt_rank": "all"}, "'mamba_dt_rank' must be a whole number, got a text"),
        ({"mamba_dt_rank": 0}, "step rank is 0; expected 1 to"),
        ({"mamba_proj_bias": True}, "'mamba_proj_bias' is not implemented"),
        ({"mamba_inner_layernorms": False}, "'mamba_inner_layernorms' is not implemented"),
        ({"sliding_window": 64}, "'sliding_window' is not implemented for jamba"),
    ],
)
def test_jamba_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Periods that no layer has, shapes that no kernel computes, and tensors that are not there."""
    assert expected in said_of(tmp_path, _JAMBA | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "layers.0.mixer.in_proj.weight"),
        ({"intermediate_size": 100}, "channels is 100; expected 16 to 131072, a multiple of 16"),
        ({"time_step_rank": "few"}, "'time_step_rank' must be a whole number, got a text"),
        ({"mixer_rms_eps": 0.0}, "the epsilon of the recurrent layers' norms is not a number above 0"),
        ({"conv_kernel": 1}, "taps of the convolution is 1; expected 2 to 8"),
        ({"model_type": "mamba", "rms_norm": False}, "'rms_norm' is not implemented"),
        ({"num_hidden_layers": 0}, "layers is 0; expected 1 to"),
        (
            {"hidden_act": "gelu_pytorch_tanh"},
            "'hidden_act' \"gelu_pytorch_tanh\" is not implemented here; expected silu",
        ),
    ],
)
def test_folders_of_mamba_alone_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Shapes that no kernel computes, other norms, and tensors that are not there."""
    assert expected in said_of(tmp_path, _MAMBA | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "layers.0.mixer.in_proj.weight"),
        ({"norm_before_gate": True, "time_step_limit": [0.0, {"__float__": "Infinity"}]}, "layers.0.mixer.in_proj"),
        ({"expand": 3}, "'num_heads' 4 times 'head_dim' 32 must be 192, the hidden size times 'expand'"),
        ({"num_heads": 16, "head_dim": 8}, "head size is 8; expected 16 to 1024, a multiple of 16"),
        ({"state_size": 24}, "state size is 24; expected 16 to 1024, a multiple of 16"),
        ({"n_groups": 3}, "heads is 4; expected 1 to 1024, a multiple of 3"),
        ({"hidden_act": "relu"}, "'hidden_act' \"relu\" is not implemented here; expected silu"),
        ({"rms_norm": False}, "'rms_norm' is not implemented"),
        ({"attn_layer_idx": [1]}, "'attn_layer_idx' is not implemented"),
    ],
)
def test_folders_of_mamba_2_alone_are_refused_by_name(
    changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """Shapes that no kernel computes, layers that it has not, and tensors that are not there."""
    assert expected in said_of(tmp_path, _MAMBA2 | changes)


@pytest.mark.parametrize(
    ("changes", "layers", "expected"),
    [
        ({}, {}, "model.layers.0.mlp.gate_proj.weight"),
        ({}, {"kda_layers": [1, 2]}, "must have each of the layers 1 to 2 once"),
        ({}, {"kda_layers": [0]}, "must have each of the layers 1 to 2 once"),
        ({}, {"kda_layers": [1, 3]}, "must have each of the layers 1 to 2 once"),
        ({}, {"kda_layers": []}, "must have each of the layers 1 to 2 once"),
        ({"num_hidden_layers": 1 << 60}, {}, "must have each of the layers 1 to 1152921504606846976 once"),
        ({}, {"kda_layers": [1, 2], "full_attn_layers": []}, "2 of 2 layers are recurrent"),
        ({}, {"head_dim": 48}, "head size is 48; expected 32 to 1024, a multiple of 32"),
        ({}, {"num_heads": 0}, "heads is 0; expected 1 to 1024"),
        ({}, {"short_conv_kernel_size": 9}, "taps of the convolution is 9; expected 2 to 8"),
        ({}, {"gate_lower_bound": -5.0}, "'linear_attn_config.gate_lower_bound' is not implemented"),
        ({"linear_attn_config": None}, {}, "config.json lacks 'linear_attn_config'"),
        ({"linear_attn_config": [1]}, {}, "'linear_attn_config' must be a table"),
        ({"layer_types": ["conv", "full_attention"]}, {}, "'layer_types' must have linear_attention or full_attention"),
        ({"mla_use_nope": False}, {}, "'mla_use_nope' is not implemented"),
        ({"rope_scaling": {"rope_type": "yarn"}}, {}, "'rope_scaling' is not implemented for kimi_linear"),
        ({"moe_router_activation_func": "softmax"}, {}, '"softmax" is not implemented here; expected sigmoid'),
        ({"kv_lora_rank": 40}, {}, "a latent has 40 numbers, which is not supported"),
    ],
)
def test_kimi_linear_folders_are_refused_by_name(
    changes: dict[str, object], layers: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """Layers that are told twice or not at all, positions, other ratings, and tensors that are not there."""
    config = _KIMI | {"linear_attn_config": _KIMI_LAYERS | layers} | changes
    assert expected in said_of(tmp_path, config)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.conv.in_proj.weight"),
        (
            {"layer_types": ["conv", "full"]},
            "'layer_types' must have conv, sliding_attention or full_attention for each",
        ),
        ({"layer_types": ["conv"]}, "'layer_types' must have conv, sliding_attention or full_attention for each of 2"),
        ({"layer_types": ["conv", "conv"]}, "2 of 2 layers are recurrent; expected at least one with attention"),
        ({"sliding_window": 0}, "the window of some layers is 0 positions wide"),
        ({"use_attention_gate": False}, "'use_attention_gate' is not implemented"),
        ({"use_sandwich_norm": False}, "'use_sandwich_norm' is not implemented"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}, "rope scaling 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "y" * 9_000}}}, f"rope scaling '{'y' * 120}...' with"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "'rope_parameters.rope_t"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "'rope_parameters."),
        ({"rope_parameters": {"full_attention": [5.0]}}, "'rope_parameters.full_attention' must be a table"),
    ],
)
def test_lfm3_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Kinds of layers that are not there, or not of all; heads without gates, blocks without norms after them."""
    assert expected in said_of(tmp_path, _LFM3 | changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "model.layers.0.block_sparse_moe.gate.weight"),
        ({"layer_types": ["linear_attention"]}, "must have linear_attention or full_attention for each of 2 layers"),
        (
            {"layer_types": ["lightning", "full_attention"]},
            "must have linear_attention or full_attention for each of 2",
        ),
        (
            {"layer_types": ["linear_attention"] * 2},
            "2 of 2 layers are recurrent; expected at least one with attention",
        ),
        ({"layer_types": None, "num_hidden_layers": 1 << 60}, "layers is 1152921504606846976; expected 1 to"),
        ({"num_attention_heads": 3}, "head size is 21; expected 16 to 1024, a multiple of 16"),
        ({"head_dim": 24}, "head size is 24; expected 16 to 1024, a multiple of 16"),
        ({"head_dim": 2048}, "head size is 2048; expected 16 to 1024, a multiple of 16"),
        ({"num_attention_heads": 2048, "head_dim": 16}, "heads is 2048; expected 1 to 1024"),
        ({"num_key_value_heads": 3}, "2 query heads cannot share 3 key/value heads evenly"),
        ({"full_attn_alpha_factor": "NaN"}, "'full_attn_alpha_factor' must be a number, got a text"),
        ({"full_attn_alpha_factor": 0}, "'full_attn_alpha_factor' is 0; expected a number above 0"),
        ({"linear_attn_beta_factor": -1.0}, "'linear_attn_beta_factor' is -1; expected a number above 0"),
        ({"mlp_alpha_factor": 1e39}, "'mlp_alpha_factor' is inf; expected a number above 0"),
        (
            {"hidden_act": "gelu_pytorch_tanh"},
            "'hidden_act' \"gelu_pytorch_tanh\" is not implemented here; expected silu",
        ),
        ({"sliding_window": 64}, "'sliding_window' is not implemented for minimax"),
        ({"rotary_dim": 16}, "'rotary_dim' is not implemented"),
        ({"postnorm": True}, "'postnorm' is not implemented"),
        ({"num_experts_per_tok": 5}, "experts of a token are 5; expected 1 to 4"),
    ],
)
def test_minimax_folders_are_refused_by_name(changes: dict[str, object], expected: str, tmp_path: Path) -> None:
    """Kinds of layers that are not there, or not of all; heads that do not fit; factors that are no numbers above 0."""
    assert expected in said_of(tmp_path, _MINIMAX | changes)
