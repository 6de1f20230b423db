"""What Gemma 4's assistant takes of its model's steps on the CPU, and what its drafts give if all or none are right.

    .oracle/bin/python benchmarks/assistants.py [--kind Q4_K] [--threads 2] [--layers 10]     (needs numpy and gguf)

Random weights in the shape of Gemma 4 E2B, ten of its 35 layers, and of its assistant, all four; the vocabulary is an
eighth of theirs, of which each draft looks at all. Told beside the times: the bytes of weights that a draft reads, as a
part of those that a step reads. As `mtp_heads.py` measures heads.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from mtp_heads import Sequence, compare, report
from random_shapes import VOCAB, File, Kind, gemma4_e2b

HIDDEN, FFN, HEADS, BACKBONE, LAYERS = 256, 2048, 4, 1536, 4


def write_assistant(path: Path, kind: Kind) -> None:
    """Write the shape of E2B's assistant: three layers with windows, and one that sees everything."""
    file = File(path, "gemma4-assistant", kind, LAYERS, HIDDEN)
    is_global = [layer == LAYERS - 1 for layer in range(LAYERS)]
    file.writer.add_feed_forward_length(FFN)
    file.gemma4_heads(HEADS, is_global, LAYERS)
    file.key("embedding_length_out", BACKBONE)
    file.key("nextn_predict_layers", LAYERS)
    file.matrix("token_embd", VOCAB, HIDDEN)
    file.matrix("nextn.pre_projection", HIDDEN, 2 * BACKBONE)
    file.matrix("nextn.post_projection", BACKBONE, HIDDEN)
    file.ones("output_norm")
    turning = np.where(np.arange(256) < 64, np.float32(1), np.float32(1e30))
    file.writer.add_tensor("rope_freqs.weight", turning)
    for layer in range(LAYERS):
        block, head_dim = f"blk.{layer}", 512 if is_global[layer] else 256
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            file.ones(f"{block}.{name}")
        file.ones(f"{block}.attn_q_norm", size=head_dim)
        file.matrix(f"{block}.attn_q", HEADS * head_dim, HIDDEN)
        file.matrix(f"{block}.attn_output", HIDDEN, HEADS * head_dim)
        file.feed_forward(block, FFN)
    file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("Q4_K", "Q8_0"), default="Q4_K")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, assistant = Path(folder) / "model.gguf", Path(folder) / "assistant.gguf"
        gemma4_e2b(path, Kind[arguments.kind], arguments.layers)
        write_assistant(assistant, Kind[arguments.kind])
        drafted = Sequence(path, arguments.threads, mtp=False, assistant=assistant)
        plain = Sequence(path, arguments.threads, mtp=False)
        info = drafted.model.info()
        # Of the table of per-layer embeddings a row is read.
        looked_up = VOCAB * 256 * arguments.layers
        read = info["weight_bytes"] * (1 - looked_up / num_numbers(path))
        print(f"by counting bytes, a draft is {info['drafter_weight_bytes'] / read:.3f} of a step")
        report(compare(drafted, plain), f"{arguments.kind}, {arguments.threads} threads", "an assistant")


def num_numbers(path: Path) -> int:
    """Return how many numbers a file's matrices have."""
    from gguf import GGUFReader

    return sum(int(tensor.n_elements) for tensor in GGUFReader(path).tensors)


if __name__ == "__main__":
    main()
