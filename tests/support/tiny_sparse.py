"""Tiny random models of sparse families by the standard library alone: GGUF files, and gpt-oss as OpenAI's folder."""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from support.gguf_writer import Blocks, write_gguf
from support.tiny_model import metadata, vocabulary

HIDDEN, FFN, EXPERTS, USED, HEADS, KV_HEADS, HEAD_DIM, LAYERS, WINDOW = 64, 96, 6, 3, 4, 2, 32, 4, 24
SHARED, DENSE = 64, 128
LATENT, QUERY_LATENT, PLAIN, ROTARY, VALUE = 32, 48, 32, 16, 16
INDEX_HEADS, INDEX_KEY, PICKED = 16, 32, 24
NUM_TOKENS = len(vocabulary()[0])

Shape = tuple[int, ...]
Values: TypeAlias = "array[float] | Blocks"
FAMILIES = (
    "gpt-oss",
    "qwen2moe",
    "glm4moe",
    "ernie4_5-moe",
    "hunyuan-moe",
    "deepseek2",
    "llama4",
    "deepseek32",
)
_LATENT_FAMILIES = {"deepseek2", "deepseek32", "glm-dsa"}
_KEYS: dict[str, dict[str, object]] = {
    "gpt-oss": {
        "attention.sliding_window": WINDOW,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
    },
    "qwen2moe": {"expert_shared_feed_forward_length": SHARED},
    "glm4moe": {
        "expert_shared_feed_forward_length": SHARED,
        "leading_dense_block_count": 1,
        "expert_group_count": 3,
        "expert_group_used_count": 2,
        "expert_weights_scale": 1.5,
        "rope.dimension_count": HEAD_DIM // 2,
    },
    "ernie4_5-moe": {
        "expert_shared_feed_forward_length": SHARED,
        "interleave_moe_layer_step": 2,
        "leading_dense_block_count": 1,
    },
    "hunyuan-moe": {"expert_shared_feed_forward_length": SHARED},
    "llama4": {"interleave_moe_layer_step": 2},
    "deepseek2": {
        "expert_shared_feed_forward_length": SHARED,
        "leading_dense_block_count": 1,
        "expert_group_count": 3,
        "expert_group_used_count": 2,
        "expert_weights_norm": True,
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": LATENT,
        "attention.q_lora_rank": QUERY_LATENT,
        "attention.key_length": LATENT + ROTARY,
        "attention.value_length": LATENT,
        "attention.key_length_mla": PLAIN + ROTARY,
        "attention.value_length_mla": VALUE,
        "rope.dimension_count": ROTARY,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_log_multiplier": 0.1,
    },
}
_INDEXER: dict[str, object] = {
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_KEY,
    "attention.indexer.top_k": PICKED,
}
INDEXED_LAYERS = {"deepseek32": (True, True, True, True), "glm-dsa": (True, False, True, False)}
"""Of families with sparse attention, which layers have an indexer."""
_KEYS["deepseek32"] = _KEYS["deepseek2"] | _INDEXER
_KEYS["glm-dsa"] = _KEYS["deepseek2"] | _INDEXER | {"attention.indexer.types": list(INDEXED_LAYERS["glm-dsa"])}


def sparse_shapes(family: str) -> dict[str, Shape]:
    """The tensors of a family's GGUF file with their dimensions, the contiguous one first."""
    shapes: dict[str, Shape] = {"token_embd.weight": (HIDDEN, NUM_TOKENS), "output_norm.weight": (HIDDEN,)}
    shapes["output.weight"] = (HIDDEN, NUM_TOKENS)
    for layer in range(LAYERS):
        of_layer = dict(_attention(family)) | dict(_ffn(family, layer))
        if family in INDEXED_LAYERS and INDEXED_LAYERS[family][layer]:
            of_layer |= dict(_indexer())
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def _attention(family: str) -> Iterator[tuple[str, Shape]]:
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    if family in _LATENT_FAMILIES:
        yield from _latent_attention()
        return
    for name, rows in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
        yield f"{name}.weight", (HIDDEN, rows)
        if family in {"gpt-oss", "qwen2moe", "glm4moe"}:
            yield f"{name}.bias", (rows,)
    yield "attn_output.weight", (queries, HIDDEN)
    yield "attn_norm.weight", (HIDDEN,)
    yield ("post_attention_norm" if family in {"gpt-oss", "glm4moe"} else "ffn_norm") + ".weight", (HIDDEN,)
    if family == "gpt-oss":
        yield "attn_output.bias", (HIDDEN,)
        yield "attn_sinks.weight", (HEADS,)
    if family == "hunyuan-moe":
        yield "attn_q_norm.weight", (HEAD_DIM,)
        yield "attn_k_norm.weight", (HEAD_DIM,)


