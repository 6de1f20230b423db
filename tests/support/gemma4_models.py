"""Small random Gemma 4 models by transformers, as folders and as llama.cpp's GGUF files."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.gguf_writer import write_gguf

_SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "vocab_size_per_layer_input": 250,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "max_position_embeddings": 512,
    "sliding_window": 24,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "31B": _SHAPE
    | {
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision",
    },
    "E2B": _SHAPE
    | {
        "num_hidden_layers": 9,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 3,
        "num_key_value_heads": 1,
        "hidden_size_per_layer_input": 32,
        "num_kv_shared_layers": 5,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
    },
    "26B-A4B": _SHAPE
    | {
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
}
"""What each published form has, in its proportions."""

_WHOLE = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
_BARE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


def random_gemma4(name: str, folder: Path, **changes: Any) -> Any:
    """Write a form as a folder, with norms, scales and factors that are not neutral; return transformers' model."""
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(11)
    config = Gemma4TextConfig(**(CONFIGS[name] | changes))
    config._attn_implementation = "eager"
    model = Gemma4ForCausalLM(config).eval()
    scale_weights(model)
    model.save_pretrained(folder)
    return model


def scale_weights(model: Any) -> None:
    """Give a model random weights under which each of them tells."""
    import torch

    with torch.no_grad():
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        for key, values in state.items():
            if key.endswith(("q_norm.weight", "k_norm.weight")):  # scores have no other scale
                values.copy_(0.3 + torch.randn_like(values) * 0.05)
            elif "norm" in key or key.endswith("router.scale"):
                values.add_(torch.randn_like(values) * 0.1)
            elif key.endswith(("layer_scalar", "per_expert_scale")):
                values.copy_(torch.rand_like(values) * 0.6 + 0.7)
            elif values.dim() > 1:
                values.copy_(torch.randn_like(values) * values.shape[-1] ** -0.5)


def gemma4_as_gguf(path: Path, name: str, model: Any) -> Path:
    """Write a form under llama.cpp's names and with its keys, as its converter does; return `path`."""
    tensors = {
        key: (tuple(reversed(values.shape)), array("f", values.float().contiguous().numpy().tobytes()))
        for key, values in _tensors(model.state_dict())
    }
    config = CONFIGS[name]
    turning = config["global_head_dim"] // 8
    divisors = [1.0] * turning + [1e30] * (config["global_head_dim"] // 2 - turning)
    tensors["rope_freqs.weight"] = ((len(divisors),), array("f", divisors))
    return write_gguf(path, gemma4_keys(config), tensors)


def gemma4_keys(config: Mapping[str, Any]) -> dict[str, object]:
    """The metadata of a form's GGUF file."""
    are_sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    num_layers, num_shared = config["num_hidden_layers"], config.get("num_kv_shared_layers", 0)
    local_heads = config["num_key_value_heads"]
    global_heads = config.get("num_global_key_value_heads")
    ffn = config["intermediate_size"]
    wide = [ffn if layer < num_layers - num_shared else 2 * ffn for layer in range(num_layers)]
    keys: dict[str, object] = {
        "block_count": num_layers,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": wide if config.get("use_double_wide_mlp") else ffn,
        "context_length": config["max_position_embeddings"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": (
            [local_heads if is_sliding else global_heads for is_sliding in are_sliding] if global_heads else local_heads
        ),
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": are_sliding,
        "attention.shared_kv_layers": num_shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
    }
    if "final_logit_softcapping" in config:
        keys["final_logit_softcapping"] = config["final_logit_softcapping"]
    if config.get("enable_moe_block"):
        keys["expert_count"] = config["num_experts"]
        keys["expert_used_count"] = config["top_k_experts"]
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return {"general.architecture": "gemma4"} | {f"gemma4.{key}": value for key, value in keys.items()}


def _tensors(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, values in state.items():
        name = key.removeprefix("model.")
        if name == "lm_head.weight":
            continue
        if not name.startswith("layers."):
            yield f"{_WHOLE[name.removesuffix('.weight')]}.weight", values
            continue
        _, layer, part = name.split(".", 2)
        own = _BARE.get(part) or f"{_PARTS[part.removesuffix('.weight')]}.weight"
        yield f"blk.{layer}.{own}", values
