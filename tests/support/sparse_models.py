"""Small random models of the families that people run, by transformers, as folders and as llama.cpp's GGUF files."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support import classic_models, described_models
from support.gguf_writer import Blocks, write_gguf

MXFP4 = 39
"""The number of the element type in GGUF files."""

_SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
_GROUPS = {"n_routed_experts": 16, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        **_SHAPE,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 24,
        "rope_parameters": _YARN,
    },
    "qwen2_moe": {
        **_SHAPE,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 80,
    },
    "glm4_moe": {
        **_SHAPE,
        **_GROUPS,
        "moe_intermediate_size": 32,
        "n_shared_experts": 2,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "ernie4_5_moe": {
        **_SHAPE,
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_layer_interval": 2,
    },
    "hunyuan_v1_moe": {**_SHAPE, "num_experts": 5, "moe_topk": 2},
    "ernie4_5": {**_SHAPE, "tie_word_embeddings": True},
    "hunyuan_v1_dense": {
        **_SHAPE,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 100.0, "factor": 1.0},
    },
    "seed_oss": {**_SHAPE},
    "exaone4": {**_SHAPE, "sliding_window": 24, "sliding_window_pattern": 4},
    "ministral3": {
        **_SHAPE,
        "rope_parameters": {
            **_YARN,
            "rope_theta": 1_000_000.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "truncate": True,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "olmo3": {
        **_SHAPE,
        "sliding_window": 24,
        "rope_parameters": {
            "full_attention": {**_YARN, "rope_theta": 500_000.0, "attention_factor": 1.2, "truncate": True},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        },
    },
}
_LLAMA4 = {
    **_SHAPE,
    "intermediate_size_mlp": 128,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "interleave_moe_layer_step": 2,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    },
}
CONFIGS |= {
    "llama4_text": {**_LLAMA4, "attention_chunk_size": 40, "floor_scale": 64, "attn_scale": 0.3},
    "llama4_text, one chunk": {**_LLAMA4, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
}
_LATENT: dict[str, Any] = {
    **{key: value for key, value in _SHAPE.items() if key != "head_dim"},
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
}
_LATENT_YARN = _YARN | {"rope_theta": 10_000.0, "truncate": True, "mscale": 0.707, "mscale_all_dim": 0.707}
CONFIGS |= {
    "deepseek_v2": {
        **_LATENT,
        "q_lora_rank": None,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "first_k_dense_replace": 1,
        "rope_parameters": _LATENT_YARN,
    },
    "deepseek_v3": {
        **_LATENT,
        **_GROUPS,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": 48,
        "first_k_dense_replace": 2,
        "attention_bias": True,
        "rope_parameters": _LATENT_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "glm4_moe_lite": {
        **_LATENT,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "q_lora_rank": 32,
        "v_head_dim": 48,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
}
_INDEXED: dict[str, Any] = {
    **_LATENT,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "index_n_heads": 16,
    "index_head_dim": 32,
}
CONFIGS |= {
    "deepseek_v32": {
        **_INDEXED,
        **_GROUPS,
        "q_lora_rank": 48,
        "first_k_dense_replace": 2,
        "index_topk": 32,
        "rope_parameters": _LATENT_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "glm_moe_dsa": {  # more than a chunk of attention is picked, and layers share it
        **_INDEXED,
        "q_lora_rank": 32,
        "v_head_dim": 48,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "index_topk": 300,
        "indexer_types": ["full", "shared", "full", "shared"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
}
CONFIGS |= described_models.CONFIGS | classic_models.CONFIGS
CONFIGS["qwen2_moe, dense layers"] = CONFIGS["qwen2_moe"] | {"mlp_only_layers": [0], "decoder_sparse_step": 2}
"""What is peculiar to each family is in its configuration; 500 positions pass windows and original contexts."""

KEYS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt_oss": (
        "gpt-oss",
        {
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_feed_forward_length": 96,
            "attention.sliding_window": 24,
            "rope.freq_base": 150_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "qwen2_moe": (
        "qwen2moe",
        {
            "expert_count": 12,
            "expert_used_count": 3,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 80,
        },
    ),
    "glm4_moe": (
        "glm4moe",
        {
            "block_count": 5,
            "nextn_predict_layers": 1,
            "expert_count": 16,
            "expert_used_count": 3,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 32,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 16,
        },
    ),
    "ernie4_5_moe": (
        "ernie4_5-moe",
        {
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
            "interleave_moe_layer_step": 2,
            "leading_dense_block_count": 1,
            "rope.freq_base": 500_000.0,
        },
    ),
    "hunyuan_v1_moe": (
        "hunyuan-moe",
        {
            "expert_count": 5,
            "expert_used_count": 2,
            "expert_feed_forward_length": 96,
            "expert_shared_feed_forward_length": 96,
        },
    ),
    "ernie4_5": ("ernie4_5", {"rope.freq_base": 500_000.0}),
    "hunyuan_v1_dense": ("hunyuan-dense", {"rope.freq_base": 10_000.0 * 100.0 ** (32 / 30)}),
    "seed_oss": ("seed_oss", {}),
    "exaone4": ("exaone4", {"attention.sliding_window": 24}),
    "llama4_text, one chunk": (
        "llama4",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_feed_forward_length": 96,
            "feed_forward_length": 128,
            "interleave_moe_layer_step": 2,
            "rope.freq_base": 500_000.0,
        },
    ),
    "ministral3": (
        "mistral3",
        {
            "rope.freq_base": 1_000_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
    ),
}
_LATENT_KEYS: dict[str, object] = {
    "attention.kv_lora_rank": 32,
    "rope.dimension_count": 16,
    "expert_feed_forward_length": 32,
    "leading_dense_block_count": 1,
}
_APART: dict[str, object] = _LATENT_KEYS | {
    "attention.head_count_kv": 1,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 48,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
}
_YARN_KEYS: dict[str, object] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
}
KEYS |= {
    "deepseek_v2": (  # as files were before 2025: keys and values made by one matrix, sizes those of heads
        "deepseek2",
        {
            **_LATENT_KEYS,
            **_YARN_KEYS,
            "attention.key_length": 48,
            "attention.value_length": 16,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_count": 6,
            "expert_used_count": 3,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.0,
        },
    ),
    "deepseek_v3": (
        "deepseek2",
        {
            **_APART,
            **_YARN_KEYS,
            "attention.q_lora_rank": 48,
            "attention.value_length_mla": 16,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "leading_dense_block_count": 2,
            "expert_count": 16,
            "expert_used_count": 3,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
        },
    ),
    "glm4_moe_lite": (  # one layer that predicts a further token is counted, and nothing says how experts are rated
        "deepseek2",
        {
            **_APART,
            "block_count": 5,
            "nextn_predict_layers": 1,
            "attention.q_lora_rank": 32,
            "attention.value_length_mla": 48,
            "rope.freq_base": 1_000_000.0,
            "expert_count": 6,
            "expert_used_count": 2,
            "expert_weights_scale": 1.8,
        },
    ),
}
_OF_INDEXER: dict[str, object] = {"attention.indexer.head_count": 16, "attention.indexer.key_length": 32}
KEYS |= {
    "deepseek_v32": (
        "deepseek32",
        KEYS["deepseek_v3"][1] | _OF_INDEXER | {"attention.indexer.top_k": 32},
    ),
    "glm_moe_dsa": (
        "glm-dsa",
        KEYS["glm4_moe_lite"][1]
        | _OF_INDEXER
        | {
            "block_count": 4,
            "nextn_predict_layers": 0,
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
            "attention.indexer.top_k": 300,
            "attention.indexer.types": [True, False, True, False],
        },
    ),
}
KEYS |= described_models.KEYS | classic_models.KEYS
"""What llama.cpp calls the families, and the keys that are not those of every model."""
LLAMA_CPP = tuple(KEYS)
"""Families whose GGUF files are written here."""

_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn": "attn_sinks",
    "input_layernorm": "attn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "mlp.gate": "ffn_gate_inp",
    "feed_forward.router": "ffn_gate_inp",
    "mlp.gate.wg": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.moe_statics": "exp_probs_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "eh_proj": "nextn.eh_proj",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
}
_WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.final_layernorm": "output_norm",
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    **classic_models.WHOLE,
}
_GATED = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
_SMALL_EPSILON = {"qwen2_moe", "seed_oss", "deepseek_v2", "deepseek_v3", "deepseek_v32"}
_SHARED = ("mlp.shared_expert", "mlp.shared_experts", "mlp.shared_mlp", "feed_forward.shared_expert")


def random_model(name: str, folder: Path, shape: Mapping[str, Any] | None = None) -> Any:
    """Write a family's model, with norms, biases, sinks and corrections that are not neutral; return transformers'."""
    import torch
    from transformers import AutoConfig

    torch.manual_seed(11)
    config = AutoConfig.for_model(name.partition(",")[0], **(shape or CONFIGS[name]))
    config._attn_implementation = "eager"
    model = decoder_of(config).eval()
    with torch.no_grad():
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        for key, values in state.items():
            if not values.is_floating_point() or key.endswith(".attn.embed_positions"):  # sines
                continue
            if "norm" in key or ".ln_" in key:
                values.add_(torch.randn_like(values) * 0.1)
            elif "sinks" in key:
                values.copy_(torch.randn_like(values) * 2)
            elif "correction_bias" in key:
                values.copy_(torch.rand_like(values) * 0.5)
            elif key.endswith("gate_up_proj") and name == "gpt_oss":  # some gates are above the limit
                values.add_(torch.randn_like(values) * 0.5)
            elif "bias" in key or any(part in key for part in _sharpened(name)):
                values.add_(torch.randn_like(values) * 0.15)
    model.save_pretrained(folder)
    return model


def decoder_of(config: Any) -> Any:
    """Return transformers' model of a configuration, of random weights in float32."""
    import torch
    import transformers

    kinds: Any = transformers
    # The one that transformers does not find by its configuration.
    auto = kinds.Mistral4ForCausalLM._from_config if config.model_type == "mistral4" else None
    return (auto or kinds.AutoModelForCausalLM.from_config)(config, dtype=torch.float32)


