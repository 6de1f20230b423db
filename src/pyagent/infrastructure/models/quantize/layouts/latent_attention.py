"""DeepSeek V2 and V3 and GLM-4.7-Flash as GGUF files have them: latent attention, whose way up is two tensors.

A head's part that makes keys of a latent is turned, so that queries can be brought to latents by it; the part that
makes values is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, float32, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, size_of
from pyagent.infrastructure.models.quantize.layouts.shared_experts import USUAL, Names, experts_keys, feed_forward, head
from pyagent.infrastructure.models.quantize.layouts.stored import Columns, Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]


class _Latent(NamedTuple):
    """Sizes: a latent, what queries are compressed to (0: nothing), and a head's plain, rotated and value numbers."""

    rank: int
    queries: int
    plain: int
    rotated: int
    values: int


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what these families' files say besides: keys and values are those of one head, which all share."""
    latent = _latent(config)
    found: Metadata = {
        "block_count": uint32(model.num_layers + size_of(config, "num_nextn_predict_layers")),
        "attention.head_count_kv": uint32(1),
        "attention.kv_lora_rank": uint32(latent.rank),
        "attention.key_length": uint32(latent.rank + latent.rotated),
        "attention.value_length": uint32(latent.rank),
        "attention.key_length_mla": uint32(latent.plain + latent.rotated),
        "attention.value_length_mla": uint32(latent.values),
        "rope.dimension_count": uint32(latent.rotated),
    }
    if latent.queries:
        found["attention.q_lora_rank"] = uint32(latent.queries)
    rope = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    if isinstance(weight := rope.get("mscale_all_dim"), int | float):
        found["rope.scaling.yarn_log_multiplier"] = float32(0.1 * weight)
    if heads := size_of(config, "num_nextn_predict_layers"):
        found["nextn_predict_layers"] = uint32(heads)
    return found | (experts_keys(model) if model.num_experts else {})


def mistral4_keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what files of Mistral Small 4 say besides: how queries grow, which llama.cpp's converter leaves out."""
    growth = object_in(config, "rope_parameters").get("llama_4_scaling_beta")
    grown = {"attention.temperature_scale": float32(growth)} if isinstance(growth, int | float) else {}
    return keys(config, model) | grown


def youtu_keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what files of Youtu-LLM say besides: they are DeepSeek's, whose layers all go without experts."""
    return keys(config, model) | {
        "leading_dense_block_count": uint32(model.num_layers),
        "expert_feed_forward_length": uint32(model.ffn_size),
        "expert_shared_count": uint32(0),
    }


def minicpm3_keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what files of MiniCPM 3 say besides: keys and values are those of heads."""
    latent, heads = _latent(config), size_of(config, "num_key_value_heads", model.num_heads)
    found = {key: value for key, value in keys(config, model).items() if not key.endswith("_mla")}
    return found | {
        "attention.head_count_kv": uint32(heads),
        "attention.key_length": uint32(latent.plain + latent.rotated),
        "attention.value_length": uint32(latent.values),
    }


def mistral4_tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors of Mistral Small 4 in the order of the file to be."""
    yield from tensors(stored, config, model, Names(are_joined=True))


def minicpm3_tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors of MiniCPM 3, in which the way up from a latent stays one matrix."""
    latent, heads = _latent(config), model.num_heads
    for tensor in tensors(stored, config, model):
        if not tensor.name.endswith(("attn_k_b.weight", "attn_v_b.weight")):
            yield tensor
        elif tensor.name.endswith("attn_k_b.weight"):
            dims = [latent.rank, heads * (latent.plain + latent.values)]
            yield stored.whole(tensor.name.replace("k_b", "kv_b"), tensor.parts[0].name, dims)


def tensors(stored: Stored, config: Config, model: ModelConfig, names: Names = USUAL) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be."""
    stored.refuse_others(config, {"rope_interleave": True})
    yield embedding(stored, model)
    for layer in range(model.num_layers):
        yield from _layer(stored, layer, config, model, names)
    for layer in range(model.num_layers, model.num_layers + size_of(config, "num_nextn_predict_layers")):
        yield from _layer(stored, layer, config, model, names)
        yield from head(stored, layer, model)
    yield from ends(stored, model, "norm")


def _latent(config: Config) -> _Latent:
    names = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return _Latent(*(size_of(config, name) for name in names))


def _layer(stored: Stored, layer: int, config: Config, model: ModelConfig, names: Names) -> Iterator[Made]:
    block, begin, hidden = f"blk.{layer}.", f"{stored.begin}layers.{layer}.", model.hidden_size
    yield stored.whole(f"{block}attn_norm.weight", f"{begin}input_layernorm.weight", [hidden])
    yield from _attention(stored, f"{block}attn_", f"{begin}self_attn.", _latent(config), model)
    yield stored.whole(f"{block}ffn_norm.weight", f"{begin}post_attention_layernorm.weight", [hidden])
    yield from feed_forward(stored, layer, f"{begin}mlp.", model, names)


def _attention(stored: Stored, block: str, begin: str, latent: _Latent, model: ModelConfig) -> Iterator[Made]:
    hidden, heads = model.hidden_size, model.num_heads
    queries = heads * (latent.plain + latent.rotated)
    if latent.queries:
        yield stored.whole(f"{block}q_a.weight", f"{begin}q_a_proj.weight", [hidden, latent.queries])
        yield stored.whole(f"{block}q_a_norm.weight", f"{begin}q_a_layernorm.weight", [latent.queries])
        yield stored.whole(f"{block}q_b.weight", f"{begin}q_b_proj.weight", [latent.queries, queries])
    else:
        yield stored.whole(f"{block}q.weight", f"{begin}q_proj.weight", [hidden, queries])
    down = [hidden, latent.rank + latent.rotated]
    yield stored.whole(f"{block}kv_a_mqa.weight", f"{begin}kv_a_proj_with_mqa.weight", down)
    yield stored.whole(f"{block}kv_a_norm.weight", f"{begin}kv_a_layernorm.weight", [latent.rank])
    name, of_head = f"{begin}kv_b_proj.weight", latent.plain + latent.values
    of_keys = [Columns(name, head * of_head, latent.plain, 0, latent.rank, 1) for head in range(heads)]
    yield Made(f"{block}k_b.weight", [latent.plain, latent.rank, heads], of_keys)
    of_values = [(head * of_head + latent.plain, latent.values) for head in range(heads)]
    yield stored.cut(f"{block}v_b.weight", name, of_values, [latent.rank, latent.values, heads])
    yield stored.whole(f"{block}output.weight", f"{begin}o_proj.weight", [heads * latent.values, hidden])
