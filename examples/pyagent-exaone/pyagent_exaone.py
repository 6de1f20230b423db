"""EXAONE 3: a Llama under other names, on every runner that reads Llamas."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyagent.plugin import DescribedArchitecture, FamilyDescription, hookimpl


class Exaone:
    name = "exaone"  # the `model_type` of its config.json

    def describe(self, config: Mapping[str, Any]) -> FamilyDescription:
        for name in IGNORED:
            config.get(name)
        fields = {name: config[name] for name in SAME if name in config}
        renamed = {name: config[own] for own, name in RENAMED.items()}
        return FamilyDescription(config={**fields, **renamed, "model_type": "llama"}, tensor_names=TENSORS)


SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
)
RENAMED = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
IGNORED = ("embed_dropout",)

TENSORS = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    "transformer.h.{layer}.ln_1": "model.layers.{layer}.input_layernorm",
    "transformer.h.{layer}.ln_2": "model.layers.{layer}.post_attention_layernorm",
    "transformer.h.{layer}.attn.attention": "model.layers.{layer}.self_attn",
    "transformer.h.{layer}.attn.attention.out_proj": "model.layers.{layer}.self_attn.o_proj",
    "transformer.h.{layer}.mlp.c_fc_0": "model.layers.{layer}.mlp.gate_proj",
    "transformer.h.{layer}.mlp.c_fc_1": "model.layers.{layer}.mlp.up_proj",
    "transformer.h.{layer}.mlp.c_proj": "model.layers.{layer}.mlp.down_proj",
}


@hookimpl
def pyagent_register_architectures() -> Sequence[DescribedArchitecture]:
    return [Exaone()]