def _latent_attention() -> Iterator[tuple[str, Shape]]:
    yield "attn_norm.weight", (HIDDEN,)
    yield "ffn_norm.weight", (HIDDEN,)
    yield "attn_q_a.weight", (HIDDEN, QUERY_LATENT)
    yield "attn_q_a_norm.weight", (QUERY_LATENT,)
    yield "attn_q_b.weight", (QUERY_LATENT, HEADS * (PLAIN + ROTARY))
    yield "attn_kv_a_mqa.weight", (HIDDEN, LATENT + ROTARY)
    yield "attn_kv_a_norm.weight", (LATENT,)
    yield "attn_k_b.weight", (PLAIN, LATENT, HEADS)
    yield "attn_v_b.weight", (LATENT, VALUE, HEADS)
    yield "attn_output.weight", (HEADS * VALUE, HIDDEN)


def _indexer() -> Iterator[tuple[str, Shape]]:
    yield "indexer.attn_q_b.weight", (QUERY_LATENT, INDEX_HEADS * INDEX_KEY)
    yield "indexer.attn_k.weight", (HIDDEN, INDEX_KEY)
    yield "indexer.k_norm.weight", (INDEX_KEY,)
    yield "indexer.k_norm.bias", (INDEX_KEY,)
    yield "indexer.proj.weight", (HIDDEN, INDEX_HEADS)


def _ffn(family: str, layer: int) -> Iterator[tuple[str, Shape]]:
    if (family in {"glm4moe", *_LATENT_FAMILIES} and layer == 0) or (
        family in {"ernie4_5-moe", "llama4"} and layer % 2 == 0
    ):
        yield from _gated("", DENSE)
        return
    yield "ffn_gate_inp.weight", (HIDDEN, EXPERTS)
    yield from _gated("_exps", FFN, EXPERTS)
    if family == "gpt-oss":
        yield "ffn_gate_inp.bias", (EXPERTS,)
        for name, rows in (("gate", FFN), ("up", FFN), ("down", HIDDEN)):
            yield f"ffn_{name}_exps.bias", (rows, EXPERTS)
        return
    yield from _gated("_shexp", FFN if family == "llama4" else SHARED)
    if family == "qwen2moe":
        yield "ffn_gate_inp_shexp.weight", (HIDDEN,)
    if family in {"glm4moe", "ernie4_5-moe", *_LATENT_FAMILIES}:
        yield "exp_probs_b.bias", (EXPERTS,)


def _gated(end: str, size: int, *stacked: int) -> Iterator[tuple[str, Shape]]:
    for name, columns, rows in (("gate", HIDDEN, size), ("up", HIDDEN, size), ("down", size, HIDDEN)):
        yield f"ffn_{name}{end}.weight", (columns, rows, *stacked)


def sparse_tensors(family: str, seed: int = 7) -> dict[str, tuple[Shape, Values]]:
    """Random tensors; gpt-oss's experts are MXFP4."""
    return dict(_drawn(family, seed))


@cache
def _drawn(family: str, seed: int) -> dict[str, tuple[Shape, Values]]:
    return _random_tensors(family, sparse_shapes(family), seed)


def sparse_head(family: str, seed: int = 8) -> dict[str, tuple[Shape, Values]]:
    """Random tensors of a head that drafts further tokens, as a block behind the others.

    Files have the embedding and the output matrix once more in it, or they have not; here these are others.
    """
    shapes = dict(_attention(family)) | dict(_ffn(family, LAYERS))
    shapes |= {f"nextn.{name}.weight": (HIDDEN,) for name in ("enorm", "hnorm", "shared_head_norm")}
    shapes["nextn.eh_proj.weight"] = (2 * HIDDEN, HIDDEN)
    if family == "glm4moe":
        shapes |= {f"nextn.{name}.weight": (HIDDEN, NUM_TOKENS) for name in ("embed_tokens", "shared_head_head")}
    return _random_tensors(family, {f"blk.{LAYERS}.{name}": shape for name, shape in shapes.items()}, seed)


