"""Latent attention: one row a token in the cache; the same bits cold, warm, forked, swapped, from each form of file."""

from __future__ import annotations

import random
import struct
import subprocess
from array import array
from pathlib import Path

import pytest
from support.command_line import COMMAND, fresh_environment
from support.gguf_writer import Blocks
from support.kv_sequences import Memory, assert_histories_change_no_bits, random_tokens
from support.native import engine_logits
from support.tiny_sparse import (
    HEADS,
    LATENT,
    LAYERS,
    PLAIN,
    ROTARY,
    VALUE,
    Shape,
    Values,
    sparse_tensors,
    write_sparse,
)

from pyagent import _rust
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU

F16, Q8_0 = 1, 8
OLDER = {
    "attention__key_length": PLAIN + ROTARY,
    "attention__value_length": VALUE,
    "attention__key_length_mla": None,
    "attention__value_length_mla": None,
    "attention__head_count_kv": HEADS,
}
"""Keys of files from before matrices were apart."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with latent attention."""
    return write_sparse(tmp_path_factory.mktemp("latent") / "m.gguf", "deepseek2")


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "int8"])
def test_a_token_takes_one_latent_and_one_rotated_key(path: Path, kv_type: str) -> None:
    """The cache holds these alone: no keys of heads, and no values, which are the latent."""
    bytes_of_number = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}[kv_type]
    scale = 4 if kv_type == "int8" else 0
    expected = LAYERS * ((LATENT + ROTARY) * bytes_of_number + scale)
    assert _rust.describe_model(path, kv_type)["kv_bytes_per_token"] == expected
    info = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20, kv_type=kv_type).info()
    assert info["kv_bytes_per_token"] == expected
    assert info["page_bytes"] == 16 * expected
    assert info["kv_groups"] == [("full", 0, 1)]


def test_cached_forked_and_swapped_sequences_have_the_bits_of_cold_ones(path: Path, tmp_path: Path) -> None:
    """Another turn, a branch of the prompt, a fork, and a sequence that was swapped out."""
    assert_histories_change_no_bits(Memory(path, tmp_path, threads=2))


def halves(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


Tensors = dict[str, tuple[Shape, Values]]


def older_tensors(kind: int) -> tuple[Tensors, Tensors]:
    """One model twice: what makes keys and values in one matrix of a type, and apart.

    Of quantised matrices the part that makes keys is apart as half precision: it is turned round.
    """
    draw, whole = random.Random(5), sparse_tensors("deepseek2")
    together = dict(whole)
    for layer in range(LAYERS):
        keys, values, rows = list[float](), list[bytes](), list[bytes]()
        for _ in range(HEADS):
            plain = [_row(draw, kind) for _ in range(PLAIN)]
            of_values = [_row(draw, kind) for _ in range(VALUE)]
            keys += [plain[row][0][column] for column in range(LATENT) for row in range(PLAIN)]
            values += [data for _, data in of_values]
            rows += [data for _, data in [*plain, *of_values]]
        name = f"blk.{layer}.attn"
        of_keys = Blocks(F16, halves(keys)) if kind == Q8_0 else array("f", keys)
        whole[f"{name}_k_b.weight"] = ((PLAIN, LATENT, HEADS), of_keys)
        whole[f"{name}_v_b.weight"] = ((LATENT, VALUE, HEADS), Blocks(kind, b"".join(values)))
        for part in ("k_b", "v_b"):
            del together[f"{name}_{part}.weight"]
        together[f"{name}_kv_b.weight"] = ((LATENT, HEADS * (PLAIN + VALUE)), Blocks(kind, b"".join(rows)))
    return whole, together


def _row(draw: random.Random, kind: int) -> tuple[list[float], bytes]:
    """A row of a latent's width: its numbers, and their bytes."""
    if kind != Q8_0:
        numbers = list(
            struct.unpack(f"<{LATENT}f", struct.pack(f"<{LATENT}f", *(draw.gauss(0, 0.3) for _ in range(LATENT))))
        )
        return numbers, struct.pack(f"<{LATENT}f", *numbers)
    integers = [draw.randrange(-127, 128) for _ in range(LATENT)]
    return [integer / 256 for integer in integers], halves([1 / 256]) + struct.pack(f"<{LATENT}b", *integers)


@pytest.mark.parametrize("kind", [0, Q8_0])
def test_older_files_are_the_newer_ones_bit_for_bit(kind: int, tmp_path: Path) -> None:
    """One matrix for keys and values, plain or quantised, is what the two of newer files are."""
    tokens = random_tokens(7, 40)
    apart, together = older_tensors(kind)
    newer = write_sparse(tmp_path / "newer.gguf", "deepseek2", apart)
    older = write_sparse(tmp_path / "older.gguf", "deepseek2", together, **OLDER)
    logits = engine_logits(newer, tokens)
    assert logits == engine_logits(older, tokens)
    assert len({tuple(row) for row in logits}) > 30


def test_estimate_holds_what_is_loaded(path: Path) -> None:
    """Before anything is loaded, pages and step memory are known; steps take no more."""
    step = LargestStep(64, 8, 512)
    needs = CPU.estimate(path, RunnerOptions(threads=2), step)
    runner = CPU.load(path, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    assert (needs.page_bytes, needs.kv_groups) == (runner.info.page_bytes, runner.info.kv_groups)
    assert runner.step_bytes(step) <= needs.workspace_bytes
    runner.close()


def test_a_process_shows_what_a_token_takes(path: Path, tmp_path: Path) -> None:
    """`pyagent models show`, as a user runs it."""
    command = [*COMMAND, "models", "show", str(path)]
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env=fresh_environment(tmp_path), timeout=60
    ).stdout
    assert "deepseek2, 4 layers" in shown
    assert f"{LAYERS * (LATENT + ROTARY) * 2} bytes of KV a token" in shown
