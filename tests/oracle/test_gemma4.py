"""Gemma 4's forms against transformers on the same weights: dense, with per-layer embeddings, and with experts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracle.test_adapters import ALL, adapted, our_logits
from support.gemma4_models import CONFIGS, gemma4_as_gguf, random_gemma4, scale_weights
from support.logit_sequences import TOKENS, Sequences, expect_same, reference_logits

from pyagent import _rust

pytestmark = [
    pytest.mark.oracle,
    # of transformers, which peft asks for what it renames
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("name", CONFIGS)
def test_folders_and_gguf_files_of_random_weights_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """500 positions, past the windows: as `expect_same`; and a GGUF file under llama.cpp's names has the same bits."""
    import numpy as np

    model = random_gemma4(name, tmp_path)
    expect_same(tmp_path, reference_logits(model))
    gguf = gemma4_as_gguf(tmp_path / "m.gguf", name, model)
    whole = [Sequences(path).logits((0, TOKENS)) for path in (tmp_path, gguf)]
    assert np.array_equal(*whole)


def test_text_by_a_gemma_4_of_pictures_and_sound_agrees_with_transformers(tmp_path: Path) -> None:
    """The text part of a whole checkpoint, whose configuration is nested and whose other parts are left."""
    import numpy as np
    import torch
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    torch.manual_seed(5)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    config = Gemma4Config(
        text_config=CONFIGS["E2B"], vision_config=vision | {"num_key_value_heads": 2}, audio_config=None
    )
    model = Gemma4ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    assert "text_config" in json.loads((tmp_path / "config.json").read_text())
    tokens = TOKENS[:60]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(Sequences(tmp_path).logits((0, tokens)) - expected).max() < 1e-4 * np.abs(expected).max()


_OF_OTHERS = {"vocab_size_per_layer_input", "hidden_size_per_layer_input"}


@pytest.mark.parametrize("is_whole", [True, False])
def test_text_by_gemma_4_12b_agrees_with_transformers(is_whole: bool, tmp_path: Path) -> None:
    """Its configuration has names and defaults of its own: the text part of a whole checkpoint, and saved alone."""
    import numpy as np
    import torch
    from transformers import (
        Gemma4UnifiedConfig,
        Gemma4UnifiedForCausalLM,
        Gemma4UnifiedForConditionalGeneration,
        Gemma4UnifiedTextConfig,
    )

    torch.manual_seed(5)
    text = {key: value for key, value in CONFIGS["31B"].items() if key not in _OF_OTHERS}
    vision = {"mm_embed_dim": 64, "output_proj_dims": 64, "mm_posemb_size": 8, "patch_size": 4}
    if is_whole:
        config = Gemma4UnifiedConfig(text_config=text, vision_config=vision, audio_config=None)
        model = Gemma4UnifiedForConditionalGeneration(config).eval()
    else:
        model = Gemma4UnifiedForCausalLM(Gemma4UnifiedTextConfig(**text)).eval()
    scale_weights(model)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == ("gemma4_unified" if is_whole else "gemma4_unified_text")
    tokens = TOKENS[:60]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(Sequences(tmp_path).logits((0, tokens)) - expected).max() < 1e-4 * np.abs(expected).max()


def test_gemma_4_12bs_window_is_wider_where_nothing_is_said(tmp_path: Path) -> None:
    """The other forms' default is half as wide."""
    random_gemma4("31B", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sliding_window"]
    for name, window in (("gemma4_text", 512), ("gemma4_unified_text", 1024)):
        (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": name}))
        groups = _rust.describe_model(tmp_path, "f32")["kv_groups"]
        assert ("window", window) in [kind[:2] for kind in groups]


@pytest.mark.parametrize("name", ["31B", "E2B"])
def test_an_adapter_gives_the_logits_of_peft(name: str, tmp_path: Path) -> None:
    """Also on layers without keys of their own, on wide blocks, and on keys that are values."""
    import numpy as np

    base = random_gemma4(name, tmp_path / "model")
    _, expected = adapted(base, tmp_path / "adapter", 3, r=4, target_modules=ALL)
    model = _rust.CpuModel.load(tmp_path / "model", threads=2, kv_bytes=1 << 24, kv_type="f32")
    _rust.AdapterFile.open(model, tmp_path / "adapter").load(model, 5)
    plain, got = our_logits(model, [0, 5])
    assert np.abs(got - expected).max() < 1e-4
    assert np.abs(plain - expected).max() > 0.1
