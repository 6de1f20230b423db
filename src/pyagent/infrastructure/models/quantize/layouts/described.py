"""Families whose layers differ in names, norms and insides alone, as GGUF files have them: a table for each.

What is not there in the first layer of a folder, of biases and of norms of heads, none may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, boolean, booleans, float32, string, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, linear, paired, size_of
from pyagent.infrastructure.models.quantize.layouts.shared_experts import (
    Names,
    experts_keys,
    feed_forward,
    routing_keys,
)
from pyagent.infrastructure.models.quantize.layouts.stored import Change, Made, Runs, Stored, plus_one

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

_OF_HEADS = ("attn_q_norm", "attn_k_norm")
_LLAMA: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of a layer's tensors, and what folders of most families call them."""


def _parts(without: str = "", **other: str) -> Mapping[str, str]:
    """Return Llama's names without some, and with others."""
    return {part: name for part, name in {**_LLAMA, **other}.items() if part not in without.split()}


def _nothing(_config: Config, _model: ModelConfig) -> Metadata:
    return {}


def _all_the_same(_model: ModelConfig) -> Mapping[str, object]:
    return {}


class Described(NamedTuple):
    """What GGUF files call a family, and what its folders call the parts of a layer and what lies around the layers."""

    name: str
    parts: Mapping[str, str] = _LLAMA
    keys: Callable[[Config, ModelConfig], Metadata] = _nothing
    embedding: str = "embed_tokens"
    norm: str = "norm"
    output: str = "lm_head"
    experts: Names | None = None
    block: str = "mlp."
    """What names of a feed-forward block begin with, of families with experts."""
    expected: Callable[[ModelConfig], Mapping[str, object]] = _all_the_same
    """What `config.json` has to say, where files lack a key."""
    has_layer_norms: bool = False
    is_paired: bool = False
    """Whether queries' and keys' rows get the order in which pairs are neighbours."""
    shares_norm: str = ""
    """The setting by which a layer has one norm."""
    change: Change | None = None
    """What norms of the stream become."""

    def all_keys(self, config: Config, model: ModelConfig) -> Metadata:
        """Return what the family's files say besides."""
        found = {"attention.layer_norm_epsilon": float32(model.norm_epsilon)} if self.has_layer_norms else {}
        if self.experts is not None:
            found |= experts_keys(model) if self.experts.shared else routing_keys(model)
        return found | self.keys(config, model)

    def tensors(self, stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
        """Yield the tensors in the order of the file to be."""
        stored.refuse_others(config, self.expected(model))
        yield embedding(stored, model, self.embedding)
        for layer in range(model.num_layers):
            yield from self._layer(stored, layer, config, model)
        hidden = model.hidden_size
        if self.norm:
            yield from linear(stored, "output_norm", f"{stored.begin}{self.norm}", [hidden], change=self.change)
        if not model.is_output_tied:
            yield from linear(stored, "output", self._output_name(stored), [hidden, model.vocab_size])

    def _output_name(self, stored: Stored) -> str:
        """Return what the output matrix is called, also where the decoder is the text half of a Llama 4."""
        of_half = f"language_model.{self.output}"
        return of_half if stored.has(f"{of_half}.weight") else self.output

    def _layer(self, stored: Stored, layer: int, config: Config, model: ModelConfig) -> Iterator[Made]:
        begin, first = (f"{stored.begin}layers.{one}." for one in (layer, 0))
        for part, name in self.parts.items():
            is_of_heads = part in _OF_HEADS
            if is_of_heads and not stored.has(f"{first}{name}.weight"):
                continue
            if stored.has(bias := f"{begin}{name}.bias") != stored.has(f"{first}{name}.bias"):
                stored.refuse(f"tensor '{bias}' is in some layers alone; the folder is incomplete")
            if part == "ffn_norm" and config.get(self.shares_norm) is True:
                continue
            dims, gguf = _dims(part, name, model), f"blk.{layer}.{part}"
            is_norm = len(dims) == 1
            runs = None if is_norm else self._rows(part, model)
            change = self.change if is_norm and not is_of_heads else None
            yield from linear(stored, gguf, f"{begin}{name}", dims, runs=runs, change=change)
        if self.experts is not None:
            yield from feed_forward(stored, layer, f"{begin}{self.block}", model, self.experts)

    def _rows(self, part: str, model: ModelConfig) -> Runs | None:
        """Return the order of a matrix's rows, if it is another."""
        size = model.head_dim
        if part == "attn_qkv":  # a head has its query, key and value together
            return [((3 * head + kind) * size, size) for kind in range(3) for head in range(model.num_heads)]
        heads = {"attn_q": model.num_heads, "attn_k": model.num_kv_heads}
        return paired(heads[part], size) if self.is_paired and part in heads else None


def _dims(part: str, name: str, model: ModelConfig) -> Sequence[int]:
    """Return a part's dimensions: those of a norm of the stream, where it is no other."""
    hidden, inside = model.hidden_size, model.ffn_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    is_wide = model.is_qk_norm_wide
    dims = {
        "attn_q": [hidden, queries],
        "attn_gate": [hidden, queries],
        "attn_k": [hidden, keys],
        "attn_v": [hidden, keys],
        "attn_qkv": [hidden, queries + 2 * keys],
        "attn_q_norm": [queries if is_wide else model.head_dim],
        "attn_k_norm": [keys if is_wide else model.head_dim],
        "attn_output": [queries, hidden],
        "ffn_gate": [hidden, inside],
        "ffn_up": [hidden, inside * (2 if name.endswith("gate_up_proj") else 1)],
        "ffn_down": [inside, hidden],
    }
    return dims.get(part, [hidden])


def _without_scaling(_config: Config, _model: ModelConfig) -> Metadata:
    return {"rope.scaling.type": string("none")}


def _hunyuan(config: Config, model: ModelConfig) -> Metadata:
    """Say what base Hunyuan's rotary positions have, whatever a text's length."""
    rope = object_in(config, "rope_parameters") or object_in(config, "rope_scaling")
    base, alpha = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0, rope.get("alpha")
    if not isinstance(base, int | float) or not isinstance(alpha, int | float) or alpha <= 0 or model.head_dim <= 2:
        return {}
    scaled = base * alpha ** (model.head_dim / (model.head_dim - 2))
    return {"rope.freq_base": float32(scaled), "rope.scaling.type": string("none"), "rope.scaling.factor": float32(1)}


def _ernie(config: Config, model: ModelConfig) -> Metadata:
    return {"interleave_moe_layer_step": uint32(size_of(config, "moe_layer_interval", 1))} if model.num_experts else {}


def _cohere(config: Config, model: ModelConfig) -> Metadata:
    return _without_scaling(config, model) | {"logit_scale": float32(1 / model.logit_divisor)}


def _minicpm(_config: Config, model: ModelConfig) -> Metadata:
    return {
        "embedding_scale": float32(model.embedding_scale),
        "residual_scale": float32(model.residual_scale),
        "logit_scale": float32(model.logit_divisor),
    }


def _exaone(config: Config, model: ModelConfig) -> Metadata:
    """Say which layers have a window."""
    windows = [window is not None for window in model.windows]
    return _without_scaling(config, model) | {
        "attention.sliding_window_pattern": booleans(windows),
        "nextn_predict_layers": uint32(0),
    }


_PARALLEL = "use_parallel_residual"


def _stablelm(config: Config, _model: ModelConfig) -> Metadata:
    return {_PARALLEL: boolean(config.get(_PARALLEL) is True)}


def _neox(config: Config, _model: ModelConfig) -> Metadata:
    return {_PARALLEL: boolean(config.get(_PARALLEL, True) is True)}


_MAVERICK = 128
"""Experts of the Llama 4 whose queries and keys are not normalised, by which files tell it apart."""


def _llama4(config: Config, model: ModelConfig) -> Metadata:
    """Say how wide blocks without experts are, and every which layer has some."""
    return {
        "feed_forward_length": uint32(size_of(config, "intermediate_size_mlp", model.ffn_size)),
        "interleave_moe_layer_step": uint32(size_of(config, "interleave_moe_layer_step", 1)),
    }


def _as_llama4_is(model: ModelConfig) -> Mapping[str, object]:
    return {"use_qk_norm": model.num_experts != _MAVERICK}


_BLOCK = "ffn_gate ffn_up ffn_down"
_WITH_EXPERTS = _parts(_BLOCK)
_AFTER_ROPE = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_GLM4 = {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
_AFMOE = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_mlp_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "attn_gate": "self_attn.gate_proj",
}
_NEOX = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_PHI = {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
DESCRIBED: Mapping[str, Described] = {
    "ernie4_5": Described("ernie4_5"),
    "ernie4_5_moe": Described(
        "ernie4_5-moe", _WITH_EXPERTS, _ernie, experts=Names(correction="moe_statics.e_score_correction_bias")
    ),
    "hunyuan_v1_dense": Described("hunyuan-dense", _parts(**_AFTER_ROPE), _hunyuan),
    "hunyuan_v1_moe": Described(
        "hunyuan-moe", _parts(_BLOCK, **_AFTER_ROPE), _hunyuan, experts=Names("gate.wg", shared="shared_mlp")
    ),
    "cohere": Described("command-r", _parts("ffn_norm"), _cohere, has_layer_norms=True),
    "cohere2": Described("cohere2", _parts("ffn_norm"), _cohere, has_layer_norms=True),
    "starcoder2": Described(
        "starcoder2", _parts("ffn_gate", ffn_up="mlp.c_fc", ffn_down="mlp.c_proj"), has_layer_norms=True
    ),
    "glm": Described("chatglm", _parts("ffn_gate", ffn_up="mlp.gate_up_proj")),
    "glm4": Described("glm4", _parts("ffn_gate", ffn_up="mlp.gate_up_proj", **_GLM4)),
    "minicpm": Described("minicpm", keys=_minicpm, is_paired=True),
    "gemma": Described("gemma", change=plus_one),
    "arcee": Described("arcee", _parts("ffn_gate"), is_paired=True),
    "internlm3": Described("llama", is_paired=True),
    "phi": Described("phi2", _parts("ffn_norm ffn_gate", **_PHI), norm="final_layernorm", has_layer_norms=True),
    "stablelm": Described("stablelm", keys=_stablelm, has_layer_norms=True, shares_norm=_PARALLEL),
    "nemotron": Described("nemotron", _parts("ffn_gate"), _without_scaling, has_layer_norms=True, change=plus_one),
    "olmo": Described("olmo", _parts("attn_norm ffn_norm"), norm="", has_layer_norms=True, is_paired=True),
    "gpt_neox": Described("gptneox", _NEOX, _neox, "embed_in", "final_layer_norm", "embed_out", has_layer_norms=True),
    "llama4": Described(
        "llama4",
        _WITH_EXPERTS,
        _llama4,
        experts=Names("router", shared="shared_expert", are_turned=True),
        block="feed_forward.",
        expected=_as_llama4_is,
    ),
    "dots1": Described("dots1", _WITH_EXPERTS, experts=Names()),
    "jais2": Described("jais2", _parts("ffn_gate"), has_layer_norms=True),
    "iquestcoder": Described("llama", is_paired=True),
    "hy_v3": Described(
        "hy_v3", _WITH_EXPERTS, experts=Names("router.gate", "expert_bias", "shared_mlp", written="exp_probs_b")
    ),
    "minimax_m2": Described(
        "minimax-m2",
        _WITH_EXPERTS,
        experts=Names(correction="e_score_correction_bias", shared="", matrices=("w1", "w3", "w2")),
        block="block_sparse_moe.",
    ),
    "exaone_moe": Described("exaone-moe", _WITH_EXPERTS, _exaone, experts=Names(correction="e_score_correction_bias")),
    "afmoe": Described("afmoe", _parts(_BLOCK, **_AFMOE), experts=Names("router.gate", "expert_bias")),
}
"""By `model_type`."""
