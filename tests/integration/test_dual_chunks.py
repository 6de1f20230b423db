"""Dual chunk attention: the formula's logits; the same bits however a text is computed; faults said by name."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.folder_tokenizer import write_model_folder
from support.kv_sequences import Memory, assert_histories_change_no_bits, random_tokens
from support.logit_sequences import logits_beside
from support.native import engine_logits
from support.quantizing import refusal
from support.reference_decoder import reference_logits, write_family
from support.tiny_model import vocabulary

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.core.runners.factory import KvDtype, LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.infrastructure.models.quantize.quantizing import planned_bytes

FIELD = "dual_chunk_attention_config"
NUM_TOKENS = len(vocabulary()[0])


def chunks_of(size: int, local: int, **more: object) -> dict[str, Any]:
    """Return the field of a `config.json`."""
    return {FIELD: {"chunk_size": size, "local_size": local, **more}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose chunks of 43 positions end within blocks, and whose scores grow from 150 positions on."""
    folder = tmp_path_factory.mktemp("dual")
    dual = chunks_of(60, 17, original_max_position_embeddings=150)
    write_family(folder, "qwen3", vocab_size=NUM_TOKENS, **dual)
    return folder


@pytest.mark.parametrize(
    ("family", "dual"),
    [
        ("qwen2", chunks_of(20, 4)),
        ("qwen3", chunks_of(16, 5, original_max_position_embeddings=30)),
        ("qwen3_moe", chunks_of(9, 8, sparse_attention_enabled=True, sparse_attention_config=[{"0": ["a", 1, 2, 3]}])),
        ("qwen2", chunks_of(9, 5)),  # two ends in a block, and the furthest place is not the chunk's size
    ],
)
def test_logits_are_the_formulas(family: str, dual: dict[str, Any], tmp_path: Path) -> None:
    """Of own chunks, those before and all earlier ones: each logit by the formula in float64, to 5e-4 of up to 60."""
    config, tensors = write_family(tmp_path, family, num_hidden_layers=1 if family == "qwen3_moe" else 2, **dual)
    tokens = [(7 * place + place * place) % 96 for place in range(45)]
    got, expected = engine_logits(tmp_path, tokens), reference_logits(config, tensors, tokens)
    for ours, theirs in zip(got, expected, strict=True):
        assert all(abs(one - other) < 5e-4 for one, other in zip(ours, theirs, strict=True))


def test_a_text_of_one_chunk_has_the_bits_of_plain_attention(path: Path, tmp_path: Path) -> None:
    """The same weights without chunks: the same logits up to the first chunk's end, others after it."""
    tokens = random_tokens(4, 80)
    write_family(tmp_path, "qwen3", vocab_size=NUM_TOKENS)
    ours, others = engine_logits(path, tokens), engine_logits(tmp_path, tokens)
    assert ours[:43] == others[:43]
    assert all(a != b for a, b in zip(ours[44:], others[44:], strict=True))


def test_a_context_of_one_chunk_is_plain_attention(tmp_path: Path) -> None:
    """No text reaches a second chunk: other runners may compute it too, and queries take no more room."""
    write_family(tmp_path, "qwen3", max_position_embeddings=43, **chunks_of(60, 17))
    about = _rust.ModelFile(tmp_path).config
    assert (about.dual_chunks, about.is_cpu_only) == (None, False)


def logits_in_steps(file: Path, tokens: list[int], lengths: list[int], kv_type: KvDtype, threads: int) -> bytes:
    """The logits after every token of a text in steps of such lengths, beside another."""
    model = _rust.CpuModel.load(file, threads=threads, kv_bytes=1 << 22, kv_type=kv_type)
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    return logits_beside(model, pool, tokens, lengths, random_tokens(9, len(lengths)))


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "int8"])
def test_chunks_batches_and_single_tokens_have_the_same_bits(path: Path, kv_type: KvDtype) -> None:
    """Across ends of chunks and of what one thread computes at a time, with one thread and with two."""
    tokens = random_tokens(3, 310)
    rows = engine_logits(path, tokens, kv_type)
    expected = array("f", [number for row in rows for number in row]).tobytes()
    for threads, lengths in ((1, [17] * 18 + [4]), (2, [42, 1, 1, 1, 40, 1, 1, *[1] * 3, 220])):
        assert logits_in_steps(path, tokens, lengths, kv_type, threads) == expected


def test_cached_forked_and_swapped_sequences_have_the_bits_of_cold_ones(path: Path, tmp_path: Path) -> None:
    """Another turn, a branch of the prompt, a fork, a sequence that was swapped out: a start does not know its end."""
    assert_histories_change_no_bits(Memory(path, tmp_path, threads=2))


def test_estimate_holds_what_is_loaded(path: Path) -> None:
    """Before anything is loaded, pages and step memory are known, all queries among it; steps take no more."""
    step = LargestStep(256, 8, 512)
    needs = CPU.estimate(path, RunnerOptions(threads=2), step)
    runner = CPU.load(path, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    assert (needs.page_bytes, needs.kv_groups) == (runner.info.page_bytes, runner.info.kv_groups)
    assert runner.step_bytes(step) <= needs.workspace_bytes
    runner.close()


def test_the_context_is_what_the_file_says(path: Path) -> None:
    """Chunks let a text be as long as `max_position_embeddings`; not a token longer."""
    assert _rust.describe_model(path)["context_length"] == 512
    model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 23)
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    tokens = random_tokens(5, 513)
    pool.add(0, tokens)
    pool.reserve(0, 513)
    _, _, errors, *_ = model.execute(pool, [0], [512], tokens[:512])
    assert not errors
    _, _, errors, *_ = model.execute(pool, [0], [1], tokens[512:])
    assert "past the context of 512 tokens" in str(errors)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (chunks_of(16, 16), "has chunks of 16 positions, 16 of them local; expected more than are local"),
        (chunks_of(1 << 40, 16), "and 268435456 at most"),
        (chunks_of(16, (1 << 64) - 1), "has chunks of 16 positions, 18446744073709551615 of them local"),
        (chunks_of(16, 4, window=3), "'dual_chunk_attention_config.window' is not implemented"),
        ({FIELD: 7}, "'dual_chunk_attention_config' must be a table, got 7"),
        ({FIELD: {"chunk_size": "16"}}, "'chunk_size' must be a whole number"),
        (
            chunks_of(16, 4) | {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "'dual_chunk_attention_config' beside rope scaling is not implemented",
        ),
        (
            chunks_of(16, 4) | {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
            "'dual_chunk_attention_config' beside sliding windows is not implemented",
        ),
        ({"model_type": "llama", **chunks_of(16, 4)}, "'dual_chunk_attention_config' is not implemented"),
    ],
)
def test_what_is_another_model_is_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Sizes that are none, fields that are not known, other families, and what chunks are not known to go with."""
    config, _ = write_family(tmp_path, "qwen2", num_hidden_layers=1)
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(_rust.ModelFileError) as refused:
        _rust.describe_model(tmp_path)
    assert said in str(refused.value)


def test_quantising_refuses_it_by_name(tmp_path: Path) -> None:
    """A GGUF file has no place for chunks: one without them would be another model."""
    folder = write_model_folder(tmp_path / "model", "qwen2", **chunks_of(64, 16))
    said = "its dual chunks cannot be written as GGUF: no key says 'dual_chunk_attention_config'"
    assert said in refusal(folder)
    with pytest.raises(ModelError, match=said):  # so that a model's card gives no size of such a file
        planned_bytes(folder, ["Q8_0"])
