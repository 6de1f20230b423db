"""Tiny random assistants of Gemma 4 by the standard library alone, and tiny targets with a vocabulary that divides."""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from functools import cache
from pathlib import Path

from support.gguf_writer import Blocks, write_gguf
from support.tiny_gemma4 import GLOBAL_HEAD_DIM, HEAD_DIM, HIDDEN, WINDOW, Tensors, gemma4_tensors, write_gemma4
from support.tiny_model import metadata, vocabulary

NUM_TOKENS = 336
"""The tiny vocabulary, and a few more."""
CLUSTERS, CHOSEN = 21, 5
OWN_HIDDEN, OWN_FFN, OWN_HEADS = 48, 80, 2
LAYERS = ("sliding_attention", "sliding_attention", "full_attention")

Written = dict[str, tuple[tuple[int, ...], "array[float] | array[int] | Blocks"]]
"""Tensors with their shapes, the contiguous dimension last."""


def target_tensors(form: str, *, is_repeating: bool = False) -> Tensors:
    """A form's tensors with more tokens; where it is repeating, each token follows from the one before alone."""
    draw, tensors = random.Random(9), dict(gemma4_tensors(form))
    for name in [name for name in tensors if name.endswith("token_embd.weight")]:
        (columns, rows), values = tensors[name]
        more = array("f", (draw.gauss(0, columns**-0.5) for _ in range(columns * (NUM_TOKENS - rows))))
        tensors[name] = ((columns, NUM_TOKENS), values + more)
    if is_repeating:
        outputs = ("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", ".proj.weight")
        for name, (dims, values) in tensors.items():
            if name.endswith(outputs):
                tensors[name] = (dims, array("f", [0.0]) * len(values))
            elif name == "output_norm.weight":
                tensors[name] = (dims, array("f", [1.0]) * len(values))
    return tensors


