"""Neurons and the logit lens of the CPU runner against transformers' own activations, on the same random weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyagent import _rust

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.oracle

SHAPE = {
    "vocab_size": 250,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
PROMPT, FURTHER, TOP = 30, 3, 9


def config_of(family: str) -> Any:
    from transformers import AutoConfig

    own: dict[str, dict[str, Any]] = {
        "llama": {"tie_word_embeddings": False},
        "gemma3_text": {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48},
        "gemma2": {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48, "final_logit_softcapping": 3.0},
        "olmo2": {},
        "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_auto_adjust_ff_dim": False},
        "mixtral": {"num_local_experts": 4},
    }
    return AutoConfig.for_model(family, **SHAPE, **own[family])


class Reference:
    """A model of transformers, and what its hooks see: the input of each down matrix, each layer's output."""

    def __init__(self, family: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(5)
        self.model = AutoModelForCausalLM.from_config(config_of(family), dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.mul_(2).add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0))
        self.insides: list[Any] = []
        self.streams: list[Any] = []
        for layer in self.model.model.layers:
            layer.register_forward_hook(lambda _, __, output: self.streams.append(_first(output)))
        self.downs = [
            matrix for name, matrix in self.model.named_modules() if name.endswith(("mlp.down_proj", "feed_forward.w2"))
        ]
        for down in self.downs:
            down.register_forward_hook(lambda _, given, __: self.insides.append(given[0][0]))

    def look(self, tokens: list[int]) -> None:
        import torch

        with torch.no_grad():
            self.model(torch.tensor([tokens]))

    def neurons(self, position: int) -> list[tuple[int, int, float, float]]:
        """All neurons of a position, those that write most first, by float64 arithmetic."""
        found = []
        for layer, (down, inside) in enumerate(zip(self.downs, self.insides, strict=True)):
            norms = down.weight.detach().double().norm(dim=0)
            values = inside[position].double()
            found += [
                (layer, index, float(value), float(value.abs() * norm))
                for index, (value, norm) in enumerate(zip(values, norms, strict=True))
            ]
        return sorted(found, key=lambda neuron: (-neuron[3], neuron[:2]))

    def promoted(self, layer: int, index: int, activation: float) -> list[int]:
        """The tokens that a neuron promotes: what it adds, through the last norm's gains and the output matrix."""
        import torch

        block = self.model.model.layers[layer]
        after = getattr(block, "post_feedforward_layernorm", None)
        with torch.no_grad():
            written = self.downs[layer].weight[:, index].double() * math.copysign(1, activation)
            written = written if after is None else written * _gains(after)
            scores = self.model.lm_head.weight.double() @ (written * _gains(self.last_norm))
        return torch.argsort(-scores, stable=True)[:3].tolist()

    @property
    def last_norm(self) -> Any:
        base = self.model.model
        return getattr(base, "norm", None) or base.embedding_norm

    def layers(self, position: int) -> list[NDArray[Any]]:
        """The log probabilities that each layer's output has through the last norm and the output matrix."""
        import torch

        cap = getattr(self.model.config, "final_logit_softcapping", None)
        with torch.no_grad():
            logits = [self.model.lm_head(self.last_norm(stream[0, position])).double() for stream in self.streams]
        capped = [row if cap is None else cap * torch.tanh(row / cap) for row in logits]
        return [torch.log_softmax(row, -1).numpy() for row in capped]


def _gains(norm: Any) -> Any:
    """What a norm multiplies by: Gemma's weights are from 1."""
    return norm.weight.double() + (1 if "Gemma" in type(norm).__name__ else 0)


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def probed(path: Path, tokens: list[int], probe: tuple[int, int]) -> list[Any]:
    """What is told of the last token of a prompt, many rows at once, and of further ones, a row a step."""
    model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 24, kv_type="f32")
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    pool.add(1, tokens)
    pool.reserve(1, len(tokens))
    told = []
    for part in (tokens[:PROMPT], *([token] for token in tokens[PROMPT:])):
        *_, found = model.execute(pool, [1], [len(part)], part, num_outputs=[1], probes={0: probe})
        told += found[0]
    return told


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text", "olmo2", "lfm2", "mixtral"])
def test_what_is_told_of_tokens_is_what_transformers_computes(family: str, tmp_path: Path) -> None:
    """The same neurons in the same order, and each layer's tokens likewise, to 1e-4, in a prompt and after it."""
    import numpy as np
    import torch

    reference = Reference(family)
    reference.model.save_pretrained(tmp_path)
    tokens = torch.randint(0, SHAPE["vocab_size"], (PROMPT + FURTHER,)).tolist()
    reference.look(tokens)
    has_neurons = family != "mixtral"
    told = probed(tmp_path, tokens, (TOP if has_neurons else 0, TOP))
    assert len(told) == 1 + FURTHER
    for place, (neurons, layers) in enumerate(told):
        position = PROMPT - 1 + place
        expected = reference.neurons(position)[:TOP] if has_neurons else []
        assert [neuron[:2] for neuron in neurons] == [neuron[:2] for neuron in expected]
        for found, wanted in zip(neurons, expected, strict=True):
            assert found[2:4] == pytest.approx(wanted[2:], rel=1e-4, abs=1e-4)
            assert found[4] == reference.promoted(*wanted[:3])
        rows = reference.layers(position)
        assert len(layers) == len(rows) == SHAPE["num_hidden_layers"]
        for layer, row in zip(layers, rows, strict=True):
            order = np.argsort(-row, kind="stable")[:TOP]
            assert [token for token, _ in layer] == order.tolist()
            assert [logprob for _, logprob in layer] == pytest.approx(row[order], abs=1e-4)
