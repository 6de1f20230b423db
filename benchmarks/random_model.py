"""Writes a GGUF file of random weights in the shape of Llama 3.2 1B, to measure speed without a download.

    .oracle/bin/python benchmarks/random_model.py Q4_K_M model.gguf     (or Q8_0; needs the gguf package)

Every block gets small random scales and random integers, so that numbers stay finite; what the model says means
nothing. `Q4_K_M` has the mix of llama.cpp's: Q6_K for the output and for half of the value and down matrices.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

NUM_LAYERS, HIDDEN, FFN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VOCAB = 16, 2048, 8192, 32, 8, 64, 128_256
SCALE = 0.0004


def random_blocks(draw: np.random.Generator, kind: gguf.GGMLQuantizationType, rows: int, cols: int) -> np.ndarray:
    """Rows of random blocks of a type, as bytes."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (rows * cols // block_size, block_bytes), dtype=np.uint8)
    scale = np.frombuffer(np.float16(SCALE).tobytes(), dtype=np.uint8)
    match kind:
        case gguf.GGMLQuantizationType.Q8_0 | gguf.GGMLQuantizationType.Q4_0:
            blocks[:, 0:2] = scale
        case gguf.GGMLQuantizationType.Q4_K:
            blocks[:, 0:2] = scale
            blocks[:, 2:4] = scale
        case gguf.GGMLQuantizationType.Q6_K:
            blocks[:, -2:] = scale
        case gguf.GGMLQuantizationType.MXFP4:
            blocks[:, 0] = 127 + round(float(np.log2(SCALE)))
        case _:
            raise ValueError(f"no random blocks of {kind.name}")
    return blocks.reshape(rows, cols // block_size * block_bytes)


def kind_of(mix: str, name: str, layer: int) -> gguf.GGMLQuantizationType:
    """The type of a matrix in a mix."""
    if mix == "Q8_0":
        return gguf.GGMLQuantizationType.Q8_0
    is_better = layer < NUM_LAYERS // 8 or layer >= 7 * NUM_LAYERS // 8 or (layer - NUM_LAYERS // 8) % 3 == 2
    if name == "token_embd" or (name in {"attn_v", "ffn_down"} and is_better):
        return gguf.GGMLQuantizationType.Q6_K
    return gguf.GGMLQuantizationType.Q4_K


def write(path: Path, mix: str) -> None:
    """Writes the file."""
    draw = np.random.default_rng(1234)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random 1B {mix}")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    add_vocabulary(writer)

    def matrix(name: str, rows: int, cols: int, layer: int = -1) -> None:
        kind = kind_of(mix, name, layer)
        full_name = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        writer.add_tensor(full_name, random_blocks(draw, kind, rows, cols), raw_dtype=kind)

    matrix("token_embd", VOCAB, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for layer in range(NUM_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, dtype=np.float32))
        matrix("attn_q", NUM_HEADS * HEAD_DIM, HIDDEN, layer)
        matrix("attn_k", NUM_KV_HEADS * HEAD_DIM, HIDDEN, layer)
        matrix("attn_v", NUM_KV_HEADS * HEAD_DIM, HIDDEN, layer)
        matrix("attn_output", HIDDEN, NUM_HEADS * HEAD_DIM, layer)
        matrix("ffn_gate", FFN, HIDDEN, layer)
        matrix("ffn_up", FFN, HIDDEN, layer)
        matrix("ffn_down", HIDDEN, FFN, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: gguf.GGUFWriter, num_tokens: int = VOCAB) -> None:
    """A byte-level vocabulary: the 256 bytes, the one merge, then words nobody says, then control tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    letters = [chr(byte if byte in printable else next(rest)) for byte in range(256)]
    words = [f"{letters[65 + i % 26]}{i}" for i in range(num_tokens - 259)]
    tokens = [*letters, letters[65] + letters[66], *words, "<|begin_of_text|>", "<|end_of_text|>"]
    control = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (num_tokens - 2) + [control, control])
    writer.add_token_merges([f"{letters[65]} {letters[66]}"])
    writer.add_bos_token_id(num_tokens - 2)
    writer.add_eos_token_id(num_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mix", choices=("Q4_K_M", "Q8_0"))
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write(arguments.path, arguments.mix)
    print(f"{arguments.path}: {arguments.path.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
