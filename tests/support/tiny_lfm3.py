"""A tiny random LFM3 as a folder, by the standard library alone."""

from __future__ import annotations

import math
import random
from array import array
from pathlib import Path
from typing import Any

from support.folder_tokenizer import NUM_TOKENS, write_tokenizer
from support.hybrid_model import write_hybrid
from support.reference_decoder import Tensors, write_safetensors

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, TAPS, WINDOW = 64, 96, 4, 2, 32, 7, 40
KINDS = ("conv", "sliding_attention", "conv", "full_attention")
CONFIG: dict[str, Any] = {
    "model_type": "lfm3",
    "architectures": ["Lfm3ForCausalLM"],
    "vocab_size": NUM_TOKENS,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": len(KINDS),
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "conv_L_cache": TAPS,
    "layer_types": list(KINDS),
    "sliding_window": WINDOW,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 0],
}


def lfm3_tensors(seed: int = 7) -> Tensors:
    """Return the tensors as rows, under the names of published folders."""
    draw, tensors = random.Random(seed), Tensors()

    def matrix(name: str, rows: int, columns: int, scale: float | None = None) -> None:
        scale = 1.5 / math.sqrt(columns) if scale is None else scale
        values = array("f", (draw.gauss(0, scale) for _ in range(rows * columns)))
        tensors[f"{name}.weight"] = [list(values[row * columns : (row + 1) * columns]) for row in range(rows)]

    def norm(name: str, size: int = HIDDEN) -> None:
        tensors[f"{name}.weight"] = [[1 + draw.gauss(0, 0.1) for _ in range(size)]]

    matrix("model.embed_tokens", NUM_TOKENS, HIDDEN, 1.0)
    norm("model.embedding_norm")
    for layer, kind in enumerate(KINDS):
        block = f"model.layers.{layer}"
        for name in ("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"):
            norm(f"{block}.{name}")
        for name, rows, columns in (("w1", FFN, HIDDEN), ("w3", FFN, HIDDEN), ("w2", HIDDEN, FFN)):
            matrix(f"{block}.feed_forward.{name}", rows, columns)
        if kind == "conv":
            matrix(f"{block}.conv.in_proj", 3 * HIDDEN, HIDDEN)
            matrix(f"{block}.conv.conv", HIDDEN, TAPS)
            matrix(f"{block}.conv.out_proj", HIDDEN, HIDDEN)
            continue
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            matrix(f"{block}.self_attn.{name}_proj", rows, HIDDEN)
        matrix(f"{block}.self_attn.gate_proj", HEADS, HIDDEN)
        matrix(f"{block}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
        norm(f"{block}.self_attn.q_norm", HEAD_DIM)
        norm(f"{block}.self_attn.k_norm", HEAD_DIM)
    return tensors


def write_lfm3(folder: Path, tensors: Tensors | None = None, **changes: object) -> Path:
    """Write a model with the tiny vocabulary; `changes` are of its configuration. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder, CONFIG | changes, tensors or lfm3_tensors())
    write_tokenizer(folder)
    return folder


def write_hybrid_of(family: str, folder: Path) -> Path:
    """Write a small hybrid of a family, a folder or a file of that name; returns its path."""
    return write_lfm3(folder / family) if family == "lfm3" else write_hybrid(folder / f"{family}.gguf", family)
