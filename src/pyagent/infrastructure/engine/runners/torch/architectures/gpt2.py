"""GPT-2: learned positions, LayerNorm before each block, biases everywhere, matrices stored the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import ForwardPass, ModelLayers, ModelShape, Module, Network, Tensor

_IGNORED = ("attn_pdrop", "n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout")
_IGNORED_TOO = ("summary_proj_to_labels", "summary_type", "summary_use_proj")
_EXPECTED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


class Gpt2:
    """GPT-2, and DistilGPT-2."""

    name = "gpt2"

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """As `Architecture.shape`."""
        for field in (*_IGNORED, *_IGNORED_TOO):
            config.get(field)
        for field, expected in _EXPECTED.items():
            if config.get(field, expected) is not expected:
                text = f"config.json: {field!r} is not implemented for gpt2; expected {str(expected).lower()}"
                raise ModelError(text, model=self.name)
        hidden, num_layers, num_heads = config["n_embd"], config["n_layer"], config["n_head"]
        if hidden % num_heads:
            raise ModelError(f"config.json: n_embd is {hidden}, no multiple of n_head, {num_heads}", model=self.name)
        head_dim = hidden // num_heads
        return ModelShape(
            architecture=self.name,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            ffn_size=config.get("n_inner") or 4 * hidden,
            context_length=config["n_positions"],
            attention_scale=head_dim**-0.5,
        )

    def load(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> Network:
        """As `Architecture.load`."""
        prefix = "" if layers.has("wte.weight") else "transformer."
        return _Gpt2(config, shape, layers, prefix)


class _Block(NamedTuple):
    attention_norm: Module
    qkv: Module
    attention_output: Module
    mlp_norm: Module
    up: Module
    down: Module


class _Gpt2:
    def __init__(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers, prefix: str) -> None:
        self._heads = (-1, shape.num_heads, shape.head_dim)
        hidden, ffn, epsilon = shape.hidden_size, shape.ffn_size, config.get("layer_norm_epsilon", 1e-5)

        def norm(name: str) -> Module:
            return layers.layer_norm(f"{prefix}{name}", hidden, epsilon)

        def linear(name: str, num_in: int, num_out: int) -> Module:
            weight = layers.tensor(f"{prefix}{name}.weight", num_in, num_out).T.contiguous()
            return layers.linear(weight, layers.tensor(f"{prefix}{name}.bias", num_out))

        self._blocks = [
            _Block(
                attention_norm=norm(f"h.{index}.ln_1"),
                qkv=linear(f"h.{index}.attn.c_attn", hidden, 3 * hidden),
                attention_output=linear(f"h.{index}.attn.c_proj", hidden, hidden),
                mlp_norm=norm(f"h.{index}.ln_2"),
                up=linear(f"h.{index}.mlp.c_fc", hidden, ffn),
                down=linear(f"h.{index}.mlp.c_proj", ffn, hidden),
            )
            for index in range(shape.num_layers)
        ]
        embedding = layers.tensor(f"{prefix}wte.weight", shape.vocab_size, hidden)
        is_tied = config.get("tie_word_embeddings", True)
        output = embedding if is_tied else layers.tensor("lm_head.weight", shape.vocab_size, hidden)
        self._embedding, self._output = layers.embedding(embedding), layers.linear(output)
        self._position = layers.embedding(layers.tensor(f"{prefix}wpe.weight", shape.context_length, hidden))
        self._activation = layers.activation(config.get("activation_function", "gelu_new"))
        self._final_norm = norm("ln_f")

    def hidden(self, step: ForwardPass) -> Tensor:
        x = self._embedding(step.tokens) + self._position(step.positions)
        for index, block in enumerate(self._blocks):
            q, k, v = block.qkv(block.attention_norm(x)).chunk(3, -1)
            heads = step.attend(index, q.view(self._heads), k.view(self._heads), v.view(self._heads))
            x = x + block.attention_output(heads)
            x = x + block.down(self._activation(block.up(block.mlp_norm(x))))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._output(self._final_norm(hidden))
