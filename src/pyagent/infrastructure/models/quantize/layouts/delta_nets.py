"""Qwen 3.5, dense and with experts, and Qwen3-Next as GGUF files have them: gated delta nets beside attention.

ggml pairs a delta net's heads of values with those of keys in turn, where Qwen 3.5's folders have all of a key's
together: their rows, channels and columns get that order. Qwen3-Next's files keep the folder's.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, booleans, int32s, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, experts, gated, size_of
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored, ordered, plus_one

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

_USUAL: Mapping[str, int] = {
    "num_key_heads": 16,
    "num_value_heads": 32,
    "key_head_dim": 128,
    "value_head_dim": 128,
    "conv_kernel_dim": 4,
}
"""Ends of names of sizes, and what the families have where config.json says none."""
_HEAD, _HEAD_LAYER = "mtp.", "mtp.layers.0."
_OF_HEAD: Mapping[str, str] = {
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}
_SECTIONS = (11, 11, 10, 0)
"""Of the pairs of positions of pictures, where config.json does not say."""


class _Net(NamedTuple):
    """The shape of a delta net: heads of keys and of values, the size of one of each, and what a convolution covers."""

    keys: int
    values: int
    key_size: int
    value_size: int
    taps: int

    @property
    def each(self) -> int:
        """Heads of values of a head of keys."""
        return self.values // self.keys

    def tiles(self, size: int, start: int = 0) -> list[tuple[int, int]]:
        """Return where the parts of the heads of values lie that come in ggml's order."""
        heads = (key * self.each + value for value in range(self.each) for key in range(self.keys))
        return [(start + head * size, size) for head in heads]


def _net(config: Config) -> _Net:
    return _Net(*(size_of(config, f"linear_{name}", usual) for name, usual in _USUAL.items()))


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what these families' files say besides."""
    net, is_there = _net(config), int(model.has_mtp)
    found: Metadata = {
        "block_count": uint32(model.num_layers + is_there),
        "ssm.conv_kernel": uint32(net.taps),
        "ssm.state_size": uint32(net.key_size),
        "ssm.group_count": uint32(net.keys),
        "ssm.time_step_rank": uint32(net.values),
        "ssm.inner_size": uint32(net.values * net.value_size),
        "attention.recurrent_layers": booleans([*model.recurrent_layers, *[False] * is_there]),
    }
    interval = config.get("full_attention_interval", 4)
    found["full_attention_interval"] = uint32(interval if isinstance(interval, int) else 4)
    rope = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    if config.get("model_type") != "qwen3_next" and "mrope_section" not in rope:
        found["rope.dimension_sections"] = int32s(_SECTIONS)
    if model.has_mtp:
        found["nextn_predict_layers"] = uint32(1)
    if model.num_experts:
        found["expert_feed_forward_length"] = uint32(model.ffn_size)
    return found


def tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be."""
    yield embedding(stored, model)
    for layer, is_recurrent in enumerate(model.recurrent_layers):
        begin = f"{stored.begin}layers.{layer}."
        yield from _layer(stored, f"blk.{layer}.", begin, config, model, is_recurrent=is_recurrent)
    if model.has_mtp:
        yield from _head(stored, f"blk.{model.num_layers}.", config, model)
    yield from ends(stored, model, "norm", plus_one)


def _head(stored: Stored, block: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the head that drafts: a layer, and what makes its input and output."""
    hidden = model.hidden_size
    yield from _layer(stored, block, _HEAD_LAYER, config, model, is_recurrent=False)
    yield stored.whole(f"{block}nextn.eh_proj.weight", f"{_HEAD}fc.weight", [2 * hidden, hidden])
    for name, gguf in _OF_HEAD.items():
        yield stored.whole(f"{block}nextn.{gguf}.weight", f"{_HEAD}{name}.weight", [hidden], plus_one)


def _layer(  # noqa: PLR0913 - where it lies, and what it is
    stored: Stored, block: str, begin: str, config: Config, model: ModelConfig, *, is_recurrent: bool
) -> Iterator[Made]:
    hidden = [model.hidden_size]
    yield stored.whole(f"{block}attn_norm.weight", f"{begin}input_layernorm.weight", hidden, plus_one)
    if is_recurrent:
        yield from _delta_net(stored, block, f"{begin}linear_attn.", config, model.hidden_size)
    else:
        yield from _attention(stored, block, f"{begin}self_attn.", model)
    post_norm = f"{begin}post_attention_layernorm.weight"
    yield stored.whole(f"{block}post_attention_norm.weight", post_norm, hidden, plus_one)
    yield from _feed_forward(stored, block, f"{begin}mlp.", config, model)


