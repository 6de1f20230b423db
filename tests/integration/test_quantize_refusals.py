"""Folders that are not quantised: what is wrong with each in one line, and nothing is left."""

from __future__ import annotations

import json
import math
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.folder_tokenizer import NUM_TOKENS, write_model_folder, write_tokenizer
from support.quantizing import quantized, refusal
from support.reference_decoder import write_family, write_safetensors
from support.tiny_sparse import write_openai_folder


def change_tokenizer(folder: Path, **changes: object) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_about(folder: Path, **changes: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def grow(pattern: str, content: str) -> dict[str, object]:
    """A normalizer that puts one text in place of another."""
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def in_sequences(depth: int, *steps: object) -> dict[str, object]:
    """Normalizers in so many sequences, one in the other."""
    found: dict[str, object] = {"type": "Sequence", "normalizers": list(steps)}
    return found if depth == 0 else in_sequences(depth - 1, found)


def drop_tensor(folder: Path, name: str) -> None:
    """Rename a tensor to one that does not count."""
    change_header(folder, lambda header: header | {_IGNORED: header.pop(name)})


def add_tensor(folder: Path) -> None:
    """Write one number more, as a tensor that no family has."""
    size = (folder / "model.safetensors").stat().st_size
    (start,) = struct.unpack("<Q", (folder / "model.safetensors").read_bytes()[:8])
    place = size - 8 - start
    extra = {"dtype": "F32", "shape": [1], "data_offsets": [place, place + 4]}
    change_header(folder, lambda header: header | {"model.extra.weight": extra})
    with (folder / "model.safetensors").open("ab") as file:
        file.write(bytes(4))


def change_header(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    text = json.dumps(change(json.loads(data[8 : 8 + size]))).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


DOWN = "model.layers.1.mlp.down_proj.weight"
_IGNORED = "model.layers.0.self_attn.rotary_emb.inv_freq"
NORM = "model.layers.1.input_layernorm.weight"
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing matrix": (lambda folder: drop_tensor(folder, DOWN), "layers.1.mlp.down_proj' is missing"),
    "a missing norm": (lambda folder: drop_tensor(folder, NORM), "layers.1.input_layernorm.weight' is missing"),
    "no final norm": (lambda folder: drop_tensor(folder, "model.norm.weight"), "output_norm.weight' is missing"),
    "a matrix of another size": (lambda folder: change_config(folder, intermediate_size=96), "expected [96, 64]"),
    "a tensor too many": (add_tensor, "model.extra.weight"),
    "no family": (lambda folder: change_config(folder, model_type=["llama"]), "cannot be written as GGUF"),
    "an unknown family": (lambda folder: change_config(folder, model_type="clip"), "clip"),
    "a relative of one that can": (
        lambda folder: change_config(folder, model_type="gemma3n_text"),
        "'gemma3n' cannot be written as GGUF; the nearest that can is gemma4; the documentation's page on quantising",
    ),
    "a family without words": (lambda folder: change_config(folder, model_type="bamba"), "bamba"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "a broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{"), "not valid JSON"),
    "words cut at spaces": (
        lambda folder: change_tokenizer(folder, pre_tokenizer={"type": "Whitespace"}),
        "cuts words",
    ),
    "a tokenizer that lowers": (
        lambda folder: change_tokenizer(folder, normalizer={"type": "Lowercase"}),
        "cuts words",
    ),
    "a tokenizer of another model": (lambda folder: change_config(folder, eos_token_id=[0, 1, 2, 3]), "4 tokens end"),
    "a text that is none": (lambda folder: change_about(folder, chat_template="\ud800 {{ messages }}"), "beyond what"),
    "quantised weights": (
        lambda folder: change_config(folder, quantization_config={"quant_method": "awq", "bits": 4}),
        "quantised already",
    ),
}


TOO_LARGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a text that grows": (
        lambda folder: change_tokenizer(folder, normalizer=in_sequences(8, *[grow("a", "aaaa")] * 6)),
        "4,096 times as long",
    ),
    "a text that grows everywhere": (
        lambda folder: change_tokenizer(folder, normalizer=in_sequences(1, *[grow("", "ab")] * 7)),
        "2,187 times as long",
    ),
    "many steps": (
        lambda folder: change_tokenizer(folder, normalizer=in_sequences(2, *[grow("a", "b")] * 65)),
        "65 steps",
    ),
    "sequences in sequences": (lambda folder: change_tokenizer(folder, normalizer=in_sequences(17)), "deeper than 16"),
    "a long added token": (
        lambda folder: change_tokenizer(folder, added_tokens=[{"id": 0, "content": "a" * 5_000}]),
        "a token of 5000 characters",
    ),
    "a long token": (
        lambda folder: change_tokenizer(folder, model={"type": "BPE", "vocab": {"b" * 5_000: 0}, "merges": []}),
        "a token of 5000 characters",
    ),
    "a long chat template": (lambda folder: change_about(folder, chat_template="a" * 300_000), "the limit is 262144"),
    "a long file of a template": (
        lambda folder: (folder / "chat_template.jinja").write_text("a" * 5_000_000),
        "larger than 4194304 bytes",
    ),
    "a template that is no text": (
        lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe"),
        "not a text in UTF-8",
    ),
    "a long header": (
        lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 17 << 20) + bytes(17 << 20)),
        "16777216",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_written_is_refused_by_name(what: str, tmp_path: Path) -> None:
    """Each fault of a folder is one line that names it, and no file is left."""
    folder = write_model_folder(tmp_path / "model")
    spoil, named = WRONG[what]
    spoil(folder)
    message = refusal(folder)
    assert named in message
    assert "\n" not in message


