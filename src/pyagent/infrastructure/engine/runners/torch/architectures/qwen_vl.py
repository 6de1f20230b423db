"""The text half of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2's or Qwen3's layers, rotary positions of three numbers.

A position is a frame, a row and a column, and each frequency turns by one of them (M-RoPE). In text all three are the
token's place, so that prompts of text alone are computed whole; pictures are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyagent.core.errors import ModelError
from pyagent.core.runners.architecture import ForwardPass, ModelLayers, ModelShape, Module, Network, Tensor

_OF_PICTURES = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "vision_token_id",
)  # fmt: skip
_OF_WINDOWS = ("sliding_window", "max_window_layers", "attention_bias")
_ROPE_FIELDS = {"rope_type", "type", "rope_theta", "mrope_section", "mrope_interleaved"}


class QwenVl:
    """One of the three, by what `config.json` calls it."""

    def __init__(
        self, name: str, base: float, sections: Sequence[int], *, is_interleaved: bool = False, has_head_norms: bool
    ) -> None:
        """With the family's defaults of the rotary base and of the sections of a head's frequencies."""
        self.name = name
        self._base, self._sections = base, sections
        self._is_interleaved, self._has_head_norms = is_interleaved, has_head_norms

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """As `Architecture.shape`."""
        for field in (*_OF_PICTURES, *_OF_WINDOWS):
            config.get(field)
        kinds: Sequence[str] = config.get("layer_types") or ()
        if config.get("use_sliding_window") or any(kind != "full_attention" for kind in kinds):
            raise ModelError(f"config.json: sliding windows are not implemented for {self.name}", model=self.name)
        hidden, num_heads = config["hidden_size"], config["num_attention_heads"]
        head_dim = config.get("head_dim") or hidden // num_heads
        rope = self._rope(config)
        base = rope.get("rope_theta") or config.get("rope_theta") or self._base
        return ModelShape(
            architecture=self.name,
            vocab_size=config["vocab_size"],
            hidden_size=hidden,
            num_layers=config["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=head_dim,
            ffn_size=config["intermediate_size"],
            context_length=config["max_position_embeddings"],
            attention_scale=head_dim**-0.5,
            rope_frequencies=[base ** -(index / head_dim) for index in range(0, head_dim, 2)],
            rope_axes=self._axes(rope.get("mrope_section") or self._sections, head_dim // 2),
        )

    def load(self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers) -> Network:
        """As `Architecture.load`."""
        return _QwenVl(config, shape, layers, has_head_norms=self._has_head_norms)

    def _rope(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the table of rotary parameters. Raises `ModelError` for what it says besides sections."""
        older = config.get("rope_scaling")
        rope: dict[str, Any] = config.get("rope_parameters") or older or {}
        kind = rope.get("rope_type") or rope.get("type") or "default"
        is_interleaved = rope.get("mrope_interleaved", self._is_interleaved)
        others = [name for name in rope if name not in _ROPE_FIELDS]
        if kind not in {"default", "mrope"} or others or is_interleaved != self._is_interleaved:
            what = f"the rope scaling {kind!r} with {', '.join(others or ['mrope_interleaved'])}"
            text = f"config.json: {what} is not implemented for {self.name}; expected mrope_section and rope_theta"
            raise ModelError(text, model=self.name)
        return rope

    def _axes(self, sections: Sequence[int], num_frequencies: int) -> list[int]:
        """Return which of a position's three numbers each frequency turns by: in sections, or in turn."""
        if len(sections) != 3 or sum(sections) != num_frequencies:
            text = f"config.json: mrope_section is {sections!r}; expected three numbers whose sum is {num_frequencies}"
            raise ModelError(text, model=self.name)
        if not self._is_interleaved:
            return [axis for axis, length in enumerate(sections) for _ in range(length)]
        return [index % 3 if index < 3 * sections[index % 3] else 0 for index in range(num_frequencies)]