def _sharpened(name: str) -> tuple[str, ...]:
    """Which weights are made larger; those of attention so that scores differ between tokens: else nothing tells how
    queries grow, or turn."""
    if name in described_models.CONFIGS:
        return (".mlp.", "block_sparse_moe", ".self_attn.", ".attention.")
    if name in classic_models.CONFIGS:
        inside = (".mlp.", "block_sparse_moe", ".self_attn.", ".attn.", ".self_attention.", ".fc1.", ".fc2.")
        return (*inside, ".wte.", ".wpe.", "embed_positions", "word_embeddings.")
    is_sharp = "kv_lora_rank" in CONFIGS.get(name, {}) or name.startswith("llama4")
    return (".mlp.", ".feed_forward.", *([".self_attn."] if is_sharp else []))


def tensors_of(folder: Path) -> dict[str, Any]:
    """The tensors of a folder of safetensors."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def write_as_gguf(
    path: Path,
    name: str,
    tensors: Mapping[str, Any],
    blocks_of: Callable[[Any], bytes] | None = None,
    tokenizer: Mapping[str, object] | None = None,
) -> Path:
    """Write a family's tensors as llama.cpp has them, and a tokenizer; `blocks_of` makes MXFP4 of experts."""
    architecture, keys = KEYS[name]
    shape = CONFIGS[name]
    sizes: dict[str, object] = {
        "block_count": shape["num_hidden_layers"],
        "embedding_length": shape["hidden_size"],
        "feed_forward_length": shape.get("intermediate_size"),
        "context_length": shape.get("max_position_embeddings"),
        "attention.head_count": shape["num_attention_heads"],
        "attention.head_count_kv": shape.get("num_key_value_heads"),
        "attention.key_length": shape.get("head_dim"),
        "attention.value_length": shape.get("head_dim"),
        "attention.layer_norm_rms_epsilon": 1e-6 if name in _SMALL_EPSILON else 1e-5,
    }
    sizes |= keys
    told = {f"{architecture}.{key}": value for key, value in sizes.items() if value is not None}
    metadata = {"general.architecture": architecture} | told | described_models.curves(tensors) | (tokenizer or {})
    written: dict[str, tuple[tuple[int, ...], array[float] | Blocks]] = {}
    for key, values in _stacked(described_models.joined(_gguf_names(name, tensors))).items():
        dims = tuple(reversed(values.shape))
        if blocks_of and "_exps.weight" in key:
            written[key] = (dims, Blocks(MXFP4, blocks_of(values)))
        else:
            written[key] = (dims, array("f", values.float().contiguous().numpy().tobytes()))
    return write_gguf(path, metadata, written)


