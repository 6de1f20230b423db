"""What a `config.json` says, as the metadata of GGUF files: the dense families, with the keys of llama.cpp's converter.

Nothing here is trusted: the model is read back from what was written and compared (`sources.py`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyagent.core.errors import ModelError
from pyagent.core.nearest import nearest
from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, booleans, float32, int32s, string, uint32
from pyagent.infrastructure.models.quantize.layouts.families import LAID_OUT, laid_out

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]
FAMILIES: Mapping[str, str] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "smollm3": "smollm3",
    "olmo2": "olmo2",
    "granite": "granite",
    "phi3": "phi3",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "mellum": "mellum",
    "olmoe": "olmoe",
    "seed_oss": "seed_oss",
    "exaone4": "exaone4",
    "olmo3": "olmo2",
    "qwen2_vl": "qwen2vl",
    "qwen2_5_vl": "qwen2vl",
    "qwen3_vl": "qwen3vl",
}
"""`model_type` to `general.architecture`. Text halves of models with pictures may have `_text` behind their names."""
_NEAREST: Mapping[str, str] = {
    "gemma3n": "gemma4",
    "bamba": "granitemoehybrid",
    "apertus": "arcee",
    "lfm3": "lfm2",
    "kimi_k2": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "glm_moe_dsa": "glm4_moe",
    "phimoe": "mixtral",
    "internlm2": "internlm3",
    **dict.fromkeys(("gpt2", "gptj", "gpt_bigcode", "falcon", "bloom"), "gpt_neox"),
    "qwen3_vl_moe": "qwen3_moe",
}
"""Families that cannot be written, and the nearest that can."""
_OF_GEMMA_4_12B: dict[str, object] = {"sliding_window": 1024, "hidden_size_per_layer_input": 0}
"""What it has where its config.json says nothing; its layers are those of Gemma 4's other forms."""
_TELL_WINDOWS = frozenset({"exaone4", "mellum", "olmo3"})
"""Families whose files say of each layer whether it has a window."""
_TO_LOCAL_BASE: Mapping[str, float] = {"gemma3_text": 10_000.0, "mellum": 0.0, "olmo3": 0.0}
"""Families whose layers with windows have a rotary base of their own; 0: that of the others, where none is told."""
_LONGROPE = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
_MOST_FACTORS = 1 << 12


def text_half(config: Config) -> Config:
    """Return what is said of the half of a model of several senses that reads and writes text; else all."""
    text = object_in(config, "text_config")
    half: Config = {**config, **text} if text else config
    if str(half.get("model_type")) in {"gemma4_unified", "gemma4_unified_text"}:
        return {**_OF_GEMMA_4_12B, **half, "model_type": "gemma4_text"}
    return half


def refuse_family(path: Path, config: Config, encoders: Sequence[str]) -> None:
    """Raise `ModelError` for a family that cannot be written; `encoders` are those that can besides."""
    if (family := _family(config)) not in FAMILIES:
        known = [*FAMILIES, *LAID_OUT, *encoders]
        near = f"; the nearest that can is {_NEAREST[family]}" if family in _NEAREST else ""
        if not near and (like := nearest(family, known)):
            near = f"; {like} can, which is the nearest name"
        where = f"the documentation's page on quantising lists the {len(known)} families that can"
        text = f"{path}: '{family:.60}' cannot be written as GGUF{near}; {where}"
        raise ModelError(text, model=str(path))


def _family(config: Config) -> str:
    kind = str(config.get("model_type"))
    return kind if kind in FAMILIES else kind.removesuffix("_text")


def architecture_metadata(path: Path, config: Config, model: ModelConfig) -> Metadata:
    """Return the metadata but for the tokenizer's; `refuse_family` comes before it. Raises `ModelError` for chunks."""
    if model.dual_chunks is not None:
        text = f"{path}: its dual chunks cannot be written as GGUF: no key says 'dual_chunk_attention_config'"
        raise ModelError(text, model=str(path))
    family = _family(config)
    other = laid_out(config)
    name = other.name(model) if other else FAMILIES[family]
    keys: Metadata = {
        "block_count": uint32(model.num_layers),
        "context_length": uint32(_positions(config, model)),
        "embedding_length": uint32(model.hidden_size),
        "feed_forward_length": uint32(_size(config, "intermediate_size", model.ffn_size)),
        "attention.head_count": uint32(model.num_heads),
        "attention.head_count_kv": uint32(model.num_kv_heads),
        "attention.key_length": uint32(model.head_dim),
        "attention.value_length": uint32(model.head_dim),
        "attention.layer_norm_rms_epsilon": float32(model.norm_epsilon),
        "rope.dimension_count": uint32(2 * len(model.rope_frequencies)),
        "rope.freq_base": float32(_rope(config)[0]),
        "vocab_size": uint32(model.vocab_size),
        **_scaling(config, model),
        **_windows(family, config, model),
        **_caps(model),
        **_experts(config, model),
        **(_original(config) if family == "phi3" else {}),
        **(_factors(config) if family == "granite" else {}),
        **_sections(config),
        **(other.keys(config, model) if other else {}),
    }
    general = {
        "general.architecture": string(name),
        "general.type": string("model"),
        "general.name": string(path.resolve().name),
    }
    return general | {f"{name}.{key}": value for key, value in keys.items()}


