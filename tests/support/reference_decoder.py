"""A decoder in plain Python, float64, written from the families' papers and public reference code: obvious, and slow.

Random tiny models of each family as safetensors folders, and the logits that they give by the formulas. The engine's
constants (rotary bases and scalings, windows, scales, norms) are held against it in `make test`; it is itself held
against transformers in `make oracle`.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

Matrix = list[list[float]]
Tensors = dict[str, Matrix]

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_YARN_TOLD = {
    **_YARN,
    "original_max_position_embeddings": 24,
    "beta_fast": 8.0,
    "beta_slow": 2.0,
    "mscale": 0.8,
    "mscale_all_dim": 0.3,
    "truncate": False,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + index / 8 for index in range(8)],
    "long_factor": [1.0 + index for index in range(8)],
}
_GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
_PARTLY = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
_GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 32,
    "sliding_window": 12,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 48,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_GEMMA2 = {
    **_GEMMA,
    "model_type": "gemma2",
    "rope_theta": 1_000.0,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}
_GEMMAS = ("gemma2", "gemma3_text")
_PHI3_ROPE = {
    **_LONGROPE,
    "short_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
_PHI3 = {"model_type": "phi3", "pad_token_id": 0}
_SMOLLM3 = {"model_type": "smollm3", "rope_theta": 1_000.0, "pad_token_id": 0}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 10_000.0},
    "llama-linear": {"model_type": "llama", "rope_parameters": _LINEAR},
    "llama-3.1": {"model_type": "llama", "head_dim": 48, "rope_parameters": _LLAMA3, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 12, "rope_theta": 10_000.0},
    "mistral-linear": {"model_type": "mistral", "sliding_window": 12, "rope_parameters": _LINEAR},
    "mistral-llama3": {"model_type": "mistral", "sliding_window": 12, "rope_parameters": _LLAMA3},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1_000.0, "use_sliding_window": False, "sliding_window": 12},
    "qwen2-partly": {"model_type": "qwen2", "rope_theta": 1_000.0, **_PARTLY},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1_000.0, "use_sliding_window": False},
    "qwen3-partly": {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1_000.0, **_PARTLY},
    "llama-yarn": {"model_type": "llama", "rope_parameters": _YARN, "max_position_embeddings": 64},
    "qwen2-yarn": {
        "model_type": "qwen2",
        "rope_parameters": {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.4},
        "use_sliding_window": False,
    },
    "qwen3-yarn": {"model_type": "qwen3", "head_dim": 32, "rope_parameters": _YARN_TOLD, "use_sliding_window": False},
    "llama-dynamic": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0},
        "max_position_embeddings": 15,
    },
    "llama-longrope": {
        "model_type": "llama",
        "rope_parameters": {**_LONGROPE, "original_max_position_embeddings": 32},
        "max_position_embeddings": 256,
    },
    "llama-longrope-short": {
        "model_type": "llama",
        "rope_parameters": {**_LONGROPE, "factor": 2.0, "original_max_position_embeddings": 64},
        "max_position_embeddings": 64,
    },
    "phi3": {**_PHI3, "sliding_window": 12, "rope_theta": 10_000.0, "original_max_position_embeddings": 512},
    "phi3-longrope": {
        **_PHI3,
        "partial_rotary_factor": 0.75,
        "rope_parameters": _PHI3_ROPE,
        "original_max_position_embeddings": 32,
    },
    "olmo2": {"model_type": "olmo2", "rope_theta": 1_000.0},
    "smollm3": {**_SMOLLM3, "num_hidden_layers": 5, "no_rope_layer_interval": 4},
    "smollm3-windows": {
        **_SMOLLM3,
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 12,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "gemma2": _GEMMA2,
    "gemma3": {**_GEMMA, "rope_theta": 5_000.0, "rope_local_base_freq": 100.0},
    "gemma3-linear": {**_GEMMA, "rope_parameters": _GEMMA_ROPE},
}

EXPERT_FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"model_type": "mixtral", "rope_theta": 1_000.0, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "rope_theta": 1_000.0,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "olmoe": {
        "model_type": "olmoe",
        "rope_theta": 1_000.0,
        "num_experts": 20,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
    },
}
"""Mixtures of experts, which the CPU runner alone computes."""


def write_family(folder: Path, name: str, seed: int = 7, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Write a random model of a family as a safetensors folder; returns its configuration and its tensors."""
    config = {**SHAPE, **(FAMILIES | EXPERT_FAMILIES)[name], **changes}
    tensors = _random_tensors(config, random.Random(seed))
    write_safetensors(folder, config, tensors)
    return config, tensors


