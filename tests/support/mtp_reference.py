"""Heads that draft further tokens (MTP, arXiv 2412.19437, section 2.2), by the layer that transformers has for them.

The decoder's output goes in after its last norm, as transformers, vLLM and llama.cpp have it.
"""
# pyright: basic

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

_NAMES = {
    "enorm.": "mtp.pre_fc_norm_embedding.",
    "hnorm.": "mtp.pre_fc_norm_hidden.",
    "eh_proj.": "mtp.fc.",
    "mtp_block.": "mtp.layers.0.",
    "post_norm.": "mtp.norm.",
}
"""What Qwen's files call the parts of the layer."""


class Head:
    """A head of random weights for a Qwen 3.5 of transformers; what it computes is in float64."""

    def __init__(self, model: Any) -> None:
        import torch
        from transformers.modeling_layers import MtpLayer

        layers = model.model.layers
        full = model.config.layer_types.index("full_attention")
        self.float_model, self.model = model, copy.deepcopy(model).double()
        self.model.set_experts_implementation("eager")
        config = self.model.config
        self.layer = MtpLayer(config, type(layers[full]), type(model.model.norm), full).eval()
        with torch.no_grad():
            self.layer.mtp_block.load_state_dict(layers[full].state_dict())
            for name, parameter in self.layer.named_parameters():
                parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
                parameter.add_(torch.randn_like(parameter) * 0.1 if "norm" in name else 0.0)
        self.written = {}
        for name, one in self.layer.state_dict().items():
            begin = next(begin for begin in _NAMES if name.startswith(begin))
            self.written[name.replace(begin, _NAMES[begin], 1)] = one.clone()
        self.layer = self.layer.double()

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
            if self.model.config.model_type != "qwen3_next":
                positions = positions.expand(3, 1, -1)  # of three kinds, as of pictures
            rotation = self.model.model.rotary_emb(embedded, positions)
            outputs = self.layer(embedded, before[None], rotation, None, None, None)[0]
            return outputs, self.model.lm_head(outputs)

    def save(self, folder: Path) -> None:
        """Write the model with the head, as Qwen publishes it."""
        from safetensors.torch import load_file, save_file

        self.float_model.save_pretrained(folder)
        path = folder / "model.safetensors"
        save_file({**load_file(path), **self.written}, path)
        about = json.loads((folder / "config.json").read_text())
        about |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
        (folder / "config.json").write_text(json.dumps(about))
