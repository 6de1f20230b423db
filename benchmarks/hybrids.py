"""Models with recurrent layers on the CPU: prompts and batches that decode, beside a plain reading of the weights.

    .oracle/bin/python benchmarks/hybrids.py [--shape qwen35] [--kind Q4_K] [--threads 2]     (needs numpy and gguf)

Random weights in the shape of Qwen 3.5 4B (four of its 32 layers: three gated delta nets and one with attention), of
LFM2 1.2B (three of its 16 layers: two short convolutions and one with attention) or of Granite 4.0 H Micro (four of its
40 layers: three of Mamba-2 and one with attention; it has one in ten); the vocabulary is cut too. Threads
that sum a large array give the rate of the memory, in turns with the steps. What a step reads besides the weights, a
sequence's state, is told apart. Steps of one sequence that verify seven drafts are in the same turns, of which masks
have the sampler refuse all or accept all.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from experts import VOCAB, Decoder
from plain_reading import NUM_NUMBERS, bytes_read, reading_rate
from random_model import random_blocks

from pyagent import _rust

BATCHES = (1, 8, 16)
PROMPT, ROUNDS = 512, 5
DRAFTS, DRAFT_STEPS = 7, 12
LAYERS = {
    "lfm2": [True, True, False],
    "qwen35": [True, True, True, False],
    "granitehybrid": [True, True, True, False],
}
"""Of each layer, whether it is recurrent."""
WIDTHS = {
    "lfm2": (2048, 8192, 32, 8, 64),
    "qwen35": (2560, 9216, 16, 4, 256),
    "granitehybrid": (2048, 8192, 32, 8, 64),
}
"""Stream, feed-forward block, heads, key-value heads, a head."""
KEY_HEADS, VALUE_HEADS, HEAD = 16, 32, 128
"""Of delta nets."""
SPACE_HEADS, SPACE_HEAD, STATE = 64, 64, 128
"""Of Mamba-2."""


class Writer:
    """A file of random weights."""

    def __init__(self, path: Path, shape: str, kind: gguf.GGMLQuantizationType, *, has_head: bool = False) -> None:
        """With a head that drafts (MTP), of Qwen 3.5's shape alone, behind the other layers."""
        self.hidden, self.ffn, self.heads, self.kv_heads, self.head = WIDTHS[shape]
        self.shape, self.kind, self.layers, self.has_head = shape, kind, LAYERS[shape], has_head
        self.draw = np.random.default_rng(1234)
        self.file = gguf.GGUFWriter(path, shape)

    def write(self) -> None:
        """Write all of it."""
        self._metadata()
        self._matrix("token_embd", VOCAB, self.hidden)
        self._matrix("output", VOCAB, self.hidden)
        self._ones("token_embd_norm" if self.shape == "lfm2" else "output_norm", self.hidden)
        for layer, is_recurrent in enumerate(self.layers):
            block = f"blk.{layer}"
            self._ones(f"{block}.attn_norm", self.hidden)
            self._ones(f"{block}.{'post_attention' if self.shape == 'qwen35' else 'ffn'}_norm", self.hidden)
            (self._recurrent if is_recurrent else self._attention)(block)
            self._insides(block)
        if self.has_head:
            self._head(f"blk.{len(self.layers)}")
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()

    def _head(self, block: str) -> None:
        for name in ("attn_norm", "post_attention_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"):
            self._ones(f"{block}.{name}", self.hidden)
        self._matrix(f"{block}.nextn.eh_proj", self.hidden, 2 * self.hidden)
        self._attention(block)
        self._insides(block)

    def _insides(self, block: str) -> None:
        for name in ("gate", "up"):
            self._matrix(f"{block}.ffn_{name}", self.ffn, self.hidden)
        self._matrix(f"{block}.ffn_down", self.hidden, self.ffn)

    def _metadata(self) -> None:
        file = self.file
        file.add_context_length(8192)
        file.add_embedding_length(self.hidden)
        file.add_block_count(len(self.layers) + self.has_head)
        if self.has_head:
            file.add_uint32(f"{self.shape}.nextn_predict_layers", 1)
        file.add_feed_forward_length(self.ffn)
        file.add_head_count(self.heads)
        file.add_layer_norm_rms_eps(1e-5)
        if self.shape == "lfm2":
            file.add_head_count_kv([0 if is_recurrent else self.kv_heads for is_recurrent in self.layers])
            file.add_uint32("lfm2.shortconv.l_cache", 3)
            return
        if self.shape == "granitehybrid":
            file.add_head_count_kv([0 if is_recurrent else self.kv_heads for is_recurrent in self.layers])
            numbers = {"conv_kernel": 4, "group_count": 1, "state_size": STATE, "time_step_rank": SPACE_HEADS}
            for key, number in {**numbers, "inner_size": SPACE_HEADS * SPACE_HEAD}.items():
                file.add_uint32(f"granitehybrid.ssm.{key}", number)
            file.add_bool("granitehybrid.rope.scaling.finetuned", False)
            return
        file.add_head_count_kv(self.kv_heads)
        numbers = {"conv_kernel": 4, "group_count": KEY_HEADS, "state_size": HEAD, "time_step_rank": VALUE_HEADS}
        for key, number in {**numbers, "inner_size": VALUE_HEADS * HEAD}.items():
            file.add_uint32(f"qwen35.ssm.{key}", number)
        for key in ("attention.key_length", "attention.value_length"):
            file.add_uint32(f"qwen35.{key}", self.head)
        file.add_uint32("qwen35.rope.dimension_count", self.head // 4)

    def _attention(self, block: str) -> None:
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        self._matrix(f"{block}.attn_q", queries * (2 if self.shape == "qwen35" else 1), self.hidden)
        self._matrix(f"{block}.attn_k", keys, self.hidden)
        self._matrix(f"{block}.attn_v", keys, self.hidden)
        self._matrix(f"{block}.attn_output", self.hidden, queries)
        if self.shape == "granitehybrid":
            return
        self._ones(f"{block}.attn_q_norm", self.head)
        self._ones(f"{block}.attn_k_norm", self.head)

    def _recurrent(self, block: str) -> None:
        if self.shape == "lfm2":
            self._matrix(f"{block}.shortconv.in_proj", 3 * self.hidden, self.hidden)
            self._matrix(f"{block}.shortconv.out_proj", self.hidden, self.hidden)
            self._floats(f"{block}.shortconv.conv.weight", self.hidden, 3)
            return
        if self.shape == "granitehybrid":
            self._state_space(block)
            return
        values, channels = VALUE_HEADS * HEAD, (2 * KEY_HEADS + VALUE_HEADS) * HEAD
        self._matrix(f"{block}.attn_qkv", channels, self.hidden)
        self._matrix(f"{block}.attn_gate", values, self.hidden)
        self._matrix(f"{block}.ssm_out", self.hidden, values)
        for name in ("alpha", "beta"):
            self._floats(f"{block}.ssm_{name}.weight", VALUE_HEADS, self.hidden)
        self._floats(f"{block}.ssm_conv1d.weight", channels, 4)
        self.file.add_tensor(f"{block}.ssm_a", np.full(VALUE_HEADS, -1.0, dtype=np.float32))
        self._floats(f"{block}.ssm_dt.bias", VALUE_HEADS)
        self._ones(f"{block}.ssm_norm", HEAD)

    def _state_space(self, block: str) -> None:
        inner = SPACE_HEADS * SPACE_HEAD
        channels = inner + 2 * STATE
        self._matrix(f"{block}.ssm_in", inner + channels + SPACE_HEADS, self.hidden)
        self._matrix(f"{block}.ssm_out", self.hidden, inner)
        self._floats(f"{block}.ssm_conv1d.weight", channels, 4)
        self._floats(f"{block}.ssm_conv1d.bias", channels)
        self.file.add_tensor(f"{block}.ssm_a", np.full((SPACE_HEADS, 1), -1.0, dtype=np.float32))
        self.file.add_tensor(f"{block}.ssm_d", np.ones((SPACE_HEADS, 1), dtype=np.float32))
        self._floats(f"{block}.ssm_dt.bias", SPACE_HEADS)
        self._ones(f"{block}.ssm_norm", inner)

    def _matrix(self, name: str, rows: int, cols: int) -> None:
        blocks = random_blocks(self.draw, self.kind, rows, cols)
        self.file.add_tensor(f"{name}.weight", blocks.reshape(rows, -1), raw_dtype=self.kind)

    def _floats(self, name: str, *shape: int) -> None:
        self.file.add_tensor(name, 0.05 * self.draw.standard_normal(shape, dtype=np.float32))

    def _ones(self, name: str, size: int) -> None:
        self.file.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))


