"""A folder and a GGUF file of a tiny random nomic-embed-text-v2-moe: experts in every second layer."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from support.tiny_encoder import PIECES, Tensors, write_encoder

CONFIG: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "vocab_size": len(PIECES),
    "n_embd": 24,
    "n_layer": 4,
    "n_head": 3,
    "n_inner": 40,
    "n_positions": 300,
    "type_vocab_size": 1,
    "layer_norm_epsilon": 1e-5,
    "pad_token_id": 1,
    "activation_function": "gelu",
    "causal": False,
    "prenorm": False,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10_000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "num_experts": 5,
    "num_shared_experts": 0,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "expert_choice_router": False,
    "ffn_div": 1,
    "router_aux_loss_coef": 0.1,
    "max_trained_positions": 2048,
}
_GGUF = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "emb_ln": "token_embd_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.router.layer": "ffn_gate_inp",
}


def tensors_of(*, has_bias: bool = True, vocab_size: int = CONFIG["vocab_size"]) -> Tensors:
    """Random tensors under the published names; experts add zeros at last where they have no bias."""
    draw = random.Random(8)
    hidden, ffn, experts = CONFIG["n_embd"], CONFIG["n_inner"], CONFIG["num_experts"]
    tensors: Tensors = {}

    def add(name: str, *shape: int, mean: float = 0.0, spread: float = 0.2) -> None:
        tensors[name] = (list(shape), [draw.gauss(mean, spread) for _ in range(math.prod(shape))])

    def matrix(name: str, rows: int, cols: int) -> None:
        add(f"{name}.weight", rows, cols)
        add(f"{name}.bias", rows)

    def norm(name: str) -> None:
        add(f"{name}.weight", hidden, mean=1.0)
        add(f"{name}.bias", hidden)

    add("embeddings.word_embeddings.weight", vocab_size, hidden)
    add("embeddings.token_type_embeddings.weight", 1, hidden)
    norm("emb_ln")
    for layer in range(CONFIG["n_layer"]):
        place = f"encoder.layers.{layer}."
        matrix(f"{place}attn.Wqkv", 3 * hidden, hidden)
        matrix(f"{place}attn.out_proj", hidden, hidden)
        norm(f"{place}norm1")
        norm(f"{place}norm2")
        if layer % 2:
            add(f"{place}mlp.router.layer.weight", experts, hidden, spread=0.5)
            add(f"{place}mlp.experts.mlp.w1", experts * ffn, hidden)
            add(f"{place}mlp.experts.mlp.w2", experts * ffn, hidden)
            add(f"{place}mlp.experts.bias", hidden, spread=0.2 if has_bias else 0.0)
        else:
            matrix(f"{place}mlp.fc1", ffn, hidden)
            matrix(f"{place}mlp.fc2", hidden, ffn)
    return tensors


def write_nomic_moe(folder: Path, *, has_bias: bool = True, **changes: Any) -> Path:
    """Write a model into a folder of its own; return it."""
    tensors = tensors_of(has_bias=has_bias, vocab_size=(CONFIG | changes)["vocab_size"])
    write_encoder(folder, tensors=tensors, **(CONFIG | changes))
    config = folder / "config.json"
    told = json.loads(config.read_text(encoding="utf-8"))
    own = {name: value for name, value in told.items() if name in CONFIG or name in changes}
    config.write_text(json.dumps(own), encoding="utf-8")
    (folder / "sentence_bert_config.json").unlink()
    return folder


def gguf_of() -> tuple[dict[str, Any], Tensors]:
    """The keys, without their architecture, and tensors of its GGUF file, which leaves the experts' bias out."""
    sizes = {"context_length": 300, "embedding_length": 24, "block_count": 4, "attention.head_count": 3}
    sizes |= {"feed_forward_length": 40, "pooling_type": 1, "attention.causal": False, "rope.freq_base": 10_000.0}
    sizes |= {"attention.layer_norm_epsilon": 1e-5, "expert_count": 5, "expert_used_count": 2, "moe_every_n_layers": 2}
    named: Tensors = {}
    for name, (shape, values) in tensors_of(has_bias=False).items():
        _, _, rest = name.partition("encoder.layers.")
        layer, _, part = rest.partition(".")
        if part == "mlp.experts.mlp.w1":
            named[f"blk.{layer}.ffn_up_exps.weight"] = ([5, 40, 24], values)
        elif part == "mlp.experts.mlp.w2":
            turned = [
                values[(expert * 40 + col) * 24 + row] for expert in range(5) for row in range(24) for col in range(40)
            ]
            named[f"blk.{layer}.ffn_down_exps.weight"] = ([5, 24, 40], turned)
        elif part and part != "mlp.experts.bias":
            place, _, end = part.rpartition(".")
            named[f"blk.{layer}.{_GGUF[place]}.{end}"] = (shape, values)
        elif not part:
            place, _, end = name.rpartition(".")
            named[_GGUF.get(name) or f"{_GGUF[place]}.{end}"] = (shape, values)
    return sizes, named
