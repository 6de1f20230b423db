"""Text by models of pictures whose text half is named in `text_config`, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hybrid_reference import Runner
from support.logit_sequences import expect_same, reference_logits
from support.sparse_models import CONFIGS, tensors_of

pytestmark = pytest.mark.oracle

_SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
_GEMMA = _SHAPE | {"num_hidden_layers": 7, "sliding_window": 24, "query_pre_attn_scalar": 48}
_PICTURES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_NEWER = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
"""What names of published files begin with, and what transformers calls the same since its fifth version."""


@pytest.mark.parametrize(
    ("text", "shape", "is_newer"),
    [
        ("mistral", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, **_SHAPE}, False),
        ("ministral3", CONFIGS["ministral3"], True),
        ("mistral4", CONFIGS["mistral4"], False),
        ("gemma3_text", _GEMMA, False),
    ],
)
def test_text_by_a_model_whose_text_half_is_named_agrees_with_transformers(
    text: str, shape: dict[str, Any], is_newer: bool, tmp_path: Path
) -> None:
    """Random weights in float32, beside a tower of pictures: each logit of 60 positions to 1e-4 of the largest."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(7)
    is_gemma = text == "gemma3_text"
    tower = {"model_type": "siglip_vision_model" if is_gemma else "pixtral", **_PICTURES}
    name, of_text = "gemma3" if is_gemma else "mistral3", {"model_type": text, **shape}
    config = AutoConfig.for_model(name, text_config=of_text, vision_config=tower, tie_word_embeddings=is_gemma)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.5).add_(torch.randn_like(parameter) * 0.1)
    reference.save_pretrained(tmp_path)
    if is_newer:
        save_file(dict(map(_renamed, tensors_of(tmp_path).items())), tmp_path / "model.safetensors")
    tokens = [(7 * place + place * place) % 96 for place in range(60)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(Runner(tmp_path).step((1, tokens)) - expected).max() < 1e-4 * np.abs(expected).max()


def test_text_by_command_a_plus_agrees_with_transformers(tmp_path: Path) -> None:
    """Command A+ is published beside a tower of pictures; its output matrix is the embedding where nothing is said.

    transformers' model of pictures leaves the factor on logits out, which the text model has: here it is 1.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(7)
    text = {"model_type": "cohere2_moe", **CONFIGS["cohere2_moe"], "logit_scale": 1.0}
    tower = {"model_type": "siglip_vision_model", **_PICTURES}
    config = AutoConfig.for_model(
        "cohere2_vision", text_config=text, vision_config=tower, alignment_intermediate_size=64, downsample_factor=2
    )
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.15))
    reference.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    for part in (said, said["text_config"]):
        part.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(said))
    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(Runner(tmp_path).step((1, tokens)) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("is_flat", [False, True])
def test_text_by_hunyuans_model_of_pictures_agrees_with_transformers(is_flat: bool, tmp_path: Path) -> None:
    """500 positions, beside a tower of pictures, as transformers writes `config.json` and as it is published."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(7)
    rope = {"type": "xdrope", "alpha": 100.0, "factor": 1.0, "xdrope_section": [2, 5, 5, 4], "beta_fast": 32}
    text = {**_SHAPE, "vocab_size": 250, "rope_scaling": {**rope, "rope_theta": 10_000.0}}
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("hunyuan_vl", text_config=text, vision_config={**tower, "out_hidden_size": 64})
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    reference.save_pretrained(tmp_path)
    if is_flat:
        own = {"model_type": "hunyuan_vl", "vision_config": tower, "use_qk_norm": True, "rope_theta": 10_000.0}
        own |= {**text, "rope_scaling": rope, "attention_head_dim": 32, "hidden_act": "silu"}
        own["position_embedding_xdrope"] = True
        (tmp_path / "config.json").write_text(json.dumps(own))
    expect_same(tmp_path, reference_logits(reference))


def _renamed(tensor: tuple[str, Any]) -> tuple[str, Any]:
    name, values = tensor
    begin = next((begin for begin in _NEWER if name.startswith(begin)), "")
    return (f"{_NEWER[begin]}{name.removeprefix(begin)}" if begin else f"model.{name}"), values
