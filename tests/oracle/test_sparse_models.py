"""gpt-oss and the families with shared experts, and others of their time, against transformers on the same weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support import classic_models, described_models
from support.logit_sequences import TOKENS, Sequences, expect_same, reference_logits
from support.sparse_models import (
    CONFIGS,
    LLAMA_CPP,
    as_openai_wrote_it,
    mxfp4_blocks,
    random_model,
    tensors_of,
    write_as_gguf,
)

pytestmark = pytest.mark.oracle


def marked(names: Iterable[str], slow: set[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in names]


@pytest.mark.parametrize("name", marked(CONFIGS, described_models.SLOW_FOLDERS | classic_models.SLOW_FOLDERS))
def test_folders_of_random_weights_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """500 positions, past windows and stretched contexts: as `expect_same`, bit for bit however it is computed."""
    model = random_model(name, tmp_path)
    expect_same(tmp_path, reference_logits(model))


@pytest.mark.parametrize("name", marked(LLAMA_CPP, described_models.SLOW_FILES | classic_models.SLOW_FILES))
def test_gguf_files_of_random_weights_agree_with_transformers(name: str, tmp_path: Path) -> None:
    """The same weights under llama.cpp's names, with its keys."""
    model = random_model(name, tmp_path / "folder")
    path = write_as_gguf(tmp_path / "m.gguf", name, tensors_of(tmp_path / "folder"))
    expect_same(path, reference_logits(model))


def test_minicpms_factors_are_granites_by_other_names(tmp_path: Path) -> None:
    """MiniCPM's code is its repository's own; transformers' Granite has the same layers and the same factors."""
    model = random_model("granite, as MiniCPM", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    factors = [f"{name}_multiplier" for name in ("embedding", "attention", "residual")]
    rest = {key: value for key, value in config.items() if key not in {*factors, "logits_scaling"}}
    own = {"model_type": "minicpm", "scale_emb": 3, "scale_depth": 0.5 * 2**0.5, "dim_model_base": 128}
    (tmp_path / "config.json").write_text(json.dumps(rest | own))
    expect_same(tmp_path, reference_logits(model))


def test_llama_4_among_pictures_is_the_text_alone(tmp_path: Path) -> None:
    """The text half of a checkpoint of pictures and text, under Meta's names: the same logits bit for bit."""
    import numpy as np
    from safetensors.torch import save_file

    text = tmp_path / "text"
    random_model("llama4_text", text)
    whole = tmp_path / "whole"
    whole.mkdir()
    save_file(
        {f"language_model.{name}": values for name, values in tensors_of(text).items()}, whole / "model.safetensors"
    )
    config = json.loads((text / "config.json").read_text())
    outer = {"model_type": "llama4", "text_config": config, "vision_config": {"hidden_size": 32}, "boi_token_index": 7}
    (whole / "config.json").write_text(json.dumps(outer))
    assert np.array_equal(*(Sequences(path).logits((0, TOKENS[:60])) for path in (text, whole)))


def test_mxfp4_experts_are_the_same_from_both_kinds_of_files(tmp_path: Path) -> None:
    """gpt-oss as OpenAI published it, and as GGUF: the same logits bit for bit, near those of the rounded weights."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    model = random_model("gpt_oss", tmp_path)
    tensors = tensors_of(tmp_path)
    gguf = write_as_gguf(tmp_path / "m.gguf", "gpt_oss", tensors, mxfp4_blocks)
    stored = dict(tensors)
    state = model.state_dict()
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        matrices = stored.pop(name).transpose(1, 2).contiguous()
        _, rows, columns = matrices.shape
        blocks, scales = as_openai_wrote_it(mxfp4_blocks(matrices), rows, columns)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        with torch.no_grad():
            state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    folder = tmp_path / "mxfp4"
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    ours = Sequences(folder).logits((0, TOKENS))
    assert np.array_equal(ours, Sequences(gguf).logits((0, TOKENS)))
    expected = reference_logits(model)
    errors = np.linalg.norm(ours - expected, axis=1) / np.linalg.norm(expected, axis=1)
    print(f"relative difference: median {np.median(errors):.1e}, 90 % below {np.quantile(errors, 0.9):.1e}")
    # What experts read is rounded to 8 bits, and now and then a token gets another expert for that.
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.1


@pytest.mark.parametrize(("name", "family"), [("llama, as InternLM2", "internlm2"), ("llama, as XVERSE", "xverse")])
def test_folders_of_other_names_are_llamas(name: str, family: str, tmp_path: Path) -> None:
    """Their code is their repositories' own; InternLM2's folders have one matrix for each head of keys."""
    from safetensors.torch import save_file

    model = random_model(name, tmp_path)
    published, *_ = classic_models.PUBLISHED[name]
    save_file(published(tensors_of(tmp_path)), tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": family, "bias": False}))
    expect_same(tmp_path, reference_logits(model))