def prompt_seconds(decoder: Decoder) -> float:
    """Seconds of a prompt in one step."""
    decoder.pool.clear_index()
    decoder.pool.add(99, [1])
    decoder.pool.reserve(99, PROMPT)
    tokens = [int(token) for token in decoder.draw.integers(0, VOCAB, PROMPT)]
    start = time.perf_counter()
    decoder.model.execute(decoder.pool, [99], [PROMPT], tokens, num_outputs=[1])
    seconds = time.perf_counter() - start
    decoder.pool.release(99)
    return seconds


def draft_seconds(decoder: Decoder, num_right: int) -> float:
    """The median of steps of one sequence that verify `DRAFTS` drafts, of which so many are right."""
    tokens, sampler, seconds = [5], _rust.SamplerState(temperature=0.0), list[float]()
    decoder.pool.add(0, tokens)
    for _ in range(DRAFT_STEPS):
        drafts = [int(token) for token in decoder.draw.integers(8, VOCAB, DRAFTS)]
        sampled = [*drafts[:num_right], 7]
        row_bytes = -(-VOCAB // 32) * 4
        masks = bytearray(row_bytes * (1 + DRAFTS))
        for row in range(1 + DRAFTS):
            token = sampled[min(row, num_right)]
            masks[row_bytes * row + token // 8] |= 1 << token % 8
        decoder.pool.reserve(0, len(tokens))
        decoder.pool.reserve(0, len(tokens) + DRAFTS)
        start = time.perf_counter()
        decoder.model.execute(
            decoder.pool,
            [0],
            [1 + DRAFTS],
            [tokens[-1], *drafts],
            [sampler],
            [0],
            {0: bytes(masks)},
            num_outputs=[1 + DRAFTS],
            num_drafts={0: DRAFTS},
        )
        seconds.append(time.perf_counter() - start)
        tokens += sampled
    assert decoder.pool.num_tokens(0) == len(tokens) - 1
    decoder.pool.release(0)
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(LAYERS), default="qwen35")
    parser.add_argument("--kind", choices=("Q4_K", "Q8_0"), default="Q4_K")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        Writer(path, arguments.shape, gguf.GGMLQuantizationType[arguments.kind]).write()
        decoder, array = Decoder(path, arguments.threads), np.ones(NUM_NUMBERS)
        rates: list[float] = []
        prompts: list[float] = []
        seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
        drafts: dict[int, list[float]] = {num_right: [] for num_right in (0, DRAFTS)}
        for _ in range(ROUNDS):
            rates.append(reading_rate(arguments.threads, array))
            prompts.append(prompt_seconds(decoder))
            for batch in BATCHES:
                seconds[batch].append(decoder.step_seconds(batch))
            for num_right, measured in drafts.items():
                measured.append(draft_seconds(decoder, num_right))
        info, rate, used = decoder.model.info(), statistics.median(rates), bytes_read(path)
        (_, _, of_keys), (_, every, of_states) = info["kv_groups"]
        state = of_states * info["page_bytes"]
        print(
            f"{arguments.shape}, {arguments.kind}, {len(LAYERS[arguments.shape])} layers, {arguments.threads} threads"
        )
        print(f"plain reading: {rate / 1e9:.1f} GB/s; a state: {state / 1e6:.2f} MB, kept every {every * 16} tokens")
        print(f"a block's keys and values: {of_keys * info['page_bytes'] / 1e6:.2f} MB")
        print(f"prompt of {PROMPT}: {PROMPT / statistics.median(prompts):.0f} tokens/s")
        for batch in BATCHES:
            step = statistics.median(seconds[batch])
            print(
                f"{batch:>2} sequences: {batch / step:6.1f} tokens/s, {used / 1e6:5.0f} MB of weights a step at "
                f"{used / step / 1e9:.1f} GB/s, {used / step / rate:.2f} of plain reading"
            )
        plain = statistics.median(seconds[1])
        for num_right, measured in drafts.items():
            step = statistics.median(measured)
            print(f"{num_right} of {DRAFTS} drafts right: {step * 1e3:.2f} ms, {step / plain:.2f} of a step without")


if __name__ == "__main__":
    main()
