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
    "gemma2": _GEMMA2,
    "gemma3": {**_GEMMA, "rope_theta": 5_000.0, "rope_local_base_freq": 100.0},
    "gemma3-linear": {**_GEMMA, "rope_parameters": _GEMMA_ROPE},
}


def write_family(folder: Path, name: str, seed: int = 7) -> tuple[dict[str, Any], Tensors]:
    """Write a random model of a family as a safetensors folder; returns its configuration and its tensors."""
    config = {**SHAPE, **FAMILIES[name]}
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
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head_dim = _head_dim(config)
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
        for name in [*norms, *(["pre_feedforward_layernorm", "post_feedforward_layernorm"] if is_gemma else [])]:
            norm(f"{block}.{name}")
        for name, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", ffn, hidden),
            ("mlp.up_proj", ffn, hidden),
            ("mlp.down_proj", hidden, ffn),
        ):
            matrix(f"{block}.{name}", rows, columns, 2 / math.sqrt(columns))
            if kind == "qwen2" and name[-6:] in {"q_proj", "k_proj", "v_proj"}:
                vector(f"{block}.{name}.bias", rows, 0.0)
        if kind in {"qwen3", "gemma3_text"}:
            norm(f"{block}.self_attn.q_norm", head_dim)
            norm(f"{block}.self_attn.k_norm", head_dim)
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        matrix("lm_head", config["vocab_size"], hidden, 0.35)
    return tensors


def reference_logits(config: dict[str, Any], tensors: Tensors, tokens: list[int]) -> Matrix:
    """The logits of every position."""
    is_gemma = config["model_type"] in _GEMMAS
    scale = math.sqrt(config["hidden_size"]) if is_gemma else 1.0
    stream = [[scale * value for value in tensors["model.embed_tokens.weight"][token]] for token in tokens]
    for layer in range(config["num_hidden_layers"]):
        _add_layer(config, tensors, layer, stream)
    output = tensors["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    rows = [_times(output, _norm(config, row, tensors["model.norm.weight"][0])) for row in stream]
    return [_capped(row, config.get("final_logit_softcapping")) for row in rows]


def _add_layer(config: dict[str, Any], tensors: Tensors, layer: int, stream: Matrix) -> None:
    """Add a layer's attention and feed-forward block to the residual stream."""
    block = f"model.layers.{layer}"
    is_gemma = config["model_type"] in _GEMMAS

    def norm(name: str, row: list[float]) -> list[float]:
        return _norm(config, row, tensors[f"{block}.{name}.weight"][0])

    def linear(name: str, row: list[float]) -> list[float]:
        bias = tensors.get(f"{block}.{name}.bias")
        values = _times(tensors[f"{block}.{name}.weight"], row)
        return [value + more for value, more in zip(values, bias[0], strict=True)] if bias else values

    attended = _attention(config, tensors, layer, [norm("input_layernorm", row) for row in stream], linear)
    for row, values in zip(stream, attended, strict=True):
        added = linear("self_attn.o_proj", values)
        _add(row, norm("post_attention_layernorm", added) if is_gemma else added)
    for row in stream:
        inner = norm("pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm", row)
        gate, up = linear("mlp.gate_proj", inner), linear("mlp.up_proj", inner)
        activated = [_activation(config, left) * right for left, right in zip(gate, up, strict=True)]
        added = linear("mlp.down_proj", activated)
        _add(row, norm("post_feedforward_layernorm", added) if is_gemma else added)


def _attention(config: dict[str, Any], tensors: Tensors, layer: int, inputs: Matrix, linear: Any) -> Matrix:
    """The heads' outputs at every position, side by side."""
    head_dim, num_heads = _head_dim(config), config["num_attention_heads"]
    window = _window(config, layer)
    frequencies = _frequencies(config, window is not None)

    def heads(name: str, position: int, row: list[float], *, is_rotated: bool) -> Matrix:
        values = linear(f"self_attn.{name}_proj", row)
        parts = [values[start : start + head_dim] for start in range(0, len(values), head_dim)]
        if not is_rotated:
            return parts
        weight = tensors.get(f"model.layers.{layer}.self_attn.{name}_norm.weight")
        normed = [_norm(config, part, weight[0]) for part in parts] if weight else parts
        return [_rotate(part, position, frequencies) for part in normed]

    rows = list(enumerate(inputs))
    queries = [heads("q", position, row, is_rotated=True) for position, row in rows]
    keys = [heads("k", position, row, is_rotated=True) for position, row in rows]
    values = [heads("v", position, row, is_rotated=False) for position, row in rows]
    scale = float(config.get("query_pre_attn_scalar") or head_dim) ** -0.5
    share = num_heads // config["num_key_value_heads"]
    outputs: Matrix = []
    for position, _ in rows:
        seen = range(0 if window is None else max(0, position - window + 1), position + 1)
        joined: list[float] = []
        for head in range(num_heads):
            scores = [scale * _dot(queries[position][head], keys[other][head // share]) for other in seen]
            weights = softmax(_capped(scores, config.get("attn_logit_softcapping")))
            pairs = list(zip(weights, seen, strict=True))
            joined += [sum(w * values[other][head // share][d] for w, other in pairs) for d in range(head_dim)]
        outputs.append(joined)
    return outputs


def _window(config: dict[str, Any], layer: int) -> int | None:
    """Positions that a layer sees, its own included."""
    window: int | None = config.get("sliding_window")
    match config["model_type"]:
        case "mistral":
            return window
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
    head_dim = _head_dim(config)
    plain = [base ** (-2 * index / head_dim) for index in range(head_dim // 2)]
    if rope.get("rope_type") == "linear":
        return [frequency / rope["factor"] for frequency in plain]
    if rope.get("rope_type") == "llama3":
        return [_llama3(frequency, rope) for frequency in plain]
    return plain


def _llama3(frequency: float, rope: dict[str, Any]) -> float:
    """Llama 3.1's scaling: long waves are stretched, short ones kept, with a ramp between."""
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = min(1.0, max(0.0, (turns - low) / (high - low)))
    return kept * frequency + (1 - kept) * frequency / rope["factor"]


def _rotate(head: list[float], position: int, frequencies: list[float]) -> list[float]:
    half = len(head) // 2
    angles = [(math.cos(position * frequency), math.sin(position * frequency)) for frequency in frequencies]
    first = [head[i] * cos - head[i + half] * sin for i, (cos, sin) in enumerate(angles)]
    second = [head[i + half] * cos + head[i] * sin for i, (cos, sin) in enumerate(angles)]
    return first + second


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
