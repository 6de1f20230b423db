"""Heads that draft further tokens (MTP, arXiv 2412.19437, section 2.2), by the layer that transformers has for them.

The decoder's output goes in after its last norm, as transformers, vLLM and llama.cpp have it.
"""
# pyright: basic

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_QWEN = {
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "eh_proj.": "mtp.fc.",
    "mtp_block.": "mtp.layers.0.",
    "post_norm.": "mtp.norm.",
}
"""What Qwen's files call the parts of the layer."""
_BEHIND = {
    "enorm.": "model.layers.{}.enorm.",
    "hnorm.": "model.layers.{}.hnorm.",
    "eh_proj.": "model.layers.{}.eh_proj.",
    "mtp_block.": "model.layers.{}.",
    "post_norm.": "model.layers.{}.shared_head.norm.",
}
"""What GLM's and DeepSeek's do: it is one more layer of the decoder's."""


class Head:
    """A head of random weights for a model of transformers; what it computes is in float64."""

    def __init__(self, model: Any) -> None:
        import torch
        from transformers.modeling_layers import MtpLayer

        layers, self.is_of_qwen = model.model.layers, model.config.model_type.startswith("qwen")
        full = model.config.layer_types.index("full_attention") if self.is_of_qwen else len(layers) - 1
        self.float_model, self.model = model, copy.deepcopy(model).double()
        self.model.set_experts_implementation("eager")
        config = self.model.config
        self.layer = MtpLayer(config, type(layers[full]), type(model.model.norm), full).eval()
        with torch.no_grad():
            self.layer.mtp_block.load_state_dict(layers[full].state_dict())
            for name, parameter in self.layer.named_parameters():
                parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
                parameter.add_(torch.randn_like(parameter) * 0.1 if "norm" in name else 0.0)
        names, self.written = (_QWEN if self.is_of_qwen else _BEHIND), dict[str, Any]()
        for name, one in self.layer.state_dict().items():
            begin = next(begin for begin in names if name.startswith(begin))
            self.written[name.replace(begin, names[begin].format(len(layers)), 1)] = one.clone()
        if not self.is_of_qwen:
            self.written = dict(_as_published(self.written)) | self._copies(f"model.layers.{len(layers)}")
        self.layer = self.layer.double()

    def _copies(self, layer: str) -> dict[str, Any]:
        """Return what published files have in the layer once more."""
        return {
            f"{layer}.embed_tokens.weight": self.float_model.model.embed_tokens.weight.detach().clone(),
            f"{layer}.shared_head.head.weight": self.float_model.lm_head.weight.detach().clone(),
        }

    def outputs(self, tokens: list[int]) -> Any:
        """Return the decoder's outputs, [tokens, hidden]."""
        import torch

        with torch.no_grad():
            return self.model.model(torch.tensor([tokens])).last_hidden_state[0]

    def compute(self, tokens: list[int], before: Any) -> tuple[Any, Any]:
        """Return the head's outputs and logits for tokens from position 1 on, of the outputs for those before each."""
        import torch

        with torch.no_grad():
            embedded = self.model.model.embed_tokens(torch.tensor([tokens]))
            positions = torch.arange(1, 1 + len(tokens))[None]
            if self.model.config.model_type.startswith("qwen3_5"):
                positions = positions.expand(3, 1, -1)  # of three kinds, as of pictures
            rotation = self.model.model.rotary_emb(embedded, positions)
            later = torch.full((len(tokens), len(tokens)), float("-inf"), dtype=torch.float64).triu(1)
            outputs = self.layer(embedded, before[None], rotation, later[None, None], None, None)[0]
            return outputs, self.model.lm_head(outputs)

    def save(self, folder: Path) -> None:
        """Write the model with the head, as it is published."""
        from safetensors.torch import load_file, save_file

        self.float_model.save_pretrained(folder)
        path = folder / "model.safetensors"
        save_file({**load_file(path), **self.written}, path)
        about = json.loads((folder / "config.json").read_text())
        if self.is_of_qwen:
            about |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
        else:
            about |= {"num_nextn_predict_layers": 1}
        (folder / "config.json").write_text(json.dumps(about))


def _as_published(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each expert's matrices by themselves."""
    for name, one in tensors.items():
        begin, _, last = name.rpartition(".")
        if not begin.endswith(".experts"):
            yield name, one
            continue
        for number, matrix in enumerate(one):
            parts = zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True)
            for part, rows in parts if last == "gate_up_proj" else [("down_proj", matrix)]:
                yield f"{begin}.{number}.{part}.weight", rows.clone()
