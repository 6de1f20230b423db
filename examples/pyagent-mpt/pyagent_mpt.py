"""MPT: no positions but what each head adds to scores by distance (ALiBi). For the CPU runner, and for torch."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyagent.plugin import (
    Architecture,
    FamilyDescription,
    ForwardPass,
    ModelError,
    ModelLayers,
    ModelShape,
    Module,
    Network,
    Tensor,
    hookimpl,
)


def alibi(head: Any, distance: Any) -> Any:  # numpy's arrays, of 8 heads or another power of two
    return -(2.0 ** (-8 * (head + 1) / len(head))) * distance


class Mpt:
    name = "mpt"  # the `model_type` of its config.json

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        num_layers, num_heads, hidden = config["n_layers"], config["n_heads"], config["d_model"]
        return ModelShape(
            architecture=self.name,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden // num_heads,
            ffn_size=config["expansion_ratio"] * hidden,
            context_length=config["max_seq_len"],
            attention_scale=(hidden // num_heads) ** -0.5,
            score_functions=[alibi] * num_layers,
        )

    def load(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> Network:
        check(config)
        return MptNetwork(config, shape, layers)

    def describe(self, config: Mapping[str, Any]) -> FamilyDescription:
        check(config)
        fields = {name: config[name] for name in FIELDS}
        return FamilyDescription(config=fields, score_functions=[alibi] * config["n_layers"])


def check(config: Mapping[str, Any]) -> None:
    for name in IGNORED:
        config.get(name)
    attention = config.get("attn_config", {})
    if not attention.get("alibi", True) or attention.get("clip_qkv") or attention.get("qk_ln"):
        raise ModelError("an MPT without ALiBi, or that clips or normalises its projections", model="mpt")


FIELDS = (
    "model_type",
    "vocab_size",
    "d_model",
    "n_heads",
    "n_layers",
    "expansion_ratio",
    "max_seq_len",
    "layer_norm_epsilon",
)
IGNORED = ("embedding_fraction", "init_device", "learned_pos_emb", "no_bias", "norm_type", "tie_word_embeddings")


class Block(NamedTuple):
    attention_norm: Module
    qkv: Module
    attention_output: Module
    mlp_norm: Module
    up: Module
    down: Module


class MptNetwork:
    def __init__(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> None:
        self.head_dim = shape.head_dim
        hidden, ffn, epsilon = shape.hidden_size, shape.ffn_size, config["layer_norm_epsilon"]

        def norm(name: str) -> Module:
            return layers.layer_norm(f"transformer.{name}", hidden, epsilon)

        def linear(name: str, num_out: int, num_in: int) -> Module:
            return layers.linear(layers.tensor(f"transformer.blocks.{name}.weight", num_out, num_in))

        self.blocks = [
            Block(
                norm(f"blocks.{index}.norm_1"),
                linear(f"{index}.attn.Wqkv", 3 * hidden, hidden),
                linear(f"{index}.attn.out_proj", hidden, hidden),
                norm(f"blocks.{index}.norm_2"),
                linear(f"{index}.ffn.up_proj", ffn, hidden),
                linear(f"{index}.ffn.down_proj", hidden, ffn),
            )
            for index in range(shape.num_layers)
        ]
        embedding = layers.tensor("transformer.wte.weight", shape.vocab_size, hidden)
        self.embedding, self.output = layers.embedding(embedding), layers.linear(embedding)
        self.final_norm, self.activation = norm("norm_f"), layers.activation("gelu")

    def hidden(self, step: ForwardPass) -> Tensor:
        x = self.embedding(step.tokens)
        for index, block in enumerate(self.blocks):
            qkv = block.qkv(block.attention_norm(x)).chunk(3, -1)
            x = x + block.attention_output(
                step.attend(index, *(part.unflatten(-1, (-1, self.head_dim)) for part in qkv))
            )
            x = x + block.down(self.activation(block.up(block.mlp_norm(x))))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(self.final_norm(hidden))


@hookimpl
def pyagent_register_architectures() -> Sequence[Architecture]:
    return [Mpt()]
