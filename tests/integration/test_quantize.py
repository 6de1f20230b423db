"""Models that are quantised: the same model in another file, complete or absent."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.folder_tokenizer import NUM_TOKENS, write_model_folder, write_tokenizer
from support.full_disk import full_disk
from support.gguf_writer import write_gguf
from support.native import engine_logits
from support.quantizing import quantized, refusal
from support.reference_decoder import write_family, write_safetensors
from support.tiny_model import CHAT_TEMPLATE, split_tiny_model, write_tiny_model

from pyagent import _rust
from pyagent.cli.quantize import ends_by_signal
from pyagent.core.errors import ModelError
from pyagent.core.tokenizers import TokenizerOptions
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import SUPPORTED_PRE_TOKENIZERS
from pyagent.infrastructure.engine.tokens.loading import load_parts
from pyagent.infrastructure.models.quantize.gguf_file import int32s, read_metadata
from pyagent.infrastructure.models.quantize.mixture import Mixture, is_matrix
from pyagent.infrastructure.models.quantize.quantizing import quantize_model
from pyagent.infrastructure.models.quantize.vocabulary import vocabulary_metadata

TOKENS = [5, 80, 11, 200, 45, 7, 7, 64, 1, 90, 33, 150, 8, 21, 260, 3, 77, 41, 19, 2]
FAMILIES = (
    *("llama", "llama-3.1", "llama-linear", "llama-yarn", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"),
    *("gemma3-linear", "smollm3", "olmo2", "phi3", "phi3-longrope", "mixtral", "qwen3_moe", "olmoe"),
)
CHANGED = {"general.quantization_version", "general.file_type"}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": {"query_pre_attn_scalar": 32, "num_hidden_layers": 7, "sliding_window_pattern": 6},
    "gemma3-linear": {"query_pre_attn_scalar": 32, "num_hidden_layers": 7, "sliding_window_pattern": 6},
}
"""What GGUF files of Gemma cannot say otherwise."""


def types(path: Path) -> dict[str, str]:
    return {name: kind for name, _, kind, _ in _rust.read_model_header(path)["tensors"]}


def cosine(one: list[float], other: list[float]) -> float:
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(math.fsum(a * a for a in one) * math.fsum(b * b for b in other))


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama whose rows are whole blocks of 256."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    return write_model_folder(tmp_path_factory.mktemp("wide") / "model", "llama", **sizes)


def add_biases(folder: Path) -> None:
    """Add biases to the matrices of attention in a folder's file."""
    path = folder / "model.safetensors"
    stored = path.read_bytes()
    (length,) = struct.unpack("<Q", stored[:8])
    header, data = json.loads(stored[8 : 8 + length]), bytearray(stored[8 + length :])
    draw = random.Random(3)
    for name in [name for name in header if ".self_attn." in name]:
        rows = header[name]["shape"][0]
        values = struct.pack(f"<{rows}f", *(draw.gauss(0, 0.5) for _ in range(rows)))
        place = {"dtype": "F32", "shape": [rows], "data_offsets": [len(data), len(data) + len(values)]}
        header[name.replace(".weight", ".bias")] = place
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_as_gguf_is_the_same_model(family: str, tmp_path: Path) -> None:
    """In F32 the engine gives a folder's logits from the file: rows are reordered, norms shifted, scalings said."""
    folder = write_model_folder(tmp_path / "model", family, **OF_FAMILY.get(family, {}))
    quantized(folder, tmp_path / "made.gguf", "F32")
    expected, got = engine_logits(folder, TOKENS), engine_logits(tmp_path / "made.gguf", TOKENS)
    for one, other in zip(expected, got, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("family", ["phi3", "mixtral"])
def test_pieces_begin_within_a_part(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that lie in one in the file are the same however many rows are read at a time."""
    folder = write_model_folder(tmp_path / "model", family)
    quantized(folder, tmp_path / "whole.gguf", "F32")
    monkeypatch.setattr("pyagent.infrastructure.models.quantize.quantizing._PIECE_VALUES", 64 * 7)
    quantized(folder, tmp_path / "pieces.gguf", "F32")
    assert (tmp_path / "pieces.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.parametrize(
    ("family", "said"),
    [("ernie4_5", {}), ("minicpm", {"scale_emb": 3.0, "scale_depth": 1.1, "dim_model_base": 16})],
)
def test_a_described_folder_as_gguf_is_the_same_model(family: str, said: dict[str, Any], tmp_path: Path) -> None:
    """Pairs that are neighbours stay, MiniCPM's rows are reordered and its factors said; heads that draft are left."""
    folder, rows = tmp_path / "model", NUM_TOKENS + 3
    write_model_folder(folder, "llama", model_type=family, **said)
    config, tensors = write_family(folder, "llama", model_type=family, vocab_size=rows, **said)
    write_safetensors(folder, config, tensors | {"model.mtp_emb_norm.0.weight": [[0.5, 0.25]]})
    quantized(folder, tmp_path / "made.gguf", "F32")
    expected, got = engine_logits(folder, TOKENS), engine_logits(tmp_path / "made.gguf", TOKENS)
    for one, other in zip(expected, got, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-4)


def test_granite_keeps_its_factors(tmp_path: Path) -> None:
    """Factors on embeddings, scores, blocks and logits are said; rows of queries and keys are reordered."""
    factors = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": None}  # scores as are
    folder = write_model_folder(tmp_path / "model", "llama", model_type="granite", logits_scaling=2.5, **factors)
    quantized(folder, tmp_path / "made.gguf", "F32")
    expected, got = engine_logits(folder, TOKENS), engine_logits(tmp_path / "made.gguf", TOKENS)
    for one, other in zip(expected, got, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-4)


def test_a_file_speaks_as_the_folder_does(tmp_path: Path) -> None:
    """Tokens, the chat template, what begins a text and what ends an answer are the folder's."""
    folder = write_model_folder(tmp_path / "model")
    quantized(folder, tmp_path / "made.gguf", "Q8_0")
    text = "the user is at ease,\n\nand 12 more: naïve <|im_end|> 7 × 8"
    (before, template), (after, made) = (
        load_parts(path, TokenizerOptions()) for path in (folder, tmp_path / "made.gguf")
    )
    assert after.encode(text) == before.encode(text)
    assert (after.begin_id, after.end_ids) == (before.begin_id, before.end_ids) == (None, {0, 2})
    assert template is not None
    assert made is not None
    about = _rust.read_model_header(tmp_path / "made.gguf")["metadata"]
    assert about["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert (about["tokenizer.ggml.bos_token_id"], about["tokenizer.ggml.eos_token_id"]) == (1, 2)
    assert about["tokenizer.ggml.pre"] == "smollm"
    assert about["tokenizer.ggml.tokens"][-3:] == [f"[PAD{NUM_TOKENS + row}]" for row in range(3)]  # type: ignore[index]
    assert about["tokenizer.ggml.token_type"][-1] == 5  # type: ignore[index]


@pytest.mark.parametrize(
    ("type_name", "least"), [("Q8_0", 0.999), ("Q5_K_M", 0.98), ("Q4_K_M", 0.94), ("BF16", 0.9999)]
)
def test_quantised_weights_answer_nearly_the_same(
    type_name: str, least: float, wide_folder: Path, tmp_path: Path
) -> None:
    """Logits point where the folder's do, the more bits the better; sizes and types are those that are told."""
    made = quantized(wide_folder, target := tmp_path / "made.gguf", type_name)
    expected, got = engine_logits(wide_folder, TOKENS), engine_logits(target, TOKENS)
    near = sum(cosine(one, other) for one, other in zip(expected, got, strict=True)) / len(TOKENS)
    assert least < near < 1
    assert made.bytes_after == target.stat().st_size
    found = list(types(target).values())
    assert made.types == {name: found.count(name) for name in found}


def test_a_mixture_is_that_of_the_files_name(wide_folder: Path, tmp_path: Path) -> None:
    """Q4_K_M has the output, the values and the way back in Q6_K; norms stay as they are."""
    quantized(wide_folder, tmp_path / "made.gguf", "Q4_K_M")
    found = types(tmp_path / "made.gguf")
    expected = {"output": "Q6_K", "blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "blk.0.attn_norm": "F32"}
    assert {name: found[f"{name}.weight"] for name in expected} == expected
    assert found["token_embd.weight"] == found["blk.0.attn_q.weight"] == "Q4_K"


def test_mixtures_follow_llama_cpp() -> None:
    """Of 24 layers those with more bits are as `llama-quantize` has them (seen with build 9916c78 of llama.cpp)."""
    names = [f"blk.{layer}.ffn_down.weight" for layer in range(24)]
    more = {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23}
    of_medium = [Mixture("Q4_K_M", 24, is_tied=True).type_of(name, 1024) for name in names]
    assert of_medium == ["Q6_K" if layer in more else "Q4_K" for layer in range(24)]
    of_small = [Mixture("Q4_K_S", 24, is_tied=True).type_of(name, 1024) for name in names]
    assert of_small == ["Q5_K"] * 3 + ["Q4_K"] * 21
    mixture = Mixture("Q4_0", 24, is_tied=True)
    assert [mixture.type_of("token_embd.weight", cols) for cols in (512, 96, 40)] == ["Q6_K", "Q8_0", "F16"]
    assert Mixture("Q4_K_M", 8, is_tied=False).type_of("blk.3.attn_q.weight", 576) == "Q5_0"
    assert Mixture("Q4_K_M", 8, is_tied=False, num_experts=8).type_of("blk.3.attn_k.weight", 512) == "Q8_0"
    assert Mixture("Q5_K_M", 8, is_tied=False).type_of("blk.3.attn_qkv.weight", 512) == "Q6_K"
    assert Mixture("Q4_K_M", 8, is_tied=False).type_of("blk.3.attn_qkv.weight", 512) == "Q5_K"
    values = [Mixture("Q4_K_S", 24, is_tied=True).type_of(f"blk.{layer}.attn_v.weight", 512) for layer in range(6)]
    assert values == ["Q5_K"] * 4 + ["Q4_K"] * 2
    mixtral = Mixture("Q4_K_M", 8, is_tied=False, num_experts=8)
    assert [mixtral.type_of(f"blk.3.{part}.weight", 512) for part in ("attn_v", "attn_output")] == ["Q8_0", "Q5_K"]
    narrow = {"Q5_K_M": "Q5_1", "Q6_K": "Q8_0"}
    assert {name: Mixture(name, 8, is_tied=False).type_of("blk.3.attn_q.weight", 96) for name in narrow} == narrow


@pytest.mark.parametrize(
    "name",
    [
        *("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp_shexp.weight"),
        *("rope_freqs.weight", "rope_factors_long.weight", "blk.0.ssm_conv1d.weight", "blk.0.shortconv.conv.weight"),
        *("per_layer_model_proj.weight", "position_embd.weight", "token_types.weight", "blk.0.attn_q.bias"),
    ],
)
def test_what_llama_cpp_keeps_is_kept(name: str) -> None:
    """Its programs cannot compute these in other types, or lose too much."""
    assert not is_matrix(name, 2)
    assert is_matrix("blk.0.attn_q.weight", 2)
    assert not is_matrix("blk.0.attn_q.weight", 1)


@pytest.mark.parametrize(("name", "number"), [("F16", 1), ("Q8_0", 7), ("Q4_K_S", 14), ("Q4_K_M", 15), ("BF16", 32)])
def test_a_file_says_what_it_is_made_of(name: str, number: int, tmp_path: Path) -> None:
    """`general.file_type` is llama.cpp's number for the type."""
    quantized(write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "made.gguf", name)
    assert _rust.read_model_header(tmp_path / "made.gguf")["metadata"]["general.file_type"] == number


def test_biases_of_heads_are_reordered_too(tmp_path: Path) -> None:
    """Llama with biases gives the folder's logits: rows of queries and keys lie otherwise in GGUF, their biases too."""
    folder = write_model_folder(tmp_path / "model", "llama", attention_bias=True)
    add_biases(folder)
    quantized(folder, tmp_path / "made.gguf", "F32")
    expected, got = engine_logits(folder, TOKENS), engine_logits(tmp_path / "made.gguf", TOKENS)
    for one, other in zip(expected, got, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-4)


def test_a_gguf_file_keeps_what_it_says(tmp_path: Path) -> None:
    """Metadata of any type is copied byte for byte, but for what says which types the file has."""
    source = write_tiny_model(
        tmp_path / "tiny.gguf", note__list=["a", "bc"], note__deep=[[1, 2], [3]], note__truth=True
    )
    quantized(source, tmp_path / "made.gguf", "Q8_0")
    before, after = read_metadata(source), read_metadata(tmp_path / "made.gguf")
    assert {key: value for key, value in after.items() if key not in CHANGED} == before
    assert engine_logits(tmp_path / "made.gguf", TOKENS)[3] == pytest.approx(engine_logits(source, TOKENS)[3], abs=0.5)


def test_more_bits_lose_nothing(tmp_path: Path) -> None:
    """Q8_0 written as F32 gives the same logits, bit for bit, and quantised again the same file."""
    source = write_tiny_model(tmp_path / "tiny.gguf")
    quantized(source, tmp_path / "eight.gguf", "Q8_0")
    quantized(tmp_path / "eight.gguf", tmp_path / "plain.gguf", "F32")
    quantized(tmp_path / "plain.gguf", tmp_path / "again.gguf", "Q8_0")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "eight.gguf").read_bytes()


@pytest.mark.parametrize(
    "pre", [name for name in SUPPORTED_PRE_TOKENIZERS if name not in {"refact", "llama3", "default"}]
)
def test_ways_to_cut_words_are_known_by_what_they_do(pre: str, tmp_path: Path) -> None:
    """Each way that GGUF has a name for is found again from a tokenizer.json that spells it out."""
    folder = write_model_folder(tmp_path / "model")
    write_tokenizer(folder, tokenizer__ggml__pre=pre)
    quantized(folder, tmp_path / "made.gguf", "F16")
    found = _rust.read_model_header(tmp_path / "made.gguf")["metadata"]["tokenizer.ggml.pre"]
    assert found == {"lfm2": "llama-bpe", "glm4": "llama-bpe", "llama4": "gpt-4o"}.get(pre, pre)


@pytest.mark.parametrize("adds_space", [True, False])
def test_sentencepiece_bpe_becomes_scores(adds_space: bool, tmp_path: Path) -> None:
    """A tokenizer.json with merges and fallback to bytes cuts texts as before, from scores."""
    folder = write_model_folder(tmp_path / "model", vocab_size=300)
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "e", "a", "n", "d"]
    made = ["th", "he", "▁th", "an", "▁the", "▁an", "and", "▁and"]
    changes = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__tokens": [*words, *made],
        "tokenizer__ggml__token_type": [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(made) - 259)],
        "tokenizer__ggml__scores": [0.0] * len(words) + [-float(rank) for rank in range(len(made))],
        "tokenizer__ggml__add_space_prefix": adds_space,
    }
    write_tokenizer(folder, **changes)
    quantized(folder, tmp_path / "made.gguf", "F16")
    before, after = (load_parts(path, TokenizerOptions())[0] for path in (folder, tmp_path / "made.gguf"))
    for text in ("the hand and then", " and  the", "ätna\n"):
        assert after.encode(text) == before.encode(text)
    assert _rust.read_model_header(tmp_path / "made.gguf")["metadata"]["tokenizer.ggml.add_space_prefix"] is adds_space


