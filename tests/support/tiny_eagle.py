"""Tiny random heads of EAGLE-3 by the standard library alone, and tiny models that they draft for."""

from __future__ import annotations

import random
from array import array
from functools import cache
from pathlib import Path

from support.gguf_writer import write_gguf
from support.tiny_assistant import Written, write_folder
from support.tiny_model import HIDDEN, metadata, tiny_tensors, vocabulary, write_tiny_model

NUM_TOKENS = len(vocabulary()[0])
NUM_DRAFTED = 96
"""Tokens that a head drafts of."""
FFN, HEADS, KV_HEADS, HEAD_DIM = 80, 4, 2, 16
TARGET_LAYERS = 4
TAPS = (1, 2, 4)


def write_target(path: Path, *, is_repeating: bool = False) -> Path:
    """Write a model that heads are for; where it is repeating, each token follows from the one before alone."""
    if not is_repeating:
        return write_tiny_model(path, llama__block_count=TARGET_LAYERS)
    tensors = tiny_tensors(llama__block_count=TARGET_LAYERS)
    for name, (dims, values) in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            tensors[name] = (dims, array("f", [0.0]) * len(values))
        elif "norm" in name:
            tensors[name] = (dims, array("f", [1.0]) * len(values))
    return write_gguf(path, metadata(llama__block_count=TARGET_LAYERS), tensors)


def head_config(**changes: object) -> dict[str, object]:
    """What `config.json` says of a head; `changes` replace fields, None removes one."""
    fields: dict[str, object] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 64,
        "vocab_size": NUM_TOKENS,
        "draft_vocab_size": NUM_DRAFTED,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
    }
    return {field: value for field, value in (fields | changes).items() if value is not None}


def head_tensors(*, hidden: int = HIDDEN, kv_heads: int = KV_HEADS, has_embedding: bool = False) -> Written:
    """Random tensors of a head for a model of `HIDDEN`, under the names of trainers."""
    return dict(_drawn(hidden, kv_heads, has_embedding))


@cache
def _drawn(hidden: int, kv_heads: int, has_embedding: bool) -> Written:
    draw, tensors = random.Random(3), Written()

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (draw.gauss(0, columns**-0.5) for _ in range(rows * columns))
        tensors[f"{name}.weight"] = ((rows, columns), array("f", values))

    def norm(name: str, size: int = hidden) -> None:
        tensors[f"{name}.weight"] = ((size,), array("f", (draw.gauss(0.9, 0.1) for _ in range(size))))

    matrix("fc", hidden, 3 * HIDDEN)
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        norm(f"midlayer.{name}")
    matrix("midlayer.self_attn.q_proj", HEADS * HEAD_DIM, 2 * hidden)
    for name in ("k", "v"):
        matrix(f"midlayer.self_attn.{name}_proj", kv_heads * HEAD_DIM, 2 * hidden)
    matrix("midlayer.self_attn.o_proj", hidden, HEADS * HEAD_DIM)
    matrix("midlayer.mlp.gate_proj", FFN, hidden)
    matrix("midlayer.mlp.up_proj", FFN, hidden)
    matrix("midlayer.mlp.down_proj", hidden, FFN)
    norm("norm")
    matrix("lm_head", NUM_DRAFTED, hidden)
    if has_embedding:
        matrix("embed_tokens", NUM_TOKENS, hidden)
    drafted = sorted(draw.sample(range(NUM_TOKENS), NUM_DRAFTED))
    tensors |= token_lists(drafted)
    return tensors


def token_lists(drafted: list[int]) -> Written:
    """Return which token each place of the logits is of, as its distance, and which tokens have a place."""
    distances = array("q", (token - place for place, token in enumerate(drafted)))
    known = set(drafted)
    return {
        "d2t": ((len(drafted),), distances),
        "t2d": ((NUM_TOKENS,), array("b", (token in known for token in range(NUM_TOKENS)))),
    }


def write_head(folder: Path, config: dict[str, object] | None = None, tensors: Written | None = None) -> Path:
    """Write a head's folder, of random weights if nothing else is said; returns `folder`."""
    return write_folder(folder, config or head_config(), head_tensors() if tensors is None else tensors)


def write_right_head(folder: Path) -> Path:
    """Write a head that knows what follows in a model that is repeating: its attention sees each token's embedding.

    One wide head compares a token with all before it and finds itself likest. The tokens are listed backwards.
    """
    tensors = head_tensors()
    identity = [float(row == column) for row in range(HIDDEN) for column in range(HIDDEN)]
    reading = [[*identity[start : start + HIDDEN], *[0.0] * HIDDEN] for start in range(0, HIDDEN * HIDDEN, HIDDEN)]
    flat = [number for row in reading for number in row]
    for name, factor in (("q", 10.0), ("k", 1.0), ("v", 1.0)):
        values = array("f", (factor * number for number in flat))
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = ((HIDDEN, 2 * HIDDEN), values)
    tensors["midlayer.self_attn.o_proj.weight"] = ((HIDDEN, HIDDEN), array("f", identity))
    tensors["midlayer.mlp.down_proj.weight"] = ((HIDDEN, FFN), array("f", [0.0] * (HIDDEN * FFN)))
    for name in ("norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm"):
        tensors[f"{name}.weight"] = ((HIDDEN,), array("f", [1.0] * HIDDEN))
    tensors["midlayer.hidden_norm.weight"] = ((HIDDEN,), array("f", [0.0] * HIDDEN))
    _, output = tiny_tensors(llama__block_count=TARGET_LAYERS)["output.weight"]
    rows = [output[start : start + HIDDEN] for start in range(0, len(output), HIDDEN)]
    backwards = array("f", [number for row in reversed(rows) for number in row])
    tensors["lm_head.weight"] = ((NUM_TOKENS, HIDDEN), backwards)
    tensors |= token_lists([*reversed(range(NUM_TOKENS))])
    config = head_config(
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HIDDEN,
        draft_vocab_size=NUM_TOKENS,
        norm_before_residual=True,
    )
    return write_head(folder, config, tensors)
