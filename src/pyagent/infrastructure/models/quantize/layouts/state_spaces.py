"""Granite 4 and Nemotron-H as GGUF files have them: Mamba-2's state spaces beside attention."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, boolean, float32, int32s, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, linear, number_of, paired, size_of
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]


class Space(NamedTuple):
    """A state space: heads, channels of a head, groups, a state's size, what a convolution covers, a norm or none."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    taps: int
    is_normalised: bool = True

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.inner + 2 * self.groups * self.state_size


def _granite_space(config: Config) -> Space:
    heads = size_of(config, "mamba_n_heads", 128)
    inner = size_of(config, "hidden_size") * size_of(config, "mamba_expand", 2)
    groups, states = size_of(config, "mamba_n_groups", 1), size_of(config, "mamba_d_state", 256)
    return Space(heads, inner // max(1, heads), groups, states, size_of(config, "mamba_d_conv", 4))


def _nemotron_space(config: Config) -> Space:
    heads, head_size = size_of(config, "mamba_num_heads", 128), size_of(config, "mamba_head_dim", 64)
    groups, states = size_of(config, "n_groups", 8), size_of(config, "ssm_state_size", 128)
    return Space(heads, head_size, groups, states, size_of(config, "conv_kernel", 4))


def space_keys(space: Space) -> Metadata:
    """Return what files say of a state space."""
    return {
        "ssm.conv_kernel": uint32(space.taps),
        "ssm.state_size": uint32(space.state_size),
        "ssm.group_count": uint32(space.groups),
        "ssm.inner_size": uint32(space.inner),
        "ssm.time_step_rank": uint32(space.heads),
    }


def granite_name(model: ModelConfig) -> str:
    """Return what GGUF files call a Granite 4: without state spaces it is one of those before it."""
    if any(model.recurrent_layers):
        return "granitehybrid"
    return "granitemoe" if model.num_experts else "granite"


def nemotron_name(model: ModelConfig) -> str:
    """Return what GGUF files call a Nemotron-H."""
    return "nemotron_h_moe" if model.num_experts else "nemotron_h"


def granite_keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what Granite 4's files say besides; a layer without key-value heads is a state space."""
    has_positions = any(model.rotary_layers)
    names = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    found: Metadata = {key: float32(number_of(config, name)) for key, name in names.items()}
    found["rope.scaling.finetuned"] = boolean(has_positions)
    if config.get("model_type") == "granitemoehybrid":
        found["attention.head_count_kv"] = int32s(_heads_of_layers(model))
        found |= space_keys(_granite_space(config))
    if not model.num_experts:
        found |= {key: uint32(0) for key in ("expert_count", "expert_used_count")}
        found["feed_forward_length"] = uint32(model.ffn_size)
    if shared := size_of(config, "shared_intermediate_size"):
        found["expert_shared_feed_forward_length"] = uint32(shared)
    return found


def nemotron_keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what Nemotron-H's files say besides: a layer with a feed-forward size has that block alone."""
    sizes = [model.ffn_size if block == "FeedForward" else 0 for block in model.blocks]
    found: Metadata = {
        "feed_forward_length": int32s(sizes),
        "attention.head_count_kv": int32s(_heads_of_layers(model)),
        "attention.layer_norm_epsilon": float32(model.norm_epsilon),
        "rope.scaling.finetuned": boolean(False),
        **(space_keys(_nemotron_space(config)) if any(model.recurrent_layers) else {}),
    }
    if not model.num_experts:
        return found
    return found | {
        "expert_feed_forward_length": uint32(model.ffn_size),
        "expert_shared_feed_forward_length": uint32(size_of(config, "moe_shared_expert_intermediate_size")),
        "expert_shared_count": uint32(size_of(config, "n_shared_experts", 1)),
        "expert_weights_norm": boolean(config.get("norm_topk_prob", True) is True),
        "expert_weights_scale": float32(number_of(config, "routed_scaling_factor")),
        "expert_group_count": uint32(size_of(config, "n_group", 1)),
        "expert_group_used_count": uint32(size_of(config, "topk_group", 1)),
    }


def _heads_of_layers(model: ModelConfig) -> list[int]:
    kinds = zip(model.recurrent_layers, model.blocks, strict=True)
    return [0 if is_recurrent or block == "FeedForward" else model.num_kv_heads for is_recurrent, block in kinds]


def granite_tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield Granite 4's tensors in the order of the file to be."""
    hidden = model.hidden_size
    yield embedding(stored, model)
    for layer, is_recurrent in enumerate(model.recurrent_layers):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}."
        yield stored.whole(f"{block}attn_norm.weight", f"{begin}input_layernorm.weight", [hidden])
        if is_recurrent:
            yield from mixer(stored, block, f"{begin}mamba.", _granite_space(config), hidden)
        else:
            yield from _attention(stored, block, f"{begin}self_attn.", model)
        yield stored.whole(f"{block}ffn_norm.weight", f"{begin}post_attention_layernorm.weight", [hidden])
        yield from _granite_blocks(stored, block, begin, config, model)
    yield from ends(stored, model, "norm")


