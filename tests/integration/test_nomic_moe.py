"""nomic-embed-text-v2-moe from folders and GGUF files: the same bits, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration.test_gguf_encoders import written
from support.jina_bert import texts
from support.nomic_moe import gguf_of, write_nomic_moe

from pyagent import _rust

TEXTS = texts(1, 9, 100)


def computed(path: Path) -> bytes:
    return _rust.EncoderModel.load(path, threads=2).compute(TEXTS)


def test_a_gguf_file_gives_the_folders_bits(tmp_path: Path) -> None:
    """Where the experts add nothing at last, which the file leaves out; a folder's counts."""
    sizes, tensors = gguf_of()
    path = written(tmp_path / "m.gguf", "nomic-bert-moe", sizes, tensors)
    assert _rust.model_task(path) == "embed"
    assert computed(path) == computed(write_nomic_moe(tmp_path / "m", has_bias=False))
    assert computed(path) != computed(write_nomic_moe(tmp_path / "n"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_experts": 6}, "is 5 x 24; expected 6 x 24"),
        ({"num_experts": 1 << 40}, "experts of a layer is 1099511627776; expected 1 to 1024"),
        ({"num_experts": 0}, "experts of a layer is 0"),
        ({"moe_top_k": 6}, "experts of a token is 6; expected 1 to 5"),
        ({"moe_every_n_layers": 1 << 40}, "period of layers with experts is 1099511627776"),
        ({"moe_every_n_layers": 1}, 'tensor "encoder.layers.1.mlp.fc1.weight" is missing'),
        ({"moe_normalize_expert_weights": True}, "'moe_normalize_expert_weights' is true, which is not implemented"),
        ({"num_shared_experts": 1}, "'num_shared_experts' is 1, which is not implemented"),
        ({"expert_choice_router": True}, "'expert_choice_router' is true"),
        ({"activation_function": "swiglu"}, "'activation_function' is \"swiglu\""),
        ({"qkv_proj_bias": False}, "'qkv_proj_bias' is false"),
    ],
)
def test_other_configurations_are_refused_by_name(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """Before memory is taken."""
    with pytest.raises(_rust.ModelFileError, match=expected):
        _rust.describe_encoder(write_nomic_moe(tmp_path / "m", **changes))