def frequency_factors(config: Config, head_dim: int) -> dict[str, array[float]]:
    """Return tensors of what rotary frequencies are divided by: Llama 3's, or LongRoPE's for long texts and short ones.

    Llama 3's long waves are stretched by `factor`, short ones not at all, those between in proportion (Llama 3.1's
    `apply_scaling`).
    """
    base, scaling = _rope(config)
    if _kind(scaling) == "longrope":
        return {name: _list_of(scaling, key) for key, name in _LONGROPE.items()}
    if _kind(scaling) != "llama3":
        return {}
    factor, low, high = (_number(scaling, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = _number(scaling, "original_max_position_embeddings")
    factors = array("f")
    for pair in range(head_dim // 2):
        turns = original / (2 * math.pi * base ** (2 * pair / head_dim))
        share = min(1.0, max(0.0, (turns - low) / (high - low))) if high != low else float(turns >= high)
        factors.append(1 / ((1 - share) / factor + share))
    return {"rope_freqs.weight": factors}


def original_context(config: Config) -> int | None:
    """Return the positions of the first training, up to which LongRoPE's short factors hold, where they are told."""
    key = "original_max_position_embeddings"
    scaling = _rope(config)[1]
    return _size(config, key, _size(scaling, key, 0)) or None


def refuse_changed(path: Path, before: ModelConfig, after: ModelConfig, in_weights: Collection[str] = ()) -> None:
    """Raise `ModelError` where a model read back is another: GGUF has no key for something in `config.json`.

    `in_weights` are settings that the file has in its weights.
    """
    for name, is_same in _COMPARED.items():
        if name in in_weights:
            continue
        one, other = getattr(before, name), getattr(after, name)
        if name == "dense_layers" and not before.num_experts:
            continue  # which have a block and no experts, where none has any
        if not is_same(one, other):
            change = f"{one!s:.80} would be read {other!s:.80}"
            text = f"{path}: its {name.replace('_', ' ')} cannot be written as GGUF: {change}"
            raise ModelError(text, model=str(path))


def _near(one: object, other: object) -> bool:
    return math.isclose(cast("float", one), cast("float", other), rel_tol=1e-6)


def _all_near(one: object, other: object) -> bool:
    ones, others = cast("list[float]", one), cast("list[float]", other)
    return len(ones) == len(others) and all(map(_near, ones, others))


def _equal(one: object, other: object) -> bool:
    return one == other


def _same_family(one: object, other: object) -> bool:
    """Whether files of one family are those of the other: Granite 4 without state spaces is one before it."""
    return one == other or (one == "granitehybrid" and other in {"granite", "granitemoe"})


_SAME = (
    "vocab_size hidden_size num_layers num_heads num_kv_heads head_dim ffn_size num_experts"
    " num_recurrent_layers rotary_layers has_input_norms is_qk_norm_wide windows activation swiglu_limits has_sinks"
    " has_attention_gates is_norm_after_rope"
    " attention_softcap logit_softcap context_length is_output_tied experts dense_layers query_growth dual_chunks"
    " latent gemma4 recurrent recurrent_layers blocks has_mtp"
)
_NEAR = (
    "norm_epsilon rope_attention_factor local_rope_attention_factor attention_scale embedding_scale residual_scale"
    " logit_divisor"
)
_COMPARED: Mapping[str, Callable[[object, object], bool]] = {
    "architecture": _same_family,
    **dict.fromkeys(_SAME.split(), _equal),
    **dict.fromkeys(_NEAR.split(), _near),
    **dict.fromkeys(("rope_frequencies", "local_rope_frequencies"), _all_near),
}


def _rope(config: Config) -> tuple[float, Config]:
    """Return the rotary base of layers that see everything, and their scaling."""
    scaling = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    scaling = object_in(scaling, "full_attention") or scaling
    base = scaling.get("rope_theta") or config.get("rope_theta")
    by_family = 1_000_000.0 if config.get("model_type") in {"gemma3_text", "gemma4_text"} else 10_000.0
    return (float(base) if isinstance(base, int | float) else by_family), scaling


def _kind(scaling: Config) -> str:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return {"su": "longrope"}.get(kind, kind)  # Phi-3's name of before


def _list_of(fields: Config, key: str) -> array[float]:
    values = fields.get(key)
    numbers = cast("list[object]", values) if isinstance(values, list) else []
    if not 0 < len(numbers) <= _MOST_FACTORS or not all(isinstance(value, int | float) for value in numbers):
        raise ModelError(f"config.json: '{key}' is no list of numbers", model="config.json")
    return array("f", cast("list[float]", numbers))


def _size(config: Config, key: str, default: int) -> int:
    value = config.get(key)
    return value if isinstance(value, int) else default


def _number(fields: Config, key: str) -> float:
    value = fields.get(key)
    if not isinstance(value, int | float):
        raise ModelError(f"config.json: the number '{key}' is missing", model="config.json")
    return float(value)


def _positions(config: Config, model: ModelConfig) -> int:
    value = config.get("max_position_embeddings")
    return value if isinstance(value, int) else model.context_length


def _scaling(config: Config, model: ModelConfig) -> Metadata:
    scaling = _rope(config)[1]
    kind = _kind(scaling)
    if kind not in {"linear", "yarn", "longrope"}:
        return {}
    keys = {"rope.scaling.type": string(kind)}
    if kind == "longrope":
        return keys | _original(config) | {"rope.scaling.attn_factor": float32(model.rope_attention_factor)}
    keys["rope.scaling.factor"] = float32(_number(scaling, "factor"))
    if kind == "yarn":
        if "original_max_position_embeddings" in scaling:
            original = int(_number(scaling, "original_max_position_embeddings"))
            keys["rope.scaling.original_context_length"] = uint32(original)
        for key in ("beta_fast", "beta_slow"):
            if key in scaling:
                keys[f"rope.scaling.yarn_{key}"] = float32(_number(scaling, key))
    if config.get("model_type") == "ministral3":
        names = {"rope.scaling.yarn_log_multiplier": "mscale_all_dim"}
        names |= {"attention.temperature_scale": "llama_4_scaling_beta"}
        keys |= {key: float32(_number(scaling, name)) for key, name in names.items() if name in scaling}
    return keys


def _original(config: Config) -> Metadata:
    original = original_context(config)
    return {"rope.scaling.original_context_length": uint32(original)} if original else {}


def _experts(config: Config, model: ModelConfig) -> Metadata:
    """Say how many experts there are, how many a token has, and how wide they are."""
    if not model.num_experts:
        return {}
    used = config.get("num_experts_per_tok")
    keys = {
        "expert_count": uint32(model.num_experts),
        "expert_used_count": uint32(used if isinstance(used, int) else 2),
    }
    if config.get("model_type") in {"qwen2_moe", "qwen3_moe", "mellum"}:
        keys["expert_feed_forward_length"] = uint32(model.ffn_size)
    if (shared := _size(config, "shared_expert_intermediate_size", 0)) > 0:
        keys["expert_shared_feed_forward_length"] = uint32(shared)
    return keys


def _sections(config: Config) -> Metadata:
    """Say by which of three positions pairs of a head turn where there are pictures, and how many layers take these."""
    sections = _rope(config)[1].get("mrope_section")
    if not isinstance(sections, list):
        return {}
    keys = {"rope.dimension_sections": int32s([*cast("list[int]", sections), 0, 0, 0, 0][:4])}
    layers = object_in(config, "vision_config").get("deepstack_visual_indexes")
    return keys | ({"n_deepstack_layers": uint32(len(cast("list[int]", layers)))} if isinstance(layers, list) else {})


def _windows(family: str, config: Config, model: ModelConfig) -> Metadata:
    """Say which layers have a window; which is known of Gemma's, and of Mistral's all have."""
    window = next((window for window in model.windows if window is not None), None)
    if window is None:  # llama.cpp knows Phi-4 by a window of 0
        return {"attention.sliding_window": uint32(0)} if family == "phi3" else {}
    keys = {"attention.sliding_window": uint32(window)}
    if family in _TELL_WINDOWS:
        keys["attention.sliding_window_pattern"] = booleans([window is not None for window in model.windows])
    if family in _TO_LOCAL_BASE:
        local = object_in(object_in(config, "rope_parameters"), "sliding_attention")
        base = local.get("rope_theta") or config.get("rope_local_base_freq") or _TO_LOCAL_BASE[family]
        keys["rope.freq_base_swa"] = float32(float(cast("float", base or _rope(config)[0])))
    return keys


def _caps(model: ModelConfig) -> Metadata:
    caps = {"attn_logit_softcapping": model.attention_softcap, "final_logit_softcapping": model.logit_softcap}
    return {key: float32(cap) for key, cap in caps.items() if cap is not None}


def _factors(config: Config) -> Metadata:
    """Say what Granite multiplies scores, embeddings and what blocks add by, and what it divides logits by."""
    names = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    told = ((key, name) for key, name in names.items() if config.get(name) is not None)
    return dict.fromkeys(names, float32(1.0)) | {key: float32(_number(config, name)) for key, name in told}