def _gguf_names(name: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's names; an expert's tensor has its number behind its name."""
    found: dict[str, Any] = {}
    for key, stored in tensors.items():
        stem, _, end = key.rpartition(".")
        values = stored
        if name in described_models.ADDED_TO_NORMS and stem.endswith("norm") and end == "weight":
            values = stored + 1
        if stem in _WHOLE:
            found[f"{_WHOLE[stem]}.{end}"] = values
            continue
        _, _, layer, part = stem.split(".", 3)
        block, last = f"blk.{layer}", part.rpartition(".")[2]
        described = None
        if name in described_models.CONFIGS:
            described = described_models.as_llama_cpp_has_it(name, block, part, end, values)
        if name in classic_models.CONFIGS:
            described = classic_models.as_llama_cpp_has_it(name, block, part, end, values)
        if described is not None:
            found |= described
        elif part == "mlp.experts":
            found |= _of_gpt_oss(block, end, values)
        elif part == "feed_forward.experts":
            found |= _of_llama4(block, end, values)
        elif ".experts." in part:
            found[f"{block}.{_GATED[last]}_exps.weight {part.split('.')[2]}"] = values
        elif part.startswith(tuple(f"{shared}." for shared in _SHARED)):
            found[f"{block}.{_GATED[last]}_shexp.{end}"] = values
        elif last in _GATED:
            found[f"{block}.{_GATED[last]}.{end}"] = values
        elif part == "self_attn.kv_b_proj" and "attention.key_length_mla" in KEYS[name][1]:
            found |= _of_latent(block, CONFIGS[name], values)
        elif end == "e_score_correction_bias":
            found[f"{block}.exp_probs_b.bias"] = values.flatten()
        elif part == "post_attention_layernorm":
            has_post_norm = name in {"gpt_oss", "glm4_moe", "solar_open", "seed_oss", "exaone4"}
            found[f"{block}.{'post_attention_norm' if has_post_norm else 'ffn_norm'}.{end}"] = values
        else:
            of_part = values
            if part == "mlp.shared_expert_gate":
                of_part = values[0]
            elif name == "ministral3" and part in {"self_attn.q_proj", "self_attn.k_proj"}:
                of_part = _as_neighbours(values)
            found[f"{block}.{_PARTS[part]}.{'weight' if end == 'sinks' else end}"] = of_part
    return found | classic_models.factors(name)


def _as_neighbours(values: Any) -> Any:
    """Rows of heads so that pairs that turn together are neighbours, as llama.cpp has them of Llama and Mistral."""
    heads = values.reshape(-1, 2, _SHAPE["head_dim"] // 2, values.shape[-1])
    return heads.transpose(1, 2).reshape(values.shape)


def _of_latent(block: str, shape: Mapping[str, Any], values: Any) -> dict[str, Any]:
    """What makes keys and values of a latent, by heads: keys' transposed."""
    heads, plain, size = (shape[key] for key in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim"))
    of_heads = values.reshape(heads, plain + size, -1)
    return {
        f"{block}.attn_k_b.weight": of_heads[:, :plain].transpose(1, 2).contiguous(),
        f"{block}.attn_v_b.weight": of_heads[:, plain:].contiguous(),
    }


def _of_gpt_oss(block: str, name: str, values: Any) -> dict[str, Any]:
    """All experts of a layer: gates and what goes through them lie in turns."""
    end = "bias" if name.endswith("_bias") else "weight"
    values = values if end == "bias" else values.transpose(1, 2)
    if name.startswith("down"):
        return {f"{block}.ffn_down_exps.{end}": values}
    return {f"{block}.ffn_gate_exps.{end}": values[:, 0::2], f"{block}.ffn_up_exps.{end}": values[:, 1::2]}


def _of_llama4(block: str, name: str, values: Any) -> dict[str, Any]:
    """All experts of a layer: gates, then what goes through them."""
    values = values.transpose(1, 2)
    if name == "down_proj":
        return {f"{block}.ffn_down_exps.weight": values}
    gates, ups = values.chunk(2, dim=1)
    return {f"{block}.ffn_gate_exps.weight": gates, f"{block}.ffn_up_exps.weight": ups}


def _stacked(tensors: dict[str, Any]) -> dict[str, Any]:
    """Experts' matrices in one tensor for each layer."""
    import torch

    found: dict[str, Any] = {}
    stacks: dict[str, dict[int, Any]] = {}
    for key, values in tensors.items():
        name, _, expert = key.partition(" ")
        if expert:
            stacks.setdefault(name, {})[int(expert)] = values
        else:
            found[name] = values
    return found | {name: torch.stack([stack[at] for at in sorted(stack)]) for name, stack in stacks.items()}


def mxfp4_blocks(values: Any) -> bytes:
    """Blocks of MXFP4 in GGUF's order, rounded as the `gguf` package does."""
    import gguf

    rounded = gguf.quants.quantize(values.float().contiguous().numpy(), gguf.GGMLQuantizationType.MXFP4)
    return bytes(rounded.tobytes())


def as_openai_wrote_it(blocks: bytes, rows: int, columns: int) -> tuple[Any, Any]:
    """The blocks and exponents of `[experts, rows, columns]` as safetensors have them: neighbours in a byte."""
    import numpy as np
    import torch

    data = np.frombuffer(blocks, np.uint8).reshape(-1, rows, columns // 32, 17)
    low, high = data[..., 1:] & 15, data[..., 1:] >> 4
    numbers = np.concatenate([low, high], axis=-1)
    pairs = numbers[..., 0::2] | numbers[..., 1::2] << 4
    return torch.from_numpy(pairs.copy()), torch.from_numpy(data[..., 0].copy())
