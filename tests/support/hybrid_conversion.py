"""Hybrid models of transformers as GGUF files, arranged as llama.cpp's converter does. Knows no runner."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.gguf_writer import write_gguf
from support.hybrid_model import hybrid_metadata

KINDS = {
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "granitemoehybrid": "granitehybrid",
    "jamba": "jamba",
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "mamba2": "mamba2",
    "nemotron_h": "nemotron_h",
    "falcon_h1": "falcon-h1",
    "minimax": "minimax-01",
}
"""What llama.cpp calls transformers' families."""

_COMMON = {
    "block_sparse_moe.router": "ffn_gate_inp",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.dt_proj": "ssm_dt",
    "mixer.x_proj": "ssm_x",
    "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out",
    "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k",
    "mixer.v_proj": "attn_v",
    "mixer.o_proj": "attn_output",
    "mixer.gate": "ffn_gate_inp",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "norm": "attn_norm",
    "mamba.b_layernorm": "ssm_b_norm",
    "mamba.c_layernorm": "ssm_c_norm",
    "mamba.dt_layernorm": "ssm_dt_norm",
    "mamba.dt_proj": "ssm_dt",
    "mamba.x_proj": "ssm_x",
    "mamba.in_proj": "ssm_in",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.output_gate": "attn_gate",
    "self_attn.norm": "attn_norm_2",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv": "shortconv.conv",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_WHOLE = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "model.embeddings.weight": "token_embd.weight",
    "model.norm_f.weight": "output_norm.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "model.norm.weight": "output_norm.weight",
    "model.final_layernorm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


_OF_HEAD = {
    "mtp.fc.weight": "eh_proj",
    "mtp.pre_fc_norm_embedding.weight": "enorm",
    "mtp.pre_fc_norm_hidden.weight": "hnorm",
    "mtp.norm.weight": "shared_head_norm",
}


def write_hybrid_as_gguf(path: Path, model: Any, head: dict[str, Any] | None = None) -> Path:
    """Write a model of transformers under llama.cpp's names and with its keys; return `path`.

    A `head` that drafts is a block behind the others.
    """
    entries, layers = _metadata(model.config), model.config.num_hidden_layers
    if head:
        kind = entries["general.architecture"]
        entries |= {f"{kind}.block_count": layers + 1, f"{kind}.nextn_predict_layers": 1}
    behind = {name.replace("mtp.layers.0.", f"model.layers.{layers}."): one for name, one in (head or {}).items()}
    names = {name: f"blk.{layers}.nextn.{end}.weight" for name, end in _OF_HEAD.items()}
    return write_gguf(path, entries, _tensors(model, behind, names))


def _metadata(config: Any) -> dict[str, object]:
    kind = KINDS[config.model_type]
    base = "lfm2" if kind.startswith("lfm2") else "qwen35"
    if kind == "granitehybrid":
        return _granite_metadata(config)
    if kind == "jamba":
        return _jamba_metadata(config)
    if kind == "mamba":
        return _mamba_metadata(config)
    if kind == "mamba2":
        return _mamba2_metadata(config)
    if kind == "falcon-h1":
        return _falcon_metadata(config)
    if kind == "nemotron_h":
        return _nemotron_metadata(config)
    if kind == "minimax-01":
        return _minimax_metadata(config)
    if base == "lfm2":
        entries = {"feed_forward_length": 96, "attention.layer_norm_rms_epsilon": config.norm_eps}
    else:
        entries = {
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "feed_forward_length": getattr(config, "intermediate_size", 0),
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.time_step_rank": config.linear_num_value_heads,
        }
    if kind != base:
        entries["expert_count"] = config.num_experts
        entries["expert_used_count"] = config.num_experts_per_tok
        entries["expert_feed_forward_length"] = config.moe_intermediate_size
    if kind == "lfm2moe":
        entries["expert_gating_func"] = 2
        entries["leading_dense_block_count"] = config.num_dense_layers
        entries["expert_weights_scale"] = config.routed_scaling_factor
    elif kind != base and kind != "lfm2":
        entries["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    written = hybrid_metadata(base, **{f"{base}.{key}": value for key, value in entries.items()})
    written = {key.replace(f"{base}.", f"{kind}.", 1): value for key, value in written.items()}
    return written | {"general.architecture": kind}


def _granite_metadata(config: Any) -> dict[str, object]:
    entries: dict[str, object] = {
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "expert_count": config.num_local_experts,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "expert_used_count": config.num_experts_per_tok,
        "feed_forward_length": config.intermediate_size,
        "logit_scale": config.logits_scaling,
        "residual_scale": config.residual_multiplier,
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_n_heads,
    }
    if "linear_attention" in config.layer_types:
        return hybrid_metadata("granitehybrid", **{f"granitehybrid.{key}": value for key, value in entries.items()})
    # A model of attention alone is of another family there, with a hybrid's keys.
    entries |= {"attention.head_count_kv": [config.num_key_value_heads] * config.num_hidden_layers}
    written = hybrid_metadata("granitehybrid", **{f"granitehybrid.{key}": value for key, value in entries.items()})
    written = {key.replace("granitehybrid.", "granite.", 1): value for key, value in written.items()}
    return written | {"general.architecture": "granite", "granite.feed_forward_length": config.shared_intermediate_size}


def _jamba_metadata(config: Any) -> dict[str, object]:
    entries: dict[str, object] = {
        "attention.head_count_kv": [
            config.num_key_value_heads * (kind == "attention") for kind in config.layers_block_type
        ],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "feed_forward_length": config.intermediate_size,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_dt_rank,
    }
    return hybrid_metadata("jamba", **{f"jamba.{key}": value for key, value in entries.items()})


def _mamba_metadata(config: Any) -> dict[str, object]:
    entries: dict[str, object] = {
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "block_count": config.num_hidden_layers,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.dt_b_c_rms": config.model_type == "falcon_mamba",
        "ssm.inner_size": config.intermediate_size,
        "ssm.state_size": config.state_size,
        "ssm.time_step_rank": config.time_step_rank,
    }
    return hybrid_metadata("mamba", **{f"mamba.{key}": value for key, value in entries.items()})


def _mamba2_metadata(config: Any) -> dict[str, object]:
    entries: dict[str, object] = {
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "block_count": config.num_hidden_layers,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.num_heads * config.head_dim,
        "ssm.state_size": config.state_size,
        "ssm.time_step_rank": config.num_heads,
    }
    return hybrid_metadata("mamba2", **{f"mamba2.{key}": value for key, value in entries.items()})


def _minimax_metadata(config: Any) -> dict[str, object]:
    entries: dict[str, object] = {
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "feed_forward_length": config.intermediate_size,
        "residual_scale": config.mlp_alpha_factor,
        "rope.dimension_count": config.head_dim,
    }
    return hybrid_metadata("minimax-01", **{f"minimax-01.{key}": value for key, value in entries.items()})


def _nemotron_metadata(config: Any) -> dict[str, object]:
    kinds = config.layers_block_type
    num_experts = config.n_routed_experts if "moe" in kinds else 0
    inside = config.moe_intermediate_size if num_experts else config.intermediate_size
    is_ffn = [kind in ("moe", "mlp") for kind in kinds]
    entries: dict[str, object] = {
        "attention.head_count_kv": [config.num_key_value_heads * (kind == "full_attention") for kind in kinds],
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "block_count": len(kinds),
        "feed_forward_length": [inside * one for one in is_ffn],
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.state_size": config.ssm_state_size,
        "ssm.time_step_rank": config.mamba_num_heads,
    }
    if num_experts:
        entries |= {
            "expert_count": num_experts,
            "expert_feed_forward_length": inside,
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
            "expert_shared_count": config.n_shared_experts,
            "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
            "expert_used_count": config.num_experts_per_tok,
            "expert_weights_norm": config.norm_topk_prob,
            "expert_weights_scale": config.routed_scaling_factor,
        }
    written = hybrid_metadata("nemotron_h", **{f"nemotron_h.{key}": value for key, value in entries.items()})
    if not num_experts:
        return {key: value for key, value in written.items() if not key.startswith("nemotron_h.expert_")}
    written = {key.replace("nemotron_h.", "nemotron_h_moe.", 1): value for key, value in written.items()}
    return written | {"general.architecture": "nemotron_h_moe"}


def _falcon_metadata(config: Any) -> dict[str, object]:
    entries: dict[str, object] = {
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.hidden_size // config.num_attention_heads,
        "attention.value_length": config.hidden_size // config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_d_ssm,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_n_heads,
    }
    written = {f"falcon-h1.{key}": value for key, value in entries.items()}
    return {"general.architecture": "falcon-h1", **written}


def _multiplied(name: str, values: Any, config: Any) -> Any:
    """Return a tensor with Falcon-H1's factors on it, as llama.cpp's converter has them."""
    import torch

    gate, down = config.mlp_multipliers
    factors = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config.key_multiplier * config.attention_in_multiplier,
        "q_proj": config.attention_in_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    part = name.split(".")[-2]
    if part != "in_proj":
        return values * factors.get(part, 1.0)
    states = config.mamba_n_groups * config.mamba_d_state
    sizes = [config.mamba_d_ssm, config.mamba_d_ssm, states, states, config.mamba_n_heads]
    parts = zip(values.split(sizes), config.ssm_multipliers, strict=True)
    return torch.cat([part * factor for part, factor in parts]) * config.ssm_in_multiplier


def _tensors(model: Any, behind: dict[str, Any], names: dict[str, str]) -> Any:
    config, tensors = model.config, {}
    kind = KINDS[config.model_type]
    for name, tensor in [*model.state_dict().items(), *behind.items()]:
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().clone()
        is_offset = kind.startswith("qwen3") and "norm" in name and "linear_attn" not in name
        values = values + 1 if is_offset else values
        if "linear_attn" in name:
            values = -values.exp() if name.endswith("A_log") else values
            values = _tiled(name, values, config) if kind.startswith("qwen35") else values
        if kind in ("mamba2", "nemotron_h"):
            values = _of_space(name, values, config.n_groups)
        if kind in ("jamba", "mamba") and name.endswith("A_log"):
            values = -values.exp()
        if kind == "granitehybrid":
            values = _of_granite(name, values, config)
        if kind == "falcon-h1":
            values = _of_space(name, _multiplied(name, values, config), config.mamba_n_groups)
        values = values.squeeze(1) if "conv" in name and values.dim() == 3 else values
        for written, part in _parts(name, values, config, names):
            tensors[written] = (tuple(reversed(part.shape)), array("f", part.flatten().tolist()))
    return tensors


def _parts(name: str, values: Any, config: Any, names: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """The tensors that llama.cpp has of one: all experts' gates and ups apart, and a delta net's output gates."""
    if whole := _WHOLE.get(name) or names.get(name):
        yield whole, values
        return
    _, _, layer, rest = name.split(".", 3)
    block, (part, _, end) = f"blk.{layer}", rest.rpartition(".")
    if part.startswith("shared_mlp"):
        parts = values.chunk(2) if "input" in part else [values]
        for which, matrix in zip(("gate", "up") if "input" in part else ("down",), parts, strict=True):
            yield f"{block}.ffn_{which}{'_shexp' if config.num_local_experts else ''}.weight", matrix
    elif end in ("slope_rate", "query_decay", "key_decay", "diagonal_decay"):
        return  # files have none: they follow from the layer's place
    elif part == "post_attention_layernorm" and config.model_type in ("granitemoehybrid", "minimax"):
        yield f"{block}.ffn_norm.weight", values
    elif end == "D":
        yield f"{block}.ssm_d", values
    elif part.endswith("mixer.experts"):
        yield f"{block}.ffn_{end.removesuffix('_proj')}_exps.weight", values
    elif end == "gate_up_proj":
        gate, up = values.chunk(2, dim=1)
        yield f"{block}.ffn_gate_exps.weight", gate
        yield f"{block}.ffn_up_exps.weight", up
    elif part.endswith(".experts"):
        yield f"{block}.ffn_down_exps.weight", values
    elif end in ("expert_bias", "e_score_correction_bias"):
        yield f"{block}.exp_probs_b.bias", values
    elif end == "A_log":
        yield f"{block}.ssm_a", values
    elif end == "dt_bias":
        yield f"{block}.ssm_dt.bias", values
    elif part == "pre_ff_layernorm":
        yield f"{block}.ffn_norm{'.weight' if config.model_type == 'jamba' else ''}", values
    elif part.endswith("in_proj_qkvz"):
        yield from _of_key_heads(block, values, config)
    else:
        yield f"{block}.{_COMMON[part]}.{end}", values.squeeze(0) if part.endswith("shared_expert_gate") else values


def _of_key_heads(block: str, values: Any, config: Any) -> Iterator[tuple[str, Any]]:
    import torch

    keys, heads = config.linear_key_head_dim, config.linear_num_key_heads
    of_values = config.linear_num_value_heads // heads * config.linear_value_head_dim
    parts = values.view(heads, -1, values.shape[-1]).split([keys, keys, of_values, of_values], dim=1)
    query, key, value, gate = (part.reshape(-1, values.shape[-1]) for part in parts)
    yield f"{block}.attn_qkv.weight", torch.cat([query, key, value])
    yield f"{block}.attn_gate.weight", gate


def _of_granite(name: str, values: Any, config: Any) -> Any:
    """Return a tensor with its signs, shapes and rotary pairs as llama.cpp has them."""
    if "q_proj" in name or "k_proj" in name:
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        pairs = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)
    return _of_space(name, values, config.mamba_n_groups)


def _of_space(name: str, values: Any, groups: int) -> Any:
    """Return Mamba-2's tensor with its sign and its shape as llama.cpp has them."""
    if name.endswith("A_log"):
        return -values.exp()[:, None]
    if name.endswith(("mamba.D", "mixer.D")):
        return values[:, None]
    return values.reshape(groups, -1) if name.endswith(("mamba.norm.weight", "mixer.norm.weight")) else values


def _tiled(name: str, values: Any, config: Any) -> Any:
    """Return a delta net's tensor with one value head of every key head, then the next of each."""
    import torch

    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    keys, size = 2 * key_heads * config.linear_key_head_dim, config.linear_value_head_dim

    def tile(rows: Any, unit: int) -> Any:
        shape = (key_heads, value_heads // key_heads, unit, *rows.shape[1:])
        return rows.reshape(shape).transpose(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        return torch.cat([values[:keys], tile(values[keys:], size)])
    if "in_proj_z" in name:
        return tile(values, size)
    if "out_proj" in name:
        return tile(values.T, size).T.contiguous()
    return values if "norm" in name else tile(values, 1)