class _Block(NamedTuple):
    attention_norm: Module
    qkv: Module
    head_norms: tuple[Module, Module] | None
    attention_output: Module
    mlp_norm: Module
    gate_up: Module
    down: Module


class _QwenVl:
    def __init__(
        self, config: Mapping[str, Any], shape: ModelShape, layers: ModelLayers, *, has_head_norms: bool
    ) -> None:
        import torch

        self._shape = shape
        hidden, ffn, epsilon = shape.hidden_size, shape.ffn_size, config.get("rms_norm_eps", 1e-6)
        queries, keys = (num * shape.head_dim for num in (shape.num_heads, shape.num_kv_heads))
        newer = "model.language_model."
        prefix = newer if layers.has(f"{newer}embed_tokens.weight") else "model."

        def norm(name: str, size: int = hidden) -> Module:
            return layers.rms_norm(f"{prefix}{name}.weight", size, epsilon)

        def linear(block: str, parts: Mapping[str, int], num_in: int) -> Module:
            names = [f"{prefix}{block}.{part}_proj" for part in parts]
            sizes = parts.values()
            weights = [layers.tensor(f"{name}.weight", size, num_in) for name, size in zip(names, sizes, strict=True)]
            if not layers.has(f"{names[0]}.bias"):
                return layers.linear(torch.cat(weights))
            biases = [layers.tensor(f"{name}.bias", size) for name, size in zip(names, sizes, strict=True)]
            return layers.linear(torch.cat(weights), torch.cat(biases))

        def head_norms(attention: str) -> tuple[Module, Module]:
            return norm(f"{attention}.q_norm", shape.head_dim), norm(f"{attention}.k_norm", shape.head_dim)

        def block_of(name: str) -> _Block:
            attention, mlp = f"{name}.self_attn", f"{name}.mlp"
            return _Block(
                attention_norm=norm(f"{name}.input_layernorm"),
                qkv=linear(attention, {"q": queries, "k": keys, "v": keys}, hidden),
                head_norms=head_norms(attention) if has_head_norms else None,
                attention_output=linear(attention, {"o": hidden}, queries),
                mlp_norm=norm(f"{name}.post_attention_layernorm"),
                gate_up=linear(mlp, {"gate": ffn, "up": ffn}, hidden),
                down=linear(mlp, {"down": hidden}, ffn),
            )

        self._blocks = [block_of(f"layers.{index}") for index in range(shape.num_layers)]
        embedding = layers.tensor(f"{prefix}embed_tokens.weight", shape.vocab_size, hidden)
        is_tied = config.get("tie_word_embeddings", False)
        output = embedding if is_tied else layers.tensor("lm_head.weight", shape.vocab_size, hidden)
        self._embedding, self._output = layers.embedding(embedding), layers.linear(output)
        self._activation = layers.activation(config.get("hidden_act", "silu"))
        self._final_norm = norm("norm")

    def hidden(self, step: ForwardPass) -> Tensor:
        shape = self._shape
        counts = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        x = self._embedding(step.tokens)
        for index, block in enumerate(self._blocks):
            heads = block.qkv(block.attention_norm(x)).unflatten(-1, (-1, shape.head_dim))
            q, k, v = heads.split(counts, 1)
            if block.head_norms is not None:
                q, k = (norm(rows) for norm, rows in zip(block.head_norms, (q, k), strict=True))
            x = x + block.attention_output(step.attend(index, q, k, v))
            gate, up = block.gate_up(block.mlp_norm(x)).chunk(2, -1)
            x = x + block.down(self._activation(gate) * up)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._output(self._final_norm(hidden))


QWEN_VL = (
    QwenVl("qwen2_vl", 1_000_000.0, (16, 24, 24), has_head_norms=False),
    QwenVl("qwen2_5_vl", 1_000_000.0, (16, 24, 24), has_head_norms=False),
    QwenVl("qwen3_vl", 500_000.0, (24, 20, 20), is_interleaved=True, has_head_norms=True),
)
