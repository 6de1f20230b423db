"""What dual chunk attention takes on the CPU: a long prompt, and tokens behind it, with chunks and without.

    .oracle/bin/python benchmarks/dual_chunks.py [--tokens 8192] [--chunk 4096] [--layers 4] [--threads 2] [--rounds 3]
                                                 (needs numpy and safetensors)

Random weights in the shape of Qwen2.5 1.5B, four of its 28 layers. The same weights are read with chunks and without;
both are computed in turn, and the least of several rounds is told, as seconds of all processors: others on the machine
take none of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pyagent import _rust

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 1536, 8960, 12, 2, 128, 4096
STEP, DECODED = 512, 32


def write_model(folder: Path, num_layers: int, chunk: int | None) -> Path:
    """Write the shape, with chunks of so many positions or without."""
    draw, tensors = np.random.default_rng(7), dict[str, np.ndarray]()

    def matrix(name: str, rows: int, cols: int, *, has_bias: bool = False) -> None:
        values = draw.standard_normal((rows, cols), dtype=np.float32) * cols**-0.5
        tensors[f"{name}.weight"] = values.astype(np.float16)
        if has_bias:
            tensors[f"{name}.bias"] = np.zeros(rows, dtype=np.float16)

    matrix("model.embed_tokens", VOCAB, HIDDEN)
    for layer in range(num_layers):
        block = f"model.layers.{layer}"
        matrix(f"{block}.self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, has_bias=True)
        matrix(f"{block}.self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, has_bias=True)
        matrix(f"{block}.self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, has_bias=True)
        matrix(f"{block}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
        matrix(f"{block}.mlp.gate_proj", FFN, HIDDEN)
        matrix(f"{block}.mlp.up_proj", FFN, HIDDEN)
        matrix(f"{block}.mlp.down_proj", HIDDEN, FFN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{name}.weight"] = np.ones(HIDDEN, dtype=np.float16)
    tensors["model.norm.weight"] = np.ones(HIDDEN, dtype=np.float16)
    about = {
        "model_type": "qwen2",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 1 << 17,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    if chunk is not None:
        about["dual_chunk_attention_config"] = {"chunk_size": chunk + chunk // 8, "local_size": chunk // 8}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(about))
    return folder


class Text:
    """One text of a model, in steps."""

    def __init__(self, path: Path, threads: int, num_tokens: int) -> None:
        self.model = _rust.CpuModel.load(path, threads=threads, kv_bytes=1 << 28)
        self.pool = _rust.BlockPool(self.model.info()["num_pages"], groups=self.model.info()["kv_groups"])
        self.tokens = [(7 * place + place * place) % VOCAB for place in range(num_tokens + DECODED)]
        self.num_tokens = num_tokens

    def seconds(self) -> tuple[float, float]:
        """Processors' seconds of the prompt, and of one token behind it."""
        self.pool.clear_index()
        self.pool.add(0, self.tokens)
        start = time.process_time()
        for done in range(0, self.num_tokens, STEP):
            self._step(done, min(STEP, self.num_tokens - done))
        middle = time.process_time()
        for place in range(DECODED):
            self._step(self.num_tokens + place, 1)
        end = time.process_time()
        self.pool.release(0)
        return middle - start, (end - middle) / DECODED

    def _step(self, done: int, count: int) -> None:
        self.pool.reserve(0, done + count)
        self.model.execute(self.pool, [0], [count], self.tokens[done : done + count])


def main() -> None:
    """Print both times, with and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 8192), ("chunk", 4096), ("layers", 4), ("threads", 2), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"without": None, "with": asked.chunk}
        paths = {name: write_model(Path(folder) / name, asked.layers, chunk) for name, chunk in kinds.items()}
        texts = {name: Text(path, asked.threads, asked.tokens) for name, path in paths.items()}
        best = dict.fromkeys(texts, (float("inf"), float("inf")))
        for _ in range(asked.rounds):
            for name, text in texts.items():
                prompt, token = text.seconds()
                best[name] = (min(best[name][0], prompt), min(best[name][1], token))
    for name, (prompt, token) in best.items():
        print(f"{name:8} {asked.tokens} tokens {prompt:7.2f} s, one behind them {1000 * token:7.2f} ms")
    ratios = [ours / plain for ours, plain in zip(best["with"], best["without"], strict=True)]
    print(f"with / without: prompt {ratios[0]:.3f}, token {ratios[1]:.3f}")


if __name__ == "__main__":
    main()
