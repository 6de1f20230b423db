"""Gemma 4 as GGUF files have it: heads of two shapes, layers that share keys and values, embeddings for each layer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, booleans, float32, int32s, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, gated, size_of
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

_NORMS: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_NORMS_OF_EXPERTS: Mapping[str, str] = {
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
_GLOBAL_HEAD_DIM, _PER_LAYER_SIZE, _TURNING = 512, 256, 0.25
"""What the family has where config.json says nothing."""
_STANDING = 1e30
"""What divides the frequency of a pair that does not turn."""


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what the family's files say besides."""
    of_global, local = _global_head_dim(config, model), model.head_dim
    is_local = [window is not None for window in model.windows]
    base = object_in(object_in(config, "rope_parameters"), "sliding_attention").get("rope_theta")
    found: Metadata = {
        "attention.shared_kv_layers": uint32(size_of(config, "num_kv_shared_layers", 0)),
        "embedding_length_per_layer_input": uint32(_per_layer_size(config)),
        "attention.sliding_window_pattern": booleans(is_local),
        "attention.key_length": uint32(of_global),
        "attention.value_length": uint32(of_global),
        "attention.key_length_swa": uint32(local),
        "attention.value_length_swa": uint32(local),
        "rope.dimension_count": uint32(of_global),
        "rope.dimension_count_swa": uint32(local),
        "rope.freq_base_swa": float32(float(base) if isinstance(base, int | float) else 10_000.0),
    }
    global_heads = _global_kv_heads(config, model)
    told = (config.get("num_global_key_value_heads"), _of_global(config, "num_key_value_heads"))
    if told != (None, None):
        found["attention.head_count_kv"] = int32s([model.num_kv_heads if one else global_heads for one in is_local])
    if config.get("use_double_wide_mlp") is True:
        found["feed_forward_length"] = int32s([_ffn_size(config, model, layer) for layer in range(model.num_layers)])
    if model.num_experts:
        found |= {
            "expert_used_count": uint32(size_of(config, "top_k_experts", 0)),
            "expert_feed_forward_length": uint32(model.ffn_size),
        }
    return found