def test_what_is_too_large_is_refused_at_once(tmp_path: Path) -> None:
    """What would take seconds or gigabytes is one line that names it, before it is run."""
    folder = write_model_folder(tmp_path / "whole")
    for number, (spoil, named) in enumerate(TOO_LARGE.values()):
        spoil(shutil.copytree(folder, tmp_path / str(number) / "model"))
        start = time.process_time()
        message = refusal(tmp_path / str(number) / "model")
        assert named in message
        assert "\n" not in message
        assert time.process_time() - start < 1


def test_experts_in_mxfp4_are_those_of_the_folder_or_refused(tmp_path: Path) -> None:
    """gpt-oss: told of MXFP4 or not, no expert gets lost; other weights of few bits are refused."""
    folder = write_openai_folder(tmp_path / "model")
    write_tokenizer(folder)
    told = quantized(folder, tmp_path / "told.gguf", "Q8_0")
    assert told.types["MXFP4"] == 12
    for other in ({"quant_method": "other"}, {}, [1], "mxfp4", 0):
        change_config(folder, quantization_config=other)
        assert "its weights are quantised already" in refusal(folder)
    change_config(folder, quantization_config=None)
    quantized(folder, tmp_path / "untold.gguf", "Q8_0")
    assert (tmp_path / "untold.gguf").read_bytes() == (tmp_path / "told.gguf").read_bytes()
    path, scales = folder / "model.safetensors", "model.layers.2.mlp.experts.down_proj_scales"
    whole, told_of = path.read_bytes(), f'"{scales}": {{"dtype": "U8", "shape": [6, 64, 3]'
    assert whole.count(told_of.encode()) == 1
    for old, new, said in (
        ("scales", "scalez", "is missing; the folder is incomplete"),
        ("U8", "I8", "is [3, 64, 6] of I8; expected [3, 64, 6] of U8"),
        ("64, 3", "32, 6", "is [6, 32, 6] of U8; expected [3, 64, 6] of U8"),
    ):
        path.write_bytes(whole.replace(told_of.encode(), told_of.replace(old, new).encode()))
        assert f"tensor '{scales}' {said}" in refusal(folder)


def test_a_bias_that_some_layers_have_is_refused(tmp_path: Path) -> None:
    """Of families that may have them or not: one got lost, or is too much."""
    folder = write_model_folder(tmp_path / "model", model_type="ernie4_5")
    config, tensors = write_family(folder, "llama", model_type="ernie4_5", vocab_size=NUM_TOKENS + 3)
    name = "model.layers.1.self_attn.q_proj.bias"
    write_safetensors(folder, config, tensors | {name: [[0.5] * 64]})
    assert f"'{name}' is in some layers alone" in refusal(folder)


def test_what_gguf_has_no_words_for_is_refused(tmp_path: Path) -> None:
    """A model that would be read back as another is refused by what differs."""
    folder = write_model_folder(tmp_path / "gemma", "gemma3", query_pre_attn_scalar=48, sliding_window_pattern=6)
    assert "attention scale" in refusal(folder)
    folder = write_model_folder(tmp_path / "windows", "smollm3", no_rope_layers=[1, 0, 1, 1, 1])
    assert "rotary layers" in refusal(folder)


@pytest.mark.parametrize(("number", "named"), [(math.nan, "NaN"), (math.inf, "inf"), (1e6, "65,504")])
def test_numbers_that_a_type_cannot_hold_are_refused(number: float, named: str, tmp_path: Path) -> None:
    """The tensor is named; a large number may be BF16."""
    config, tensors = write_family(write_model_folder(tmp_path / "model"), "llama", vocab_size=NUM_TOKENS + 3)
    tensors[DOWN][3][5] = number
    write_safetensors(tmp_path / "model", config, tensors)
    message = refusal(tmp_path / "model")
    assert "blk.1.ffn_down.weight" in message
    assert named in message
    if math.isfinite(number):
        quantized(tmp_path / "model", tmp_path / "made.gguf", "BF16")