def write_safetensors(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """Write `config.json` and `model.safetensors`; a matrix of one row is a vector."""
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    data = bytearray()
    for name, rows in tensors.items():
        values = array("f", (value for row in rows for value in row)).tobytes()
        shape = [len(rows[0])] if len(rows) == 1 else [len(rows), len(rows[0])]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def _random_tensors(config: dict[str, Any], draw: random.Random) -> Tensors:
    hidden, head_dim = config["hidden_size"], _head_dim(config)
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    kind = config["model_type"]
    is_gemma = kind in _GEMMAS
    tensors: Tensors = {}

    def matrix(name: str, rows: int, columns: int, scale: float) -> None:
        values = array("f", (draw.gauss(0, scale) for _ in range(rows * columns)))
        tensors[f"{name}.weight"] = [list(values[row * columns : (row + 1) * columns]) for row in range(rows)]

    def vector(name: str, size: int, mean: float) -> None:
        tensors[name] = [list(array("f", (mean + draw.gauss(0, 0.1) for _ in range(size))))]

    def norm(name: str, size: int = hidden) -> None:
        vector(f"{name}.weight", size, 0.0 if is_gemma else 1.0)

    # Gemma multiplies embeddings by 8 here; what the layers add must still count.
    matrix("model.embed_tokens", config["vocab_size"], hidden, 0.125 if is_gemma else 1.0)
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if kind == "olmo2":
            norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
        for name in [*norms, *(["pre_feedforward_layernorm", "post_feedforward_layernorm"] if is_gemma else [])]:
            norm(f"{block}.{name}")
        for name, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            *_feed_forward(config),
        ):
            matrix(f"{block}.{name}", rows, columns, 2 / math.sqrt(columns))
            if kind == "qwen2" and name[-6:] in {"q_proj", "k_proj", "v_proj"}:
                vector(f"{block}.{name}.bias", rows, 0.0)
        if kind in {"qwen3", "qwen3_moe", "gemma3_text"}:
            norm(f"{block}.self_attn.q_norm", head_dim)
            norm(f"{block}.self_attn.k_norm", head_dim)
        if kind in {"olmo2", "olmoe"}:
            norm(f"{block}.self_attn.q_norm", queries)
            norm(f"{block}.self_attn.k_norm", keys)
        if kind == "phi3":
            _fuse(tensors, f"{block}.self_attn", ["q_proj", "k_proj", "v_proj"], "qkv_proj")
            _fuse(tensors, f"{block}.mlp", ["gate_proj", "up_proj"], "gate_up_proj")
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        matrix("lm_head", config["vocab_size"], hidden, 0.35)
    return tensors