def test_what_calls_a_tool_is_text_in_files_of_gemma_4(tmp_path: Path) -> None:
    """Of the tokens that a tokenizer.json calls special, chats read those that mark thoughts, calls and results."""
    read = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>", "<tool_response|>"]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *read, "<|turn>", "<turn|>"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "th"]
    kinds = [*[3] * len(special), *[6] * 256, *[1] * 4]
    changes = {"tokens": words, "token_type": kinds, "merges": ["t h"], "model": "gemma4"}
    write_tokenizer(tmp_path, **{f"tokenizer__ggml__{key}": value for key, value in changes.items()})
    found = vocabulary_metadata(tmp_path, len(words), has_merges=True)["tokenizer.ggml.token_type"]
    assert found == int32s([4 if word in read else kind for word, kind in zip(words, kinds, strict=True)])


def test_quantised_weights_are_not_quantised_again(tmp_path: Path) -> None:
    """A file with fewer bits is refused by its tensor, and written in F16."""
    source = tmp_path / "four.gguf"
    quantized(write_tiny_model(tmp_path / "tiny.gguf"), source, "Q4_0")
    message = refusal(source, "Q5_0")
    assert "is Q4_0 already" in message
    assert quantized(source, tmp_path / "plain.gguf", "F16").types == {"F16": 16, "F32": 5}


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    """Half a GGUF file, and a folder without a model."""
    source = write_tiny_model(tmp_path / "tiny.gguf")
    source.write_bytes(source.read_bytes()[:-5000])
    assert "tiny.gguf" in refusal(source)
    (tmp_path / "empty").mkdir()
    assert "config.json" in refusal(tmp_path / "empty")


