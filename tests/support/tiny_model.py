"""A llama of a few thousand random weights with a byte-level BPE vocabulary: loads in milliseconds, talks nonsense.

The same seed writes the same bytes. `is_damaged` puts NaN into the norm before the logits, `damaged_token` into
one token's embedding.
"""

from __future__ import annotations

import math
import random
from array import array
from pathlib import Path

from support.gguf_writer import Metadata, write_gguf

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 512
TINY_GEMMA_WINDOW = 40
_WORDS = ("the", "ing", "and", "er", "on", "at", "is", "user", "system", "assistant", "\n\n", '": "', "    ")


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [names[byte] for byte in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: control tokens, all bytes, some words in steps of one letter."""
    alphabet = byte_alphabet()
    tokens = [*CONTROL_TOKENS, *alphabet]
    merges: list[str] = []
    for word in [*_WORDS, *(f" {word}" for word in _WORDS if word.isalpha())]:
        letters = [alphabet[byte] for byte in word.encode()]
        made = letters[0]
        for letter in letters[1:]:
            if made + letter not in tokens:
                merges.append(f"{made} {letter}")
                tokens.append(made + letter)
            made += letter
    return tokens, merges


def metadata(architecture: str = "llama", **changes: object) -> Metadata:
    """The file's metadata; `changes` replace entries (dots as double underscores), None removes one."""
    tokens, merges = vocabulary()
    entries: dict[str, object] = {
        "general.architecture": architecture,
        "general.name": "tiny",
        "general.license": "apache-2.0",
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.rope.freq_base": 10_000.0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.token_type": [3] * len(CONTROL_TOKENS) + [1] * (len(tokens) - len(CONTROL_TOKENS)),
        "tokenizer.ggml.tokens": tokens,
    }
    entries = {key.replace("llama.", f"{architecture}."): value for key, value in entries.items()}
    entries |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in entries.items() if value is not None}


def write_tiny_model(
    path: Path,
    seed: int = 7,
    *,
    is_damaged: bool = False,
    damaged_token: int | None = None,
    architecture: str = "llama",
    **changes: object,
) -> Path:
    """Write the model; returns `path`."""
    entries = metadata(architecture, **changes)
    return write_gguf(path, entries, _tensors(entries, architecture, seed, is_damaged, damaged_token))


def tiny_tensors(**changes: object) -> dict[str, tuple[tuple[int, ...], array[float]]]:
    """Return the tensors of the model, whose metadata has such changes."""
    return _tensors(metadata("llama", **changes), "llama", 7)


def split_tiny_model(folder: Path, count: int = 3) -> list[Path]:
    """Write the model split over several files, as llama.cpp's gguf-split names and numbers them."""
    entries = metadata()
    tensors = _tensors(entries, "llama", 7)
    names = list(tensors)
    paths = [folder / f"tiny-{part + 1:05}-of-{count:05}.gguf" for part in range(count)]
    for part, path in enumerate(paths):
        own: Metadata = {"split.no": part, "split.count": count, "split.tensors.count": len(tensors)}
        write_gguf(path, own | (entries if part == 0 else {}), {name: tensors[name] for name in names[part::count]})
    return paths


def _tensors(
    entries: Metadata, architecture: str, seed: int, is_damaged: bool = False, damaged_token: int | None = None
) -> dict[str, tuple[tuple[int, ...], array[float]]]:
    num_layers = entries[f"{architecture}.block_count"]
    assert isinstance(num_layers, int)
    draw = random.Random(seed)
    num_tokens = len(vocabulary()[0])
    tensors: dict[str, tuple[tuple[int, ...], array[float]]] = {}

    def matrix(name: str, columns: int, rows: int, scale: float) -> None:
        values = array("f", (draw.gauss(0, scale) for _ in range(columns * rows)))
        tensors[name] = ((columns, rows), values)

    def norm(name: str) -> None:
        tensors[name] = ((HIDDEN,), array("f", (1 + draw.gauss(0, 0.1) for _ in range(HIDDEN))))

    kv_size = HIDDEN // HEADS * KV_HEADS
    matrix("token_embd.weight", HIDDEN, num_tokens, 1.0)
    for layer in range(num_layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight")
        norm(f"{block}.ffn_norm.weight")
        for part, columns, rows in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", HIDDEN, kv_size),
            ("attn_v", HIDDEN, kv_size),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", HIDDEN, FFN),
            ("ffn_up", HIDDEN, FFN),
            ("ffn_down", FFN, HIDDEN),
        ):
            matrix(f"{block}.{part}.weight", columns, rows, 2 / math.sqrt(columns))
    norm("output_norm.weight")
    matrix("output.weight", HIDDEN, num_tokens, 0.35)
    if is_damaged:
        tensors["output_norm.weight"][1][0] = math.nan
    if damaged_token is not None:
        tensors["token_embd.weight"][1][damaged_token * HIDDEN] = math.nan
    return tensors
