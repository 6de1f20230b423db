"""A folder with a tiny random encoder, as sentence-transformers lays one out, and its vectors by plain arithmetic."""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.gguf_writer import write_gguf

LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat"]
LONGEST = 40
SHAPE: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": len(PIECES),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "gelu",
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
POOLINGS = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
"""As sentence-transformers names them, in the order in which it puts the vectors of several one after another."""
Tensors = dict[str, tuple[list[int], list[float]]]


def tensors_of(config: dict[str, Any], seed: int = 5, num_labels: int | None = None) -> Tensors:
    """Random tensors of a configuration, by transformers' names."""
    rand = random.Random(seed)
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    tensors: Tensors = {}

    def add(name: str, *shape: int, mean: float = 0.0) -> None:
        tensors[name] = (list(shape), [rand.gauss(mean, 0.2) for _ in range(math.prod(shape))])

    def norm(name: str) -> None:
        add(f"{name}.weight", hidden, mean=1.0)
        add(f"{name}.bias", hidden)

    def linear(name: str, rows: int, cols: int) -> None:
        add(f"{name}.weight", rows, cols)
        add(f"{name}.bias", rows)

    add("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    add("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    add("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{place}.attention.{part}", hidden, hidden)
        norm(f"{place}.attention.output.LayerNorm")
        linear(f"{place}.intermediate.dense", ffn, hidden)
        linear(f"{place}.output.dense", hidden, ffn)
        norm(f"{place}.output.LayerNorm")
    return tensors if num_labels is None else _with_head(tensors, config, num_labels, linear)


def _with_head(
    tensors: Tensors, config: dict[str, Any], num_labels: int, linear: Callable[[str, int, int], None]
) -> Tensors:
    """The same with a head, as transformers saves a model that classifies."""
    is_bert, hidden = config["model_type"] == "bert", config["hidden_size"]
    prefix = "bert." if is_bert else "roberta."
    inner = dict(tensors)
    tensors.clear()
    linear("bert.pooler.dense" if is_bert else "classifier.dense", hidden, hidden)
    linear("classifier" if is_bert else "classifier.out_proj", num_labels, hidden)
    return {f"{prefix}{name}": tensor for name, tensor in inner.items()} | tensors


def write_classifier(folder: Path, labels: Sequence[str], **changes: object) -> Path:
    """Write a model that gives each label a number into a folder of its own; one label ranks. Return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = SHAPE | changes
    kind = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}[str(config["model_type"])]
    config |= {
        "architectures": [f"{kind}ForSequenceClassification"],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    write_safetensors(folder, config, tensors_of(config, num_labels=len(labels)))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return folder


def write_encoder(
    folder: Path, *, pooling: str = "mean_tokens", tensors: Tensors | None = None, **changes: object
) -> Path:
    """Write a model into a folder of its own, with changes to its configuration; return it.

    `pooling` has one of `POOLINGS`, or several with spaces between.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = SHAPE | changes
    write_safetensors(folder, config, tensors_of(config) if tensors is None else tensors)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    kinds = ("Transformer", "", ""), ("Pooling", "1_Pooling", "1"), ("Normalize", "2_Normalize", "2")
    steps = [{"idx": 0, "name": name, "path": path, "type": f"m.{kind}"} for kind, path, name in kinds]
    write_json(folder / "modules.json", steps)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name in pooling.split() for name in POOLINGS}
    write_json(folder / "1_Pooling" / "config.json", modes)
    return folder


def write_late_encoder(folder: Path, *, encoder: Path | None = None, hidden: int = 24, **about: object) -> Path:
    """Write a model of late interaction as PyLate saves one, with what it writes `about` itself; return its folder.

    Its marks are words of the tiny vocabulary. With `encoder` the folder has another encoder, of a width, already.
    """
    folder = encoder or write_encoder(folder)
    inner = folder / "1_Dense"
    inner.mkdir()
    rand, width = random.Random(11), 10
    numbers = [rand.gauss(0, 0.3) for _ in range(width * hidden)]
    shape = {"in_features": hidden, "out_features": width, "bias": False, "use_residual": False}
    write_safetensors(
        inner,
        shape | {"activation_function": "torch.nn.modules.linear.Identity"},
        {"linear.weight": ([width, hidden], numbers)},
    )
    kinds = ("sentence_transformers.models.Transformer", ""), ("pylate.models.Dense.Dense", "1_Dense")
    steps = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (kind, path) in enumerate(kinds)]
    write_json(folder / "modules.json", steps)
    write_json(folder / "tokenizer_config.json", {"mask_token": "[MASK]", "do_lower_case": True})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8})  # PyLate has lengths of its own
    lengths = {"query_length": 12, "document_length": 20}
    marks = {"query_prefix": "the", "document_prefix": "cat", "skiplist_words": ["x", "y"]}
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "MaxSim"} | lengths | marks | about)
    return folder


_GGUF_PARTS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_GGUF_TABLES = {
    "word_embeddings": "token_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "LayerNorm": "token_embd_norm",
}


