"""Random quantised blocks as GGUF files have them, and a tiny model of them: each of its matrices of another type."""

from __future__ import annotations

import math
import random
import struct
from array import array
from pathlib import Path

from support.gguf_writer import Blocks, Tensors, write_gguf
from support.tiny_model import metadata, vocabulary

from pyagent import _rust

_TYPES = {  # ggml's number; columns and bytes of a block; where its floats of 16 bits lie
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q2_K": (10, 256, 84, (80, 82)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
TYPES = tuple(name for name in _TYPES if name != "Q2_K")
"""Types that stay quantised."""

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 256, 512, 4, 2, 2
MATRICES = (
    ("attn_q", "Q4_K", HIDDEN, HIDDEN),
    ("attn_k", "Q4_K", HIDDEN, HIDDEN // 2),
    ("attn_v", "Q6_K", HIDDEN, HIDDEN // 2),
    ("attn_output", "Q8_0", HIDDEN, HIDDEN),
    ("ffn_gate", "Q5_K", HIDDEN, FFN),
    ("ffn_up", "Q2_K", HIDDEN, FFN),
    ("ffn_down", "Q4_1", FFN, HIDDEN),
)


def random_blocks(name: str, columns: int, rows: int, seed: int) -> bytes:
    """Rows of random blocks, whose weights have a mean square of about 2 / columns."""
    _, block_columns, block_bytes, places = _TYPES[name]
    draw = random.Random(seed)
    data = bytearray(draw.randbytes(rows * columns // block_columns * block_bytes))

    def scale_by(factor: float) -> None:
        for block in range(0, len(data), block_bytes):
            for place in places:
                struct.pack_into("<e", data, block + place, factor * draw.uniform(0.5, 1.5))

    scale_by(1.0)
    sample = array("f", _rust.dequantise(name, bytes(data[: 64 * block_bytes])))
    scale_by(math.sqrt(2 / columns / (sum(value * value for value in sample) / len(sample))))
    return bytes(data)


def write_quantised_model(path: Path) -> Path:
    """Write the model, its output tied to its embedding; returns `path`."""
    sizes = {"llama__embedding_length": HIDDEN, "llama__feed_forward_length": FFN, "llama__block_count": LAYERS}
    entries = metadata(**sizes, llama__attention__head_count=HEADS, llama__attention__head_count_kv=KV_HEADS)
    tensors: dict[str, tuple[tuple[int, ...], array[float] | Blocks]] = {}

    def matrix(name: str, kind: str, columns: int, rows: int) -> None:
        data = random_blocks(kind, columns, rows, len(tensors))
        tensors[name] = ((columns, rows), Blocks(_TYPES[kind][0], data))

    matrix("token_embd.weight", "Q6_K", HIDDEN, len(vocabulary()[0]))
    norms = ["output_norm"]
    for layer in range(LAYERS):
        for name, kind, columns, rows in MATRICES:
            matrix(f"blk.{layer}.{name}.weight", kind, columns, rows)
        norms += [f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm"]
    for name in norms:
        tensors[f"{name}.weight"] = ((HIDDEN,), array("f", [1.0]) * HIDDEN)
    written: Tensors = tensors
    return write_gguf(path, entries, written)
