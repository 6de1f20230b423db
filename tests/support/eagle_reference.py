"""Heads of EAGLE-3 (arXiv 2503.01840) in float64: written from the paper, and from what trainers write into files.

At a text's place P a head takes the token at P + 1 and what a matrix makes of three places of the decoder's stream at
P, as trainers count; its rotary position is P.
"""
# pyright: basic

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

FFN = 80


class Form(NamedTuple):
    """How a head is written: for a family's model, by which trainer, and what it has of its own."""

    family: str
    hidden: int
    heads: tuple[int, int, int]
    """Query heads, heads of keys and values, and their width."""
    taps: tuple[int, int, int]
    num_drafted: int
    has_embedding: bool
    config: dict[str, Any]
    own: dict[str, Any]
    """What stands in `eagle_config`; the file is of `speculators` where it is empty."""
    layer: dict[str, Any]
    """What is said of the layer besides."""


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FORMS = {
    "llama": Form(
        "llama",
        64,
        (4, 2, 16),
        (1, 2, 3),
        100,
        has_embedding=False,
        config={},
        own={"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
        layer={"rope_theta": 500_000.0, "rope_scaling": _LLAMA3},
    ),
    "qwen3": Form(
        "qwen3",
        96,
        (2, 1, 32),
        (0, 1, 3),
        120,
        has_embedding=True,
        config={
            "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
            "target_hidden_size": 64,
            "norm_before_residual": True,
            "norm_before_fc": True,
            "norm_output": True,
        },
        own={},
        layer={
            "layer_types": ["sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    "gpt_oss": Form(
        "gpt_oss",
        64,
        (4, 2, 32),
        (2, 2, 1),
        0,
        has_embedding=False,
        config={"fc_norm": True, "norm_output": True},
        own={"eagle_aux_hidden_state_layer_ids": []},
        layer={"rope_theta": 150_000.0},
    ),
}


class EagleHead:
    """A head of random weights for a model of transformers, and that model; what they compute is in float64."""

    def __init__(self, target: Any, form: Form) -> None:
        import torch

        self.form, self.target = form, copy.deepcopy(target).double()
        if form.family == "gpt_oss":
            self.target.set_experts_implementation("eager")
        self.vocab_size, target_hidden = target.get_input_embeddings().weight.shape
        self.num_drafted = form.num_drafted or self.vocab_size
        query, kv = form.heads[0] * form.heads[2], form.heads[1] * form.heads[2]
        draw = torch.Generator().manual_seed(5)
        self.weights: dict[str, Any] = {}

        def matrix(name: str, rows: int, columns: int) -> None:
            self.weights[f"{name}.weight"] = torch.randn(rows, columns, generator=draw) * columns**-0.5

        def norm(name: str, size: int) -> None:
            self.weights[f"{name}.weight"] = 0.9 + 0.2 * torch.randn(size, generator=draw)

        matrix("fc", form.hidden, 3 * target_hidden)
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            norm(f"midlayer.{name}", form.hidden)
        norm("norm", form.hidden)
        matrix("midlayer.self_attn.q_proj", query, 2 * form.hidden)
        matrix("midlayer.self_attn.k_proj", kv, 2 * form.hidden)
        matrix("midlayer.self_attn.v_proj", kv, 2 * form.hidden)
        matrix("midlayer.self_attn.o_proj", form.hidden, query)
        matrix("midlayer.mlp.gate_proj", FFN, form.hidden)
        matrix("midlayer.mlp.up_proj", FFN, form.hidden)
        matrix("midlayer.mlp.down_proj", form.hidden, FFN)
        matrix("lm_head", self.num_drafted, form.hidden)
        self.weights["lm_head.weight"] *= 3
        if form.has_embedding:
            matrix("embed_tokens", self.vocab_size, form.hidden)
        if form.config.get("norm_before_fc"):
            norm("input_norm", 3 * target_hidden)
        for tap in range(3) if form.config.get("fc_norm") else ():
            norm(f"fc_norm.{tap}", target_hidden)
        chosen = torch.randperm(self.vocab_size, generator=draw)[: self.num_drafted].sort().values
        self.tokens = chosen.tolist()
        if form.num_drafted:
            self.weights["d2t"] = chosen - torch.arange(self.num_drafted)
            self.weights["t2d"] = torch.isin(torch.arange(self.vocab_size), chosen)

    def outputs(self, tokens: list[int]) -> Any:
        """Return what the head goes on from after each token, [tokens, hidden]."""
        import torch

        last: list[Any] = []
        hook = self.target.model.norm.register_forward_pre_hook(lambda _, given: last.append(given[0]))
        with torch.no_grad():
            states = self.target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
            hook.remove()
            stream = [*states[:-1], last[0]]  # transformers' last one is normalised
            places = [stream[tap][0] for tap in self.form.taps]
            if self.form.config.get("fc_norm"):
                places = [self._norm(f"fc_norm.{at}", place) for at, place in enumerate(places)]
            joined = torch.cat(places, -1)
            if self.form.config.get("norm_before_fc"):
                joined = self._norm("input_norm", joined)
            return self._multiply("fc", joined)

    def compute(self, tokens: list[int], before: Any) -> tuple[Any, Any]:
        """Return what further drafts go on from, and logits, for tokens from position 1 on, and what precedes each."""
        import torch
        import torch.nn.functional as F

        form, (query_heads, kv_heads, head_dim) = self.form, self.form.heads
        with torch.no_grad():
            table = self.weights.get("embed_tokens.weight", self.target.get_input_embeddings().weight).double()
            embedded, known = table[tokens], self._norm("midlayer.hidden_norm", before)
            stream = known if form.config.get("norm_before_residual") else before
            read = torch.cat([self._norm("midlayer.input_layernorm", embedded), known], -1)
            count = len(tokens)

            def heads(name: str, number: int) -> Any:
                return (
                    self._multiply(f"midlayer.self_attn.{name}_proj", read)
                    .view(count, number, head_dim)
                    .transpose(0, 1)
                )

            query, key, value = heads("q", query_heads), heads("k", kv_heads), heads("v", kv_heads)
            cos, sin = self._rotation(count)
            query, key = (
                one * cos + torch.cat([-one[..., head_dim // 2 :], one[..., : head_dim // 2]], -1) * sin
                for one in (query, key)
            )
            key, value = (one.repeat_interleave(query_heads // kv_heads, 0) for one in (key, value))
            seen = torch.ones(count, count).tril()
            window = form.layer.get("sliding_window", count)
            seen = (seen - torch.ones(count, count).tril(-window)).bool()
            scores = (query @ key.transpose(1, 2) * head_dim**-0.5).masked_fill(~seen, float("-inf"))
            mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(count, -1)
            stream = stream + self._multiply("midlayer.self_attn.o_proj", mixed)
            inner = self._norm("midlayer.post_attention_layernorm", stream)
            gate = F.silu(self._multiply("midlayer.mlp.gate_proj", inner))
            stream = stream + self._multiply(
                "midlayer.mlp.down_proj", gate * self._multiply("midlayer.mlp.up_proj", inner)
            )
            normed = self._norm("norm", stream)
            is_normed = form.config.get("norm_output") and not form.own
            return normed if is_normed else stream, self._multiply("lm_head", normed)

    def _rotation(self, count: int) -> tuple[Any, Any]:
        import torch
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        shape = {
            "hidden_size": self.form.hidden,
            "num_attention_heads": self.form.heads[0],
            "head_dim": self.form.heads[2],
        }
        config = LlamaConfig(**shape, max_position_embeddings=512, **_rope(self.form.layer))
        rotary = LlamaRotaryEmbedding(config)
        angles = torch.arange(count, dtype=torch.float64)[:, None] * rotary.inv_freq.double()[None]
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def _norm(self, name: str, values: Any) -> Any:
        import torch

        scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-5)
        return values * scale * self.weights[f"{name}.weight"].double()

    def _multiply(self, name: str, values: Any) -> Any:
        return values @ self.weights[f"{name}.weight"].double().T

    def save(self, folder: Path) -> Path:
        """Write the head as its trainer does; return `folder`."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        form = self.form
        layer = {
            "model_type": "llama",
            "hidden_size": form.hidden,
            "intermediate_size": FFN,
            "num_hidden_layers": 1,
            "num_attention_heads": form.heads[0],
            "num_key_value_heads": form.heads[1],
            "head_dim": form.heads[2],
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 2048,
            "vocab_size": self.vocab_size,
            **form.layer,
        }
        head = {"draft_vocab_size": self.num_drafted, "tie_word_embeddings": False, **form.config}
        weights = self.weights
        if form.own:
            about = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **head, "eagle_config": form.own}
        else:
            about = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", **head}
            about["transformer_layer_config"] = layer
            weights = {name.replace("midlayer.", "layers.0."): one for name, one in weights.items()}
        save_file({name: one.contiguous() for name, one in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(about))
        return folder


def _rope(layer: dict[str, Any]) -> dict[str, Any]:
    if "rope_parameters" in layer:
        return {"rope_parameters": layer["rope_parameters"]}
    scaling = layer.get("rope_scaling", {"rope_type": "default"})
    return {"rope_parameters": {"rope_theta": layer["rope_theta"], **scaling}}
