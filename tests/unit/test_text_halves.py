"""What `config.json` of models of pictures says of their text half, in `text_config`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pyagent import _rust

_GEMMA_3_4B: dict[str, object] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255_999,
    "eoi_token_index": 256_000,
    "eos_token_id": [1, 106],
    "image_token_index": 262_144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2_560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1_024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1_152, "model_type": "siglip_vision_model"},
}
"""As it is published."""
_MISTRAL: dict[str, object] = {
    "model_type": "mistral3",
    "image_token_index": 10,
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "vision_feature_layer": -1,
    "vision_config": {"model_type": "pixtral"},
}
_TEXT: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 1e9,
    "sliding_window": None,
}


def read(folder: Path, config: dict[str, object], hidden: int) -> _rust.ModelConfig:
    """Return what the engine reads of a configuration, beside an embedding of zeros."""
    (folder / "config.json").write_text(json.dumps(config))
    size = 4 * 8 * hidden
    name = "language_model.model.embed_tokens.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": [8, hidden], "data_offsets": [0, size]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return _rust.ModelFile(folder).config


def test_what_gemma_3_leaves_out_is_the_familys(tmp_path: Path) -> None:
    """Its published `config.json` says of its text half what is not the family's default."""
    about = read(tmp_path, _GEMMA_3_4B, 2_560)
    assert (about.num_heads, about.num_kv_heads, about.head_dim, about.num_layers) == (8, 4, 256, 34)
    assert about.windows[:7] == [1_024] * 5 + [None, 1_024]
    assert about.context_length == 131_072
    assert about.attention_scale == pytest.approx(1 / 16)
    assert about.activation == "gelu_tanh"
    first, second, *_ = about.rope_frequencies
    assert (first, (second / first) ** -128) == (1 / 8, pytest.approx(1e6, rel=1e-3))


@pytest.mark.parametrize("named", [{"model_type": "mistral", "hidden_act": "silu"}, {}])
def test_a_text_half_of_mistral_is_of_the_family_that_it_names(named: dict[str, object], tmp_path: Path) -> None:
    """Mistral's where it names none; what tells of pictures is left aside."""
    about = read(tmp_path, {**_MISTRAL, "text_config": {**_TEXT, **named}}, 64)
    assert (about.architecture, about.num_heads, about.head_dim) == ("llama", 4, 32)
    assert math.isclose(about.rope_frequencies[1] ** -16, 1e9, rel_tol=1e-3)


def test_what_is_not_known_of_a_text_half_is_refused(tmp_path: Path) -> None:
    """A field that nothing reads, and a family that is not supported, by their names."""
    for changed, said in (
        ({"experts_of_the_text": 4}, "'experts_of_the_text' is not implemented"),
        ({"model_type": "mistral9"}, "architecture 'mistral9' is not supported"),
    ):
        with pytest.raises(_rust.ModelFileError, match=said):
            read(tmp_path, {**_MISTRAL, "text_config": {**_TEXT, **changed}}, 64)
