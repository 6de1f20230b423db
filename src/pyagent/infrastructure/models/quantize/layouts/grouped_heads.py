"""GLM-4.5 as GGUF files have it: attention with biases, experts, and a head that drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, linear, size_of
from pyagent.infrastructure.models.quantize.layouts.shared_experts import experts_keys, feed_forward, head
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what the family's files say besides."""
    heads = size_of(config, "num_nextn_predict_layers")
    found: Metadata = {"block_count": uint32(model.num_layers + heads), "nextn_predict_layers": uint32(heads)}
    return found | experts_keys(model)


def tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be."""
    hidden = model.hidden_size
    yield embedding(stored, model)
    for layer in range(model.num_layers + size_of(config, "num_nextn_predict_layers")):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}."
        yield stored.whole(f"{block}attn_norm.weight", f"{begin}input_layernorm.weight", [hidden])
        yield from _attention(stored, f"{block}attn_", f"{begin}self_attn.", model)
        yield stored.whole(f"{block}post_attention_norm.weight", f"{begin}post_attention_layernorm.weight", [hidden])
        yield from feed_forward(stored, layer, f"{begin}mlp.", model)
        if layer >= model.num_layers:
            yield from head(stored, layer, model)
    yield from ends(stored, model, "norm")


def _attention(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    """Yield attention's matrices with their biases, and the norms of heads, where there are any."""
    hidden, queries, kv = model.hidden_size, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    for name, rows in {"q": queries, "k": kv, "v": kv}.items():
        yield from linear(stored, f"{block}{name}", f"{begin}{name}_proj", [hidden, rows])
        if stored.has(norm := f"{begin}{name}_norm.weight"):
            yield stored.whole(f"{block}{name}_norm.weight", norm, [model.head_dim])
    yield stored.whole(f"{block}output.weight", f"{begin}o_proj.weight", [queries, hidden])