def _attention(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    """Yield attention's matrices; each head of queries has its gate behind it."""
    hidden, queries = model.hidden_size, model.num_heads * model.head_dim
    kv = model.num_kv_heads * model.head_dim
    sizes = {"q": (hidden, 2 * queries), "k": (hidden, kv), "v": (hidden, kv)}
    for name, dims in sizes.items():
        yield stored.whole(f"{block}attn_{name}.weight", f"{begin}{name}_proj.weight", dims)
    for name in ("q", "k"):
        gguf = f"{block}attn_{name}_norm.weight"
        yield stored.whole(gguf, f"{begin}{name}_norm.weight", [model.head_dim], plus_one)
    yield stored.whole(f"{block}attn_output.weight", f"{begin}o_proj.weight", (queries, hidden))


def _feed_forward(stored: Stored, block: str, begin: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    hidden = model.hidden_size
    if not stored.has(f"{begin}gate.weight"):
        yield from gated(stored, f"{block}ffn_", begin, (hidden, size_of(config, "intermediate_size")))
        return
    yield stored.whole(f"{block}ffn_gate_inp.weight", f"{begin}gate.weight", [hidden, model.num_experts])
    wide, narrow = [hidden, model.ffn_size], [model.ffn_size, hidden]
    dims = {"gate_proj": wide, "up_proj": wide, "down_proj": narrow}
    yield from experts(stored, block, f"{begin}experts.", dims, model.num_experts)
    shared = (hidden, size_of(config, "shared_expert_intermediate_size"))
    yield stored.whole(f"{block}ffn_gate_inp_shexp.weight", f"{begin}shared_expert_gate.weight", [hidden, 1])
    yield from gated(stored, f"{block}ffn_", f"{begin}shared_expert.", shared, "_shexp")


def _delta_net(stored: Stored, block: str, begin: str, config: Config, hidden: int) -> Iterator[Made]:
    net = _net(config)
    if config.get("model_type") == "qwen3_next":
        yield from _of_keys_heads(stored, block, begin, net, hidden)
        tiles, channels = [(0, net.values)], [(0, 2 * net.keys * net.key_size + net.values * net.value_size)]
        columns = None
    else:
        yield from _projections(stored, block, begin, net, hidden)
        tiles = net.tiles(1)
        queries_and_keys = 2 * net.keys * net.key_size
        channels = [(0, queries_and_keys), *net.tiles(net.value_size, queries_and_keys)]
        columns = ordered(net.tiles(net.value_size), net.values * net.value_size)
    num_channels = sum(count for _, count in channels)
    yield stored.cut(f"{block}ssm_conv1d.weight", f"{begin}conv1d.weight", channels, [net.taps, num_channels])
    order = ordered(tiles, net.values)

    def decays(values: array[float]) -> None:
        order(values)
        values[:] = array("f", [-math.exp(value) for value in values])

    yield stored.whole(f"{block}ssm_a", f"{begin}A_log", [net.values], decays)
    yield stored.whole(f"{block}ssm_dt.bias", f"{begin}dt_bias", [net.values], order)
    yield stored.whole(f"{block}ssm_norm.weight", f"{begin}norm.weight", [net.value_size])
    inner = net.values * net.value_size
    yield stored.whole(f"{block}ssm_out.weight", f"{begin}out_proj.weight", [inner, hidden], columns)


def _projections(stored: Stored, block: str, begin: str, net: _Net, hidden: int) -> Iterator[Made]:
    """Yield Qwen 3.5's: queries, keys and values in one, gates, and two numbers of each head of values."""
    first, inner = 2 * net.keys * net.key_size, net.values * net.value_size
    runs = [(0, first), *net.tiles(net.value_size, first)]
    yield stored.cut(f"{block}attn_qkv.weight", f"{begin}in_proj_qkv.weight", runs, [hidden, first + inner])
    gates = net.tiles(net.value_size)
    yield stored.cut(f"{block}attn_gate.weight", f"{begin}in_proj_z.weight", gates, [hidden, inner])
    for gguf, name in {"ssm_beta": "in_proj_b", "ssm_alpha": "in_proj_a"}.items():
        yield stored.cut(f"{block}{gguf}.weight", f"{begin}{name}.weight", net.tiles(1), [hidden, net.values])


def _of_keys_heads(stored: Stored, block: str, begin: str, net: _Net, hidden: int) -> Iterator[Made]:
    """Yield Qwen3-Next's, of which a folder has all of a head of keys together."""
    values = net.each * net.value_size
    sizes = [net.key_size, net.key_size, values, values]
    starts = [sum(sizes[:place]) for place in range(4)]
    name, of_head = f"{begin}in_proj_qkvz.weight", sum(sizes)
    runs = [
        [(head * of_head + start, size) for head in range(net.keys)] for start, size in zip(starts, sizes, strict=True)
    ]
    rows = net.keys * (of_head - values)
    yield stored.cut(f"{block}attn_qkv.weight", name, [*runs[0], *runs[1], *runs[2]], [hidden, rows])
    yield stored.cut(f"{block}attn_gate.weight", name, runs[3], [hidden, net.keys * values])
    yield stored.whole(f"{block}ssm_ba.weight", f"{begin}in_proj_ba.weight", [hidden, 2 * net.values])
