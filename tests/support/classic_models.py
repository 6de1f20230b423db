"""Small models of families of before Llama, and of families that llama.cpp alone knows, by what transformers has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.small_shapes import SHAPE

_GATED = SHAPE
_SIZES = {name: size for name, size in SHAPE.items() if name not in {"intermediate_size", "num_key_value_heads"}}
_LONG_FACTORS = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0]
# transformers takes the factors for short texts whatever their length, which the models were not trained with.
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": _LONG_FACTORS,
    "long_factor": _LONG_FACTORS,
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 64,
}
_NEW_FALCON = {**_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "falcon": _SIZES,
    "falcon, new": _NEW_FALCON,
    "falcon, new, one norm": {**_NEW_FALCON, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 192, "bias": True},
    "falcon, in turn": {**_SIZES, "parallel_attn": False, "multi_query": False, "bias": True},
    "bloom": {key: value for key, value in _SIZES.items() if key != "max_position_embeddings"},
    "glm": {**_GATED, "head_dim": 32, "attention_bias": True},
    "phimoe": {
        **_GATED,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "lm_head_bias": True,
        "rope_parameters": _LONG,
    },
    "gpt2": _SIZES,
    "gpt_bigcode": _SIZES,
    "gpt_bigcode, heads apart": {**_SIZES, "multi_query": False},
    "gptj": {**_SIZES, "rotary_dim": 8, "n_inner": 96},
    "gpt_neo": {**_SIZES, "attention_types": [[["global", "local"], 1]], "window_size": 24},
    "codegen": {**_SIZES, "num_attention_heads": 8, "hidden_size": 128, "rotary_dim": 8},
    "opt": {**_SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "helium": {**_GATED, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}},
    "llama, as InternLM2": _GATED,
    "llama, as XVERSE": {**_GATED, "num_key_value_heads": 4},
    "llama, as Baichuan": {**_GATED, "num_key_value_heads": 4},
    "stablelm, as Orion": {**_GATED, "partial_rotary_factor": 1.0},
    "starcoder2, as CodeShell": {
        **_GATED,
        "intermediate_size": 256,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    "qwen2, as the first Qwen": {**_GATED, "num_key_value_heads": 4},
}
"""What is peculiar to each family is in its configuration; 500 positions pass windows."""

LIKE = tuple(name for name in CONFIGS if " as " in name)
"""Families that transformers has not: others are the same under other names."""
SLOW_FOLDERS = {*LIKE, "falcon, new, one norm", "gpt_bigcode", "codegen", "helium"}
SLOW_FILES = {"falcon, new, one norm", "gpt_bigcode", "llama, as XVERSE", "llama, as Baichuan"}
"""Compared where there is time: what they have of their own, the others have too."""

_NORMS: dict[str, object] = {"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": None}
_WIDE: dict[str, object] = {**_NORMS, "feed_forward_length": 256}
_PLAIN: dict[str, object] = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": 16}
KEYS: dict[str, tuple[str, dict[str, object]]] = {
    "falcon": ("falcon", {**_WIDE, "attention.head_count_kv": 1, "tensor_data_layout": "jploski"}),
    "falcon, new": ("falcon", {**_WIDE, "attention.head_count_kv": 2, "tensor_data_layout": "jploski"}),
    "falcon, new, one norm": ("falcon", {**_NORMS, "feed_forward_length": 192, "attention.head_count_kv": 2}),
    "bloom": ("bloom", {**_WIDE, "attention.head_count_kv": 4, "context_length": 512}),
    "glm": ("chatglm", {"rope.dimension_count": 16, "attention.layer_norm_rms_epsilon": 1.5625e-7}),
    "phimoe": (
        "phimoe",
        {
            "expert_count": 6,
            "expert_used_count": 2,
            "rope.dimension_count": 16,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.3,
        },
    ),
    "gpt2": ("gpt2", _WIDE),
    "gpt_bigcode": ("starcoder", {**_WIDE, "attention.head_count_kv": 1}),
    "llama, as InternLM2": ("internlm2", _PLAIN),
    "llama, as XVERSE": ("xverse", _PLAIN),
    "llama, as Baichuan": ("baichuan", {**_PLAIN, "tensor_data_layout": "Meta AI original pth"}),
    "stablelm, as Orion": ("orion", _NORMS),
    "starcoder2, as CodeShell": (
        "codeshell",
        {**_NORMS, "rope.freq_base": 10_000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
    ),
    "qwen2, as the first Qwen": ("qwen", {**_PLAIN, "feed_forward_length": 192}),
}
"""What llama.cpp calls the families, and the keys that are not those of every model."""

WITH_ALIBI: dict[str, tuple[dict[str, Any], tuple[str, dict[str, object]]]] = {
    "llama, as Refact": (
        {**_GATED, "num_key_value_heads": 1},
        ("refact", {"attention.layer_norm_rms_epsilon": 1e-6}),
    ),
    "llama, as Baichuan 13B": ({**_GATED, "num_key_value_heads": 4, "num_hidden_layers": 40}, ("baichuan", _PLAIN)),
}
"""The same of Llama without positions."""
WHOLE = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
}
"""llama.cpp's names of tensors of no layer."""
_PARTS = {
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "ln_attn": "attn_norm_2",
    "ln_mlp": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
}
_OF_EXPERTS = {"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}
_NEIGHBOURS = {"llama, as InternLM2", "llama, as XVERSE", "llama, as Baichuan"}
_JOINED = {"starcoder2, as CodeShell", "qwen2, as the first Qwen"}


def as_llama_cpp_has_it(name: str, block: str, part: str, end: str, values: Any) -> dict[str, Any] | None:
    """A layer's tensor under llama.cpp's names, where they are not every model's; an expert's has its number behind."""
    last = part.rpartition(".")[2]
    if last in _OF_EXPERTS:
        return {f"{block}.{_OF_EXPERTS[last]}_exps.weight {part.split('.')[2]}": values}
    if part == "self_attention.query_key_value":
        return {f"{block}.attn_qkv.{end}": _ungrouped(values)}
    if name in _JOINED and last in {"q_proj", "k_proj", "v_proj"}:
        return {f"{block}.attn_qkv.{end} {'qkv'.index(last[0])}": values}
    if name in _NEIGHBOURS and last in {"q_proj", "k_proj"}:
        return {f"{block}.attn_{last[0]}.{end}": as_neighbours(values)}
    if part in _PARTS:
        is_turned = name == "gpt2" and values.dim() == 2
        return {f"{block}.{_PARTS[part]}.{end}": values.T if is_turned else values}
    return None


def factors(name: str) -> dict[str, Any]:
    """What rotary frequencies are divided by, which llama.cpp's files have as tensors."""
    import torch

    rope = CONFIGS.get(name, {}).get("rope_parameters", {})
    kinds = [kind for kind in ("short", "long") if f"{kind}_factor" in rope]
    return {f"rope_factors_{kind}.weight": torch.tensor(rope[f"{kind}_factor"]) for kind in kinds}


def as_neighbours(values: Any) -> Any:
    """Rows of heads so that pairs that turn together are neighbours."""
    return values.reshape(-1, 2, 8, values.shape[-1]).transpose(1, 2).reshape(values.shape)


def _ungrouped(values: Any) -> Any:
    """All queries of four heads, all keys, all values, of a matrix in which those lie together that go together."""
    import torch

    num_kv_heads = (values.shape[0] // 16 - 4) // 2
    grouped = values.reshape(num_kv_heads, -1, 16, *values.shape[1:])
    parts = grouped[:, :-2], grouped[:, -2:-1], grouped[:, -1:]
    return torch.cat([part.reshape(-1, *values.shape[1:]) for part in parts])


def as_xverse(tensors: dict[str, Any]) -> dict[str, Any]:
    """Llama's, or `StableLM`'s: these families have no other names."""
    return tensors


def as_internlm2(tensors: dict[str, Any]) -> dict[str, Any]:
    """Llama's tensors as `InternLM2` calls them: of each head of keys its queries, the keys and the values."""
    import torch

    others = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        whole = name
        for llama, internlm2 in others.items():
            whole = whole.replace(f"{llama}.", f"{internlm2}.")
        if name.endswith("self_attn.q_proj.weight"):
            begin = name.removesuffix("q_proj.weight")
            of_heads = [tensors[f"{begin}{part}_proj.weight"].reshape(2, -1, 16, 64) for part in "qkv"]
            whole = f"{begin.removesuffix('self_attn.')}attention.wqkv.weight"
            found[whole] = torch.cat(of_heads, dim=1).reshape(-1, 64)
        elif ".self_attn." not in whole:
            found[whole] = values
    return found


PUBLISHED: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str, dict[str, Any]]] = {
    "llama, as InternLM2": (as_internlm2, "InternLM2ForCausalLM", {}),
    "llama, as XVERSE": (as_xverse, "XverseForCausalLM", {}),
    "stablelm, as Orion": (as_xverse, "OrionForCausalLM", {"rms_norm_eps": 1e-5}),
}
"""How the tensors of published files are made of others, by which architecture, and what `config.json` says besides."""