def _feed_forward(config: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Name, rows and columns of a layer's feed-forward matrices: of the router and each expert, where there are any."""
    hidden, num_experts = config["hidden_size"], num_experts_of(config)
    ffn = config.get("moe_intermediate_size") or config["intermediate_size"]
    sizes = ((ffn, hidden), (ffn, hidden), (hidden, ffn))
    if not num_experts:
        return [(f"mlp.{part}", *size) for part, size in zip(_GATED, sizes, strict=True)]
    block, parts = _experts(config)
    names = [(f"{block}.experts.{expert}", part) for expert in range(num_experts) for part in parts]
    experts = [(f"{name}.{part}", *sizes[parts.index(part)]) for name, part in names]
    return [(f"{block}.gate", num_experts, hidden), *experts]


_GATED = ("gate_proj", "up_proj", "down_proj")


def _experts(config: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """What a family calls its experts' block, and an expert's gate, up and down."""
    return ("block_sparse_moe", ("w1", "w3", "w2")) if config["model_type"] == "mixtral" else ("mlp", _GATED)


def num_experts_of(config: dict[str, Any]) -> int:
    """How many experts a layer has; 0 of a dense family."""
    return int(config.get("num_experts") or config.get("num_local_experts") or 0)


def _fuse(tensors: Tensors, block: str, parts: list[str], whole: str) -> None:
    """Put matrices below each other into one."""
    tensors[f"{block}.{whole}.weight"] = [row for part in parts for row in tensors.pop(f"{block}.{part}.weight")]


def _split(config: dict[str, Any], tensors: Tensors) -> Tensors:
    """The tensors with Phi-3's fused matrices apart, as the other families have them."""
    if config["model_type"] != "phi3":
        return tensors
    head_dim, apart = _head_dim(config), dict(tensors)
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        qkv, gate_up = apart.pop(f"{attention}.qkv_proj.weight"), apart.pop(f"{mlp}.gate_up_proj.weight")
        apart[f"{attention}.q_proj.weight"] = qkv[:queries]
        apart[f"{attention}.k_proj.weight"] = qkv[queries : queries + keys]
        apart[f"{attention}.v_proj.weight"] = qkv[queries + keys :]
        apart[f"{mlp}.gate_proj.weight"] = gate_up[: len(gate_up) // 2]
        apart[f"{mlp}.up_proj.weight"] = gate_up[len(gate_up) // 2 :]
    return apart


def reference_logits(config: dict[str, Any], tensors: Tensors, tokens: list[int]) -> Matrix:
    """The logits of every position."""
    tensors = _split(config, tensors)
    output = tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    rows = [_times(output, row) for row in _stream(config, tensors, tokens)]
    return [_capped(row, config.get("final_logit_softcapping")) for row in rows]


def reference_vectors(config: dict[str, Any], tensors: Tensors, tokens: list[int]) -> Matrix:
    """What a model that embeds has of every position, before pooling."""
    return _stream(config, _split(config, tensors), tokens)


def _stream(config: dict[str, Any], tensors: Tensors, tokens: list[int]) -> Matrix:
    is_gemma = config["model_type"] in _GEMMAS
    scale = math.sqrt(config["hidden_size"]) if is_gemma else 1.0
    stream = [[scale * value for value in tensors["model.embed_tokens.weight"][token]] for token in tokens]
    for layer in range(config["num_hidden_layers"]):
        _add_layer(config, tensors, layer, stream)
    return [_norm(config, row, tensors["model.norm.weight"][0]) for row in stream]


def _add_layer(config: dict[str, Any], tensors: Tensors, layer: int, stream: Matrix) -> None:
    """Add a layer's attention and feed-forward block to the residual stream."""
    block = f"model.layers.{layer}"
    is_gemma, is_olmo = config["model_type"] in _GEMMAS, config["model_type"] == "olmo2"

    def norm(name: str, row: list[float]) -> list[float]:
        return _norm(config, row, tensors[f"{block}.{name}.weight"][0])

    def linear(name: str, row: list[float]) -> list[float]:
        bias = tensors.get(f"{block}.{name}.bias")
        values = _times(tensors[f"{block}.{name}.weight"], row)
        return [value + more for value, more in zip(values, bias[0], strict=True)] if bias else values

    inputs = [list(row) if is_olmo else norm("input_layernorm", row) for row in stream]
    attended = _attention(config, tensors, layer, inputs, linear)
    for row, values in zip(stream, attended, strict=True):
        added = linear("self_attn.o_proj", values)
        _add(row, norm("post_attention_layernorm", added) if is_gemma or is_olmo else added)
    for row in stream:
        inner = norm("pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm", row)
        inner = row if is_olmo else inner
        added = (
            _mixed(config, linear, inner) if num_experts_of(config) else _gated(config, linear, "mlp", _GATED, inner)
        )
        _add(row, norm("post_feedforward_layernorm", added) if is_gemma or is_olmo else added)


def _gated(config: dict[str, Any], linear: Any, block: str, parts: tuple[str, ...], row: list[float]) -> list[float]:
    """A gated block's output."""
    gate, up = (linear(f"{block}.{part}", row) for part in parts[:2])
    activated = [_activation(config, left) * right for left, right in zip(gate, up, strict=True)]
    return list(linear(f"{block}.{parts[2]}", activated))


def _mixed(config: dict[str, Any], linear: Any, row: list[float]) -> list[float]:
    """The weighted sum of a token's experts' outputs."""
    block, parts = _experts(config)
    shares = softmax(linear(f"{block}.gate", row))
    chosen = sorted(range(len(shares)), key=lambda expert: -shares[expert])[: config["num_experts_per_tok"]]
    is_renormalised = config.get("norm_topk_prob", config["model_type"] == "mixtral")
    total = sum(shares[expert] for expert in chosen) if is_renormalised else 1.0
    mixed = [0.0] * len(row)
    for expert in chosen:
        output = _gated(config, linear, f"{block}.experts.{expert}", parts, row)
        _add(mixed, [shares[expert] / total * value for value in output])
    return mixed


def _attention(config: dict[str, Any], tensors: Tensors, layer: int, inputs: Matrix, linear: Any) -> Matrix:
    """The heads' outputs at every position, side by side."""
    head_dim, num_heads = _head_dim(config), config["num_attention_heads"]
    window = _window(config, layer)
    frequencies, sharpness = _frequencies(config, window is not None), _sharpness(config)

    def heads(name: str, place: int, row: list[float], *, is_rotated: bool) -> Matrix:
        values = linear(f"self_attn.{name}_proj", row)
        weight = tensors.get(f"model.layers.{layer}.self_attn.{name}_norm.weight")
        if weight and len(weight[0]) == len(values):
            values, weight = _norm(config, values, weight[0]), None
        parts = [values[start : start + head_dim] for start in range(0, len(values), head_dim)]
        if not is_rotated:
            return parts
        normed = [_norm(config, part, weight[0]) for part in parts] if weight else parts
        if not _has_rotary(config, layer):
            return normed
        return [_rotate(part, place, frequencies, sharpness) for part in normed]

    rows = list(enumerate(inputs))
    chunk, places = _chunks(config)
    queries = [[heads("q", place, row, is_rotated=True) for place in places(position)] for position, row in rows]
    keys = [heads("k", places(position)[0], row, is_rotated=True) for position, row in rows]
    growths = [_growth(config, position) for position, _ in rows]
    values = [heads("v", position, row, is_rotated=False) for position, row in rows]
    scale = float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5
    share: int = num_heads // config["num_key_value_heads"]
    outputs: Matrix = []
    for position, _ in rows:
        seen = range(0 if window is None else max(0, position - window + 1), position + 1)
        joined: list[float] = []
        for head in range(num_heads):
            meets = [queries[position][min(chunk(position) - chunk(other), 2)][head] for other in seen]
            scores = [_dot(query, keys[other][head // share]) for query, other in zip(meets, seen, strict=True)]
            scores = [
                scale * growths[position] * growths[other] * score for score, other in zip(scores, seen, strict=True)
            ]
            weights = softmax(_capped(scores, config.get("attn_logit_softcapping")))
            pairs = list(zip(weights, seen, strict=True))
            joined += [sum(w * values[other][head // share][d] for w, other in pairs) for d in range(head_dim)]
        outputs.append(joined)
    return outputs


def _chunks(config: dict[str, Any]) -> tuple[Callable[[int], int], Callable[[int], tuple[int, ...]]]:
    """Which chunk a position is in, and by which places its queries turn: for that, the one before, and all earlier."""
    dual: dict[str, int] | None = config.get("dual_chunk_attention_config")
    if not dual:
        return lambda _: 0, lambda position: (position,)
    size, length = dual["chunk_size"], dual["chunk_size"] - dual["local_size"]

    def places(position: int) -> tuple[int, ...]:
        place = position % length
        return place, min(place + length, size), min(2 * length - 1, size)

    return lambda position: position // length, places


def _growth(config: dict[str, Any], position: int) -> float:
    """The factor on a position's query and on its key."""
    original = config.get("dual_chunk_attention_config", {}).get("original_max_position_embeddings")
    return max(1.0, 0.1 * math.log((position + 1) / original) + 1.0) if original else 1.0


def _window(config: dict[str, Any], layer: int) -> int | None:
    """Positions that a layer sees, its own included."""
    window: int | None = config.get("sliding_window")
    match config["model_type"]:
        case "mistral" | "phi3":
            return window
        case "smollm3":
            return window if config.get("use_sliding_window") and not _has_rotary(config, layer) else None
        case "qwen2" | "qwen3":
            return window if config["use_sliding_window"] and layer >= config["max_window_layers"] else None
        case "gemma2" | "gemma3_text":
            return window if (layer + 1) % config["sliding_window_pattern"] else None
        case _:
            return None


def _frequencies(config: dict[str, Any], is_local: bool) -> list[float]:
    """Radians that each pair of a head turns a position."""
    rope: dict[str, Any] = config.get("rope_parameters", {})
    if "full_attention" in rope:
        rope = rope["sliding_attention" if is_local else "full_attention"]
    base = rope.get("rope_theta") or config["rope_theta"]
    if config["model_type"] == "gemma3_text" and is_local:
        base = rope.get("rope_theta") or config["rope_local_base_freq"]
    dims = int(_head_dim(config) * config.get("partial_rotary_factor", 1.0))
    factor = rope.get("factor", 1.0)
    if rope.get("rope_type") == "dynamic":  # at the longest context, factor times the trained one
        base *= (factor * factor - (factor - 1)) ** (dims / (dims - 2))
    plain = [base ** (-2 * index / dims) for index in range(dims // 2)]
    match rope.get("rope_type"):
        case "linear":
            return [frequency / factor for frequency in plain]
        case "llama3":
            return [_llama3(frequency, rope) for frequency in plain]
        case "yarn":
            return _yarn(plain, base, rope)
        case "longrope":
            is_long = config["max_position_embeddings"] > _original(config)
            factors = rope["long_factor" if is_long else "short_factor"]
            return [frequency / divisor for frequency, divisor in zip(plain, factors, strict=True)]
        case _:
            return plain


def _original(config: dict[str, Any]) -> int:
    """Positions of the first training."""
    inside = config.get("rope_parameters", {}).get("original_max_position_embeddings")
    return int(config.get("original_max_position_embeddings") or inside or config["max_position_embeddings"])


def _yarn(plain: list[float], base: float, rope: dict[str, Any]) -> list[float]:
    """YaRN: what turns seldom in the trained context is stretched, what turns often kept, with a ramp between."""
    dims, context = 2 * len(plain), rope["original_max_position_embeddings"]

    def at(turns: float) -> float:
        return dims * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = at(rope.get("beta_fast", 32.0)), at(rope.get("beta_slow", 1.0))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    stretched = [min(1.0, max(0.0, (index - low) / ((high - low) or 0.001))) for index in range(len(plain))]
    return [f * (1 - share) + f / rope["factor"] * share for f, share in zip(plain, stretched, strict=True)]


def _sharpness(config: dict[str, Any]) -> float:
    """The factor on cosines and sines of a stretched context."""
    rope: dict[str, Any] = config.get("rope_parameters", {})
    factor = rope.get("factor") or config["max_position_embeddings"] / _original(config)
    if "attention_factor" in rope:
        return float(rope["attention_factor"])
    match rope.get("rope_type"):
        case "yarn":
            scales = [0.1 * rope.get(key, 1.0) * math.log(factor) + 1 for key in ("mscale", "mscale_all_dim")]
            return scales[0] / scales[1] if "mscale" in rope else scales[0]
        case "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(_original(config)))
        case _:
            return 1.0


def _has_rotary(config: dict[str, Any], layer: int) -> bool:
    if config["model_type"] != "smollm3":
        return True
    told = config.get("no_rope_layers")
    return bool(told[layer]) if told else (layer + 1) % config["no_rope_layer_interval"] != 0


def _llama3(frequency: float, rope: dict[str, Any]) -> float:
    """Llama 3.1's scaling: long waves are stretched, short ones kept, with a ramp between."""
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = min(1.0, max(0.0, (turns - low) / (high - low)))
    return kept * frequency + (1 - kept) * frequency / rope["factor"]


def _rotate(head: list[float], position: int, frequencies: list[float], sharpness: float) -> list[float]:
    half = len(frequencies)
    turns = [position * frequency for frequency in frequencies]
    angles = [(sharpness * math.cos(turn), sharpness * math.sin(turn)) for turn in turns]
    first = [head[i] * cos - head[i + half] * sin for i, (cos, sin) in enumerate(angles)]
    second = [head[i + half] * cos + head[i] * sin for i, (cos, sin) in enumerate(angles)]
    return first + second + head[2 * half :]


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _norm(config: dict[str, Any], row: list[float], weight: list[float]) -> list[float]:
    offset = 1.0 if config["model_type"] in _GEMMAS else 0.0
    factor = 1 / math.sqrt(sum(value * value for value in row) / len(row) + config["rms_norm_eps"])
    return [value * factor * (offset + one) for value, one in zip(row, weight, strict=True)]


def _activation(config: dict[str, Any], value: float) -> float:
    if config.get("hidden_activation") == "gelu_pytorch_tanh":
        return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
    return value / (1 + math.exp(-value))


def _capped(scores: list[float], cap: float | None) -> list[float]:
    return [cap * math.tanh(score / cap) for score in scores] if cap else scores


def softmax(scores: list[float]) -> list[float]:
    """Shares that sum to one."""
    greatest = max(scores)
    weights = [math.exp(score - greatest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def _times(matrix: Matrix, row: list[float]) -> list[float]:
    return [_dot(line, row) for line in matrix]


def _dot(left: list[float], right: list[float]) -> float:
    return sum(map(float.__mul__, left, right))


def _add(row: list[float], more: list[float]) -> None:
    for index, value in enumerate(more):
        row[index] += value
