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


@pytest.mark.parametrize("family", ["qwen3-partly", "gemma3", "smollm3", "olmo2"])
def test_a_text_in_parts_has_the_bits_of_one_read_whole(family: str, tmp_path: Path) -> None:
    """Parts of seven tokens, in layers with and without windows: the text's vector, and those of its tokens."""
    config, _ = write_family(tmp_path, family)
    whole = _rust.EncoderModel.load(as_embedder(tmp_path, "mean_tokens"), threads=2)
    parts = _rust.EncoderModel.load(tmp_path, threads=1, most_tokens=7)
    assert in_parts(parts, TOKENS) == (whole.compute([TOKENS]), 5 * config["num_hidden_layers"])
    assert in_parts(parts, TOKENS, gives_tokens=True)[0] == whole.compute_tokens([TOKENS])


def test_each_pooling_of_a_text_in_parts_is_that_of_the_whole(tmp_path: Path) -> None:
    """200 tokens in parts of 150, on every instruction set: the same bits; a text of before leaves nothing behind."""
    write_family(tmp_path, "qwen3")
    folder, text = as_embedder(tmp_path), [(7 * at + at * at // 3) % 96 for at in range(200)]
    for pooling in ("mean_tokens", "weightedmean_tokens", "max_tokens", "lasttoken", "cls_token"):
        modes = {f"pooling_mode_{pooling}": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes), encoding="utf-8")
        expected = _rust.EncoderModel.load(folder, threads=2).compute([text])
        isas = _rust.cpu_features()["isas"]
        for isa in isas if pooling == "mean_tokens" else isas[-1:]:
            parts = _rust.EncoderModel.load(folder, threads=3, most_tokens=150, isa=isa)
            left = parts.begin(text[::-1], gives_tokens=False)
            assert parts.advance(left) is None
            assert in_parts(parts, text) == (expected, 3 * 2)


def in_parts(model: _rust.EncoderModel, text: list[int], *, gives_tokens: bool = False) -> tuple[bytes, int]:
    """What a text gives, and in how many steps."""
    begun, steps = model.begin(text, gives_tokens), 1
    while (found := model.advance(begun)) is None:
        steps += 1
    return found, steps


def test_a_text_in_parts_is_of_the_model_that_began_it(tmp_path: Path) -> None:
    """One of another shape, or of the same files again, refuses it, as its memory is laid out for the first alone."""
    for family in ("qwen3", "gemma3"):
        (tmp_path / family).mkdir()
        write_family(tmp_path / family, family)
        as_embedder(tmp_path / family, "mean_tokens")
    folders = [tmp_path / family for family in ("qwen3", "gemma3", "qwen3")]
    model, *others = (_rust.EncoderModel.load(folder, threads=1, most_tokens=7) for folder in folders)
    begun = model.begin(TOKENS, gives_tokens=False)
    for other in others:
        with pytest.raises(_rust.ModelFileError, match="the text was begun by another model"):
            other.advance(begun)
    while (found := model.advance(begun)) is None:
        pass
    assert found == in_parts(model, TOKENS)[0]
    with pytest.raises(_rust.ModelFileError, match="the text has been computed"):
        model.advance(begun)


def test_a_decoder_takes_texts_as_long_as_its_context(tmp_path: Path) -> None:
    """Room is reserved for a batch, and more when a long text comes; one whose tokens see both ways keeps its bound."""
    config, _ = write_family(tmp_path, "qwen3", max_position_embeddings=40_000)
    about = _rust.describe_encoder(as_embedder(tmp_path))
    assert about is not None
    assert (about["max_tokens"], about["workspace_bytes"] < 4_000_000) == (40_000, True)
    model = _rust.EncoderModel.load(tmp_path, threads=1)
    assert about["long_text_bytes"] == model.long_text_bytes(40_000) > 10 * model.long_text_bytes(1_500) > 0
    with pytest.raises(ValueError, match="it has 40001 tokens; the model takes 40000"):
        model.begin([3] * 40_001, gives_tokens=False)
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_bidirectional_attention": True}), encoding="utf-8")
    about = _rust.describe_encoder(tmp_path)
    assert about is not None
    assert (about["max_tokens"], about["long_text_bytes"]) == (8_192, 0)
    with pytest.raises(_rust.ModelFileError, match="the model reads a text whole"):
        _rust.EncoderModel.load(tmp_path, threads=1).begin([3] * 40, gives_tokens=False)


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
