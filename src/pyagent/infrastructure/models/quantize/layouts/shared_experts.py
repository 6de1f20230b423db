"""Experts as DeepSeek's and GLM's GGUF files have them: some for each token, one for all, and none in the first layers.

Heads that draft are layers of these behind the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, boolean, float32, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import experts, gated, size_of
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

_SOFTMAX, _SIGMOID = 1, 2
_OF_HEAD: Mapping[str, str] = {
    "enorm": "enorm",
    "hnorm": "hnorm",
    "shared_head.norm": "shared_head_norm",
}
"""What a head that drafts has besides its layer: norms."""
_TABLES_OF_HEAD: Mapping[str, str] = {"embed_tokens": "embed_tokens", "shared_head.head": "shared_head_head"}
"""And the embedding and output matrix, where they are not the decoder's."""


def experts_keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what files say of experts."""
    rating = _SIGMOID if "Sigmoid" in cast("str", model.experts) else _SOFTMAX
    found: Metadata = {
        "leading_dense_block_count": uint32(sum(model.dense_layers)),
        "expert_feed_forward_length": uint32(model.ffn_size),
        "expert_shared_count": uint32(size_of(config, "n_shared_experts")),
        "expert_weights_norm": boolean(config.get("norm_topk_prob") is True),
        "expert_gating_func": uint32(rating),
    }
    if isinstance(factor := config.get("routed_scaling_factor"), int | float):
        found["expert_weights_scale"] = float32(factor)
    for key, name in {"expert_group_count": "n_group", "expert_group_used_count": "topk_group"}.items():
        if number := size_of(config, name):
            found[key] = uint32(number)
    return found


def feed_forward(stored: Stored, layer: int, begin: str, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield a layer's block, or its experts; a head that drafts has some."""
    block, hidden = f"blk.{layer}.", model.hidden_size
    is_dense = layer < model.num_layers and (not model.num_experts or model.dense_layers[layer])
    if is_dense:
        yield from gated(stored, f"{block}ffn_", begin, (hidden, size_of(config, "intermediate_size")))
        return
    num, size = model.num_experts, (hidden, model.ffn_size)
    yield stored.whole(f"{block}ffn_gate_inp.weight", f"{begin}gate.weight", [hidden, num])
    if stored.has(correction := f"{begin}gate.e_score_correction_bias"):
        yield stored.whole(f"{block}exp_probs_b.bias", correction, [num])
    dims = {"gate_proj": size, "up_proj": size, "down_proj": size[::-1]}
    yield from experts(stored, block, f"{begin}experts.", dims, num)
    if shared := size_of(config, "n_shared_experts"):
        size = (hidden, shared * model.ffn_size)
        yield from gated(stored, f"{block}ffn_", f"{begin}shared_experts.", size, "_shexp")


def head(stored: Stored, layer: int, model: ModelConfig) -> Iterator[Made]:
    """Yield what a head that drafts has besides its layer."""
    block, begin, hidden = f"blk.{layer}.nextn.", f"{stored.begin}layers.{layer}.", model.hidden_size
    yield stored.whole(f"{block}eh_proj.weight", f"{begin}eh_proj.weight", [2 * hidden, hidden])
    for name, gguf in _OF_HEAD.items():
        yield stored.whole(f"{block}{gguf}.weight", f"{begin}{name}.weight", [hidden])
    for name, gguf in _TABLES_OF_HEAD.items():
        if stored.has(f"{begin}{name}.weight"):
            yield stored.whole(f"{block}{gguf}.weight", f"{begin}{name}.weight", [hidden, model.vocab_size])
