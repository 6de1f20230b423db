"""BERT as a GGUF file: the vectors and tokens of its folder, and what cannot be said."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.quantizing import quantized, refusal
from support.tiny_encoder import (
    LONGEST,
    PIECES,
    SHAPE,
    tensors_of,
    write_classifier,
    write_encoder,
    write_json,
    write_late_encoder,
)

from pyagent import _rust
from pyagent.cli.root import run as run_command
from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens

TEXTS = ["The CAT sat", "x y zy [MASK] né", "q " * 18]


def vectors(path: Path) -> bytes:
    about = _rust.describe_encoder(path)
    assert about is not None
    tokens = TextTokens(path, about["max_tokens"], about["vocab_size"]).encode(TEXTS)
    return _rust.EncoderModel.load(path, threads=2).compute(tokens)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
def test_a_written_encoder_gives_the_folders_bits(pooling: str, tmp_path: Path) -> None:
    """In F32: the same tokens and vectors; its longest text is the folder's, as long as its table of positions."""
    folder = write_encoder(tmp_path / "m", pooling=pooling)
    made = quantized(folder, tmp_path / "m.gguf", "F32")
    assert vectors(tmp_path / "m.gguf") == vectors(folder)
    about = _rust.read_model_header(tmp_path / "m.gguf")
    assert about["metadata"]["bert.context_length"] == LONGEST < SHAPE["max_position_embeddings"]
    assert {name: dims for name, dims, *_ in about["tensors"]}["position_embd.weight"] == [24, LONGEST]
    assert made.types == {"F32": len(about["tensors"])}


@pytest.mark.parametrize("labels", [["relevant"], ["bad", "good"]])
def test_labels_of_roberta_are_kept(labels: list[str], tmp_path: Path) -> None:
    """A ranker or classifier in F32: the folder's numbers and labels; positions begin behind that of padding."""
    folder = write_classifier(tmp_path / "m", labels, model_type="xlm-roberta", pad_token_id=1, type_vocab_size=1)
    quantized(folder, tmp_path / "m.gguf", "F32")
    assert vectors(tmp_path / "m.gguf") == vectors(folder)
    about = _rust.describe_encoder(tmp_path / "m.gguf")
    assert about is not None
    assert (about["labels"], about["max_tokens"]) == (labels, SHAPE["max_position_embeddings"] - 2)


def test_a_layers_tensor_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    """It is named."""
    tensors = tensors_of(SHAPE) | {"encoder.layer.1.gain.weight": ([24], [1.0] * 24)}
    assert "'encoder.layer.1.gain.weight' would be lost" in refusal(write_encoder(tmp_path / "m", tensors=tensors))


def test_the_vocabulary_is_told_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    """How many texts are told apart, which pieces are special, and rows of the embedding that stand for no piece."""
    folder = write_encoder(tmp_path / "m", type_vocab_size=3, vocab_size=len(PIECES) + 2)
    quantized(folder, tmp_path / "m.gguf", "F32")
    told = _rust.read_model_header(tmp_path / "m.gguf")["metadata"]
    assert told["tokenizer.ggml.token_type_count"] == 3
    assert told["tokenizer.ggml.token_type"] == [3] * 5 + [1] * (len(PIECES) - 5) + [5, 5]
    tokens = told["tokenizer.ggml.tokens"]
    assert tokens[-2:] == [f"▁[PAD{len(PIECES)}]", f"▁[PAD{len(PIECES) + 1}]"]
    assert (tokens[4], tokens[5], tokens[31]) == ("[MASK]", "▁a", "a")


def test_a_cased_vocabulary_stays_one(tmp_path: Path) -> None:
    """The file says that letters are not lowered."""
    folder = write_encoder(tmp_path / "m")
    write_json(folder / "tokenizer_config.json", {"do_lower_case": False})
    quantized(folder, tmp_path / "m.gguf", "Q8_0")
    tokens = TextTokens(tmp_path / "m.gguf", LONGEST, len(PIECES)).encode(["THE the"])
    assert tokens == [[2, PIECES.index("[UNK]"), PIECES.index("the"), 3]]


def test_vectors_stay_near_and_the_command_says_how_near(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report has the cosine of both models' vectors where others have a perplexity."""
    folder = write_encoder(tmp_path / "m")
    words = ["models", "quantize", str(folder), "--type", "Q8_0", "--output", str(tmp_path / "m.gguf")]
    text = tmp_path / "text.txt"
    text.write_text("the cat\n\nx y z\n", encoding="utf-8")
    assert run_command([*words, "--text", str(text), "--json"]) == 0
    quality = json.loads(capsys.readouterr().out)["quality"]
    assert quality["num_texts"] == 2
    assert 0.99 < quality["least_cosine"] <= quality["mean_cosine"] <= 1
    one, other = (array("f", vectors(path)).tolist()[:24] for path in (folder, tmp_path / "m.gguf"))
    assert sum(a * b for a, b in zip(one, other, strict=True)) > 0.99
    assert run_command([*words, "--text", str(text), "--force"]) == 0
    shown = capsys.readouterr()
    assert "a text is embedded by both models now" in shown.err
    assert "between the vectors of 2 texts" in shown.out


def _dense(folder: Path) -> Path:
    path = write_encoder(folder)
    steps = [{"type": "m.Transformer", "path": ""}, {"type": "m.Pooling", "path": "1_Pooling"}]
    write_json(path / "modules.json", [*steps, {"type": "m.Dense", "path": "2_Dense"}])
    (path / "2_Dense").mkdir()
    late = write_late_encoder(folder.parent / "late")
    for name in ("config.json", "model.safetensors"):
        (path / "2_Dense" / name).write_bytes((late / "1_Dense" / name).read_bytes())
    return path


UNSAID: dict[str, tuple[Callable[[Path], Path], str]] = {
    "tanh's GELU": (lambda folder: write_encoder(folder, hidden_act="gelu_new"), "its activation is gelu_new"),
    "the greatest": (lambda folder: write_encoder(folder, pooling="max_tokens"), "pooling by max has no name there"),
    "labels": (lambda folder: write_classifier(folder, ["a", "b"]), "its labels have no place there"),
    "late interaction": (write_late_encoder, "late interaction has no name there"),
    "a dense step": (_dense, "its steps after pooling have no place there"),
}


@pytest.mark.parametrize("name", UNSAID)
def test_what_has_no_key_is_refused(name: str, tmp_path: Path) -> None:
    """In a line that names it; nothing is written."""
    make, expected = UNSAID[name]
    assert expected in refusal(make(tmp_path / "m"))


def test_a_tokenizer_of_other_pieces_is_refused(tmp_path: Path) -> None:
    """It is none of BERT's, and texts would become other tokens."""
    folder = write_encoder(tmp_path / "m")
    told: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    told |= {"normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    words = {"type": "WordLevel", "vocab": {piece: row for row, piece in enumerate(PIECES)}, "unk_token": "[UNK]"}
    write_json(folder / "tokenizer.json", told | {"model": words})
    assert "its tokenizer is WordLevel; expected WordPiece, Unigram, BPE" in refusal(folder)
    pieces = words | {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    write_json(folder / "tokenizer.json", told | {"model": pieces})
    assert "would become other tokens" in refusal(folder)
