"""Small hybrid models of random weights as GGUF files, in the shapes of LFM2, Qwen 3.5, Granite 4, Jamba, Kimi Linear,
Mamba, Mamba-2, MiniMax-01 and Nemotron 3, with the tiny vocabulary."""

from __future__ import annotations

import math
import random
from array import array
from pathlib import Path

from support.gguf_writer import Blocks, Tensors, write_gguf
from support.tiny_model import HIDDEN, metadata, vocabulary

FFN = 96
HEAD_DIM = 32
NUM_HEADS = 2
NUM_KV_HEADS = 1
KEY_HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE = 2, 4, 16, 32
TAPS = {
    "lfm2": 3,
    "qwen35": 4,
    "granitehybrid": 4,
    "jamba": 4,
    "mamba": 4,
    "mamba2": 4,
    "nemotron_h": 4,
    "kimi-linear": 4,
}
STEP_RANK = 12
SPACE_HEADS, SPACE_GROUPS, STATE_SIZE, INNER = 4, 2, 16, 128
EXPERTS, USED = 6, 2
LATENT, ROTARY = 48, 16
DELTA_HEAD = 32
"""Width of a head of Kimi Delta Attention."""
_LAYERS = {
    "lfm2": [True, True, False, True],
    "qwen35": [True, True, True, False],
    "granitehybrid": [True, True, False, True],
    "jamba": [True, True, False, True],
    "kimi-linear": [True, True, False, True],
    "minimax-01": [True, True, True, False],
    "mamba": [True, True, True],
    "mamba2": [True, True, True],
    "nemotron_h": [True, False, False, True, True, False],
}
"""Of each layer, whether it is recurrent."""
_EXPERT_LAYERS = (1, 5)
"""Of Nemotron 3, those that have experts alone; of Jamba, those that have some."""

Written = dict[str, tuple[tuple[int, ...], "array[float] | Blocks"]]


def hybrid_metadata(architecture: str, **changes: object) -> dict[str, object]:
    """Return the file's metadata; `changes` replace entries (dots as double underscores), None removes one."""
    layers = _LAYERS[architecture]
    sizes: dict[str, object] = {
        "attention.head_count": NUM_HEADS,
        "attention.head_count_kv": NUM_KV_HEADS,
        "block_count": len(layers),
        "context_length": 2048,
        "feed_forward_length": FFN,
    }
    if architecture == "lfm2":
        sizes["shortconv.l_cache"] = TAPS["lfm2"]
        sizes["attention.head_count_kv"] = [0 if is_recurrent else NUM_KV_HEADS for is_recurrent in layers]
    elif architecture == "granitehybrid":
        sizes |= {
            "attention.head_count_kv": [0 if is_recurrent else NUM_KV_HEADS for is_recurrent in layers],
            "attention.scale": 0.2,
            "embedding_scale": 3.0,
            "expert_count": EXPERTS,
            "expert_shared_feed_forward_length": FFN,
            "expert_used_count": USED,
            "feed_forward_length": FFN // 3,
            "logit_scale": 1.5,
            "residual_scale": 0.5,
            "rope.scaling.finetuned": False,
        } | _space_sizes("granitehybrid")
    elif architecture == "nemotron_h":
        sizes |= _nemotron_sizes()
    elif architecture == "kimi-linear":
        sizes |= _kimi_sizes()
    elif architecture == "minimax-01":
        sizes |= {
            "attention.key_length": HEAD_DIM,
            "attention.value_length": HEAD_DIM,
            "expert_count": EXPERTS,
            "expert_used_count": USED,
            "feed_forward_length": FFN // 3,
            "full_attention_interval": 4,
            "residual_scale": 1.5,
            "rope.dimension_count": HEAD_DIM // 2,
        }
    elif architecture == "mamba2":
        sizes |= {"attention.head_count": 0, "feed_forward_length": 0} | _space_sizes("mamba2")
        del sizes["attention.head_count_kv"]
    elif architecture == "mamba":
        sizes |= {
            "attention.head_count": 0,
            "attention.head_count_kv": 0,
            "feed_forward_length": 0,
            "ssm.conv_kernel": TAPS["mamba"],
            "ssm.dt_b_c_rms": True,
            "ssm.inner_size": INNER,
            "ssm.state_size": STATE_SIZE,
            "ssm.time_step_rank": STEP_RANK,
        }
    elif architecture == "jamba":
        sizes |= {
            "attention.head_count_kv": [0 if is_recurrent else NUM_KV_HEADS for is_recurrent in layers],
            "expert_count": EXPERTS,
            "expert_used_count": USED,
            "ssm.conv_kernel": TAPS["jamba"],
            "ssm.inner_size": INNER,
            "ssm.state_size": STATE_SIZE,
            "ssm.time_step_rank": STEP_RANK,
        }
    else:
        sizes |= {
            "attention.key_length": HEAD_DIM,
            "attention.value_length": HEAD_DIM,
            "full_attention_interval": 4,
            "rope.dimension_count": 8,
            "rope.dimension_sections": [2, 1, 1, 0],
            "ssm.conv_kernel": TAPS["qwen35"],
            "ssm.group_count": KEY_HEADS,
            "ssm.inner_size": VALUE_HEADS * VALUE_SIZE,
            "ssm.state_size": KEY_SIZE,
            "ssm.time_step_rank": VALUE_HEADS,
        }
    entries = metadata(architecture) | {f"{architecture}.{key}": value for key, value in sizes.items()}
    entries |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in entries.items() if value is not None}


