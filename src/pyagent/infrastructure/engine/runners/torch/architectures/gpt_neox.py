"""GPT-NeoX and Pythia: LayerNorm, a part of each head rotated, attention and MLP beside each other on one residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import ForwardPass, ModelLayers, ModelShape, Module, Network, Tensor

_ROTARY_BASE, _ROTARY_SHARE = 10_000.0, 0.25


class GptNeoX:
    """GPT-NeoX, Pythia, and others of `model_type` gpt_neox."""

    name = "gpt_neox"

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """As `Architecture.shape`."""
        config.get("classifier_dropout")
        hidden, num_layers = config["hidden_size"], config["num_hidden_layers"]
        num_heads = config["num_attention_heads"]
        if hidden % num_heads:
            raise ModelError(
                f"config.json: hidden_size is {hidden}, no multiple of num_attention_heads, {num_heads}",
                model=self.name,
            )
        head_dim = hidden // num_heads
        return ModelShape(
            architecture=self.name,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            ffn_size=config["intermediate_size"],
            context_length=config["max_position_embeddings"],
            attention_scale=head_dim**-0.5,
            rope_frequencies=_frequencies(config, head_dim),
        )

    def load(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> Network:
        """As `Architecture.load`."""
        return _GptNeoX(config, shape, layers)


def _frequencies(config: Mapping[str, Any], head_dim: int) -> list[float]:
    """Of the first quarter of a head, where nothing else is said. Raises `ModelError` for a scaling."""
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        text = f"config.json: the rope scaling {kind!r} is not implemented for gpt_neox; expected default"
        raise ModelError(text, model="gpt_neox")
    share = rope.get("partial_rotary_factor") or config.get("rotary_pct") or _ROTARY_SHARE
    base = rope.get("rope_theta") or config.get("rotary_emb_base") or _ROTARY_BASE
    dims = int(head_dim * share)
    return [base ** -(index / dims) for index in range(0, dims, 2)]


class _Block(NamedTuple):
    attention_norm: Module
    qkv: Module
    attention_output: Module
    mlp_norm: Module
    up: Module
    down: Module


class _GptNeoX:
    def __init__(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> None:
        self._heads = (-1, shape.num_heads, shape.head_dim)
        self._is_parallel = config.get("use_parallel_residual", True)
        config.get("attention_bias")  # biases are where the file has them
        hidden, ffn, epsilon = shape.hidden_size, shape.ffn_size, config.get("layer_norm_eps", 1e-5)

        def norm(name: str) -> Module:
            return layers.layer_norm(f"gpt_neox.{name}", hidden, epsilon)

        def linear(name: str, num_out: int, num_in: int, *, is_qkv: bool = False) -> Module:
            weight, bias = layers.tensor(f"{name}.weight", num_out, num_in), None
            if layers.has(f"{name}.bias"):
                bias = layers.tensor(f"{name}.bias", num_out)
            if is_qkv:  # of each head its query, key and value: all heads' queries together, as attention takes them
                parts = (shape.num_heads, 3, shape.head_dim)
                weight = weight.unflatten(0, parts).transpose(0, 1).flatten(0, 2)
                bias = None if bias is None else bias.view(parts).transpose(0, 1).flatten()
            return layers.linear(weight, bias)

        self._blocks = [
            _Block(
                attention_norm=norm(f"layers.{index}.input_layernorm"),
                qkv=linear(f"{block}.attention.query_key_value", 3 * hidden, hidden, is_qkv=True),
                attention_output=linear(f"{block}.attention.dense", hidden, hidden),
                mlp_norm=norm(f"layers.{index}.post_attention_layernorm"),
                up=linear(f"{block}.mlp.dense_h_to_4h", ffn, hidden),
                down=linear(f"{block}.mlp.dense_4h_to_h", hidden, ffn),
            )
            for index, block in ((index, f"gpt_neox.layers.{index}") for index in range(shape.num_layers))
        ]
        embedding = layers.tensor("gpt_neox.embed_in.weight", shape.vocab_size, hidden)
        output = "lm_head" if layers.has("lm_head.weight") else "embed_out"
        is_tied = config.get("tie_word_embeddings", False)
        self._embedding = layers.embedding(embedding)
        self._output = layers.linear(embedding) if is_tied else linear(output, shape.vocab_size, hidden)
        self._activation = layers.activation(config.get("hidden_act", "gelu"))
        self._final_norm = norm("final_layer_norm")

    def hidden(self, step: ForwardPass) -> Tensor:
        x = self._embedding(step.tokens)
        for index, block in enumerate(self._blocks):
            q, k, v = block.qkv(block.attention_norm(x)).chunk(3, -1)
            heads = step.attend(index, q.view(self._heads), k.view(self._heads), v.view(self._heads))
            after = x + block.attention_output(heads)
            inside = block.up(block.mlp_norm(x if self._is_parallel else after))
            x = after + block.down(self._activation(inside))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._output(self._final_norm(hidden))
