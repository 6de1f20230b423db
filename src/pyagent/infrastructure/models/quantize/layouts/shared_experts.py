"""Experts as DeepSeek's and GLM's GGUF files have them: some for each token, one for all, and none in the first layers.

Heads that draft are layers of these behind the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, boolean, float32, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import experts, gated, turned
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ExpertsConfig, ModelConfig

_SOFTMAX, _SIGMOID = 1, 2
"""llama.cpp's numbers of how experts are rated."""
_OF_HEAD: Mapping[str, str] = {
    "enorm": "enorm",
    "hnorm": "hnorm",
    "shared_head.norm": "shared_head_norm",
}
"""What a head that drafts has besides its layer: norms."""
_TABLES_OF_HEAD: Mapping[str, str] = {"embed_tokens": "embed_tokens", "shared_head.head": "shared_head_head"}
"""And the embedding and output matrix, where they are not the decoder's."""


class Names(NamedTuple):
    """What folders of a family call what rates experts, the correction of ratings, and the expert that all share."""

    router: str = "gate"
    correction: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts"
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    are_joined: bool = False
    """Whether all experts of a layer lie in two tensors in files too."""
    are_turned: bool = False
    """Whether all experts of a layer lie in two tensors, gates before ups, with their columns as rows."""
    written: str = "exp_probs_b.bias"
    """What files call the correction."""


USUAL = Names()
"""DeepSeek's and GLM's."""


def experts_keys(model: ModelConfig) -> Metadata:
    """Return what files say of experts, of families that may have layers without some, or one that all tokens share."""
    shared = _told(model).shared_size
    return routing_keys(model) | {
        "leading_dense_block_count": uint32([*model.dense_layers, False].index(False)),
        "expert_shared_count": uint32(shared // model.ffn_size),
        "expert_shared_feed_forward_length": uint32(shared),
    }


def routing_keys(model: ModelConfig) -> Metadata:
    """Return what files say of how experts are chosen and weighed."""
    told = _told(model)
    found: Metadata = {
        "expert_used_count": uint32(told.num_used),
        "expert_feed_forward_length": uint32(model.ffn_size),
        "expert_weights_norm": boolean(told.is_renormalised),
        "expert_weights_scale": float32(told.weight_scale),
        "expert_gating_func": uint32(_SIGMOID if told.is_rated_by_sigmoid else _SOFTMAX),
    }
    if told.num_groups > 1:
        found["expert_group_count"] = uint32(told.num_groups)
        found["expert_group_used_count"] = uint32(told.num_used_groups)
    return found


def _told(model: ModelConfig) -> ExpertsConfig:
    """Return what the engine says of a mixture's experts."""
    return cast("ExpertsConfig", model.experts)


def feed_forward(stored: Stored, layer: int, begin: str, model: ModelConfig, names: Names = USUAL) -> Iterator[Made]:
    """Yield a layer's block, or its experts; a head that drafts has some."""
    block, hidden, num = f"blk.{layer}.", model.hidden_size, model.num_experts
    if layer < model.num_layers and (not num or model.dense_layers[layer]):
        inside = _told(model).dense_size if num else model.ffn_size
        yield from gated(stored, f"{block}ffn_", begin, (hidden, inside))
        return
    yield stored.whole(f"{block}ffn_gate_inp.weight", f"{begin}{names.router}.weight", [hidden, num])
    if stored.has(correction := f"{begin}{names.correction}"):
        dims = [num, *(1 for _ in stored.dims(correction)[1:])]  # ERNIE's is a row of a matrix
        yield stored.whole(f"{block}{names.written}", correction, dims)
    size = (hidden, model.ffn_size)
    if names.are_joined:
        gates, downs = [size[0], 2 * size[1], num], [*size[::-1], num]
        yield stored.whole(f"{block}ffn_gate_up_exps.weight", f"{begin}experts.gate_up_proj", gates)
        yield stored.whole(f"{block}ffn_down_exps.weight", f"{begin}experts.down_proj", downs)
    elif names.are_turned:
        yield from _turned(stored, block, f"{begin}experts.", size, num)
    else:
        dims = dict(zip(names.matrices, (size, size, size[::-1]), strict=True))
        yield from experts(stored, block, f"{begin}experts.", dims, num)
    if shared := _told(model).shared_size:
        yield from gated(stored, f"{block}ffn_", f"{begin}{names.shared}.", (hidden, shared), "_shexp")


def _turned(stored: Stored, block: str, begin: str, size: tuple[int, int], num: int) -> Iterator[Made]:
    hidden, inside = size
    for place, name in enumerate(("gate", "up")):
        columns = (place * inside, inside, 1)
        yield turned(f"{block}ffn_{name}_exps.weight", f"{begin}gate_up_proj", hidden, columns, num)
    yield turned(f"{block}ffn_down_exps.weight", f"{begin}down_proj", inside, (0, hidden, 1), num)


def head(stored: Stored, layer: int, model: ModelConfig) -> Iterator[Made]:
    """Yield what a head that drafts has besides its layer."""
    block, begin, hidden = f"blk.{layer}.nextn.", f"{stored.begin}layers.{layer}.", model.hidden_size
    yield stored.whole(f"{block}eh_proj.weight", f"{begin}eh_proj.weight", [2 * hidden, hidden])
    for name, gguf in _OF_HEAD.items():
        yield stored.whole(f"{block}{gguf}.weight", f"{begin}{name}.weight", [hidden])
    for name, gguf in _TABLES_OF_HEAD.items():
        if stored.has(f"{begin}{name}.weight"):
            yield stored.whole(f"{block}{gguf}.weight", f"{begin}{name}.weight", [hidden, model.vocab_size])
