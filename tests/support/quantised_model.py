"""Random quantised blocks as GGUF files have them, and tiny models of them: each matrix of another type, or experts."""

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
    "MXFP4": (39, 32, 17, ()),
}
TYPES = tuple(name for name in _TYPES if name not in {"Q2_K", "MXFP4"})
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

    if name == "MXFP4":  # its numbers' mean square is 8.6, and its scales are powers of two
        data[::block_bytes] = bytes([127 + round(math.log2(2 / columns / 8.6) / 2)]) * (len(data) // block_bytes)
        return bytes(data)
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


EXPERTS, EXPERTS_USED = 20, 3


def write_quantised_experts(path: Path, kind: str) -> Path:
    """Write a Qwen3-MoE whose experts are of one type; returns `path`."""
    sizes = {"embedding_length": HIDDEN, "feed_forward_length": FFN, "block_count": LAYERS}
    sizes |= {"expert_count": EXPERTS, "expert_used_count": EXPERTS_USED, "expert_feed_forward_length": HIDDEN}
    heads = {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "context_length": 4096}
    entries = metadata("qwen3moe", **{f"qwen3moe.{key}": value for key, value in (sizes | heads).items()})
    tensors: dict[str, tuple[tuple[int, ...], array[float] | Blocks]] = {}

    def blocks(name: str, kind: str, columns: int, rows: int, *stacked: int) -> None:
        data = random_blocks(kind, columns, rows * math.prod(stacked), len(tensors))
        tensors[f"{name}.weight"] = ((columns, rows, *stacked), Blocks(_TYPES[kind][0], data))

    def floats(name: str, *dims: int, mean: float) -> None:
        draw = random.Random(len(tensors))
        values = array("f", (mean + draw.gauss(0, 0.1) for _ in range(math.prod(dims))))
        tensors[f"{name}.weight"] = (dims, values)

    blocks("token_embd", "Q6_K", HIDDEN, len(vocabulary()[0]))
    floats("output_norm", HIDDEN, mean=1.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name, of, columns, rows in MATRICES[:4]:
            blocks(f"{block}.{name}", of, columns, rows)
        for name in ("attn_norm", "ffn_norm"):
            floats(f"{block}.{name}", HIDDEN, mean=1.0)
        for name in ("attn_q_norm", "attn_k_norm"):
            floats(f"{block}.{name}", HIDDEN // HEADS, mean=1.0)
        floats(f"{block}.ffn_gate_inp", HIDDEN, EXPERTS, mean=0.0)
        for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
            blocks(f"{block}.{name}", kind, HIDDEN, HIDDEN, EXPERTS)
    return write_gguf(path, entries, tensors)
