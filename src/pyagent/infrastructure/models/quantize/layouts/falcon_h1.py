"""Falcon-H1 as GGUF files have it: its factors on parts of a layer (arXiv 2507.22448) are in the weights.

The engine has two layers for each of the folder's: a state space, and attention beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, number_of, size_of
from pyagent.infrastructure.models.quantize.layouts.state_spaces import Space, mixer, space_keys
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored, scaled

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

IN_WEIGHTS = frozenset({"attention_scale", "embedding_scale", "logit_divisor"})
"""What a file has in its weights, where a folder says it beside them."""
_TIED = ("embedding_multiplier", "lm_head_multiplier")


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what the family's files say besides."""
    return {"block_count": uint32(model.num_layers // 2), **space_keys(_space(config))}


def tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be."""
    of_tokens, of_logits = (number_of(config, name) for name in _TIED)
    if model.is_output_tied and of_tokens != of_logits:
        why = f"its '{_TIED[0]}' and '{_TIED[1]}' cannot be written as GGUF, where embedding and output are one matrix"
        stored.refuse(f"{why}: they are {of_tokens} and {of_logits}")
    hidden = model.hidden_size
    yield scaled(embedding(stored, model), of_tokens)
    for layer in range(model.num_layers // 2):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}."
        yield stored.whole(f"{block}attn_norm.weight", f"{begin}input_layernorm.weight", [hidden])
        yield from _mixer(stored, block, f"{begin}mamba.", config, hidden)
        yield from _attention(stored, f"{block}attn_", f"{begin}self_attn.", config, model)
        yield stored.whole(f"{block}ffn_norm", f"{begin}pre_ff_layernorm.weight", [hidden])
        yield from _feed_forward(stored, f"{block}ffn_", f"{begin}feed_forward.", config, model)
    yield stored.whole("output_norm.weight", f"{stored.begin}final_layernorm.weight", [hidden])
    if not model.is_output_tied:
        yield scaled(stored.whole("output.weight", "lm_head.weight", [hidden, model.vocab_size]), of_logits)


def _space(config: Config) -> Space:
    heads = size_of(config, "mamba_n_heads", 128)
    inner = size_of(config, "mamba_d_ssm", 1024)
    if config.get("mamba_d_ssm", 0) is None:
        inner = size_of(config, "hidden_size") * size_of(config, "mamba_expand", 2)
    groups, states = size_of(config, "mamba_n_groups", 1), size_of(config, "mamba_d_state", 256)
    taps, is_normalised = size_of(config, "mamba_d_conv", 4), config.get("mamba_rms_norm") is True
    return Space(heads, inner // max(1, heads), groups, states, taps, is_normalised)


def _factors(config: Config, key: str, num: int) -> Sequence[float]:
    """Return factors of `config.json`, which the engine has read."""
    said = config.get(key)
    return cast("list[float]", said) if isinstance(said, list) else [1.0] * num


def _mixer(stored: Stored, block: str, begin: str, config: Config, hidden: int) -> Iterator[Made]:
    """Yield the state space's; each kind of rows of its projection in has a factor."""
    space = _space(config)
    group = space.groups * space.state_size
    sizes = (space.inner, space.inner, group, group, space.heads)
    of_all, of_kinds = number_of(config, "ssm_in_multiplier"), _factors(config, "ssm_multipliers", len(sizes))
    for tensor in mixer(stored, block, begin, space, hidden):
        if tensor.name.endswith("ssm_in.weight"):
            kinds = [(sum(sizes[:place]), size) for place, size in enumerate(sizes)]
            whole = stored.cut(tensor.name, f"{begin}in_proj.weight", kinds, tensor.dims)
            parts = [
                part
                for place, one in enumerate(whole.parts)
                for part in scaled(whole._replace(parts=[one]), of_all, of_kinds[place]).parts
            ]
            yield whole._replace(parts=parts)
        elif tensor.name.endswith("ssm_out.weight"):
            yield scaled(tensor, number_of(config, "ssm_out_multiplier"))
        else:
            yield tensor


def _attention(stored: Stored, block: str, begin: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    hidden, queries, size = model.hidden_size, model.num_heads * model.head_dim, model.head_dim
    of_input, of_keys = number_of(config, "attention_in_multiplier"), number_of(config, "key_multiplier")
    heads = {"q": model.num_heads, "k": model.num_kv_heads, "v": model.num_kv_heads}
    for name, num in heads.items():
        factors = (of_keys, of_input) if name == "k" else (of_input,)
        whole = stored.whole(f"{block}{name}.weight", f"{begin}{name}_proj.weight", [hidden, num * size])
        yield scaled(whole, *factors)
    output = stored.whole(f"{block}output.weight", f"{begin}o_proj.weight", [queries, hidden])
    yield scaled(output, number_of(config, "attention_out_multiplier"))


def _feed_forward(stored: Stored, block: str, begin: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    gate, down = _factors(config, "mlp_multipliers", 2)
    size = (model.hidden_size, model.ffn_size)
    factors = {"gate": (size, gate), "up": (size, 1.0), "down": (size[::-1], down)}
    for name, (dims, factor) in factors.items():
        yield scaled(stored.whole(f"{block}{name}.weight", f"{begin}{name}_proj.weight", dims), factor)
