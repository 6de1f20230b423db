"""A folder of a tiny random jina-embeddings-v3, as published: rotary positions, and tasks that add to its matrices."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from support.tiny_encoder import PIECES, Tensors, write_encoder

TASKS = ["retrieval.query", "retrieval.passage", "separation"]
INSTRUCTIONS = {"retrieval.query": "the ", "retrieval.passage": "cat ", "separation": ""}
CONFIG: dict[str, Any] = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
    "vocab_size": len(PIECES),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "gelu",
    "max_position_embeddings": 258,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20_000.0,
    "emb_pooler": None,
    "truncate_dim": None,
    "load_trained_adapters": True,
    "lora_adaptations": TASKS,
    "lora_alpha": 3,
    "lora_rank": 4,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "matryoshka_dimensions": [8, 24],
    "task_instructions": INSTRUCTIONS,
    "use_flash_attn": True,
    "use_reentrant": False,
}


def tensors_of(config: dict[str, Any]) -> Tensors:
    """Random tensors under the published names."""
    draw = random.Random(9)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    tasks, rank = len(config["lora_adaptations"]), config["lora_rank"]
    tensors: Tensors = {}

    def add(name: str, *shape: int, mean: float = 0.0) -> None:
        tensors[f"roberta.{name}"] = (list(shape), [draw.gauss(mean, 0.2) for _ in range(math.prod(shape))])

    def matrix(name: str, rows: int, cols: int) -> None:
        add(f"{name}.parametrizations.weight.original", rows, cols)
        add(f"{name}.parametrizations.weight.0.lora_A", tasks, rank, cols)
        add(f"{name}.parametrizations.weight.0.lora_B", tasks, rows, rank)
        add(f"{name}.bias", rows)

    def table(name: str, rows: int) -> None:
        add(f"{name}.parametrizations.weight.original", rows, hidden)
        add(f"{name}.parametrizations.weight.0.lora_A", tasks, rows, rank)
        add(f"{name}.parametrizations.weight.0.lora_B", tasks, rank, hidden)

    def norm(name: str) -> None:
        add(f"{name}.weight", hidden, mean=1.0)
        add(f"{name}.bias", hidden)

    table("embeddings.word_embeddings", config["vocab_size"])
    table("embeddings.token_type_embeddings", config["type_vocab_size"])
    norm("emb_ln")
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layers.{layer}."
        matrix(f"{place}mixer.Wqkv", 3 * hidden, hidden)
        matrix(f"{place}mixer.out_proj", hidden, hidden)
        matrix(f"{place}mlp.fc1", ffn, hidden)
        matrix(f"{place}mlp.fc2", hidden, ffn)
        norm(f"{place}norm1")
        norm(f"{place}norm2")
    matrix("pooler.dense", hidden, hidden)
    return tensors


def write_jina_v3(folder: Path, **changes: Any) -> Path:
    """Write a model into a folder of its own, with changes to its configuration; return it."""
    config = CONFIG | changes
    return write_encoder(folder, tensors=tensors_of(CONFIG), **config)


def of_task(tokens: list[int], task: int) -> list[int]:
    """A text's tokens with the number of its task, from 1 on."""
    return [tokens[0] | task << 26, *tokens[1:]]
