"""Tiny random Gemma 4 models by the standard library alone, as GGUF files: E2B's form, and with experts."""

from __future__ import annotations

import functools
import math
import random
from array import array
from collections.abc import Iterator
from pathlib import Path

from support.gguf_writer import write_gguf
from support.tiny_model import metadata, vocabulary

HIDDEN, FFN, HEADS, HEAD_DIM, GLOBAL_HEAD_DIM, WINDOW, PER_LAYER = 64, 96, 4, 32, 64, 24, 32
EXPERTS, EXPERT_FFN = 6, 32
NUM_TOKENS = len(vocabulary()[0])
FORMS = ("E2B", "A4B")

Shape = tuple[int, ...]
Tensors = dict[str, tuple[Shape, "array[float]"]]


def num_layers(form: str) -> int:
    """E2B's five last layers read the keys and values of the third and the fourth."""
    return 9 if form == "E2B" else 6


def is_global(layer: int) -> bool:
    """Whether a layer sees everything."""
    return layer % 3 == 2


def gemma4_shapes(form: str) -> dict[str, Shape]:
    """The tensors of a form's file with their dimensions, the contiguous one first."""
    layers = num_layers(form)
    shapes: dict[str, Shape] = {"token_embd.weight": (HIDDEN, NUM_TOKENS), "output_norm.weight": (HIDDEN,)}
    shapes["rope_freqs.weight"] = (GLOBAL_HEAD_DIM // 2,)
    if form == "E2B":
        shapes["per_layer_token_embd.weight"] = (PER_LAYER * layers, NUM_TOKENS)
        shapes["per_layer_model_proj.weight"] = (HIDDEN, PER_LAYER * layers)
        shapes["per_layer_proj_norm.weight"] = (PER_LAYER,)
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _layer(form, layer)}
    return shapes


def _layer(form: str, layer: int) -> Iterator[tuple[str, Shape]]:
    head_dim = GLOBAL_HEAD_DIM if is_global(layer) else HEAD_DIM
    kv = head_dim * (1 if form == "E2B" or is_global(layer) else 2)
    is_shared = form == "E2B" and layer >= 4
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield f"{name}.weight", (HIDDEN,)
    yield "attn_q.weight", (HIDDEN, HEADS * head_dim)
    yield "attn_q_norm.weight", (head_dim,)
    yield "attn_output.weight", (HEADS * head_dim, HIDDEN)
    if not is_shared:
        yield "attn_k.weight", (HIDDEN, kv)
        yield "attn_k_norm.weight", (head_dim,)
        if form == "E2B" or not is_global(layer):
            yield "attn_v.weight", (HIDDEN, kv)
    ffn = 2 * FFN if is_shared else FFN
    for name, columns, rows in (("gate", HIDDEN, ffn), ("up", HIDDEN, ffn), ("down", ffn, HIDDEN)):
        yield f"ffn_{name}.weight", (columns, rows)
    yield "layer_output_scale.weight", (1,)
    yield from _per_layer() if form == "E2B" else _experts()


def _per_layer() -> Iterator[tuple[str, Shape]]:
    yield "inp_gate.weight", (HIDDEN, PER_LAYER)
    yield "proj.weight", (PER_LAYER, HIDDEN)
    yield "post_norm.weight", (HIDDEN,)


def _experts() -> Iterator[tuple[str, Shape]]:
    for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
        yield f"{name}.weight", (HIDDEN,)
    yield "ffn_gate_inp.weight", (HIDDEN, EXPERTS)
    yield "ffn_gate_inp.scale", (HIDDEN,)
    yield "ffn_gate_up_exps.weight", (HIDDEN, 2 * EXPERT_FFN, EXPERTS)
    yield "ffn_down_exps.weight", (EXPERT_FFN, HIDDEN, EXPERTS)
    yield "ffn_down_exps.scale", (EXPERTS,)


@functools.cache
def gemma4_tensors(form: str) -> Tensors:
    """Random tensors; of global heads an eighth turns."""
    draw, tensors = random.Random(7), Tensors()
    for name, shape in gemma4_shapes(form).items():
        is_factor = "norm" in name or "scale" in name
        mean, spread = (0.9, 0.1) if is_factor else (0.0, shape[0] ** -0.5)
        count = math.prod(shape)
        tensors[name] = (shape, array("f", (draw.gauss(mean, spread) for _ in range(count))))
    turning = GLOBAL_HEAD_DIM // 8
    divisors = array("f", [1.0] * turning + [1e30] * (GLOBAL_HEAD_DIM // 2 - turning))
    return tensors | {"rope_freqs.weight": ((len(divisors),), divisors)}


def write_gemma4(path: Path, form: str = "E2B", tensors: Tensors | None = None, **changes: object) -> Path:
    """Write a form's GGUF file; `changes` replace keys (dots as double underscores), None removes one.

    Keys are the architecture's, but for those of the tokenizer.
    """
    layers = range(num_layers(form))
    is_small = form == "E2B"
    sizes: dict[str, object] = {
        "block_count": len(layers),
        "embedding_length": HIDDEN,
        "feed_forward_length": [FFN if layer < 4 else 2 * FFN for layer in layers] if is_small else FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1 if is_small else [1 if is_global(layer) else 2 for layer in layers],
        "attention.key_length": GLOBAL_HEAD_DIM,
        "attention.value_length": GLOBAL_HEAD_DIM,
        "attention.key_length_swa": HEAD_DIM,
        "attention.value_length_swa": HEAD_DIM,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [not is_global(layer) for layer in layers],
        "attention.shared_kv_layers": 5 if is_small else 0,
        "embedding_length_per_layer_input": PER_LAYER if is_small else 0,
        "final_logit_softcapping": 30.0,
        "rope.dimension_count": GLOBAL_HEAD_DIM,
        "rope.dimension_count_swa": HEAD_DIM,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
    }
    if not is_small:
        sizes |= {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": EXPERT_FFN}
    sizes |= {key.replace("__", "."): value for key, value in changes.items()}
    named = {key if key.startswith("tokenizer.") else f"gemma4.{key}": value for key, value in sizes.items()}
    entries = metadata("gemma4", **named)
    return write_gguf(path, entries, gemma4_tensors(form) if tensors is None else tensors)
