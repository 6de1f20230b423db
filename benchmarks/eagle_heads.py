"""What a head of EAGLE-3 takes of its model's steps on the CPU, and what its drafts give if all or none are right.

    .oracle/bin/python benchmarks/eagle_heads.py [--kind Q4_K] [--threads 2] [--layers 8]
                                                 (needs numpy, gguf and safetensors)

Random weights in the shape of Llama 3.1 8B, eight of its 32 layers, and of the head that is published for it: in F16,
drafting of 32,000 tokens. So a head takes four times the part of a step that it takes of the whole model. Told beside
the times: the bytes of weights that a draft reads, and that an idle head reads, as parts of those that a step reads. As
`mtp_heads.py` measures heads.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from mtp_heads import Sequence, compare, report
from random_shapes import VOCAB, File, Kind
from safetensors.numpy import save_file

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, DRAFTED = 4096, 14_336, 32, 8, 128, 32_000


def write_model(path: Path, kind: Kind, num_layers: int) -> None:
    """Write the shape of Llama 3.1 8B."""
    file = File(path, "llama", kind, num_layers, HIDDEN)
    file.writer.add_feed_forward_length(FFN)
    file.heads(HEADS, KV_HEADS, HEAD_DIM, 5e5)
    file.matrix("token_embd", VOCAB, HIDDEN)
    file.matrix("output", VOCAB, HIDDEN)
    file.ones("output_norm")
    for layer in range(num_layers):
        block = f"blk.{layer}"
        file.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
        file.attention(block, HEADS, KV_HEADS, HEAD_DIM)
        file.feed_forward(block, FFN)
    file.close()


def write_head(folder: Path) -> None:
    """Write the shape of its head."""
    draw, tensors = np.random.default_rng(7), dict[str, np.ndarray]()

    def matrix(name: str, rows: int, cols: int) -> None:
        values = draw.standard_normal((rows, cols), dtype=np.float32) * cols**-0.5
        tensors[f"{name}.weight"] = values.astype(np.float16)

    matrix("fc", HIDDEN, 3 * HIDDEN)
    matrix("midlayer.self_attn.q_proj", HEADS * HEAD_DIM, 2 * HIDDEN)
    matrix("midlayer.self_attn.k_proj", KV_HEADS * HEAD_DIM, 2 * HIDDEN)
    matrix("midlayer.self_attn.v_proj", KV_HEADS * HEAD_DIM, 2 * HIDDEN)
    matrix("midlayer.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
    matrix("midlayer.mlp.gate_proj", FFN, HIDDEN)
    matrix("midlayer.mlp.up_proj", FFN, HIDDEN)
    matrix("midlayer.mlp.down_proj", HIDDEN, FFN)
    matrix("lm_head", DRAFTED, HIDDEN)
    layer = [f"midlayer.{name}" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    for name in [*layer, "norm"]:
        tensors[f"{name}.weight"] = np.ones(HIDDEN, dtype=np.float16)
    tensors["d2t"] = np.zeros(DRAFTED, dtype=np.int64)
    about = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "max_position_embeddings": 2048,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFTED,
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(about))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("Q4_K", "Q8_0"), default="Q4_K")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, head = Path(folder) / "model.gguf", Path(folder) / "head"
        write_model(path, Kind[arguments.kind], arguments.layers)
        write_head(head)
        drafted = Sequence(path, arguments.threads, mtp=False, head=head)
        plain = Sequence(path, arguments.threads, mtp=False)
        info = drafted.model.info()
        fused, stored = 2 * HIDDEN * 3 * HIDDEN, 2 * 2 * KV_HEADS * HEAD_DIM * 2 * HIDDEN
        looked_up = info["weight_bytes"] * VOCAB / (2 * VOCAB + arguments.layers * (FFN * 3 + HIDDEN * 5 // 2))
        read = info["weight_bytes"] - looked_up
        draft = info["drafter_weight_bytes"] - fused
        print(f"by counting bytes, a draft is {draft / read:.3f} of a step, an idle head {(fused + stored) / read:.3f}")
        report(compare(drafted, plain), f"{arguments.kind}, {arguments.threads} threads", "a head")


if __name__ == "__main__":
    main()
