"""IBM Granite 3 on the torch runner: a Llama whose embeddings, blocks and logits have factors."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyagent.plugin import Architecture, ForwardPass, ModelLayers, ModelShape, Module, Network, Tensor, hookimpl


class Granite:
    name = "granite"  # the `model_type` of its config.json

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        num_layers, num_heads, hidden = (config[name] for name in SIZES)
        head_dim = hidden // num_heads
        rope = config.get("rope_parameters", {})
        base = rope.get("rope_theta") or config.get("rope_theta", 10_000.0)
        return ModelShape(
            architecture=self.name,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads", num_heads),
            head_dim=head_dim,
            ffn_size=config["intermediate_size"],
            context_length=config["max_position_embeddings"],
            attention_scale=config["attention_multiplier"],
            rope_frequencies=[base ** -(index / head_dim) for index in range(0, head_dim, 2)],
        )

    def load(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> Network:
        return GraniteNetwork(config, shape, layers)


SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")


class Block(NamedTuple):
    attention_norm: Module
    q: Module
    k: Module
    v: Module
    attention_output: Module
    mlp_norm: Module
    gate: Module
    up: Module
    down: Module


class GraniteNetwork:
    def __init__(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> None:
        self.head_dim = shape.head_dim
        self.embedding_factor, self.block_factor = config["embedding_multiplier"], config["residual_multiplier"]
        self.logits_factor = 1 / config["logits_scaling"]
        hidden, ffn, epsilon = shape.hidden_size, shape.ffn_size, config["rms_norm_eps"]
        heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim

        def norm(name: str) -> Module:
            return layers.rms_norm(f"model.{name}.weight", hidden, epsilon)

        def linear(name: str, num_out: int, num_in: int) -> Module:
            name = f"model.layers.{name}"
            bias = layers.tensor(f"{name}.bias", num_out) if layers.has(f"{name}.bias") else None
            return layers.linear(layers.tensor(f"{name}.weight", num_out, num_in), bias)

        self.blocks = [
            Block(
                norm(f"layers.{index}.input_layernorm"),
                linear(f"{index}.self_attn.q_proj", heads, hidden),
                linear(f"{index}.self_attn.k_proj", kv_heads, hidden),
                linear(f"{index}.self_attn.v_proj", kv_heads, hidden),
                linear(f"{index}.self_attn.o_proj", hidden, heads),
                norm(f"layers.{index}.post_attention_layernorm"),
                linear(f"{index}.mlp.gate_proj", ffn, hidden),
                linear(f"{index}.mlp.up_proj", ffn, hidden),
                linear(f"{index}.mlp.down_proj", hidden, ffn),
            )
            for index in range(shape.num_layers)
        ]
        embedding = layers.tensor("model.embed_tokens.weight", shape.vocab_size, hidden)
        is_tied = config["tie_word_embeddings"]
        output = embedding if is_tied else layers.tensor("lm_head.weight", shape.vocab_size, hidden)
        self.embedding, self.output = layers.embedding(embedding), layers.linear(output)
        self.final_norm, self.activation = norm("norm"), layers.activation(config["hidden_act"])

    def hidden(self, step: ForwardPass) -> Tensor:
        x = self.embedding(step.tokens) * self.embedding_factor
        for index, block in enumerate(self.blocks):
            normed = block.attention_norm(x)
            q, k, v = (part(normed).unflatten(-1, (-1, self.head_dim)) for part in (block.q, block.k, block.v))
            x = x + block.attention_output(step.attend(index, q, k, v)) * self.block_factor
            normed = block.mlp_norm(x)
            x = x + block.down(self.activation(block.gate(normed)) * block.up(normed)) * self.block_factor
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(self.final_norm(hidden)) * self.logits_factor


@hookimpl
def pyagent_register_architectures() -> Sequence[Architecture]:
    return [Granite()]
