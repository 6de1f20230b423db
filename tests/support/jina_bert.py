"""Folders and GGUF files of tiny random jina-embeddings-v2 models, in both of its forms, for tests."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from support.tiny_encoder import PIECES, SHAPE, Tensors, write_encoder, write_safetensors

FORMS = ("text", "code")
CONFIG: dict[str, Any] = {
    **SHAPE,
    "architectures": ["JinaBertForMaskedLM"],
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
    "attn_implementation": "torch",
    "model_max_length": 8192,
}
_GGUF_PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.self.layer_norm_q": "attn_q_norm",
    "attention.self.layer_norm_k": "attn_k_norm",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "layer_norm_1": "attn_norm_2",
    "layer_norm_2": "layer_output_norm",
    "mlp.gated_layers": "ffn_up",
    "mlp.up_gated_layer": "ffn_up",
    "mlp.wo": "ffn_down",
    "mlp.down_layer": "ffn_down",
    "mlp.layernorm": "layer_output_norm",
}
_GGUF_TABLES = {"word_embeddings": "token_embd", "token_type_embeddings": "token_types", "LayerNorm": "token_embd_norm"}


def tensors_of(form: str, config: dict[str, Any], seed: int = 3) -> Tensors:
    """Random tensors under the model's own names."""
    draw = random.Random(seed)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    tensors: Tensors = {}

    def add(name: str, *shape: int, mean: float = 0.0) -> None:
        tensors[name] = (list(shape), [draw.gauss(mean, 0.2) for _ in range(math.prod(shape))])

    def norm(name: str) -> None:
        add(f"{name}.weight", hidden, mean=1.0)
        add(f"{name}.bias", hidden)

    add("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    add("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    norm("embeddings.LayerNorm")
    is_code = form == "code"
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layer.{layer}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            add(f"{place}attention.{part}.weight", hidden, hidden)
            add(f"{place}attention.{part}.bias", hidden)
        down = "down_layer" if is_code else "wo"
        add(f"{place}mlp.{'up_gated_layer' if is_code else 'gated_layers'}.weight", 2 * ffn, hidden)
        add(f"{place}mlp.{down}.weight", hidden, ffn)
        add(f"{place}mlp.{down}.bias", hidden)
        of_code = ("attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2")
        for name in ("attention.output.LayerNorm", *(of_code if is_code else ("mlp.layernorm",))):
            norm(f"{place}{name}")
    return tensors


def write_jina(folder: Path, form: str, **changes: Any) -> Path:
    """Write a model into a folder of its own; return it."""
    config = CONFIG | changes
    return write_encoder(folder, tensors=tensors_of(form, config), **config)


def write_jina_ranker(folder: Path) -> tuple[Path, Tensors]:
    """Write jina-reranker-v1's form: a pooler over the first token and one label; return its folder and its tensors."""
    draw, hidden = random.Random(4), CONFIG["hidden_size"]
    tensors = {f"bert.{name}": tensor for name, tensor in tensors_of("text", CONFIG).items()}
    for name, rows in (("bert.pooler.dense", hidden), ("classifier", 1)):
        tensors[f"{name}.weight"] = ([rows, hidden], [draw.gauss(0.0, 0.3) for _ in range(rows * hidden)])
        tensors[f"{name}.bias"] = ([rows], [draw.gauss(0.0, 0.3) for _ in range(rows)])
    folder.mkdir()
    about = {"architectures": ["JinaBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    write_safetensors(folder, CONFIG | about, tensors)
    return folder, tensors


def gguf_of(form: str, *, is_split: bool = False) -> tuple[dict[str, Any], Tensors]:
    """The keys, without their architecture, and tensors of the same model's GGUF file.

    Files of older converters have the gate `is_split` from what it multiplies.
    """
    sizes = {"context_length": CONFIG["max_position_embeddings"], "embedding_length": CONFIG["hidden_size"]}
    sizes |= {"block_count": CONFIG["num_hidden_layers"], "attention.head_count": CONFIG["num_attention_heads"]}
    sizes |= {"feed_forward_length": CONFIG["intermediate_size"], "pooling_type": 1, "attention.causal": False}
    sizes["attention.layer_norm_epsilon"] = CONFIG["layer_norm_eps"]
    named: Tensors = {}
    for name, (shape, values) in tensors_of(form, CONFIG).items():
        pieces = name.split(".")
        if pieces[0] == "embeddings":
            named[f"{_GGUF_TABLES[pieces[1]]}.{pieces[-1]}"] = (shape, values)
            continue
        part = _GGUF_PARTS[".".join(pieces[3:-1])]
        if is_split and part == "ffn_up":
            halves = [values[: len(values) // 2], values[len(values) // 2 :]]
            halves = halves[::-1] if form == "code" else halves
            for half, other in zip(halves, ("ffn_gate", "ffn_up"), strict=True):
                named[f"blk.{pieces[2]}.{other}.weight"] = ([shape[0] // 2, shape[1]], half)
        else:
            named[f"blk.{pieces[2]}.{part}.{pieces[-1]}"] = (shape, values)
    return sizes, named


def texts(*lengths: int) -> list[list[int]]:
    """Texts of such lengths, as tokens."""
    return [[(13 * place + 7 * length) % (len(PIECES) - 5) + 5 for place in range(length)] for length in lengths]
