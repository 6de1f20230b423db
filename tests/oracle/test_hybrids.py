"""Models with recurrent layers against transformers on the same weights, from both kinds of files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.hybrid_conversion import write_hybrid_as_gguf
from support.hybrid_reference import CONFIGS, QWEN35_SHAPE, Runner, expect_near, reference_model

from pyagent import _rust
from pyagent.infrastructure.engine.tokens.word_patterns import QWEN35

pytestmark = pytest.mark.oracle

NUM_POSITIONS = 500


@pytest.mark.parametrize("family", CONFIGS)
def test_hybrids_agree_with_transformers_at_500_positions(family: str, tmp_path: Path) -> None:
    """At once, and in chunks and then token by token beside others: every logit is transformers'."""
    import numpy as np
    import torch

    reference = reference_model(family)
    reference.save_pretrained(tmp_path)
    draw = random.Random(1)
    tokens, other = ([draw.randrange(250) for _ in range(NUM_POSITIONS)] for _ in range(2))
    with torch.no_grad():
        expected, of_other = reference(torch.tensor([tokens, other])).logits.numpy()
    runner = Runner(tmp_path)
    whole = runner.step((1, tokens))
    expect_near(whole, expected)
    runner.pool.clear_index()
    rows, others, start = [], [], 0
    while start < NUM_POSITIONS:
        count = draw.choice([17, 64, 100]) if start < 300 else 1
        chunk = slice(start, start + count)
        logits = runner.step((2, tokens[chunk]), (3, other[chunk]))
        rows.append(logits[: len(tokens[chunk])])
        others.append(logits[len(tokens[chunk]) :])
        start += count
    assert (np.concatenate(rows) == whole).all(), "the same bits"
    expect_near(np.concatenate(others), of_other)


@pytest.mark.parametrize(
    "family",
    [
        "lfm2",
        "qwen3_5",
        "qwen3_5-three-values-a-key",
        "lfm2_moe",
        "qwen3_5_moe",
        "qwen3_next",
        "granitemoehybrid",
        "granitemoehybrid-attention",
        "jamba",
        "jamba-dense",
        "mamba",
        "falcon_mamba",
        "mamba2",
        "falcon_h1",
        "falcon_h1-normalised",
        "minimax",
        "nemotron_h-experts",
        "nemotron_h-dense",
    ],
)
def test_gguf_files_under_the_names_of_llama_cpp_give_the_same_logits(family: str, tmp_path: Path) -> None:
    """The same weights as llama.cpp's converter arranges them: value heads in tiles, decays with their sign."""
    import torch

    # Falcon's files have its factors in both matrices, which are therefore two.
    reference = reference_model(family, **({"tie_word_embeddings": False} if "falcon" in family else {}))
    path = write_hybrid_as_gguf(tmp_path / "model.gguf", reference)
    draw = random.Random(2)
    tokens = [draw.randrange(250) for _ in range(100)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    expect_near(Runner(path).step((1, tokens)), expected)


@pytest.mark.parametrize("family", ["qwen3_5_moe"])
def test_experts_in_one_tensor_give_the_same_bits(family: str, tmp_path: Path) -> None:
    """All of a layer's experts in two tensors, gates before ups, as Qwen publishes them; one too many is refused."""
    import torch
    from safetensors.torch import load_file, save_file

    reference = reference_model(family)
    reference.save_pretrained(tmp_path)
    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    expected = Runner(tmp_path).step((1, tokens))
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if ".experts." not in name}
    stacked = {name: tensor for name, tensor in reference.state_dict().items() if ".experts." in name}
    save_file({**tensors, **stacked}, path)
    assert (Runner(tmp_path).step((1, tokens)) == expected).all()
    name = next(name for name in stacked if name.endswith("down_proj"))
    save_file({**tensors, **stacked, name: torch.cat([stacked[name], stacked[name][:1]])}, path)
    with pytest.raises(_rust.ModelFileError, match=r"down_proj' is \[32, 64, 9\]; expected \[32, 64, 8\]"):
        Runner(tmp_path)


def test_slopes_of_another_place_are_refused(tmp_path: Path) -> None:
    """transformers stores lightning attention's slopes; those of another layer's place are another model."""
    from safetensors.torch import load_file, save_file

    reference_model("minimax").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.{}.self_attn.slope_rate"
    save_file({**tensors, name.format(1): tensors[name.format(1)].bfloat16()}, path)
    Runner(tmp_path)
    save_file({**tensors, name.format(1): tensors[name.format(0)].clone()}, path)
    with pytest.raises(
        _rust.ModelFileError, match=r"layers\.1\.self_attn\.slope_rate' has 0\.15.* for head 0; expected 0\.10"
    ):
        Runner(tmp_path)


def test_words_of_qwen_3_5_are_those_of_transformers() -> None:
    """GGUF files name how texts are cut into words, and do not say it: the pattern is transformers'."""
    from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

    assert QWEN35 == PRETOKENIZE_REGEX


def test_text_by_qwen_3_5_with_pictures_agrees_with_transformers(tmp_path: Path) -> None:
    """The text half of a checkpoint of pictures and text, as transformers saves it."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(7)
    pictures = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
    config = AutoConfig.for_model("qwen3_5", text_config=QWEN35_SHAPE, vision_config=pictures)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(2.0).add_(torch.randn_like(parameter) * 0.05)
    reference.save_pretrained(tmp_path)
    tokens = [(7 * place + place * place) % 250 for place in range(80)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    expect_near(Runner(tmp_path).step((1, tokens)), expected)
