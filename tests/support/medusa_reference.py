"""Heads of Medusa (Cai et al. 2024, arXiv 2401.10774, section 2.1) in float64, written from the paper's formula.

`p = softmax(W2 (SiLU(W1 h + b) + h))`, of which the inner part is there once for each layer of a head; `h` is the last
hidden state of the model, after its last norm.
"""
# pyright: basic

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Form(NamedTuple):
    """How heads are written: for a family's model, as the paper's trainer does or as converters to vLLM do."""

    family: str
    is_of_paper: bool
    num_heads: int
    num_layers: int
    num_drafted: int
    has_bias: bool


FORMS = {
    "llama, by the paper's authors": Form("llama", True, 3, 1, 0, has_bias=True),
    "qwen3, as vLLM has it": Form("qwen3", False, 4, 2, 100, has_bias=False),
    "gemma3, as vLLM has it": Form("gemma3", False, 2, 1, 0, has_bias=True),
}


class MedusaHeads:
    """Heads of random weights for a model of transformers, and that model; what they compute is in float64."""

    def __init__(self, target: Any, form: Form) -> None:
        import torch

        self.form, self.target = form, target.double()
        self.vocab_size, self.hidden = target.get_input_embeddings().weight.shape
        num_drafted = form.num_drafted or self.vocab_size
        draw = torch.Generator().manual_seed(5)
        self.tokens = torch.randperm(self.vocab_size, generator=draw)[:num_drafted]
        if not form.num_drafted:
            self.tokens = torch.arange(self.vocab_size)

        def matrix(rows: int) -> Any:
            return torch.randn(rows, self.hidden, generator=draw) * self.hidden**-0.5

        heads, layers = range(form.num_heads), range(form.num_layers)
        self.layers = [[matrix(self.hidden) for _ in layers] for _ in heads]
        size = self.hidden if form.has_bias else 0
        self.biases = [[torch.randn(size, generator=draw) for _ in layers] for _ in heads]
        self.outputs = [3 * matrix(num_drafted) for _ in heads]

    def compute(self, tokens: list[int]) -> Any:
        """Return the logits of all heads after each token, [tokens, heads, drafted]."""
        import torch
        import torch.nn.functional as F

        with torch.no_grad():
            hidden = self.target.model(torch.tensor([tokens])).last_hidden_state[0]
            logits = []
            for layers, biases, output in zip(self.layers, self.biases, self.outputs, strict=True):
                stream = hidden
                for weight, bias in zip(layers, biases, strict=True):
                    inner = stream @ weight.double().T
                    stream = stream + F.silu(inner + bias.double() if self.form.has_bias else inner)
                logits.append(stream @ output.double().T)
        return torch.stack(logits, 1)

    def save(self, folder: Path) -> Path:
        """Write the heads as the form has it; return `folder`."""
        import torch
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        form, weights = self.form, dict[str, Any]()
        for head in range(form.num_heads):
            for layer in range(form.num_layers):
                name = f"{head}.{layer}.linear" if form.is_of_paper else f"blocks.{head}.layers.{layer}"
                weights[f"{name}.weight"] = self.layers[head][layer]
                if form.has_bias:
                    weights[f"{name}.bias"] = self.biases[head][layer]
            name = f"{head}.{form.num_layers}" if form.is_of_paper else f"lm_heads.{head}"
            weights[f"{name}.weight"] = self.outputs[head]
        if form.is_of_paper:
            about: dict[str, Any] = {"medusa_num_heads": form.num_heads, "medusa_num_layers": form.num_layers}
            about |= {"base_model_name_or_path": "some/model", "transformers_version": "4.31.0"}
            torch.save(weights, folder / "medusa_lm_head.pt")
        else:
            about = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": form.num_heads}
            about |= {"hidden_size": self.hidden, "num_hidden_layers": form.num_layers, "vocab_size": self.vocab_size}
            about |= {"medusa_fc_bias": form.has_bias, "truncated_vocab_size": form.num_drafted or None}
            if form.num_drafted:
                weights["token_map"] = self.tokens
            save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(about))
        return folder
