"""A layer of lightning attention beside one of softmax attention, in MiniMax-01's widths, at a depth.

    .oracle/bin/python benchmarks/lightning.py [--kind Q4_K] [--depth 8192] [--rounds 5]     (needs numpy and gguf)

Random weights: 64 heads of 128 numbers, 8 heads of keys and values, a stream of 6,144. Models of one layer with
attention, of that and one of lightning attention, and of two with attention, take turns; experts are small. What a
second layer adds, in processor time of one thread, is what a layer of its kind takes: for a token that decodes at the
depth, and for 512 tokens of a prompt that end there. The tokens before are not computed: their blocks are copies of the
first one, and states are what they were.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from random_model import random_blocks

from pyagent import _rust

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, EXPERTS = 512, 6144, 64, 8, 128, 256, 2
INNER, KV = HEADS * HEAD, KV_HEADS * HEAD
PROMPT, STEPS = 512, 20
MODELS = {"attention": [False], "+ lightning": [True, False], "+ attention": [False, False]}
"""Of each layer, whether it is lightning attention."""


def write(path: Path, kind: gguf.GGMLQuantizationType, layers: list[bool]) -> Path:
    """Write a model; return `path`."""
    draw, file = np.random.default_rng(1234), gguf.GGUFWriter(path, "minimax-01")

    def matrix(name: str, rows: int, cols: int, stack: int = 1) -> None:
        blocks = random_blocks(draw, kind, stack * rows, cols)
        shape = (rows, -1) if stack == 1 else (stack, rows, blocks.shape[-1])
        file.add_tensor(f"{name}.weight", blocks.reshape(shape), raw_dtype=kind)

    def ones(name: str, size: int) -> None:
        file.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    file.add_context_length(1 << 20)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(len(layers))
    file.add_feed_forward_length(FFN)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_key_length(HEAD)
    file.add_value_length(HEAD)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_expert_count(EXPERTS)
    file.add_expert_used_count(1)
    file.add_array("minimax-01.attention.recurrent_layers", layers)
    matrix("token_embd", VOCAB, HIDDEN)
    ones("output_norm", HIDDEN)
    for layer, is_lightning in enumerate(layers):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm", HIDDEN)
        ones(f"{block}.ffn_norm", HIDDEN)
        if is_lightning:
            matrix(f"{block}.attn_qkv", 3 * INNER, HIDDEN)
            matrix(f"{block}.attn_gate", INNER, HIDDEN)
            ones(f"{block}.attn_norm_2", INNER)
        else:
            for name, rows in (("q", INNER), ("k", KV), ("v", KV)):
                matrix(f"{block}.attn_{name}", rows, HIDDEN)
        matrix(f"{block}.attn_output", HIDDEN, INNER)
        file.add_tensor(f"{block}.ffn_gate_inp.weight", np.zeros((EXPERTS, HIDDEN), dtype=np.float32))
        for name, rows, cols in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            matrix(f"{block}.ffn_{name}_exps", rows, cols, EXPERTS)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


class Sequence:
    """A text of a model, up to a prompt's length before the depth."""

    def __init__(self, path: Path, depth: int) -> None:
        self.model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 28)
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        self.draw = np.random.default_rng(7)
        first = self._tokens(16)
        self.pool.add(1, first)
        self.step(first)
        source = self.pool.tables(1)[0][0]
        self.pool.reserve(1, depth - PROMPT)
        self.pool.commit(1, self._tokens(depth - PROMPT - 16))
        self.model.copy_pages([(source, page) for page in self.pool.tables(1)[0][1:] if page != source])

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self.draw.integers(0, VOCAB, count)]

    def step(self, tokens: list[int]) -> float:
        """Compute some tokens; return the processor's seconds."""
        self.pool.reserve(1, self.pool.num_tokens(1) + len(tokens))
        start = time.process_time()
        self.model.execute(self.pool, [1], [len(tokens)], tokens, num_outputs=[1])
        return time.process_time() - start

    def seconds(self) -> tuple[float, float]:
        """Of a prompt, and the least of some steps behind it."""
        return self.step(self._tokens(PROMPT)), min(self.step(self._tokens(1)) for _ in range(STEPS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("Q4_K", "Q8_0"), default="Q4_K")
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kind = gguf.GGMLQuantizationType[arguments.kind]
        paths = {
            name: write(Path(folder) / f"{len(layers)}-{sum(layers)}.gguf", kind, layers)
            for name, layers in MODELS.items()
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in paths}
        for _ in range(arguments.rounds):
            for name, path in paths.items():
                found[name].append(Sequence(path, arguments.depth).seconds())
    least = {name: [min(column) for column in zip(*seconds, strict=True)] for name, seconds in found.items()}
    bare = least["attention"]
    for place, what in enumerate((f"a prompt's last {PROMPT} tokens", "a token")):
        lightning, softmax = (least[name][place] - bare[place] for name in ("+ lightning", "+ attention"))
        print(
            f"{what} at {arguments.depth}: lightning {lightning * 1e3:.1f} ms, softmax {softmax * 1e3:.1f} ms, "
            f"{lightning / softmax:.2f}"
        )


if __name__ == "__main__":
    main()
