"""Small encoder-decoders of T5's family: GGUF files of them, and steps of the CPU runner."""

from __future__ import annotations

import hashlib
import random
from array import array
from pathlib import Path
from typing import Any

from support.gguf_writer import Metadata, write_gguf

from pyagent import _rust

PAD, END, UNKNOWN = range(3)
_WORDS = ("▁", *"abcdefghijklmnopqrstuvwxyz0123456789.,:!", "▁the", "▁to", "▁a", "en", "er", "ch", "▁Hallo", "ß", "Q")
PIECES = ("<pad>", "</s>", "<unk>", *_WORDS)
HIDDEN, HEAD_DIM, NUM_HEADS, INNER, BUCKETS = 64, 16, 3, 96, 16
ENCODER_LAYERS, DECODER_LAYERS = 2, 3
TRAINED = 128


def t5_metadata(**changes: object) -> dict[str, object]:
    """Return the metadata of a small T5, as llama.cpp's converter writes it; keys of `t5.` are changed."""
    own: dict[str, object] = {
        "context_length": TRAINED,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "block_count": ENCODER_LAYERS,
        "decoder_block_count": DECODER_LAYERS,
        "attention.head_count": NUM_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.relative_buckets_count": BUCKETS,
        "decoder_start_token_id": PAD,
    }
    kept = {key: value for key, value in {**own, **changes}.items() if value is not None}
    return {"general.architecture": "t5", **{f"t5.{key}": value for key, value in kept.items()}}


def vocabulary() -> Metadata:
    """Return what a GGUF file says of a tokenizer of unigrams."""
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(PIECES),
        "tokenizer.ggml.scores": [0.0 if place < 3 else -2.0 - place / 10 for place in range(len(PIECES))],
        "tokenizer.ggml.token_type": [3, 3, 2, *(1 for _ in _WORDS)],
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.padding_token_id": PAD,
        "tokenizer.ggml.unknown_token_id": UNKNOWN,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
    }


def t5_tensors(seed: int = 7, *, has_own_distances: bool = False) -> dict[str, tuple[tuple[int, ...], array[float]]]:
    """Return the tensors of a small T5 with gates and an output matrix, under the names of GGUF files."""
    draw, inner = random.Random(seed), NUM_HEADS * HEAD_DIM
    tensors: dict[str, tuple[tuple[int, ...], array[float]]] = {}

    def matrix(name: str, columns: int, rows: int, scale: float = 0.3) -> None:
        values = array("f", (draw.uniform(-scale, scale) for _ in range(rows * columns)))
        tensors[f"{name}.weight"] = ((columns, rows), values)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = ((HIDDEN,), array("f", (draw.uniform(0.5, 1.5) for _ in range(HIDDEN))))

    matrix("token_embd", HIDDEN, len(PIECES), 1.0)
    matrix("output", HIDDEN, len(PIECES), 0.6)
    for half, count in (("enc", ENCODER_LAYERS), ("dec", DECODER_LAYERS)):
        for layer in range(count):
            for kind in ("attn", *(["cross_attn"] if half == "dec" else [])):
                for part in "qkv":
                    matrix(f"{half}.blk.{layer}.{kind}_{part}", HIDDEN, inner)
                matrix(f"{half}.blk.{layer}.{kind}_o", inner, HIDDEN)
                norm(f"{half}.blk.{layer}.{kind}_norm")
            for part in ("gate", "up"):
                matrix(f"{half}.blk.{layer}.ffn_{part}", HIDDEN, INNER)
            matrix(f"{half}.blk.{layer}.ffn_down", INNER, HIDDEN)
            norm(f"{half}.blk.{layer}.ffn_norm")
            if layer == 0 or has_own_distances:
                matrix(f"{half}.blk.{layer}.attn_rel_b", NUM_HEADS, BUCKETS, 1.0)
        norm(f"{half}.output_norm")
    return tensors


def write_t5(path: Path, *, without: str = "", **changes: object) -> Path:
    """Write a small T5 with a tokenizer, `without` a tensor; return `path`."""
    tensors = {name: tensor for name, tensor in t5_tensors().items() if name != without}
    return write_gguf(path, {**t5_metadata(**changes), **vocabulary()}, tensors)


class PromptRunner:
    """A model and a pool; sequences begin with prompts, of which only the tokens behind them give logits."""

    def __init__(self, path: Path, threads: int = 2, **load: Any) -> None:
        self.model = _rust.CpuModel.load(path, threads=threads, kv_bytes=1 << 25, kv_type="f32", **load)
        info = self.model.info()
        self.vocab_size, self.start = info["vocab_size"], info["decoder_start"]
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        self._prompts: dict[int, list[int]] = {}

    def begin(self, sequence: int, prompt: list[int], tokens: list[int]) -> int:
        """Start a sequence that is to have such tokens behind its prompt; return how many are cached."""
        self._prompts[sequence] = prompt
        self.model.set_prompt(sequence, prompt)
        digest = hashlib.sha256(array("I", prompt).tobytes()).digest()
        return self.pool.add(sequence, [*prompt, *tokens], media_hash=digest)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self.pool.release(sequence)
        self.model.set_prompt(sequence, None)

    def step(self, *segments: tuple[int, list[int]]) -> Any:
        """Logits of every token behind a prompt, [tokens, vocab]."""
        import numpy as np

        outputs: list[int] = []
        for sequence, tokens in segments:
            num_before = self.pool.num_tokens(sequence)
            self.pool.reserve(sequence, num_before + len(tokens))
            num_read = max(0, min(len(self._prompts[sequence]) - num_before, len(tokens)))
            outputs.append(len(tokens) - num_read)
        ids, lengths = [sequence for sequence, _ in segments], [len(tokens) for _, tokens in segments]
        log = [token for _, tokens in segments for token in tokens]
        faults = self.model.execute(self.pool, ids, lengths, log, num_outputs=outputs)[2]
        assert not faults, faults
        rows = sum(outputs)
        return np.frombuffer(self.model.logits(), dtype="<f4").reshape(rows, self.vocab_size).copy()