def _granite_blocks(stored: Stored, block: str, begin: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield experts and the block that all tokens share, or the only block; gates and ups lie in one tensor."""
    hidden, num, inside = model.hidden_size, model.num_experts, model.ffn_size
    end, shared = "", inside
    if num:
        end, shared = "_shexp", size_of(config, "shared_intermediate_size")
        experts = f"{begin}block_sparse_moe."
        yield stored.whole(f"{block}ffn_gate_inp.weight", f"{experts}router.layer.weight", [hidden, num])
        for place, name in enumerate(("gate", "up")):
            runs = [((2 * number + place) * inside, inside) for number in range(num)]
            gguf, own = f"{block}ffn_{name}_exps.weight", f"{experts}input_linear.weight"
            yield stored.cut(gguf, own, runs, [hidden, inside, num])
        down = f"{block}ffn_down_exps.weight"
        yield stored.whole(down, f"{experts}output_linear.weight", [inside, hidden, num])
    if not shared:
        return
    for place, name in enumerate(("gate", "up")):
        gguf, own = f"{block}ffn_{name}{end}.weight", f"{begin}shared_mlp.input_linear.weight"
        yield stored.cut(gguf, own, [(place * shared, shared)], [hidden, shared])
    yield stored.whole(f"{block}ffn_down{end}.weight", f"{begin}shared_mlp.output_linear.weight", [shared, hidden])


def nemotron_tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield Nemotron-H's tensors in the order of the file to be."""
    hidden = model.hidden_size
    yield embedding(stored, model, "embeddings")
    for layer, is_recurrent in enumerate(model.recurrent_layers):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}."
        yield stored.whole(f"{block}attn_norm.weight", f"{begin}norm.weight", [hidden])
        begin = f"{begin}mixer."
        if is_recurrent:
            yield from mixer(stored, block, begin, _nemotron_space(config), hidden)
        elif model.blocks[layer] == "Mixer":
            yield from _attention(stored, block, begin, model)
        else:
            yield from _nemotron_block(stored, block, begin, config, model)
    yield from ends(stored, model, "norm_f")


def _nemotron_block(stored: Stored, block: str, begin: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield a feed-forward block without gates, or experts of that kind and one that all tokens share."""
    hidden, num = model.hidden_size, model.num_experts
    if not stored.has(f"{begin}gate.weight"):
        yield from _bare(stored, block, "", begin, (hidden, size_of(config, "intermediate_size")))
        return
    yield stored.whole(f"{block}ffn_gate_inp.weight", f"{begin}gate.weight", [hidden, num])
    yield stored.whole(f"{block}exp_probs_b.bias", f"{begin}gate.e_score_correction_bias", [num])
    for name, dims in {"up": (hidden, model.ffn_size), "down": (model.ffn_size, hidden)}.items():
        names = [f"{begin}experts.{number}.{name}_proj.weight" for number in range(num)]
        yield stored.stacked(f"{block}ffn_{name}_exps.weight", names, dims)
    shared = size_of(config, "moe_shared_expert_intermediate_size")
    yield from _bare(stored, block, "_shexp", f"{begin}shared_experts.", (hidden, shared))


def _bare(stored: Stored, block: str, end: str, begin: str, size: tuple[int, int]) -> Iterator[Made]:
    for name, dims in {"up": size, "down": size[::-1]}.items():
        yield from linear(stored, f"{block}ffn_{name}{end}", f"{begin}{name}_proj", dims)


def _attention(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    """Yield attention's matrices; queries' and keys' rows are paired as llama.cpp does, with positions or without."""
    hidden, queries = model.hidden_size, model.num_heads * model.head_dim
    heads = {"q": model.num_heads, "k": model.num_kv_heads, "v": model.num_kv_heads}
    for name, num in heads.items():
        runs = None if name == "v" else paired(num, model.head_dim)
        yield from linear(
            stored, f"{block}attn_{name}", f"{begin}{name}_proj", [hidden, num * model.head_dim], runs=runs
        )
    yield from linear(stored, f"{block}attn_output", f"{begin}o_proj", [queries, hidden])


def mixer(stored: Stored, block: str, begin: str, space: Space, hidden: int) -> Iterator[Made]:
    """Yield a state space's: the decays with their sign, the norm by group."""
    inner, rows = space.inner, space.inner + space.channels + space.heads
    yield stored.whole(f"{block}ssm_in.weight", f"{begin}in_proj.weight", [hidden, rows])
    yield stored.whole(f"{block}ssm_conv1d.weight", f"{begin}conv1d.weight", [space.taps, space.channels])
    if stored.has(f"{begin}conv1d.bias"):
        yield stored.whole(f"{block}ssm_conv1d.bias", f"{begin}conv1d.bias", [space.channels])
    yield stored.whole(f"{block}ssm_dt.bias", f"{begin}dt_bias", [space.heads])
    yield _turned(stored.whole(f"{block}ssm_a", f"{begin}A_log", [space.heads], _decays), [1, space.heads])
    yield _turned(stored.whole(f"{block}ssm_d", f"{begin}D", [space.heads]), [1, space.heads])
    if space.is_normalised:
        norm = stored.whole(f"{block}ssm_norm.weight", f"{begin}norm.weight", [inner])
        yield _turned(norm, [inner // space.groups, space.groups])
    yield stored.whole(f"{block}ssm_out.weight", f"{begin}out_proj.weight", [inner, hidden])


def _turned(tensor: Made, dims: Sequence[int]) -> Made:
    """Return a row of numbers with other dimensions."""
    return tensor._replace(dims=dims)


def _decays(values: array[float]) -> None:
    values[:] = array("f", [-math.exp(value) for value in values])
