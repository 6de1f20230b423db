"""Sparse attention: an index key beside each latent; the same bits however a text is computed; faults said by name."""

from __future__ import annotations

import subprocess
from array import array
from itertools import combinations
from pathlib import Path

import pytest
from support.command_line import COMMAND, fresh_environment
from support.kv_sequences import Memory, assert_histories_change_no_bits, random_tokens
from support.logit_sequences import logits_beside
from support.native import engine_logits
from support.tiny_sparse import (
    HIDDEN,
    INDEX_HEADS,
    INDEX_KEY,
    INDEXED_LAYERS,
    LATENT,
    LAYERS,
    PICKED,
    QUERY_LATENT,
    ROTARY,
    sparse_tensors,
    write_sparse,
)

from pyagent import _rust
from pyagent.core.runners.factory import KvDtype, LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU

_TENSORS = {family: sparse_tensors(family) for family in INDEXED_LAYERS}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose layers all have an indexer."""
    return write_sparse(tmp_path_factory.mktemp("sparse") / "m.gguf", "deepseek32", _TENSORS["deepseek32"])


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of which every other layer attends to what the one before picked."""
    return write_sparse(tmp_path_factory.mktemp("sharing") / "m.gguf", "glm-dsa", _TENSORS["glm-dsa"])


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "int8"])
def test_a_token_takes_an_index_key_too(path: Path, kv_type: str) -> None:
    """The cache holds a latent, a rotated key and an index key, of the same type."""
    bytes_of_number = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}[kv_type]
    scales = 8 if kv_type == "int8" else 0
    expected = LAYERS * ((LATENT + ROTARY + INDEX_KEY) * bytes_of_number + scales)
    assert _rust.describe_model(path, kv_type)["kv_bytes_per_token"] == expected
    info = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20, kv_type=kv_type).info()
    assert info["kv_bytes_per_token"] == expected
    assert info["page_bytes"] == 16 * expected


def test_layers_without_an_indexer_keep_no_index_keys(sharing: Path) -> None:
    """A block takes no more than its latents and the index keys of layers that have them, in whole pages."""
    info = _rust.CpuModel.load(sharing, threads=1, kv_bytes=1 << 20, kv_type="f32").info()
    needed = 4 * (LAYERS * (LATENT + ROTARY) + sum(INDEXED_LAYERS["glm-dsa"]) * INDEX_KEY)
    assert needed <= info["kv_bytes_per_token"] < 4 * LAYERS * (LATENT + ROTARY + INDEX_KEY)
    assert info["kv_groups"] == [("full", 0, 3)]


def logits_in_steps(file: Path, tokens: list[int], lengths: list[int], kv_type: KvDtype, threads: int) -> bytes:
    """The logits after every token of a text in steps of such lengths, beside another, after one that picked."""
    model = _rust.CpuModel.load(file, threads=threads, kv_bytes=1 << 22, kv_type=kv_type)
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    before = random_tokens(8, 90)
    pool.add(2, before)
    for done in (0, 45):
        pool.reserve(2, done + 45)
        model.execute(pool, [2], [45], before[done : done + 45])
    pool.release(2)
    return logits_beside(model, pool, tokens, lengths, random_tokens(9, len(lengths)))


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize("name", ["path", "sharing"])
def test_chunks_batches_and_single_tokens_have_the_same_bits(
    name: str, kv_type: KvDtype, request: pytest.FixtureRequest
) -> None:
    """Across the border from which tokens are picked, with one thread and with two."""
    file: Path = request.getfixturevalue(name)
    tokens = random_tokens(3, 310)
    rows = engine_logits(file, tokens, kv_type)
    expected = array("f", [number for row in rows for number in row]).tobytes()
    for threads, lengths in ((1, [17] * 18 + [4]), (2, [PICKED - 1, 1, 1, 1, 284])):
        assert logits_in_steps(file, tokens, lengths, kv_type, threads) == expected


def test_tokens_that_see_no_more_than_is_picked_have_the_bits_of_dense_attention(path: Path, tmp_path: Path) -> None:
    """The same weights with room for all tokens: the same logits up to the border, others after it."""
    tokens = random_tokens(4, 80)
    every = {"attention__indexer__top_k": 512}
    dense = write_sparse(tmp_path / "dense.gguf", "deepseek32", _TENSORS["deepseek32"], **every)
    ours, others = engine_logits(path, tokens), engine_logits(dense, tokens)
    assert ours[:PICKED] == others[:PICKED]
    assert all(a != b for a, b in zip(ours[PICKED + 1 :], others[PICKED + 1 :], strict=True))


def test_each_indexer_picks_for_its_layer(tmp_path: Path) -> None:
    """The same weights with fewer indexers: the same logits up to the border, others after it."""
    tokens, found = random_tokens(4, 60), list[list[list[float]]]()
    for number, indexed in enumerate(([True] * 4, [True, False, True, False], [True, False, False, False])):
        without = tuple(f"blk.{layer}.indexer." for layer in range(LAYERS) if not indexed[layer])
        tensors = {name: tensor for name, tensor in _TENSORS["deepseek32"].items() if not name.startswith(without)}
        types = {"attention__indexer__types": indexed}
        found.append(engine_logits(write_sparse(tmp_path / f"{number}.gguf", "glm-dsa", tensors, **types), tokens))
    for ours, others in combinations(found, 2):
        assert ours[:PICKED] == others[:PICKED]
        assert all(a != b for a, b in zip(ours[PICKED + 4 :], others[PICKED + 4 :], strict=True))


