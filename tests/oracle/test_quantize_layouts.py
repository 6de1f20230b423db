"""Folders whose GGUF files have other tensors: what `pyagent models quantize` writes is the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracle.test_mtp_heads import Drafting
from support.converted_models import random_family
from support.laid_out_folders import DESCRIBED, LAID_OUT, SLOW, add_head, in_mxfp4, with_words, write_seeing
from support.logit_sequences import Sequences
from support.mtp_reference import Head
from support.quantizing import quantized, refusal

from pyagent import _rust

pytestmark = pytest.mark.oracle

TOKENS = [(7 * place + place * place) % 250 for place in range(60)]


def written(name: str, folder: Path) -> Path:
    """A folder of a family, with a tokenizer that GGUF can say."""
    random_family(name, folder)
    with_words(name, folder)
    return folder


def expect_same_logits(folder: Path, file: Path, tolerance: float = 1e-5) -> None:
    """The engine gives a folder's logits from a file, but for the order of sums."""
    import numpy as np

    expected, got = (Sequences(path).logits((0, TOKENS)) for path in (folder, file))
    assert np.abs(got - expected).max() < tolerance * np.abs(expected).max()


SOON_OR_SLOW = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in DESCRIBED]


@pytest.mark.parametrize("name", [*LAID_OUT, *SOON_OR_SLOW])
def test_a_laid_out_folder_as_gguf_is_the_same_model(name: str, tmp_path: Path) -> None:
    """In F32: rows in turn, heads in tiles, experts stacked, parts turned, decays with their sign."""
    folder = written(name, tmp_path / "model")
    quantized(folder, tmp_path / "made.gguf", "F32")
    expect_same_logits(folder, tmp_path / "made.gguf")


def test_gemma_4_12b_is_written_as_its_other_forms_are(tmp_path: Path) -> None:
    """Its config.json has names and defaults of its own: the file is the same."""
    folder = written("gemma4, 31B", tmp_path / "model")
    quantized(folder, tmp_path / "made.gguf", "F32")
    config = json.loads((folder / "config.json").read_text())
    text = {key: value for key, value in config.items() if "per_layer_input" not in key}
    for name, changed in (
        ("text", text | {"model_type": "gemma4_unified_text"}),
        ("whole", {"model_type": "gemma4_unified", "text_config": text | {"model_type": "gemma4_unified_text"}}),
    ):
        (folder / "config.json").write_text(json.dumps(changed))
        quantized(folder, tmp_path / f"{name}.gguf", "F32")
        assert (tmp_path / f"{name}.gguf").read_bytes() == (tmp_path / "made.gguf").read_bytes()


def test_heads_of_glm_and_deepseek_are_kept(tmp_path: Path) -> None:
    """A layer behind the others; where config.json tells of one and the folder has none, the file has none."""
    folder = written("deepseek_v3", tmp_path / "model")
    quantized(folder, tmp_path / "without.gguf", "F32")
    add_head(folder)
    quantized(folder, tmp_path / "with.gguf", "F32")
    without, having = (_rust.read_model_header(tmp_path / f"{name}.gguf") for name in ("without", "with"))
    more = {name for name, *_ in having["tensors"]} - {name for name, *_ in without["tensors"]}
    assert {name.split(".")[1] for name in more} == {"4"}
    assert sum("nextn" in name for name in more) == 6
    counts = [about["metadata"].get("deepseek2.nextn_predict_layers") for about in (without, having)]
    assert counts == [None, 1]
    expect_same_logits(folder, tmp_path / "with.gguf")


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_a_head_that_drafts_is_kept(name: str, tmp_path: Path) -> None:
    """The file's head drafts what the folder's does."""
    import numpy as np

    folder = tmp_path / "model"
    Head(random_family(name, folder)).save(folder)
    with_words(name, folder)
    quantized(folder, tmp_path / "made.gguf", "F32")
    found = []
    for path in (folder, tmp_path / "made.gguf"):
        runner = Drafting(path)
        runner.step((1, TOKENS))
        found.append(runner.draft(1, [TOKENS[3]])[1])
    assert np.abs(found[1] - found[0]).max() < 1e-5 * np.abs(found[0]).max()