def _random_tensors(family: str, shapes: Mapping[str, Shape], seed: int) -> dict[str, tuple[Shape, Values]]:
    draw, tensors = random.Random(seed), dict[str, tuple[Shape, Values]]()
    for name, shape in shapes.items():
        count = math.prod(shape)
        if family == "gpt-oss" and "_exps.weight" in name:
            blocks = (bytes([draw.randrange(121, 126), *draw.randbytes(16)]) for _ in range(count // 32))
            tensors[name] = (shape, Blocks(39, b"".join(blocks)))
            continue
        mean, spread = (1.0, 0.1) if "norm" in name else (0.0, 1.5 / math.sqrt(shape[0]) if len(shape) > 1 else 0.3)
        tensors[name] = (shape, array("f", (draw.gauss(mean, spread) for _ in range(count))))
    return tensors


def write_sparse(
    path: Path, family: str, tensors: dict[str, tuple[Shape, Values]] | None = None, **changes: object
) -> Path:
    """Write a family's GGUF file; `changes` replace keys (dots as double underscores), None removes one."""
    sizes: dict[str, object] = {
        "block_count": LAYERS,
        "embedding_length": HIDDEN,
        "feed_forward_length": DENSE,
        "expert_feed_forward_length": FFN,
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        **_KEYS[family],
    }
    sizes |= {key.replace("__", "."): value for key, value in changes.items()}
    entries = metadata(family, **{f"{family}.{key}": value for key, value in sizes.items()})
    return write_gguf(path, entries, sparse_tensors(family) if tensors is None else tensors)


def write_openai_folder(folder: Path, **changes: object) -> Path:
    """Write gpt-oss's tensors as OpenAI's safetensors have them; `changes` replace tensors (type, dims, bytes)."""
    tensors = dict[str, tuple[str, tuple[int, ...], bytes]]()
    for name, (shape, values) in sparse_tensors("gpt-oss").items():
        if "_exps." not in name:
            dims = tuple(reversed(shape))
            tensors[_openai_name(name)] = ("F32", dims, values.tobytes())
    for layer in range(LAYERS):
        tensors |= _openai_experts(layer)
    for name, changed in changes.items():
        if changed is None:
            del tensors[name]
        else:
            assert isinstance(changed, tuple)
            tensors[name] = changed
    header, data = dict[str, object](), bytearray()
    for name, (kind, dims, values) in tensors.items():
        header[name] = {"dtype": kind, "shape": dims, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(OPENAI_CONFIG))
    return folder


OPENAI_CONFIG: dict[str, object] = {
    "model_type": "gpt_oss",
    "vocab_size": NUM_TOKENS,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": USED,
    "experts_per_token": USED,
    "sliding_window": WINDOW,
    "swiglu_limit": 7.0,
    "initial_context_length": 64,
    "router_aux_loss_coef": 0.9,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]},
}
"""The fields of OpenAI's own config.json."""

_OPENAI = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}


def _openai_name(name: str) -> str:
    if name in _OPENAI:
        return _OPENAI[name]
    _, layer, part, end = name.split(".")
    if part == "attn_sinks":
        return f"model.layers.{layer}.self_attn.sinks"
    return f"model.layers.{layer}.{_OPENAI[part]}.{end}"


def _openai_experts(layer: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Gate and up in turns; two neighbours in a byte, exponents apart."""
    given = sparse_tensors("gpt-oss")
    block = f"model.layers.{layer}.mlp.experts"
    found = dict[str, tuple[str, tuple[int, ...], bytes]]()
    for name, parts, rows, columns in (
        ("gate_up_proj", ("gate", "up"), FFN, HIDDEN),
        ("down_proj", ("down",), HIDDEN, FFN),
    ):
        weights = [given[f"blk.{layer}.ffn_{part}_exps.weight"][1].tobytes() for part in parts]
        biases = [given[f"blk.{layer}.ffn_{part}_exps.bias"][1].tobytes() for part in parts]
        row_bytes, per_row = columns // 32 * 17, columns // 32
        numbers, exponents, turned = bytearray(), bytearray(), bytearray()
        for row in range(EXPERTS * rows):
            for data, bias in zip(weights, biases, strict=True):
                turned += bias[4 * row : 4 * row + 4]
                for start in range(row * row_bytes, (row + 1) * row_bytes, 17):
                    exponents.append(data[start])
                    halves = data[start + 1 : start + 17]
                    nibbles = [byte & 15 for byte in halves] + [byte >> 4 for byte in halves]
                    numbers += bytes(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))
        all_rows = rows * len(parts)
        found[f"{block}.{name}_blocks"] = ("U8", (EXPERTS, all_rows, per_row, 16), bytes(numbers))
        found[f"{block}.{name}_scales"] = ("U8", (EXPERTS, all_rows, per_row), bytes(exponents))
        found[f"{block}.{name}_bias"] = ("F32", (EXPERTS, all_rows), bytes(turned))
    return found