def computed(config: Config, model: ModelConfig) -> dict[str, array[float]]:
    """Return what divides the frequencies of layers that see everything: most of their pairs do not turn."""
    told = object_in(object_in(config, "rope_parameters"), "full_attention").get("partial_rotary_factor", _TURNING)
    dims = _global_head_dim(config, model)
    turning = int(dims * (told if isinstance(told, int | float) else _TURNING) / 2)
    return {"rope_freqs.weight": array("f", [1.0 if pair < turning else _STANDING for pair in range(dims // 2)])}


def tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be."""
    hidden, of_layer = model.hidden_size, _per_layer_size(config)
    yield embedding(stored, model)
    if of_layer:
        all_layers = of_layer * model.num_layers
        of_tokens = f"{stored.begin}embed_tokens_per_layer.weight"
        yield stored.whole("per_layer_token_embd.weight", of_tokens, [all_layers, model.vocab_size])
        projection = f"{stored.begin}per_layer_model_projection.weight"
        yield stored.whole("per_layer_model_proj.weight", projection, [hidden, all_layers])
        norm = f"{stored.begin}per_layer_projection_norm.weight"
        yield stored.whole("per_layer_proj_norm.weight", norm, [of_layer])
    for layer in range(model.num_layers):
        yield from _layer(stored, layer, config, model)
    yield from ends(stored, model, "norm")


def _layer(stored: Stored, layer: int, config: Config, model: ModelConfig) -> Iterator[Made]:
    block, begin, hidden = f"blk.{layer}.", f"{stored.begin}layers.{layer}.", model.hidden_size
    for name, gguf in {**_NORMS, **(_NORMS_OF_EXPERTS if model.num_experts else {})}.items():
        yield stored.whole(f"{block}{gguf}.weight", f"{begin}{name}.weight", [hidden])
    yield from _attention(stored, layer, config, model)
    inside = model.ffn_size
    if model.num_experts:
        inside = size_of(config, "intermediate_size", 0)
        yield from _experts(stored, block, begin, model)
    else:
        inside = _ffn_size(config, model, layer)
    yield from gated(stored, f"{block}ffn_", f"{begin}mlp.", (hidden, inside))
    if of_layer := _per_layer_size(config):
        yield stored.whole(f"{block}inp_gate.weight", f"{begin}per_layer_input_gate.weight", [hidden, of_layer])
        yield stored.whole(f"{block}proj.weight", f"{begin}per_layer_projection.weight", [of_layer, hidden])
        yield stored.whole(f"{block}post_norm.weight", f"{begin}post_per_layer_input_norm.weight", [hidden])
    if stored.has(f"{begin}layer_scalar"):
        yield stored.whole(f"{block}layer_output_scale.weight", f"{begin}layer_scalar", [1])


def _attention(stored: Stored, layer: int, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield a layer's matrices: some layers take keys for values, some read another's of both."""
    block, begin, hidden = f"blk.{layer}.attn_", f"{stored.begin}layers.{layer}.self_attn.", model.hidden_size
    is_local = model.windows[layer] is not None
    dims = model.head_dim if is_local else _global_head_dim(config, model)
    kv = dims * (model.num_kv_heads if is_local else _global_kv_heads(config, model))
    yield stored.whole(f"{block}q.weight", f"{begin}q_proj.weight", [hidden, model.num_heads * dims])
    yield stored.whole(f"{block}q_norm.weight", f"{begin}q_norm.weight", [dims])
    is_shared = layer >= model.num_layers - size_of(config, "num_kv_shared_layers", 0)
    if not is_shared or stored.has(f"{begin}k_proj.weight"):
        yield stored.whole(f"{block}k.weight", f"{begin}k_proj.weight", [hidden, kv])
        yield stored.whole(f"{block}k_norm.weight", f"{begin}k_norm.weight", [dims])
    takes_keys = is_shared or (not is_local and config.get("attention_k_eq_v") is True)
    if not takes_keys or stored.has(f"{begin}v_proj.weight"):
        yield stored.whole(f"{block}v.weight", f"{begin}v_proj.weight", [hidden, kv])
    yield stored.whole(f"{block}output.weight", f"{begin}o_proj.weight", [model.num_heads * dims, hidden])


def _experts(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    """Yield the experts, which both files have in two tensors, and what rates and scales them."""
    hidden, inside, num = model.hidden_size, model.ffn_size, model.num_experts
    yield stored.whole(f"{block}ffn_gate_inp.weight", f"{begin}router.proj.weight", [hidden, num])
    yield stored.whole(f"{block}ffn_gate_inp.scale", f"{begin}router.scale", [hidden])
    yield stored.whole(f"{block}ffn_down_exps.scale", f"{begin}router.per_expert_scale", [num])
    yield stored.whole(f"{block}ffn_gate_up_exps.weight", f"{begin}experts.gate_up_proj", [hidden, 2 * inside, num])
    yield stored.whole(f"{block}ffn_down_exps.weight", f"{begin}experts.down_proj", [inside, hidden, num])


def _per_layer_size(config: Config) -> int:
    key = "hidden_size_per_layer_input"
    return size_of(config, key, 0 if key in config else _PER_LAYER_SIZE)


def _ffn_size(config: Config, model: ModelConfig, layer: int) -> int:
    """Return the width inside a feed-forward block: layers that read another's keys and values may have twice of it."""
    first_shared = model.num_layers - size_of(config, "num_kv_shared_layers", 0)
    is_wide = config.get("use_double_wide_mlp") is True and layer >= first_shared
    return size_of(config, "intermediate_size", model.ffn_size) * (2 if is_wide else 1)


def _of_layers(config: Config) -> Config:
    return object_in(config, "per_layer_config")


def _of_global(config: Config, key: str) -> int | None:
    """Return what is said of the heads of the first layer that sees everything, where it is said of each layer."""
    kinds = cast("list[object]", config.get("layer_types") or [])
    layer = kinds.index("full_attention") if "full_attention" in kinds else 0
    value = object_in(_of_layers(config), str(layer)).get(key)
    return value if isinstance(value, int) else None


def _global_head_dim(config: Config, model: ModelConfig) -> int:
    if _of_layers(config):
        return _of_global(config, "head_dim") or model.head_dim
    return size_of(config, "global_head_dim", _GLOBAL_HEAD_DIM)


def _global_kv_heads(config: Config, model: ModelConfig) -> int:
    if _of_layers(config):
        return _of_global(config, "num_key_value_heads") or model.num_kv_heads
    own = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") is True else None
    return own if isinstance(own, int) else model.num_kv_heads
