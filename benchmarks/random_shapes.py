"""Writes a GGUF file of random weights in the shape of a model people run, for us and for llama.cpp alike.

    .oracle/bin/python benchmarks/random_shapes.py SHAPE model.gguf [--kind Q4_K] [--layers N]

Needs the gguf package.

    llama-1b     Llama 3.2 1B: dense, 16 layers
    qwen3-4b     Qwen3 4B: dense, 36 layers
    lfm2-8b-a1b  LFM2 8B-A1B: 24 layers, 18 of them short convolutions; from the third on 32 experts, 4 for a token
    gpt-oss-20b  gpt-oss-20b: 24 layers, 32 experts in MXFP4, 4 for a token, attention sinks, windows of 128
    qwen35-4b    Qwen 3.5 4B: 32 layers, three of four gated delta nets
    gemma4-e2b   Gemma 4 E2B: 35 layers, every fifth sees everything, the last 20 share keys; per-layer embeddings
    glm47-flash  GLM-4.7-Flash: 47 layers of latent attention; from the second on 64 experts, 4 for a token, 1 for all

With fewer layers a file is written and read in less time; rates are then those of a smaller model of the same widths.
Vocabularies are cut to 32,768 tokens, so that the output's share stays that of the whole model when a quarter of the
layers is taken. Matrices are of one kind; norms, routers, biases, sinks and convolutions are float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from random_model import add_vocabulary, random_blocks

VOCAB = 32_768
Kind = gguf.GGMLQuantizationType


class File:
    """A file that is written tensor by tensor."""

    def __init__(self, path: Path, architecture: str, kind: Kind, num_layers: int, hidden: int) -> None:
        self.kind, self.num_layers, self.hidden = kind, num_layers, hidden
        self.architecture = architecture
        self.draw = np.random.default_rng(1234)
        self.writer = gguf.GGUFWriter(path, architecture)
        self.writer.add_context_length(16_384)
        self.writer.add_embedding_length(hidden)
        self.writer.add_block_count(num_layers)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self.writer.add_vocab_size(VOCAB)
        add_vocabulary(self.writer, VOCAB)

    def key(self, name: str, value: int) -> None:
        """Write a whole number of the architecture's metadata."""
        self.writer.add_uint32(f"{self.architecture}.{name}", value)

    def heads(self, num_heads: int, num_kv_heads: int | list[int], head_dim: int, base: float) -> None:
        """Write what attention is."""
        self.writer.add_head_count(num_heads)
        self.writer.add_head_count_kv(num_kv_heads)
        self.writer.add_key_length(head_dim)
        self.writer.add_value_length(head_dim)
        self.writer.add_rope_freq_base(base)

    def gemma4_heads(self, num_heads: int, is_global: list[bool], num_shared: int) -> None:
        """Say what attention of Gemma 4 E2B, and of its assistant, has: windows but where a layer sees everything."""
        self.heads(num_heads, 1, 512, 1e6)
        self.writer.add_key_length_swa(256)
        self.writer.add_value_length_swa(256)
        self.writer.add_rope_dimension_count(512)
        self.writer.add_rope_dimension_count_swa(256)
        self.writer.add_float32(f"{self.architecture}.rope.freq_base_swa", 1e4)
        self.writer.add_sliding_window(512)
        self.writer.add_sliding_window_pattern([not every for every in is_global])
        self.writer.add_shared_kv_layers(num_shared)

    def experts(self, num: int, used: int, size: int) -> None:
        """Write how many experts there are, how many a token has, and how wide they are."""
        self.writer.add_expert_count(num)
        self.writer.add_expert_used_count(used)
        self.writer.add_expert_feed_forward_length(size)

    def matrix(self, name: str, rows: int, cols: int, *stacked: int, kind: Kind | None = None) -> None:
        """Write random blocks."""
        kind = self.kind if kind is None else kind
        blocks = random_blocks(self.draw, kind, rows * int(np.prod(stacked)), cols)
        self.writer.add_tensor(f"{name}.weight", blocks.reshape(*stacked, rows, -1), raw_dtype=kind)

    def numbers(self, name: str, *shape: int) -> None:
        """Write small random numbers."""
        self.writer.add_tensor(name, 0.05 * self.draw.standard_normal(shape, dtype=np.float32))

    def ones(self, *names: str, size: int = 0) -> None:
        """Write the factors of norms."""
        for name in names:
            self.writer.add_tensor(f"{name}.weight", np.ones(size or self.hidden, dtype=np.float32))

    def attention(self, block: str, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Write the matrices of a layer's attention."""
        self.matrix(f"{block}.attn_q", num_heads * head_dim, self.hidden)
        self.matrix(f"{block}.attn_k", num_kv_heads * head_dim, self.hidden)
        self.matrix(f"{block}.attn_v", num_kv_heads * head_dim, self.hidden)
        self.matrix(f"{block}.attn_output", self.hidden, num_heads * head_dim)

    def feed_forward(self, block: str, size: int) -> None:
        """Write a gated feed-forward block."""
        self.matrix(f"{block}.ffn_gate", size, self.hidden)
        self.matrix(f"{block}.ffn_up", size, self.hidden)
        self.matrix(f"{block}.ffn_down", self.hidden, size)

    def expert_matrices(self, block: str, num: int, size: int, kind: Kind | None = None) -> None:
        """Write a layer's experts and what chooses among them."""
        self.numbers(f"{block}.ffn_gate_inp.weight", num, self.hidden)
        self.matrix(f"{block}.ffn_gate_exps", size, self.hidden, num, kind=kind)
        self.matrix(f"{block}.ffn_up_exps", size, self.hidden, num, kind=kind)
        self.matrix(f"{block}.ffn_down_exps", self.hidden, size, num, kind=kind)

    def close(self) -> None:
        """Write all of it."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def llama_1b(path: Path, kind: Kind, num_layers: int) -> None:
    """Write Llama 3.2 1B's shape."""
    file = File(path, "llama", kind, num_layers, 2048)
    file.writer.add_feed_forward_length(8192)
    file.heads(32, 8, 64, 5e5)
    file.writer.add_rope_dimension_count(64)
    file.matrix("token_embd", VOCAB, 2048)
    file.ones("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
        file.attention(block, 32, 8, 64)
        file.feed_forward(block, 8192)
    file.close()


def qwen3_4b(path: Path, kind: Kind, num_layers: int) -> None:
    """Write Qwen3 4B's shape."""
    file = File(path, "qwen3", kind, num_layers, 2560)
    file.writer.add_feed_forward_length(9728)
    file.heads(32, 8, 128, 1e6)
    file.matrix("token_embd", VOCAB, 2560)
    file.ones("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
        file.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", size=128)
        file.attention(block, 32, 8, 128)
        file.feed_forward(block, 9728)
    file.close()


def lfm2_8b(path: Path, kind: Kind, num_layers: int) -> None:
    """Write LFM2 8B-A1B's shape: attention in every fourth layer."""
    file = File(path, "lfm2moe", kind, num_layers, 2048)
    has_attention = [layer % 4 == 2 for layer in range(num_layers)]
    file.writer.add_feed_forward_length(7168)
    file.heads(32, [8 if has else 0 for has in has_attention], 64, 1e6)
    file.experts(32, 4, 1792)
    file.writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    file.writer.add_leading_dense_block_count(2)
    file.key("shortconv.l_cache", 3)
    file.matrix("token_embd", VOCAB, 2048)
    file.ones("token_embd_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
        if has_attention[layer]:
            file.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", size=64)
            file.attention(block, 32, 8, 64)
        else:
            file.matrix(f"{block}.shortconv.in_proj", 3 * 2048, 2048)
            file.matrix(f"{block}.shortconv.out_proj", 2048, 2048)
            file.numbers(f"{block}.shortconv.conv.weight", 2048, 3)
        if layer < 2:
            file.feed_forward(block, 7168)
        else:
            file.expert_matrices(block, 32, 1792)
            file.numbers(f"{block}.exp_probs_b.bias", 32)
    file.close()


def gpt_oss_20b(path: Path, kind: Kind, num_layers: int) -> None:
    """Write gpt-oss-20b's shape: experts in MXFP4, all else in Q8_0, as its width is no multiple of 256."""
    kind = Kind.Q8_0 if kind == Kind.Q4_K else kind
    file = File(path, "gpt-oss", kind, num_layers, 2880)
    file.writer.add_feed_forward_length(2880)
    file.heads(64, 8, 64, 150_000.0)
    file.experts(32, 4, 2880)
    file.writer.add_sliding_window(128)
    file.matrix("token_embd", VOCAB, 2880)
    file.matrix("output", VOCAB, 2880)
    file.ones("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.post_attention_norm")
        file.attention(block, 64, 8, 64)
        for name, size in (("attn_q", 4096), ("attn_k", 512), ("attn_v", 512), ("attn_output", 2880)):
            file.numbers(f"{block}.{name}.bias", size)
        file.numbers(f"{block}.attn_sinks.weight", 64)
        file.expert_matrices(block, 32, 2880, Kind.MXFP4)
        file.numbers(f"{block}.ffn_gate_inp.bias", 32)
        for name in ("gate", "up", "down"):
            file.numbers(f"{block}.ffn_{name}_exps.bias", 32, 2880)
    file.close()


def qwen35_4b(path: Path, kind: Kind, num_layers: int) -> None:
    """Write Qwen 3.5 4B's shape."""
    file = File(path, "qwen35", kind, num_layers, 2560)
    key_heads, value_heads, state = 16, 32, 128
    values, channels = value_heads * state, (2 * key_heads + value_heads) * state
    file.writer.add_feed_forward_length(9216)
    file.heads(16, 4, 256, 1e7)
    file.writer.add_rope_dimension_count(64)
    file.writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    numbers = {"conv_kernel": 4, "group_count": key_heads, "state_size": state, "time_step_rank": value_heads}
    for name, number in {**numbers, "inner_size": values}.items():
        file.key(f"ssm.{name}", number)
    file.matrix("token_embd", VOCAB, 2560)
    file.ones("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.post_attention_norm")
        file.feed_forward(block, 9216)
        if layer % 4 == 3:
            file.matrix(f"{block}.attn_q", 2 * 16 * 256, 2560)
            file.matrix(f"{block}.attn_k", 4 * 256, 2560)
            file.matrix(f"{block}.attn_v", 4 * 256, 2560)
            file.matrix(f"{block}.attn_output", 2560, 16 * 256)
            file.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", size=256)
            continue
        file.matrix(f"{block}.attn_qkv", channels, 2560)
        file.matrix(f"{block}.attn_gate", values, 2560)
        file.matrix(f"{block}.ssm_out", 2560, values)
        for name in ("alpha", "beta"):
            file.numbers(f"{block}.ssm_{name}.weight", value_heads, 2560)
        file.numbers(f"{block}.ssm_conv1d.weight", channels, 4)
        file.writer.add_tensor(f"{block}.ssm_a", np.full(value_heads, -1.0, dtype=np.float32))
        file.numbers(f"{block}.ssm_dt.bias", value_heads)
        file.ones(f"{block}.ssm_norm", size=state)
    file.close()


def gemma4_e2b(path: Path, kind: Kind, num_layers: int) -> None:
    """Write Gemma 4 E2B's shape; with fewer layers, of which there are whole fives, four in seven share keys."""
    file = File(path, "gemma4", kind, num_layers, 1536)
    is_global = [layer % 5 == 4 for layer in range(num_layers)]
    first_shared = max(5, num_layers - num_layers * 4 // 7)
    widths = [6144 if layer < first_shared else 2 * 6144 for layer in range(num_layers)]
    file.writer.add_feed_forward_length(widths)
    file.gemma4_heads(8, is_global, num_layers - first_shared)
    file.writer.add_embedding_length_per_layer_input(256)
    file.writer.add_final_logit_softcapping(30.0)
    file.matrix("token_embd", VOCAB, 1536)
    file.matrix("per_layer_token_embd", VOCAB, 256 * num_layers)
    file.matrix("per_layer_model_proj", 256 * num_layers, 1536)
    file.ones("per_layer_proj_norm", size=256)
    file.ones("output_norm")
    turning = np.where(np.arange(256) < 64, np.float32(1), np.float32(1e30))
    file.writer.add_tensor("rope_freqs.weight", turning)
    for layer in range(num_layers):
        block, head_dim = f"blk.{layer}", 512 if is_global[layer] else 256
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
            file.ones(f"{block}.{name}")
        file.ones(f"{block}.attn_q_norm", size=head_dim)
        file.matrix(f"{block}.attn_q", 8 * head_dim, 1536)
        file.matrix(f"{block}.attn_output", 1536, 8 * head_dim)
        if layer < first_shared:
            file.ones(f"{block}.attn_k_norm", size=head_dim)
            file.matrix(f"{block}.attn_k", head_dim, 1536)
            file.matrix(f"{block}.attn_v", head_dim, 1536)
        file.feed_forward(block, widths[layer])
        file.matrix(f"{block}.inp_gate", 256, 1536)
        file.matrix(f"{block}.proj", 1536, 256)
    file.close()


def glm47_flash(path: Path, kind: Kind, num_layers: int) -> None:
    """Write GLM-4.7-Flash's shape: one latent of 512 numbers and one rotated key of 64 for 20 heads."""
    file = File(path, "deepseek2", kind, num_layers, 2048)
    heads, latent, rotary, plain, value, query = 20, 512, 64, 192, 256, 768
    file.writer.add_feed_forward_length(10_240)
    file.writer.add_head_count(heads)
    file.writer.add_head_count_kv(1)
    file.writer.add_key_length(latent + rotary)
    file.writer.add_value_length(latent)
    file.writer.add_rope_freq_base(1e6)
    file.writer.add_rope_dimension_count(rotary)
    ranks = {"kv_lora_rank": latent, "q_lora_rank": query}
    for name, number in {**ranks, "key_length_mla": plain + rotary, "value_length_mla": value}.items():
        file.key(f"attention.{name}", number)
    file.experts(64, 4, 1536)
    file.key("expert_shared_count", 1)
    file.key("leading_dense_block_count", 1)
    file.key("expert_gating_func", 2)
    file.writer.add_expert_weights_norm(True)
    file.matrix("token_embd", VOCAB, 2048)
    file.matrix("output", VOCAB, 2048)
    file.ones("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
        file.ones(f"{block}.attn_q_a_norm", size=query)
        file.ones(f"{block}.attn_kv_a_norm", size=latent)
        file.matrix(f"{block}.attn_q_a", query, 2048)
        file.matrix(f"{block}.attn_q_b", heads * (plain + rotary), query)
        file.matrix(f"{block}.attn_kv_a_mqa", latent + rotary, 2048)
        file.matrix(f"{block}.attn_k_b", latent, plain, heads, kind=Kind.Q8_0)
        file.matrix(f"{block}.attn_v_b", value, latent, heads, kind=Kind.Q8_0)
        file.matrix(f"{block}.attn_output", 2048, heads * value)
        if layer == 0:
            file.feed_forward(block, 10_240)
            continue
        file.expert_matrices(block, 64, 1536)
        file.numbers(f"{block}.exp_probs_b.bias", 64)
        for name, rows, cols in (("gate", 1536, 2048), ("up", 1536, 2048), ("down", 2048, 1536)):
            file.matrix(f"{block}.ffn_{name}_shexp", rows, cols)
    file.close()


SHAPES: dict[str, tuple[Callable[[Path, Kind, int], None], int]] = {
    "llama-1b": (llama_1b, 16),
    "qwen3-4b": (qwen3_4b, 36),
    "lfm2-8b-a1b": (lfm2_8b, 24),
    "gpt-oss-20b": (gpt_oss_20b, 24),
    "qwen35-4b": (qwen35_4b, 32),
    "gemma4-e2b": (gemma4_e2b, 35),
    "glm47-flash": (glm47_flash, 47),
}
"""What writes each, and how many layers it has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=tuple(SHAPES))
    parser.add_argument("path", type=Path)
    parser.add_argument("--kind", choices=("Q4_0", "Q4_K", "Q8_0"), default="Q4_K")
    parser.add_argument("--layers", type=int, help="how many; all of them unless said")
    arguments = parser.parse_args()
    write, num_layers = SHAPES[arguments.shape]
    write(arguments.path, Kind[arguments.kind], arguments.layers or num_layers)
    print(f"{arguments.path}: {arguments.path.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
