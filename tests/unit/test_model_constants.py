"""What a model's configuration says, held against a plain decoder in float64: each constant changes the numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.native import engine_logits
from support.reference_decoder import FAMILIES, SHAPE, Matrix, reference_logits, write_family
from support.tiny_model import write_tiny_model

from pyagent import _rust

NUM_TOKENS = 40


def furthest(left: Matrix, right: Matrix) -> float:
    """The greatest difference of two tables."""
    pairs = ((a, b) for rows in zip(left, right, strict=True) for a, b in zip(*rows, strict=True))
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family_are_those_of_the_formulas(family: str, tmp_path: Path) -> None:
    """Random weights of each family, windows and rotary scalings included: every logit is the formula's to 3e-4."""
    config, tensors = write_family(tmp_path, family)
    draw = random.Random(3)
    tokens = [draw.randrange(SHAPE["vocab_size"]) for _ in range(NUM_TOKENS)]
    assert furthest(engine_logits(tmp_path, tokens), reference_logits(config, tensors, tokens)) < 3e-4


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is not implemented"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "'final_logit_softcapping' is not implemented"),
    ("gemma3", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is not implemented"),
    ("llama", {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is not implemented"),
    ("llama", {"residual_multiplier": 0.2}, "'residual_multiplier' is not implemented"),
    ("llama", {"sliding_window": 8}, "'sliding_window' is not implemented for llama"),
    ("llama", {"quantization_config": {"bits": 4}}, "'quantization_config' is not implemented"),
    ("llama-linear", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn' is not supported"),
    (
        "llama-linear",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.2}},
        "'rope_parameters.attention_factor' is not implemented",
    ),
    ("mistral", {"layer_types": ["full_attention"] * 3}, "'layer_types' is not implemented"),
    ("qwen3-partly", {"layer_types": ["chunked_attention"] * 3}, "'layer_types' is not implemented"),
    ("qwen3-partly", {"layer_types": ["full_attention"] * 2}, "the kinds of 2 layers are told, of 3"),
    ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": "two"}, "must be a whole number"),
]


@pytest.mark.parametrize(("family", "changes", "expected"), REFUSED)
def test_a_field_that_changes_numbers_and_is_not_implemented_is_refused_by_name(
    family: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """A model that would compute otherwise than its configuration says is not loaded."""
    config, _ = write_family(tmp_path, family)
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(tmp_path, threads=1, kv_bytes=1 << 20)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": None, "transformers_version": "5.1", "torch_dtype": "float32", "use_cache": True},
        {"partial_rotary_factor": 1, "use_bidirectional_attention": False, "initializer_range": 0.02},
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ],
)
def test_fields_that_say_nothing_new_are_taken(changes: dict[str, Any], tmp_path: Path) -> None:
    """Fields that are unset, neutral, or about something else than the forward pass change no number."""
    config, tensors = write_family(tmp_path, "gemma3")
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    tokens = list(range(20))
    assert furthest(engine_logits(tmp_path, tokens), reference_logits(config, tensors, tokens)) < 3e-4


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("llama", {"llama__attn_logit_softcapping": 50.0}, "'llama.attn_logit_softcapping' is not implemented"),
        ("llama", {"llama__rope__dimension_count": 8}, "'llama.rope.dimension_count' is 8"),
        ("llama", {"llama__expert_count": 8}, "'llama.expert_count' is not implemented"),
        ("llama", {"llama__attention__value_length": 32}, "'llama.attention.value_length' is 32"),
        ("qwen2", {"qwen2__attention__sliding_window": 8}, "does not say which layers have the window"),
    ],
)
def test_a_gguf_key_that_is_not_implemented_is_refused_by_name(
    architecture: str, changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """Likewise in the metadata of a GGUF file."""
    path = write_tiny_model(tmp_path / "m.gguf", architecture=architecture, **changes)
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)
    assert expected in str(caught.value)


def test_gguf_keys_that_say_nothing_new_are_taken(tmp_path: Path) -> None:
    """Neutral and irrelevant keys of a GGUF change no number."""
    plain = write_tiny_model(tmp_path / "a.gguf")
    more = write_tiny_model(tmp_path / "b.gguf", llama__expert_count=0, llama__vocab_size=325, llama__logit_scale=1.0)
    assert engine_logits(plain, [1, 2, 3]) == engine_logits(more, [1, 2, 3])
