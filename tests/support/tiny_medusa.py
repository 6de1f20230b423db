"""Tiny random heads of Medusa by the standard library alone, and a model of which such heads are right."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

from support.gguf_writer import write_gguf
from support.tiny_assistant import Written, write_folder
from support.tiny_eagle import NUM_TOKENS, TARGET_LAYERS
from support.tiny_model import HIDDEN, metadata, tiny_tensors

NUM_HEADS, NUM_LAYERS = 4, 2


def medusa_config(**changes: object) -> dict[str, object]:
    """What `config.json` says of heads in vLLM's form; `changes` replace fields, None removes one."""
    fields: dict[str, object] = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": HIDDEN,
        "vocab_size": NUM_TOKENS,
        "num_heads": NUM_HEADS,
        "num_hidden_layers": NUM_LAYERS,
        "max_paths": 64,
        "topk": 10,
    }
    return {field: value for field, value in (fields | changes).items() if value is not None}


def medusa_tensors(*, num_tokens: int = NUM_TOKENS, has_bias: bool = True, has_one_output: bool = False) -> Written:
    """Random tensors of heads in vLLM's form, for a model of `HIDDEN`."""
    draw, tensors = random.Random(3), Written()

    def matrix(name: str, rows: int) -> None:
        values = (draw.gauss(0, HIDDEN**-0.5) for _ in range(rows * HIDDEN))
        tensors[f"{name}.weight"] = ((rows, HIDDEN), array("f", values))

    for head in range(NUM_HEADS):
        for layer in range(NUM_LAYERS):
            matrix(f"blocks.{head}.layers.{layer}", HIDDEN)
            if has_bias:
                values = array("f", (draw.gauss(0, 0.5) for _ in range(HIDDEN)))
                tensors[f"blocks.{head}.layers.{layer}.bias"] = ((HIDDEN,), values)
    for head in range(1 if has_one_output else NUM_HEADS):
        matrix("lm_head" if has_one_output else f"lm_heads.{head}", num_tokens)
    return tensors


def as_the_paper_has_it(tensors: Written) -> Written:
    """Return heads' tensors under the names of the paper's trainer."""
    named = Written()
    for name, one in tensors.items():
        kind, head, *rest = name.split(".")
        if kind == "blocks":
            named[f"{head}.{rest[1]}.linear.{rest[2]}"] = one
        else:
            named[f"{head}.{NUM_LAYERS}.weight"] = one
    return named


def write_medusa(folder: Path, config: dict[str, object] | None = None, tensors: Written | None = None) -> Path:
    """Write heads' folder, of random weights if nothing else is said; returns `folder`."""
    tensors = medusa_tensors() if tensors is None else tensors
    return write_folder(folder, medusa_config() if config is None else config, tensors)


def _places_after(count: int) -> list[int]:
    """Return of each token the one so many before it, where tokens count from 3 on, and then begin again."""
    num_words = NUM_TOKENS - 3
    return [3 + (token - 3 - count) % num_words if token >= 3 else token for token in range(NUM_TOKENS)]


def write_counting_target(path: Path) -> Path:
    """Write a model whose likeliest token after each is the next number; returns `path`."""
    tensors = tiny_tensors(llama__block_count=TARGET_LAYERS)
    for name, (dims, values) in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            tensors[name] = (dims, array("f", [0.0]) * len(values))
        elif "norm" in name:
            tensors[name] = (dims, array("f", [1.0]) * len(values))
    dims, _ = tensors["output.weight"]
    tensors["output.weight"] = (dims, _rows_of(tensors["token_embd.weight"][1], _places_after(1)))
    return write_gguf(path, metadata(llama__block_count=TARGET_LAYERS), tensors)


def write_right_medusa(folder: Path) -> Path:
    """Write heads that are right of it: their layers add nothing, and each counts on to its own place."""
    embedding = tiny_tensors(llama__block_count=TARGET_LAYERS)["token_embd.weight"][1]
    tensors = medusa_tensors(has_bias=False)
    for name, (shape, values) in tensors.items():
        if name.startswith("blocks."):
            tensors[name] = (shape, array("f", [0.0]) * len(values))
        else:
            head = int(name.split(".")[1])
            tensors[name] = (shape, _rows_of(embedding, _places_after(head + 2)))
    return write_medusa(folder, None, tensors)


def _rows_of(values: array[float], rows: list[int]) -> array[float]:
    """Return rows of a matrix, each of length 1."""
    picked = array("f")
    for row in rows:
        one = values[row * HIDDEN : (row + 1) * HIDDEN]
        size = sum(number * number for number in one) ** 0.5
        picked.extend(number / size for number in one)
    return picked