def write_gguf_encoder(path: Path, **changes: object) -> Path:
    """Write the same model as llama.cpp's converter names it; return the file."""
    sizes = {
        "context_length": SHAPE["max_position_embeddings"],
        "embedding_length": SHAPE["hidden_size"],
        "block_count": SHAPE["num_hidden_layers"],
        "attention.head_count": SHAPE["num_attention_heads"],
        "feed_forward_length": SHAPE["intermediate_size"],
        "pooling_type": 1,
        "attention.layer_norm_epsilon": float(SHAPE["layer_norm_eps"]),
        "attention.causal": False,
    }
    # Beginnings of words are marked there, not what goes on.
    pieces = [
        piece.removeprefix("##") if piece.startswith("##") else piece if piece.startswith("[") else f"▁{piece}"
        for piece in PIECES
    ]
    metadata = {f"bert.{key}": value for key, value in sizes.items()} | {"general.architecture": "bert"}
    metadata |= {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": pieces}
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    tensors = {
        gguf_name(name): (tuple(reversed(shape)), array("f", values))
        for name, (shape, values) in tensors_of(SHAPE).items()
    }
    return write_gguf(path, metadata, tensors)


def gguf_name(name: str) -> str:
    """What GGUF files call a tensor of BERT."""
    pieces = name.split(".")
    if pieces[0] == "embeddings":
        end = pieces[-1]
        return f"{_GGUF_TABLES[pieces[1]]}.{end}"
    part, end = ".".join(pieces[3:-1]), pieces[-1]
    return f"blk.{pieces[2]}.{_GGUF_PARTS[part]}.{end}"


def write_safetensors(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """Write `config.json` and `model.safetensors`."""
    write_json(folder / "config.json", config)
    header: dict[str, object] = {}
    data = bytearray()
    for name, (shape, values) in tensors.items():
        packed = array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")


def expected_vector(tokens: Sequence[int], config: dict[str, Any], tensors: Tensors, pooling: str) -> list[float]:
    """The text's vector in double precision, step by step as the paper has it."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = hidden // heads

    def row(name: str, index: int) -> list[float]:
        values = tensors[name][1]
        return values[index * hidden : (index + 1) * hidden]

    def norm(x: list[float], name: str) -> list[float]:
        mean = sum(x) / len(x)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in x) / len(x) + config["layer_norm_eps"])
        weight, bias = tensors[f"{name}.weight"][1], tensors[f"{name}.bias"][1]
        return [(one - mean) / deviation * w + b for one, w, b in zip(x, weight, bias, strict=True)]

    def linear(x: list[float], name: str) -> list[float]:
        (_, cols), weight = tensors[f"{name}.weight"]
        starts = range(0, len(weight), cols)
        bias = tensors[f"{name}.bias"][1]
        return [
            sum(w * one for w, one in zip(weight[start : start + cols], x, strict=True)) + b
            for start, b in zip(starts, bias, strict=True)
        ]

    def added(*rows: Sequence[float]) -> list[float]:
        return [sum(each) for each in zip(*rows, strict=True)]

    def gelu(x: float) -> float:
        return x / 2 * (1 + math.erf(x / math.sqrt(2)))

    place = "embeddings."
    names = [f"{place}{kind}_embeddings.weight" for kind in ("word", "position", "token_type")]
    is_roberta = config["model_type"] != "bert"
    first = config["pad_token_id"] + 1 if is_roberta else 0
    stream = [
        norm(added(row(names[0], token), row(names[1], first + at), row(names[2], 0)), f"{place}LayerNorm")
        for at, token in enumerate(tokens)
    ]
    for layer in range(config["num_hidden_layers"]):
        place = f"encoder.layer.{layer}"
        query, key, value = (
            [linear(x, f"{place}.attention.self.{part}") for x in stream] for part in ("query", "key", "value")
        )
        attended: list[list[float]] = []
        for one in query:
            out: list[float] = []
            for start in range(0, hidden, width):
                part = slice(start, start + width)
                scores = [
                    sum(a * b for a, b in zip(one[part], other[part], strict=True)) / math.sqrt(width) for other in key
                ]
                weights = [math.exp(score - max(scores)) for score in scores]
                total = sum(weights)
                out += [
                    sum(weight * other[at] for weight, other in zip(weights, value, strict=True)) / total
                    for at in range(start, start + width)
                ]
            attended.append(linear(out, f"{place}.attention.output.dense"))
        stream = [
            norm(added(*pair), f"{place}.attention.output.LayerNorm") for pair in zip(stream, attended, strict=True)
        ]
        inner = [
            linear([gelu(up) for up in linear(x, f"{place}.intermediate.dense")], f"{place}.output.dense")
            for x in stream
        ]
        stream = [norm(added(*pair), f"{place}.output.LayerNorm") for pair in zip(stream, inner, strict=True)]
    return pooled_by(pooling, stream)


def pooled_by(pooling: str, rows: Sequence[Sequence[float]]) -> list[float]:
    """The vector of length 1 that the tokens' become."""
    columns, count = list(zip(*rows, strict=True)), len(rows)
    weights = range(1, count + 1)
    by_name = {
        "cls_token": list(rows[0]),
        "lasttoken": list(rows[-1]),
        "mean_tokens": [sum(column) / count for column in columns],
        "mean_sqrt_len_tokens": [sum(column) / math.sqrt(count) for column in columns],
        "max_tokens": [max(column) for column in columns],
        "weightedmean_tokens": [
            sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights) for column in columns
        ],
    }
    pooled = [x for name in POOLINGS if name in pooling.split() for x in by_name[name]]
    length = math.hypot(*pooled)
    return [x / length for x in pooled]