def _nemotron_sizes() -> dict[str, object]:
    layers = _LAYERS["nemotron_h"]
    has_experts = [layer in _EXPERT_LAYERS for layer in range(len(layers))]
    attention = [not (is_recurrent or others) for is_recurrent, others in zip(layers, has_experts, strict=True)]
    return {
        "attention.head_count_kv": [NUM_KV_HEADS * one for one in attention],
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": 30,  # the hidden size by the heads, as files have it; nothing is rotated
        "expert_count": EXPERTS,
        "expert_feed_forward_length": FFN // 3,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": FFN,
        "expert_used_count": USED,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
        "feed_forward_length": [FFN // 3 * one for one in has_experts],
    } | _space_sizes("nemotron_h")


def _space_sizes(architecture: str) -> dict[str, object]:
    return {
        "ssm.conv_kernel": TAPS[architecture],
        "ssm.group_count": SPACE_GROUPS,
        "ssm.inner_size": INNER,
        "ssm.state_size": STATE_SIZE,
        "ssm.time_step_rank": SPACE_HEADS,
    }


def _kimi_sizes() -> dict[str, object]:
    return {
        "attention.head_count_kv": [0 if is_recurrent else 1 for is_recurrent in _LAYERS["kimi-linear"]],
        "attention.key_length": LATENT + ROTARY,
        "attention.key_length_mla": HEAD_DIM + ROTARY,
        "attention.kv_lora_rank": LATENT,
        "attention.value_length_mla": HEAD_DIM,
        "expert_count": EXPERTS,
        "expert_feed_forward_length": FFN // 3,
        "expert_shared_count": 1,
        "expert_used_count": USED,
        "expert_weights_scale": 1.5,
        "kda.head_dim": DELTA_HEAD,
        "leading_dense_block_count": 1,
        "rope.dimension_count": ROTARY,
        "ssm.conv_kernel": TAPS["kimi-linear"],
    }


class _Tensors:
    """Random tensors of a model."""

    def __init__(self, seed: int) -> None:
        self.written: Written = {}
        self._draw = random.Random(seed)

    def matrix(self, name: str, columns: int, rows: int, scale: float | None = None) -> None:
        scale = 1.5 / math.sqrt(columns) if scale is None else scale
        values = array("f", (self._draw.gauss(0, scale) for _ in range(columns * rows)))
        self.written[f"{name}.weight"] = ((columns, rows), values)

    def vector(self, name: str, size: int, mean: float, scale: float = 0.1) -> None:
        self.written[name] = ((size,), array("f", (mean + self._draw.gauss(0, scale) for _ in range(size))))


def hybrid_tensors(architecture: str, seed: int = 7) -> Written:
    """Return a model's tensors under llama.cpp's names."""
    tensors = _Tensors(seed)
    tensors.matrix("token_embd", HIDDEN, len(vocabulary()[0]), 1.0)
    for layer, is_recurrent in enumerate(_LAYERS[architecture]):
        block = f"blk.{layer}"
        tensors.vector(f"{block}.attn_norm.weight", HIDDEN, 1.0)
        if architecture == "nemotron_h":
            _lone_block(tensors, layer, is_recurrent)
            continue
        if architecture == "mamba":
            _channels(tensors, block, has_norms=False)
            continue
        if architecture == "mamba2":
            _state_space(tensors, block)
            continue
        if architecture == "kimi-linear":
            _kimi_layer(tensors, layer, is_recurrent)
            continue
        norm = "post_attention_norm" if architecture == "qwen35" else "ffn_norm"
        tensors.vector(f"{block}.{norm}.weight", HIDDEN, 1.0)
        if not is_recurrent:
            _attention(tensors, block, architecture)
        elif architecture == "lfm2":
            tensors.matrix(f"{block}.shortconv.in_proj", HIDDEN, 3 * HIDDEN)
            tensors.matrix(f"{block}.shortconv.conv", TAPS["lfm2"], HIDDEN)
            tensors.matrix(f"{block}.shortconv.out_proj", HIDDEN, HIDDEN)
        elif architecture == "qwen35":
            _delta_net(tensors, block)
        elif architecture == "jamba":
            _channels(tensors, block)
        elif architecture == "minimax-01":
            _lightning(tensors, block)
        else:
            _state_space(tensors, block)
        if architecture == "jamba" and layer in _EXPERT_LAYERS:
            _experts(tensors, block, inside=FFN)
            continue
        if architecture == "minimax-01":
            _experts(tensors, block)
            continue
        end = "_shexp" if architecture == "granitehybrid" else ""
        for name, columns, rows in (("gate", HIDDEN, FFN), ("up", HIDDEN, FFN), ("down", FFN, HIDDEN)):
            tensors.matrix(f"{block}.ffn_{name}{end}", columns, rows)
        if architecture == "granitehybrid":
            _experts(tensors, block)
    tensors.vector("token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight", HIDDEN, 1.0)
    tensors.matrix("output", HIDDEN, len(vocabulary()[0]), 0.35)
    if architecture == "lfm2":
        del tensors.written["output.weight"]
    return tensors.written


def mtp_tensors(architecture: str = "qwen35", seed: int = 7) -> Written:
    """Return a model's tensors with a head that drafts further tokens, as a block behind its others."""
    tensors = _Tensors(seed + 1)
    block = f"blk.{len(_LAYERS[architecture])}"
    for name in ("attn_norm", "post_attention_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"):
        tensors.vector(f"{block}.{name}.weight", HIDDEN, 1.0)
    tensors.matrix(f"{block}.nextn.eh_proj", 2 * HIDDEN, HIDDEN)
    _attention(tensors, block, architecture)
    for name, columns, rows in (("gate", HIDDEN, FFN), ("up", HIDDEN, FFN), ("down", FFN, HIDDEN)):
        tensors.matrix(f"{block}.ffn_{name}", columns, rows)
    return hybrid_tensors(architecture, seed) | tensors.written


def right_mtp_tensors() -> Written:
    """Return tensors of a model whose every token follows from the one before alone, and whose head knows that."""
    written = mtp_tensors()
    for name, (dims, values) in written.items():
        if name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
            written[name] = (dims, array("f", [0.0]) * len(values))
        elif "norm" in name:
            written[name] = (dims, array("f", [1.0]) * len(values))
    identity = array("f", [float(row == column) for row in range(HIDDEN) for column in range(2 * HIDDEN)])
    return written | {"blk.4.nextn.eh_proj.weight": ((2 * HIDDEN, HIDDEN), identity)}


def write_mtp(path: Path, tensors: Tensors | None = None, **changes: object) -> Path:
    """Write a Qwen 3.5 with a head that drafts further tokens; returns `path`."""
    counts = {"qwen35__block_count": 5, "qwen35__nextn_predict_layers": 1}
    return write_hybrid(path, "qwen35", 7, tensors or mtp_tensors(), **(counts | changes))


def _lone_block(tensors: _Tensors, layer: int, is_recurrent: bool) -> None:
    block = f"blk.{layer}"
    if is_recurrent:
        _state_space(tensors, block)
    elif layer in _EXPERT_LAYERS:
        _experts(tensors, block, ("up", "down"))
        tensors.vector(f"{block}.exp_probs_b.bias", EXPERTS, 0.2)
        tensors.matrix(f"{block}.ffn_up_shexp", HIDDEN, FFN)
        tensors.matrix(f"{block}.ffn_down_shexp", FFN, HIDDEN)
    else:
        _attention(tensors, block, "nemotron_h")


def _attention(tensors: _Tensors, block: str, architecture: str) -> None:
    query_parts = 2 if architecture == "qwen35" else 1
    tensors.matrix(f"{block}.attn_q", HIDDEN, query_parts * NUM_HEADS * HEAD_DIM)
    tensors.matrix(f"{block}.attn_k", HIDDEN, NUM_KV_HEADS * HEAD_DIM)
    tensors.matrix(f"{block}.attn_v", HIDDEN, NUM_KV_HEADS * HEAD_DIM)
    tensors.matrix(f"{block}.attn_output", NUM_HEADS * HEAD_DIM, HIDDEN)
    for name in () if architecture in ("granitehybrid", "jamba", "minimax-01", "nemotron_h") else ("q", "k"):
        tensors.vector(f"{block}.attn_{name}_norm.weight", HEAD_DIM, 1.0)


def _delta_net(tensors: _Tensors, block: str) -> None:
    values, channels = VALUE_HEADS * VALUE_SIZE, 2 * KEY_HEADS * KEY_SIZE + VALUE_HEADS * VALUE_SIZE
    tensors.matrix(f"{block}.attn_qkv", HIDDEN, channels)
    tensors.matrix(f"{block}.attn_gate", HIDDEN, values)
    tensors.matrix(f"{block}.ssm_beta", HIDDEN, VALUE_HEADS)
    tensors.matrix(f"{block}.ssm_alpha", HIDDEN, VALUE_HEADS)
    tensors.matrix(f"{block}.ssm_conv1d", TAPS["qwen35"], channels)
    tensors.vector(f"{block}.ssm_a", VALUE_HEADS, -0.3, 0.05)
    tensors.vector(f"{block}.ssm_dt.bias", VALUE_HEADS, -2.0)
    tensors.vector(f"{block}.ssm_norm.weight", VALUE_SIZE, 1.0)
    tensors.matrix(f"{block}.ssm_out", values, HIDDEN)


def _state_space(tensors: _Tensors, block: str) -> None:
    channels = INNER + 2 * SPACE_GROUPS * STATE_SIZE
    tensors.matrix(f"{block}.ssm_in", HIDDEN, INNER + channels + SPACE_HEADS)
    tensors.matrix(f"{block}.ssm_conv1d", TAPS["granitehybrid"], channels)
    tensors.vector(f"{block}.ssm_conv1d.bias", channels, 0.0)
    tensors.vector(f"{block}.ssm_a", SPACE_HEADS, -0.3, 0.05)
    tensors.vector(f"{block}.ssm_d", SPACE_HEADS, 1.0)
    tensors.vector(f"{block}.ssm_dt.bias", SPACE_HEADS, -2.0)
    tensors.vector(f"{block}.ssm_norm.weight", INNER, 1.0)
    tensors.matrix(f"{block}.ssm_out", INNER, HIDDEN)


def _kimi_layer(tensors: _Tensors, layer: int, is_recurrent: bool) -> None:
    block, inner = f"blk.{layer}", NUM_HEADS * (DELTA_HEAD if is_recurrent else HEAD_DIM)
    if is_recurrent:
        for which in ("q", "k", "v"):
            tensors.matrix(f"{block}.attn_{which}", HIDDEN, inner)
            tensors.matrix(f"{block}.ssm_conv1d_{which}", TAPS["kimi-linear"], inner)
        for which in ("f", "g"):
            tensors.matrix(f"{block}.ssm_{which}_a", HIDDEN, DELTA_HEAD)
            tensors.matrix(f"{block}.ssm_{which}_b", DELTA_HEAD, inner)
        tensors.matrix(f"{block}.ssm_beta", HIDDEN, NUM_HEADS)
        tensors.vector(f"{block}.ssm_a", NUM_HEADS, -0.3, 0.05)
        tensors.vector(f"{block}.ssm_dt.bias", inner, -2.0)
        tensors.vector(f"{block}.ssm_norm.weight", DELTA_HEAD, 1.0)
    else:
        tensors.matrix(f"{block}.attn_q", HIDDEN, NUM_HEADS * (HEAD_DIM + ROTARY))
        tensors.matrix(f"{block}.attn_kv_a_mqa", HIDDEN, LATENT + ROTARY)
        tensors.vector(f"{block}.attn_kv_a_norm.weight", LATENT, 1.0)
        for name, columns, rows in (("k_b", HEAD_DIM, LATENT), ("v_b", LATENT, HEAD_DIM)):
            tensors.matrix(f"{block}.attn_{name}", columns, NUM_HEADS * rows)
            _, values = tensors.written[f"{block}.attn_{name}.weight"]
            tensors.written[f"{block}.attn_{name}.weight"] = ((columns, rows, NUM_HEADS), values)
    tensors.matrix(f"{block}.attn_output", inner, HIDDEN)
    tensors.vector(f"{block}.ffn_norm.weight", HIDDEN, 1.0)
    if layer > 0:
        _experts(tensors, block)
        tensors.vector(f"{block}.exp_probs_b.bias", EXPERTS, 0.2)
    end, inside = ("_shexp", FFN // 3) if layer > 0 else ("", FFN)
    for name, columns, rows in (("gate", HIDDEN, inside), ("up", HIDDEN, inside), ("down", inside, HIDDEN)):
        tensors.matrix(f"{block}.ffn_{name}{end}", columns, rows)


def _lightning(tensors: _Tensors, block: str) -> None:
    inner = NUM_HEADS * HEAD_DIM
    tensors.matrix(f"{block}.attn_qkv", HIDDEN, 3 * inner)
    tensors.matrix(f"{block}.attn_gate", HIDDEN, inner)
    tensors.vector(f"{block}.attn_norm_2.weight", inner, 1.0)
    tensors.matrix(f"{block}.attn_output", inner, HIDDEN)


def _channels(tensors: _Tensors, block: str, *, has_norms: bool = True) -> None:
    tensors.matrix(f"{block}.ssm_in", HIDDEN, 2 * INNER)
    tensors.matrix(f"{block}.ssm_conv1d", TAPS["jamba"], INNER)
    tensors.vector(f"{block}.ssm_conv1d.bias", INNER, 0.0)
    tensors.matrix(f"{block}.ssm_x", INNER, STEP_RANK + 2 * STATE_SIZE)
    for name, size in (("dt", STEP_RANK), ("b", STATE_SIZE), ("c", STATE_SIZE)) if has_norms else ():
        tensors.vector(f"{block}.ssm_{name}_norm.weight", size, 1.0)
    tensors.matrix(f"{block}.ssm_dt", STEP_RANK, INNER)
    tensors.vector(f"{block}.ssm_dt.bias", INNER, -2.0)
    tensors.vector(f"{block}.ssm_a", STATE_SIZE * INNER, -0.6, 0.1)
    tensors.written[f"{block}.ssm_a"] = ((STATE_SIZE, INNER), tensors.written[f"{block}.ssm_a"][1])
    tensors.vector(f"{block}.ssm_d", INNER, 1.0)
    tensors.matrix(f"{block}.ssm_out", INNER, HIDDEN)


def _experts(
    tensors: _Tensors, block: str, names: tuple[str, ...] = ("gate", "up", "down"), inside: int = FFN // 3
) -> None:
    tensors.matrix(f"{block}.ffn_gate_inp", HIDDEN, EXPERTS)
    for name in names:
        columns, rows = (inside, HIDDEN) if name == "down" else (HIDDEN, inside)
        tensors.matrix(f"{block}.ffn_{name}_exps", columns, rows * EXPERTS)
        _, values = tensors.written[f"{block}.ffn_{name}_exps.weight"]
        tensors.written[f"{block}.ffn_{name}_exps.weight"] = ((columns, rows, EXPERTS), values)


def write_hybrid(
    path: Path, architecture: str, seed: int = 7, tensors: Tensors | None = None, **changes: object
) -> Path:
    """Write a model; returns `path`."""
    return write_gguf(path, hybrid_metadata(architecture, **changes), tensors or hybrid_tensors(architecture, seed))
