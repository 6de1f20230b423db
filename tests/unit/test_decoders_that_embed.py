"""Decoders that embed: each family's vectors by the formulas, and what is refused."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path

import pytest
from support.reference_decoder import FAMILIES, reference_vectors, write_family

from pyagent import _rust

TOKENS = [(7 * place + place * place) % 96 for place in range(30)]


def as_embedder(folder: Path, pooling: str = "lasttoken") -> Path:
    """Add what sentence-transformers saves beside a model."""
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    steps = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"m.{kind}"} for idx, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(steps), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma2"])
def test_vectors_of_a_family_equal_the_formulas(family: str, tmp_path: Path) -> None:
    """A text longer than the family's window: the last token's vector to 1e-5, and the same bits beside others."""
    config, tensors = write_family(tmp_path, family)
    assert _rust.model_task(tmp_path) == "generate"
    model = _rust.EncoderModel.load(as_embedder(tmp_path), threads=2)
    assert _rust.model_task(tmp_path) == "embed"
    row = reference_vectors(config, tensors, TOKENS)[-1]
    length = math.hypot(*row)
    alone = model.compute([TOKENS])
    assert array("f", alone).tolist() == [pytest.approx(x / length, abs=1e-5) for x in row]
    assert model.compute([TOKENS[:3], TOKENS, TOKENS[:9]])[len(alone) : 2 * len(alone)] == alone


def test_what_cannot_embed_is_refused_by_name(tmp_path: Path) -> None:
    """Capped scores, experts, a matrix of another size, a step that is not implemented."""
    for family, said in [("gemma2", "'gemma2' has capped scores"), ("mixtral", "'llama' has experts")]:
        (tmp_path / family).mkdir()
        write_family(tmp_path / family, family)
        with pytest.raises(_rust.ModelFileError, match=said):
            _rust.describe_encoder(as_embedder(tmp_path / family))
    (tmp_path / "m").mkdir()
    config, _ = write_family(tmp_path / "m", "qwen3")
    as_embedder(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(config | {"intermediate_size": 96}), encoding="utf-8")
    with pytest.raises(_rust.ModelFileError, match=r"gate_proj\.weight' is 80 x 64; expected 96 x 64"):
        _rust.describe_encoder(tmp_path / "m")
    path.write_text(json.dumps(config), encoding="utf-8")
    steps = json.loads((tmp_path / "m" / "modules.json").read_text(encoding="utf-8"))
    dense = [*steps[:2], {"idx": 2, "name": "2", "path": "2_Dense", "type": "m.Dense"}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(dense), encoding="utf-8")
    (tmp_path / "m" / "2_Dense").mkdir()
    about = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"}
    (tmp_path / "m" / "2_Dense" / "config.json").write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(_rust.ModelFileError, match="takes 32 numbers and gives 8; expected it to take 64"):
        _rust.describe_encoder(tmp_path / "m")
