"""A mixture of experts on the CPU: batches that decode, beside a plain reading of the weights that they use.

    .oracle/bin/python benchmarks/experts.py [--layers 4] [--kind Q4_K] [--threads 2]     (needs numpy and gguf)

Random weights in the shape of OLMoE-1B-7B (64 experts of 1,024, 8 for a token), of fewer layers, so that the file is
small; the vocabulary is cut too. A batch of B reads, if routers are fair, 64 (1 - (1 - 8/64)^B) experts of a layer:
those bytes in the time of a step are its rate. Threads that sum a large array give the rate of the memory, in turns
with the steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from plain_reading import NUM_NUMBERS, bytes_read, reading_rate
from random_model import random_blocks

from pyagent import _rust

HIDDEN, FFN, HEADS, EXPERTS, USED, VOCAB = 2048, 1024, 16, 64, 8, 4_096
BATCHES = (1, 8, 16)
DEPTH, STEPS, ROUNDS = 64, 20, 5


def write(path: Path, kind: gguf.GGMLQuantizationType, num_layers: int) -> None:
    """Write the file."""
    draw = np.random.default_rng(1234)
    writer = gguf.GGUFWriter(path, "olmoe")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)

    def matrix(name: str, rows: int, cols: int, *stacked: int) -> None:
        blocks = random_blocks(draw, kind, rows * int(np.prod(stacked)), cols)
        writer.add_tensor(f"{name}.weight", blocks.reshape(*stacked, rows, -1), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))

    matrix("token_embd", VOCAB, HIDDEN)
    matrix("output", VOCAB, HIDDEN)
    norm("output_norm")
    for layer in range(num_layers):
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            norm(f"blk.{layer}.{name}")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{layer}.{name}", HIDDEN, HIDDEN)
        router = draw.standard_normal((EXPERTS, HIDDEN), dtype=np.float32)
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
        for name, rows, cols in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            matrix(f"blk.{layer}.ffn_{name}_exps", rows, cols, EXPERTS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Decoder:
    """Sequences that decode together, random tokens each time, so that routers have something to choose."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = _rust.CpuModel.load(path, threads=threads, kv_bytes=1 << 28)
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        self.draw = np.random.default_rng(7)

    def step_seconds(self, num_sequences: int) -> float:
        """The median of some steps, each of a token of each sequence."""
        numbers = list(range(num_sequences))
        for number in numbers:
            self.pool.add(number, [number])
        seconds = [self._step(numbers, 1 if step else DEPTH) for step in range(STEPS + 1)]
        for number in numbers:
            self.pool.release(number)
        return statistics.median(seconds[1:])

    def _step(self, numbers: list[int], length: int) -> float:
        for number in numbers:
            self.pool.reserve(number, self.pool.num_tokens(number) + length)
        tokens = [int(token) for token in self.draw.integers(0, VOCAB, len(numbers) * length)]
        start = time.perf_counter()
        self.model.execute(self.pool, numbers, [length] * len(numbers), tokens, num_outputs=[1] * len(numbers))
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--kind", choices=("Q4_K", "Q8_0", "MXFP4"), default="Q4_K")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, help="keep the file in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = (arguments.work or Path(folder)) / f"olmoe-{arguments.layers}-{arguments.kind}.gguf"
        if not path.exists():
            write(path, gguf.GGMLQuantizationType[arguments.kind], arguments.layers)
        decoder, array = Decoder(path, arguments.threads), np.ones(NUM_NUMBERS)
        seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
        rates: list[float] = []
        for _ in range(ROUNDS):
            rates.append(reading_rate(arguments.threads, array))
            for batch in BATCHES:
                seconds[batch].append(decoder.step_seconds(batch))
        rate = statistics.median(rates)
        print(f"{arguments.kind}, {arguments.layers} layers of 16, {arguments.threads} threads")
        print(f"plain reading: {rate / 1e9:.1f} GB/s")
        for batch in BATCHES:
            step, used = statistics.median(seconds[batch]), bytes_read(path, batch)
            print(
                f"{batch:>2} sequences: {batch / step:6.1f} tokens/s, {used / 1e6:5.0f} MB a step at "
                f"{used / step / 1e9:.1f} GB/s, {used / step / rate:.2f} of plain reading"
            )


if __name__ == "__main__":
    main()
