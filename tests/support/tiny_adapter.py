"""Adapters of random weights for tiny models, as peft and llama.cpp write them."""

from __future__ import annotations

import json
import math
import random
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.gguf_writer import write_gguf
from support.tiny_model import FFN, HEADS, HIDDEN, KV_HEADS, LAYERS

KV = HIDDEN // HEADS * KV_HEADS
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
}
"""Of each matrix that an adapter may add to, its rows and columns in a tiny model."""
GGUF_NAMES = dict(
    zip(SHAPES, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), strict=True)
)
Tensor = tuple[Sequence[int], "array[float]"]
"""Shape as numpy writes it, and numbers."""


def tensors(
    seed: int = 1,
    *,
    rank: int = 4,
    matrices: Sequence[str] = tuple(SHAPES),
    shapes: Mapping[str, tuple[int, int]] = SHAPES,
    scale: float = 0.5,
    is_dora: bool = False,
) -> dict[str, Tensor]:
    """Random tensors of an adapter, by peft's names."""
    draw = random.Random(seed)

    def numbers(count: int, spread: float) -> array[float]:
        return array("f", (draw.gauss(0, spread) for _ in range(count)))

    found: dict[str, Tensor] = {}
    for layer in range(LAYERS):
        for matrix in matrices:
            rows, cols = shapes[matrix]
            name = f"base_model.model.model.layers.{layer}.{matrix}"
            found[f"{name}.lora_A.weight"] = ((rank, cols), numbers(rank * cols, 1 / math.sqrt(cols)))
            found[f"{name}.lora_B.weight"] = ((rows, rank), numbers(rows * rank, scale))
            if is_dora:
                found[f"{name}.lora_magnitude_vector"] = (
                    (rows,),
                    array("f", (2 + value for value in numbers(rows, 0.2))),
                )
    return found


def write_adapter(
    folder: Path,
    seed: int = 1,
    *,
    given: Mapping[str, Tensor] | None = None,
    config: Mapping[str, object] | None = None,
    rank: int = 4,
    is_dora: bool = False,
) -> Path:
    """Write a folder as peft does; `given` are its tensors where they are not random, `config` changes its fields."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "use_dora": is_dora, "bias": "none"} | dict(config or {})
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    given = tensors(seed, rank=rank, is_dora=is_dora) if given is None else given
    header: dict[str, object] = {}
    data = b""
    for name, (shape, numbers) in given.items():
        start, data = len(data), data + numbers.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    encoded = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return folder


def write_gguf_adapter(path: Path, given: Mapping[str, Tensor], alpha: float = 8.0) -> Path:
    """Write a GGUF file as llama.cpp's converter does, the rows of heads in its order."""
    written: dict[str, tuple[tuple[int, ...], array[float]]] = {}
    for name, (shape, numbers) in given.items():
        layer, matrix = name.removeprefix("base_model.model.model.layers.").split(".", 1)
        matrix, role = matrix.split(".lora_")
        is_rotated = role == "B.weight" and matrix in {"self_attn.q_proj", "self_attn.k_proj"}
        end = f"weight.lora_{role[0].lower()}"
        written[f"blk.{layer}.{GGUF_NAMES[matrix]}.{end}"] = (
            tuple(reversed(shape)),
            side_by_side(numbers, shape[1]) if is_rotated else numbers,
        )
    metadata = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    return write_gguf(path, metadata, written)


def side_by_side(numbers: array[float], cols: int, head_dim: int = HIDDEN // HEADS) -> array[float]:
    """Return a matrix whose rows that rotate together stand side by side, as GGUF files of llamas have them."""
    rows = [numbers[start : start + cols] for start in range(0, len(numbers), cols)]
    half = head_dim // 2
    ordered = array("f")
    for head in range(0, len(rows), head_dim):
        for place in range(half):
            ordered += rows[head + place] + rows[head + half + place]
    return ordered