def tokenizer_entries(*swapped: int) -> dict[str, object]:
    """Return what a target's metadata says of its tokens; two of them may be swapped."""
    tokens, _ = vocabulary()
    more = [f"<more{place}>" for place in range(NUM_TOKENS - len(tokens))]
    kinds = [3] * 3 + [1] * (len(tokens) - 3) + [3] * len(more)
    tokens = [*tokens, *more]
    for one, other in zip(swapped[::2], swapped[1::2], strict=True):
        tokens[one], tokens[other] = tokens[other], tokens[one]
    return {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": kinds}


def write_target(path: Path, form: str = "E2B", *, is_repeating: bool = False) -> Path:
    """Write a model that assistants are for; returns `path`."""
    tensors = target_tensors(form, is_repeating=is_repeating)
    return write_gemma4(path, form, tensors, **tokenizer_entries())


def assistant_config(form: str = "E2B", *, has_clusters: bool = False) -> dict[str, object]:
    """What `config.json` says of an assistant for a form."""
    text = {
        "model_type": "gemma4_text",
        "vocab_size": NUM_TOKENS,
        "vocab_size_per_layer_input": 0,
        "hidden_size": OWN_HIDDEN,
        "intermediate_size": OWN_FFN,
        "num_hidden_layers": len(LAYERS),
        "num_kv_shared_layers": len(LAYERS),
        "num_attention_heads": OWN_HEADS,
        "num_key_value_heads": 1 if form == "E2B" else 2,
        "num_global_key_value_heads": None if form == "E2B" else 1,
        "attention_k_eq_v": form != "E2B",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": HEAD_DIM,
        "global_head_dim": GLOBAL_HEAD_DIM,
        "sliding_window": WINDOW,
        "max_position_embeddings": 512,
        "hidden_size_per_layer_input": 0,
        "layer_types": list(LAYERS),
    }
    return {
        "model_type": "gemma4_assistant",
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": HIDDEN,
        "use_ordered_embeddings": has_clusters,
        "num_centroids": CLUSTERS,
        "centroid_intermediate_top_k": CHOSEN,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def assistant_tensors(*, has_clusters: bool = False, seed: int = 3, hidden: int = OWN_HIDDEN) -> Written:
    """Random tensors of an assistant whose stream is so wide."""
    return dict(_drawn(has_clusters, seed, hidden))


@cache
def _drawn(has_clusters: bool, seed: int, hidden: int) -> Written:
    draw, tensors = random.Random(seed), Written()

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (draw.gauss(0, columns**-0.5) for _ in range(rows * columns))
        tensors[f"{name}.weight"] = ((rows, columns), array("f", values))

    def norm(name: str, size: int) -> None:
        tensors[f"{name}.weight"] = ((size,), array("f", (draw.gauss(0.9, 0.1) for _ in range(size))))

    matrix("model.embed_tokens", NUM_TOKENS, hidden)
    norm("model.norm", hidden)
    matrix("pre_projection", hidden, 2 * HIDDEN)
    matrix("post_projection", HIDDEN, hidden)
    for layer, kind in enumerate(LAYERS):
        start = f"model.layers.{layer}"
        head_dim = HEAD_DIM if kind == "sliding_attention" else GLOBAL_HEAD_DIM
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            norm(f"{start}.{name}_layernorm", hidden)
        norm(f"{start}.self_attn.q_norm", head_dim)
        matrix(f"{start}.self_attn.q_proj", OWN_HEADS * head_dim, hidden)
        matrix(f"{start}.self_attn.o_proj", hidden, OWN_HEADS * head_dim)
        matrix(f"{start}.mlp.gate_proj", OWN_FFN, hidden)
        matrix(f"{start}.mlp.up_proj", OWN_FFN, hidden)
        matrix(f"{start}.mlp.down_proj", hidden, OWN_FFN)
        tensors[f"{start}.layer_scalar"] = ((1,), array("f", [0.8]))
    if has_clusters:
        matrix("masked_embedding.centroids", CLUSTERS, hidden)
        order = list(range(NUM_TOKENS))
        draw.shuffle(order)
        tensors["masked_embedding.token_ordering"] = ((NUM_TOKENS,), array("q", order))
    return tensors


def write_assistant(folder: Path, config: dict[str, object] | None = None, tensors: Written | None = None) -> Path:
    """Write an assistant's folder, of random weights and for E2B's form if nothing else is said; returns `folder`."""
    tensors = assistant_tensors() if tensors is None else tensors
    return write_folder(folder, assistant_config() if config is None else config, tensors)


def write_folder(folder: Path, config: dict[str, object], tensors: Written) -> Path:
    """Write a folder of safetensors, of 32-bit floats and of whole numbers; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {}
    data = b""
    for name, (shape, values) in tensors.items():
        assert isinstance(values, array), "GGUF files alone have blocks"
        kind = {"q": "I64", "i": "I32", "b": "BOOL"}.get(values.typecode, "F32")
        start, data = len(data), data + values.tobytes()
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "pre_projection.weight": "nextn.pre_projection.weight",
    "post_projection.weight": "nextn.post_projection.weight",
    "masked_embedding.centroids.weight": "masked_embd_centroids.weight",
}
_PARTS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def write_assistant_gguf(path: Path, tensors: Written, **changes: object) -> Path:
    """Write an assistant for E2B's form as llama.cpp's converter does; `changes` replace keys (dots as underscores)."""
    named: Tensors = {}
    for name, (shape, values) in tensors.items():
        parts = name.split(".", 3)
        own = _WHOLE.get(name) or (f"blk.{parts[2]}.{_PARTS[parts[3]]}" if parts[1] == "layers" else None)
        if own is not None:
            named[own] = (tuple(reversed(shape)), values if isinstance(values, Blocks) else array("f", values))
    turning = GLOBAL_HEAD_DIM // 8
    divisors = array("f", [1.0] * turning + [1e30] * (GLOBAL_HEAD_DIM // 2 - turning))
    is_sliding = [kind == "sliding_attention" for kind in LAYERS]
    sizes: dict[str, object] = {
        "block_count": len(LAYERS),
        "embedding_length": OWN_HIDDEN,
        "embedding_length_out": HIDDEN,
        "feed_forward_length": OWN_FFN,
        "nextn_predict_layers": len(LAYERS),
        "attention.head_count": OWN_HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": GLOBAL_HEAD_DIM,
        "attention.value_length": GLOBAL_HEAD_DIM,
        "attention.key_length_swa": HEAD_DIM,
        "attention.value_length_swa": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.shared_kv_layers": len(LAYERS),
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": is_sliding,
        "rope.dimension_count": GLOBAL_HEAD_DIM,
        "rope.dimension_count_swa": HEAD_DIM,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
    }
    sizes |= {key.replace("__", "."): value for key, value in changes.items()}
    entries = metadata("gemma4-assistant", **{f"gemma4-assistant.{key}": value for key, value in sizes.items()})
    return write_gguf(path, entries, named | {"rope_freqs.weight": ((len(divisors),), divisors)})


def write_right_assistant(folder: Path) -> Path:
    """Write one that is right of a repeating target: its stream is the token's embedding, and stays so."""
    config = assistant_config()
    text = dict(config["text_config"])  # type: ignore[call-overload]
    config["text_config"] = text | {"hidden_size": HIDDEN}
    embedding = target_tensors("E2B")["token_embd.weight"][1]
    tensors = Written()
    for name, (narrow, _) in assistant_tensors().items():
        shape = tuple(HIDDEN if size == OWN_HIDDEN else size for size in narrow)
        is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
        tensors[name] = (shape, array("f", [0.0 if is_output else 1.0]) * math.prod(shape))
    identity = array("f", [float(row == column) for row in range(HIDDEN) for column in range(2 * HIDDEN)])
    tensors["pre_projection.weight"] = ((HIDDEN, 2 * HIDDEN), identity)
    tensors["model.embed_tokens.weight"] = ((NUM_TOKENS, HIDDEN), embedding)
    return write_assistant(folder, config, tensors)
