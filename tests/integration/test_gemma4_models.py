"""Gemma 4: layers that share keys hold none, the same bits however computed, faulty files refused by name."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from support.command_line import COMMAND, fresh_environment
from support.kv_sequences import Memory, assert_histories_change_no_bits, random_tokens
from support.native import alone, assert_idle, at_once, engine_logits, mixed_requests, options, run, running
from support.tiny_gemma4 import (
    EXPERTS,
    FORMS,
    GLOBAL_HEAD_DIM,
    HEAD_DIM,
    HIDDEN,
    gemma4_tensors,
    write_gemma4,
)

from pyagent import _rust
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU


@pytest.fixture(scope="module", params=FORMS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of each form."""
    return write_gemma4(tmp_path_factory.mktemp("gemma4") / f"{request.param}.gguf", request.param)


def test_layers_that_share_keys_take_no_memory_for_them(tmp_path: Path) -> None:
    """Of E2B's nine layers four hold keys and values, three of a window; a page holds whole layers of either shape."""
    path = write_gemma4(tmp_path / "m.gguf")
    about = _rust.describe_model(path, "bf16")
    of_window, of_global = 2 * HEAD_DIM * 2, 2 * GLOBAL_HEAD_DIM * 2  # keys and values of one head, two bytes each
    page = 3 * of_window
    assert page >= of_global
    assert about["kv_bytes_per_token"] == 2 * page
    info = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20, kv_type="bf16").info()
    assert (info["page_bytes"], info["kv_groups"]) == (16 * page, [("window", 24, 1), ("full", 0, 1)])
    unshared = write_gemma4(tmp_path / "n.gguf", attention__shared_kv_layers=0, feed_forward_length=96)
    assert _rust.describe_model(unshared, "bf16")["kv_bytes_per_token"] == 6 * of_window + 3 * of_global


def test_cached_forked_and_swapped_sequences_have_the_bits_of_cold_ones(path: Path, tmp_path: Path) -> None:
    """Another turn, a branch of the prompt, chunks beside another text, a fork, and a sequence that was swapped out."""
    assert_histories_change_no_bits(Memory(path, tmp_path, threads=2))


def test_answers_in_a_batch_are_those_given_alone(path: Path) -> None:
    """Eight mixed requests at once, twice, so that prefixes are cached, in memory so little that some are preempted."""
    requests = mixed_requests(8)
    expected = asyncio.run(alone(path, requests))
    assert len(set(expected)) > 5

    async def work() -> None:
        async with running(path, options(blocks=4 * 28, max_num_batched_tokens=40, threads=2)) as backend:
            for _ in range(2):
                assert [answer.text for answer in await at_once(backend, requests)] == expected
            await assert_idle(backend)

    run(work())


@pytest.mark.parametrize("isa", _rust.cpu_features()["isas"])
def test_every_instruction_set_gives_the_same_bits(path: Path, isa: str) -> None:
    """As for all models."""
    tokens = random_tokens(5, 60)
    model = _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 22, kv_type="f32", isa=isa)
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    pool.add(0, tokens)
    pool.reserve(0, len(tokens))
    model.execute(pool, [0], [len(tokens)], tokens, num_outputs=[1])
    assert list(memoryview(bytes(model.logits())).cast("f")) == engine_logits(path, tokens)[-1]


def test_estimate_holds_what_is_loaded(path: Path) -> None:
    """Before anything is loaded, pages and step memory are known; steps take no more."""
    step = LargestStep(64, 8, 512)
    needs = CPU.estimate(path, RunnerOptions(threads=2), step)
    runner = CPU.load(path, RunnerOptions(threads=2, kv_bytes=1 << 22), step, None)
    assert (needs.page_bytes, needs.kv_groups) == (runner.info.page_bytes, runner.info.kv_groups)
    assert runner.step_bytes(step) <= needs.workspace_bytes
    runner.close()


def said_of(path: Path) -> str:
    """What is said of a file that is refused, in one line."""
    with pytest.raises(_rust.ModelFileError) as caught:
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("form", FORMS)
def test_every_tensor_is_needed(form: str, tmp_path: Path) -> None:
    """A file that lacks any of a layer's tensors is refused by that tensor's name."""
    whole = gemma4_tensors(form)
    meant = [name for name in whole if name.startswith(("blk.1.", "rope", "per_layer"))]
    for name in meant:
        rest = {other: values for other, values in whole.items() if other != name}
        missing = name.replace("gate_up", "gate")  # either way to have them is read
        assert f'"{missing}" is missing' in said_of(write_gemma4(tmp_path / "m.gguf", form, rest))


@pytest.mark.parametrize(
    ("form", "changes", "reason"),
    [
        (
            "E2B",
            {"attention__shared_kv_layers": 9, "feed_forward_length": 96},
            "layers with shared keys: 9; expected 0 to 8",
        ),
        (
            "E2B",
            {"attention__shared_kv_layers": 7, "feed_forward_length": 96},
            "layer 2 shares keys and values, but no layer of its kind",
        ),
        ("E2B", {"attention__key_length": 72}, "'gemma4.attention.value_length' is 64"),
        ("E2B", {"attention__sliding_window": 0}, "the width of sliding windows is not told"),
        ("E2B", {"attention__sliding_window_pattern": [True] * 9}, "the last layer has a window"),
        (
            "E2B",
            {"attention__sliding_window_pattern": [False] * 5, "feed_forward_length": 96},
            "kinds of 5 layers are told, of 9",
        ),
        ("E2B", {"feed_forward_length": [96] * 5}, "has 5 numbers for 9 layers"),
        ("E2B", {"feed_forward_length": [96, 64] + [192] * 7}, "differs between layers of one kind"),
        ("E2B", {"attention__head_count_kv": [1, 1, 3] * 3}, "4 query heads cannot share 3 key/value heads"),
        ("E2B", {"embedding_length_per_layer_input": 64}, "'per_layer_token_embd.weight' is"),
        ("E2B", {"attention__key_length_swa": 64, "attention__value_length_swa": 64}, "rope.dimension_count_swa"),
        ("E2B", {"altup.num_inputs": 4}, "'gemma4.altup.num_inputs' is not implemented"),
        ("A4B", {"expert_used_count": 7}, "experts of a token are 7; expected 1 to 6"),
        ("A4B", {"expert_count": 5}, f"'blk.0.ffn_gate_inp.weight' is {EXPERTS} x {HIDDEN}; expected 5 x {HIDDEN}"),
    ],
)
def test_what_no_gemma_4_has_is_refused(form: str, changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    """By the key or the tensor, before memory is taken."""
    assert reason in said_of(write_gemma4(tmp_path / "m.gguf", form, **changes))


def test_a_process_shows_what_a_token_takes(tmp_path: Path) -> None:
    """`pyagent models show`, as a user runs it."""
    path = write_gemma4(tmp_path / "m.gguf")
    environment = fresh_environment(tmp_path)
    shown = subprocess.run(
        [*COMMAND, "models", "show", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    ).stdout
    assert "gemma4, 9 layers" in shown
    assert f"{2 * 3 * 2 * HEAD_DIM * 2} bytes of KV a token" in shown