def test_a_file_that_becomes_shorter_meanwhile_is_refused(tmp_path: Path) -> None:
    """It is an error, not the end of the process by a signal; nothing is left of the file that was begun."""
    folder = write_model_folder(tmp_path / "tiny")
    target = tmp_path / "out" / "m.gguf"
    target.parent.mkdir()

    def shrink(done: int, total: int) -> None:
        os.truncate(folder / "model.safetensors", 4096)

    with pytest.raises(
        ModelError, match=r"model.safetensors: cannot read the file: it has become shorter since it was"
    ):
        quantize_model(folder, target, "Q8_0", overwrites=False, threads=1, progress=shrink)
    assert not list(target.parent.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is known to be full, and one that fills up, end in one line and no file."""
    source = write_tiny_model(tmp_path / "tiny.gguf")
    with full_disk():
        assert "cannot be written" in refusal(source)
    free = shutil.disk_usage(tmp_path)._replace(free=1000)

    def few_bytes_free(path: Path) -> object:
        return free

    monkeypatch.setattr(shutil, "disk_usage", few_bytes_free)
    assert "1.0 kB are free" in refusal(source)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ended_command_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl+C and SIGTERM in the middle of a file remove it; what was there before stays."""
    source = write_tiny_model(tmp_path / "tiny.gguf")
    target = tmp_path / "made.gguf"
    target.write_text("before")

    def end(done: int, total: int) -> None:
        assert (tmp_path / ".made.gguf.partial").exists()
        os.kill(os.getpid(), number)

    with pytest.raises((KeyboardInterrupt, SystemExit)), ends_by_signal():
        quantize_model(source, target, "Q8_0", overwrites=True, threads=1, progress=end)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["made.gguf", "tiny.gguf"]
    assert target.read_text() == "before"


def test_a_file_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    """A second one is refused while the first one writes; what a killed one left is written over."""
    source, target = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "made.gguf"
    (tmp_path / ".made.gguf.partial").write_bytes(b"left" * 1_000_000)
    refused: list[str] = []

    def write_too(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(ModelError) as caught:
                quantized(source, target, "Q4_0")
            refused.append(str(caught.value))

    made = quantized(source, target, "Q8_0", write_too)
    assert "another process" in refused[0]
    assert target.stat().st_size == made.bytes_after
    assert not (tmp_path / ".made.gguf.partial").exists()
    quantized(target, tmp_path / "other.gguf", "F16")


@pytest.mark.parametrize("part", [0, 1])
def test_split_files_become_one(part: int, tmp_path: Path) -> None:
    """Whichever of its files is named, a split model is the whole one, and its keys are those of the first."""
    parts = split_tiny_model(tmp_path)
    quantized(parts[part], tmp_path / "made.gguf", "F32")
    whole = write_tiny_model(tmp_path / "whole.gguf")
    assert read_metadata(tmp_path / "made.gguf").keys() - read_metadata(whole).keys() == CHANGED
    assert engine_logits(tmp_path / "made.gguf", TOKENS[:4]) == engine_logits(whole, TOKENS[:4])


@pytest.mark.slow
@pytest.mark.model
def test_a_real_model_comes_back_as_it_was(smollm2_path: Path, tmp_path: Path) -> None:
    """SmolLM2 in Q4_1, written as F32 and quantised again, has the same tensors, byte for byte."""
    quantized(smollm2_path, tmp_path / "plain.gguf", "F32")
    made = quantized(tmp_path / "plain.gguf", tmp_path / "again.gguf", "Q4_1")
    assert (tmp_path / "again.gguf").read_bytes()[-(made.num_weights // 2) :] == (
        smollm2_path.read_bytes()[-(made.num_weights // 2) :]
    )
    assert types(tmp_path / "again.gguf") == types(smollm2_path)


def test_ends_that_are_no_tokens_are_left_out(tmp_path: Path) -> None:
    """Some folders name -1 or an id past the vocabulary where no token ends an answer."""
    folder = write_model_folder(tmp_path / "model", eos_token_id=[-1, 2, 1 << 40], bos_token_id=-1)
    quantized(folder, tmp_path / "made.gguf", "F16")
    assert load_parts(tmp_path / "made.gguf", TokenizerOptions())[0].end_ids == {2}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_replaced(make: Callable[[Path], None], tmp_path: Path) -> None:
    """A folder, pipe or device of the target's name stays, also where files may be written over."""
    source, target = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "made.gguf"
    make(target)
    with pytest.raises(ModelError, match="not a regular file"):
        quantize_model(source, target, "Q8_0", overwrites=True, threads=1, progress=lambda done, total: None)
    assert not target.is_file()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["made.gguf", "tiny.gguf"]


@pytest.mark.parametrize("output", ["tiny-00001-of-00003.gguf", "tiny-00002-of-00003.gguf", "alias.gguf"])
def test_a_model_is_not_written_over_itself(output: str, tmp_path: Path) -> None:
    """Neither the file that is read nor another of the model, by whatever name."""
    parts = split_tiny_model(tmp_path)
    (tmp_path / "alias.gguf").symlink_to(parts[2])
    before = [part.read_bytes() for part in parts]
    with pytest.raises(ModelError, match="is of the model that is read"):
        quantize_model(
            parts[0], tmp_path / output, "Q8_0", overwrites=True, threads=1, progress=lambda done, total: None
        )
    assert [part.read_bytes() for part in parts] == before


def test_a_folder_is_not_written_over_its_weights(tmp_path: Path) -> None:
    """The folder's own file is refused as a target."""
    folder = write_model_folder(tmp_path / "model")
    target = folder / "model.safetensors"
    before = target.read_bytes()
    with pytest.raises(ModelError, match="is of the model that is read"):
        quantize_model(folder, target, "Q8_0", overwrites=True, threads=1, progress=lambda done, total: None)
    assert target.read_bytes() == before


def test_a_file_that_came_meanwhile_stays(tmp_path: Path) -> None:
    """What another program writes to the target's name while the model is quantised is not written over."""
    source, target = write_tiny_model(tmp_path / "tiny.gguf"), tmp_path / "made.gguf"

    def come(done: int, total: int) -> None:
        target.write_text("precious")

    with pytest.raises(ModelError, match="is there already"):
        quantized(source, target, "Q8_0", come)
    assert target.read_text() == "precious"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["made.gguf", "tiny.gguf"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_of_its_own_is_not_written(kind: str, tmp_path: Path) -> None:
    """A link of the unfinished file's name leads nowhere, and nobody waits for a pipe's reader."""
    source, victim, partial = (tmp_path / name for name in ("tiny.gguf", "victim", ".made.gguf.partial"))
    write_tiny_model(source)
    victim.write_text("precious")
    if kind == "link":
        partial.symlink_to(victim)
    else:
        os.mkfifo(partial)
    with pytest.raises(ModelError, match=r"made\.gguf"):
        quantized(source, tmp_path / "made.gguf", "Q8_0")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "made.gguf").exists()


def test_a_name_like_a_part_makes_no_part(tmp_path: Path) -> None:
    """A whole model whose name looks like a part's has its own metadata, not that of what lies beside it."""
    source = write_tiny_model(tmp_path / "z-00002-of-00002.gguf")
    write_tiny_model(tmp_path / "z-00001-of-00002.gguf", general__name="another")
    quantized(source, tmp_path / "made.gguf", "F16")
    assert _rust.read_model_header(tmp_path / "made.gguf")["metadata"]["general.name"] == "tiny"


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    """Nothing to quantise is an error, and leaves nothing."""
    write_gguf(tmp_path / "empty.gguf", {"general.architecture": "llama"}, {})
    assert "has no tensors" in refusal(tmp_path / "empty.gguf")


def test_a_tokenizer_that_panics_is_refused(tmp_path: Path) -> None:
    """A pattern that its library gives up on is an error of the folder."""
    folder = write_model_folder(tmp_path / "model")
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    pattern = {"Regex": r"^(([a-z])+.)+[A-Z]([a-z])+$|(\S+\s*)+\x00"}
    told["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(told))
    assert "tokenizer.json cannot be run" in refusal(folder)


def test_large_matrices_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of few rows give the same file as whole matrices."""
    folder = write_model_folder(tmp_path / "model")
    quantized(folder, tmp_path / "whole.gguf", "Q8_0")
    monkeypatch.setattr("pyagent.infrastructure.models.quantize.quantizing._PIECE_VALUES", 7 * 64)
    quantized(folder, tmp_path / "pieces.gguf", "Q8_0")
    assert (tmp_path / "pieces.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