@pytest.mark.parametrize("name", ["qwen3_5", "qwen2_5_vl", "qwen3_vl"])
def test_the_text_half_of_a_model_of_pictures_is_written(name: str, tmp_path: Path) -> None:
    """A Qwen that sees, as transformers saves it: the file is its text half."""
    folder = tmp_path / "model"
    write_seeing(name, folder)
    assert any("visual." in name for name, *_ in _rust.read_model_header(folder)["tensors"])
    quantized(folder, tmp_path / "made.gguf", "F32")
    expect_same_logits(folder, tmp_path / "made.gguf")


def test_experts_in_two_tensors_are_those_of_a_tensor_each(tmp_path: Path) -> None:
    """As Qwen publishes them, gates before ups: the file is the same, byte for byte."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    model = random_family("qwen3_5_moe", folder)
    with_words("qwen3_5_moe", folder)
    quantized(folder, tmp_path / "apart.gguf", "Q8_0")
    about = json.loads((folder / "config.json").read_text())
    assert about.pop("linear_conv_kernel_dim") == 4  # the family's own: it need not be said
    (folder / "config.json").write_text(json.dumps(about))
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if ".experts." not in name}
    stacked = {name: tensor for name, tensor in model.state_dict().items() if ".experts." in name}
    assert len(stacked) == 2 * len(model.model.layers)
    save_file({**tensors, **stacked}, path)
    quantized(folder, tmp_path / "packed.gguf", "Q8_0")
    assert (tmp_path / "packed.gguf").read_bytes() == (tmp_path / "apart.gguf").read_bytes()


def test_experts_in_mxfp4_stay(tmp_path: Path) -> None:
    """gpt-oss as it is published: the experts' numbers are those of the folder, whatever the other matrices become."""
    folder = written("gpt_oss", tmp_path / "model")
    in_mxfp4(folder)
    for type_name in ("F32", "Q8_0"):
        made = quantized(folder, tmp_path / f"{type_name}.gguf", type_name)
        assert made.types["MXFP4"] == 3 * 4
    expect_same_logits(folder, tmp_path / "F32.gguf")
    blocks = "model.layers.0.mlp.experts.gate_up_proj_blocks"
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"num_local_experts": 5}))
    assert f"tensor '{blocks}' is [16, 2, 192, 6] of U8; expected [16, 2, 192, 5] of U8" in refusal(folder)
    (folder / "config.json").write_text(json.dumps(about | {"swiglu_limit": 5.0}))
    assert "its 'swiglu_limit' cannot be written as GGUF: 5.0 would be read 7.0" in refusal(folder)


def test_what_would_be_lost_or_is_missing_is_refused(tmp_path: Path) -> None:
    """A tensor that no file has, one that is gone, one of another size, a setting without a key: each by its name."""
    from safetensors.torch import load_file, save_file

    folder = written("lfm2_moe", tmp_path / "model")
    path, gone = folder / "model.safetensors", "model.layers.1.operator_norm.weight"
    tensors = load_file(path)
    norm = tensors[gone]
    save_file(tensors | {"model.layers.1.conv.gain": norm.clone()}, path)
    assert "'model.layers.1.conv.gain' would be lost" in refusal(folder)
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, path)
    assert f"'{gone}' is missing" in refusal(folder)
    save_file(tensors | {gone: norm[:32].clone()}, path)
    assert f"'{gone}' is [32]; expected [64] by config.json" in refusal(folder)
    save_file(tensors, path)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"routed_scaling_factor": 2.0}))
    assert "its experts cannot be written as GGUF" in refusal(folder)