@pytest.mark.parametrize("name", ["path", "sharing"])
def test_cached_forked_and_swapped_sequences_have_the_bits_of_cold_ones(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Another turn, a branch of the prompt, a fork, a sequence that was swapped out: index keys go with latents."""
    assert_histories_change_no_bits(Memory(request.getfixturevalue(name), tmp_path, threads=2))


def test_estimate_holds_what_is_loaded(sharing: Path) -> None:
    """Before anything is loaded, pages and step memory are known, ratings among it; steps take no more."""
    step = LargestStep(64, 8, 512)
    needs = CPU.estimate(sharing, RunnerOptions(threads=2), step)
    runner = CPU.load(sharing, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    assert (needs.page_bytes, needs.kv_groups) == (runner.info.page_bytes, runner.info.kv_groups)
    assert runner.step_bytes(step) <= needs.workspace_bytes
    runner.close()


def test_estimate_holds_what_indexers_ask_and_pick(tmp_path: Path) -> None:
    """Where many tokens are picked, no other buffer's slack has room for them."""
    many = {"attention__indexer__top_k": 2_000}
    path = write_sparse(tmp_path / "many.gguf", "deepseek32", _TENSORS["deepseek32"], **many)
    step = LargestStep(256, 1, 256)
    needs = CPU.estimate(path, RunnerOptions(threads=1), step)
    runner = CPU.load(path, RunnerOptions(threads=1, kv_bytes=1 << 22), step, None)
    taken = 4 * step.num_tokens * (INDEX_HEADS * INDEX_KEY + 2_000)
    assert runner.step_bytes(step) <= needs.workspace_bytes < runner.step_bytes(step) + taken
    runner.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top_k": 0}, "tokens that the indexer picks are 0; expected 1 to 1048576"),
        ({"top_k": None}, '"glm-dsa.attention.indexer.top_k" is missing'),
        ({"head_count": 0}, "heads of the indexer are 0; expected 1 to 4096"),
        ({"head_count": 24}, "an indexer has 24 heads, which is not supported; expected a multiple of 16"),
        ({"head_count": 32}, "tensor 'blk.0.indexer.attn_q_b.weight' is 512 x 48; expected 1024 x 48"),
        ({"key_length": 8}, "numbers of an index key are 8; expected 16 to 4096"),
        ({"key_length": 2**31}, "numbers of an index key are 2147483648"),
        ({"types": [False, True, True, True]}, "the first layer has no indexer"),
        ({"types": [True, True]}, "the indexers of 2 layers are told, of 4"),
        ({"types": 7}, "'glm-dsa.attention.indexer.types' must have true or false for each layer"),
        ({"types": [True, True, True, False]}, "blk.1.indexer.attn_q_b.weight"),
        ({"types": [True, False, False, False]}, "there is a tensor 'blk.2.indexer."),
    ],
)
def test_faults_of_an_indexer_are_refused_by_name(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    """What the file says of its indexer is checked before memory is taken."""
    keys = {f"attention__indexer__{key}": value for key, value in changes.items()}
    file = write_sparse(tmp_path / "m.gguf", "glm-dsa", _TENSORS["glm-dsa"], **keys)
    with pytest.raises(_rust.ModelFileError) as refused:
        _rust.CpuModel.load(file, threads=1, kv_bytes=1 << 20)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("attn_q_b.weight", None, "indexer.attn_q_b.weight"),
        ("k_norm.bias", None, "indexer.k_norm.bias"),
        ("proj.weight", (HIDDEN, 8), "is 8 x 64; expected 16 x 64"),
        (
            "attn_k.weight",
            (QUERY_LATENT, INDEX_KEY),
            f"is {INDEX_KEY} x {QUERY_LATENT}; expected {INDEX_KEY} x {HIDDEN}",
        ),
        ("k_norm.weight", (INDEX_HEADS,), f"has {INDEX_HEADS} values; expected {INDEX_KEY}"),
    ],
)
def test_tensors_of_an_indexer_that_do_not_fit_are_refused_by_name(
    name: str, shape: tuple[int, ...] | None, said: str, tmp_path: Path
) -> None:
    """One that is missing, and one of another size."""
    tensors = dict(_TENSORS["deepseek32"])
    del tensors[f"blk.2.indexer.{name}"]
    if shape is not None:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[f"blk.2.indexer.{name}"] = (shape, array("f", [0.0] * count))
    file = write_sparse(tmp_path / "m.gguf", "deepseek32", tensors)
    with pytest.raises(_rust.ModelFileError) as refused:
        _rust.CpuModel.load(file, threads=1, kv_bytes=1 << 20)
    assert said in str(refused.value)


def test_a_process_shows_what_a_token_takes(path: Path, tmp_path: Path) -> None:
    """`pyagent models show`, as a user runs it, counts index keys."""
    command = [*COMMAND, "models", "show", str(path)]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env=fresh_environment(tmp_path), timeout=60
    ).stdout
    assert f"{LAYERS * (LATENT + ROTARY + INDEX_KEY) * 2} bytes of KV a token" in shown
