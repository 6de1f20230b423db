"""LFM2, dense and with experts, as GGUF files have it: short convolutions beside attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, int32s, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, experts, size_of
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

_SIGMOID = 2
"""What llama.cpp calls the rating of experts that the family has."""


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what the family's files say besides; a layer without key-value heads is a convolution."""
    heads = [0 if is_recurrent else model.num_kv_heads for is_recurrent in model.recurrent_layers]
    found: Metadata = {
        "attention.head_count_kv": int32s(heads),
        "shortconv.l_cache": uint32(_taps(config)),
        "feed_forward_length": uint32(_dense_size(config, model)),
    }
    if model.num_experts:
        found |= {
            "expert_feed_forward_length": uint32(model.ffn_size),
            "leading_dense_block_count": uint32(sum(model.dense_layers)),
            "expert_gating_func": uint32(_SIGMOID),
        }
    return found


def tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be."""
    hidden = model.hidden_size
    yield embedding(stored, model)
    for layer, is_recurrent in enumerate(model.recurrent_layers):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}."
        yield stored.whole(f"{block}attn_norm.weight", f"{begin}operator_norm.weight", [hidden])
        if is_recurrent:
            yield from _convolution(stored, block, f"{begin}conv.", _taps(config), hidden)
        else:
            yield from _attention(stored, block, f"{begin}self_attn.", model)
        yield stored.whole(f"{block}ffn_norm.weight", f"{begin}ffn_norm.weight", [hidden])
        has_experts = model.num_experts > 0 and not model.dense_layers[layer]
        inside = model.ffn_size if has_experts else _dense_size(config, model)
        wide, narrow = [hidden, inside], [inside, hidden]
        sizes = {"w1": wide, "w3": wide, "w2": narrow}
        begin = f"{begin}feed_forward."
        if has_experts:
            yield stored.whole(f"{block}ffn_gate_inp.weight", f"{begin}gate.weight", [hidden, model.num_experts])
            yield stored.whole(f"{block}exp_probs_b.bias", f"{begin}expert_bias", [model.num_experts])
            yield from experts(stored, block, f"{begin}experts.", sizes, model.num_experts)
        else:
            for gguf, (name, dims) in zip(("gate", "up", "down"), sizes.items(), strict=True):
                yield stored.whole(f"{block}ffn_{gguf}.weight", f"{begin}{name}.weight", dims)
    yield from ends(stored, model, "embedding_norm", gguf="token_embd_norm")


def _taps(config: Config) -> int:
    return size_of(config, "conv_L_cache", 3)


def _dense_size(config: Config, model: ModelConfig) -> int:
    """Return the width inside feed-forward blocks without experts; without any experts config.json says another."""
    return size_of(config, "intermediate_size") if model.num_experts else model.ffn_size


def _convolution(stored: Stored, block: str, begin: str, taps: int, hidden: int) -> Iterator[Made]:
    yield stored.whole(f"{block}shortconv.in_proj.weight", f"{begin}in_proj.weight", [hidden, 3 * hidden])
    yield stored.whole(f"{block}shortconv.conv.weight", f"{begin}conv.weight", [taps, hidden])
    yield stored.whole(f"{block}shortconv.out_proj.weight", f"{begin}out_proj.weight", [hidden, hidden])


def _attention(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    hidden, queries, kv = model.hidden_size, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    for name, rows in {"q": queries, "k": kv, "v": kv}.items():
        yield stored.whole(f"{block}attn_{name}.weight", f"{begin}{name}_proj.weight", [hidden, rows])
    for name in ("q", "k"):
        yield stored.whole(f"{block}attn_{name}_norm.weight", f"{begin}{name}_layernorm.weight", [model.head_dim])
    yield stored.whole(f"{block}attn_output.weight", f"{begin}out_proj.weight", [queries, hidden])
