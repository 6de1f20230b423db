"""`engine.compile`: compiled functions compute what eager ones do, outlive the process, and are given up when due."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from pathlib import Path

import pytest
import torch
from support.native import chat, engine_of
from torch import Tensor

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.errors import ConfigError
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.core.runners.runner import CompileStats
from pyagent.infrastructure.engine.runners.torch.compiled import choice, functions, stages
from pyagent.infrastructure.engine.runners.torch.compiled.cache import open_cache, prune
from pyagent.infrastructure.engine.runners.torch.compiled.choice import first_gain
from pyagent.infrastructure.engine.runners.torch.compiled.functions import CompiledFunction
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner, needs_of

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # torch's own
]

OPTIONS = RunnerOptions(threads=1, kv_bytes=1 << 20, dtype="f32")
QUESTIONS = ["the user", "is at ease " * 3, "and " * 60]
DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)
NAMES = {"rms_norm 64", "add_rms_norm 64", "gated 192", "rotate_and_store 1x8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled code of all tests."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own variable is put back, which loading sets."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))


async def answers(path: Path, data: Path, compiles: str) -> tuple[list[str], CompileStats | None]:
    """What a model says, by the settings that a user has."""
    settings = {"engine.runner": "torch", "engine.compile": compiles, "paths.data": str(data)}
    async with engine_of(path, process=False, **settings) as backend:
        asked = [chat(text, temperature=0, max_tokens=8, ignore_eos=True) for text in QUESTIONS]
        told = await asyncio.gather(*(collect(backend.chat(request)) for request in asked))
        return [one.text for one in told], next(iter((await backend.engine_state()).compilation.values()), None)


@pytest.mark.slow
def test_a_model_says_the_same_compiled(tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All functions of a step, taken from two rows on, give the eager model's answers; none is compiled again."""
    eager, nothing = asyncio.run(answers(tiny_model_path, tmp_path, "off"))
    monkeypatch.setattr(choice, "first_gain", lambda *_: 2)
    compiled, stats = asyncio.run(answers(tiny_model_path, tmp_path, "on"))
    assert (compiled, nothing) == (eager, None)
    assert stats is not None
    assert {one.name for one in stats.functions} == NAMES
    for one in stats.functions:
        assert (one.num_compiles, one.from_rows, one.recompiles, one.fault) == (1, 2, {}, "")


@pytest.mark.slow
def test_the_next_start_reads_what_this_one_compiled(
    tiny_model_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second load of the same model takes all its functions from the folder."""
    monkeypatch.setattr(choice, "_REPEATS", 1)
    options = dataclasses.replace(OPTIONS, compile_folder=str(folder))
    for _ in range(2):
        runner = TorchRunner(tiny_model_path, options, LargestStep(64, 8))
        stats = runner.compile_stats()
        runner.close()
    assert stats is not None
    assert [one.num_cached for one in stats.functions] == [1] * len(NAMES)


def test_a_function_is_taken_from_where_it_gains_at_every_size() -> None:
    """A gain at one size does not count where a larger one loses; a gain of a twentieth is the least."""
    assert first_gain([16, 64, 256], [(1.0, 2.0), (1.0, 0.5), (1.0, 0.5)]) == 64
    assert first_gain([16, 64, 256], [(1.0, 0.5), (1.0, 1.0), (1.0, 0.5)]) == 256
    assert first_gain([16, 64], [(1.0, 0.5), (1.0, 0.96)]) is None
    assert first_gain([], []) is None


def test_steps_for_which_nothing_is_compiled_are_the_eager_models(
    tiny_model_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the fewest rows of any function a step does not come by the compiled stages; from there on it does."""
    monkeypatch.setattr(choice, "first_gain", lambda *_: 8)
    monkeypatch.setattr(choice, "_REPEATS", 1)
    asked: list[int] = []
    computed = stages.CompiledStages.gated

    def gated(self: stages.CompiledStages, gate_up: Tensor, activation: str) -> Tensor:
        asked.append(len(gate_up))
        return computed(self, gate_up, activation)

    monkeypatch.setattr(stages.CompiledStages, "gated", gated)
    runner = TorchRunner(tiny_model_path, dataclasses.replace(OPTIONS, compile_folder=str(folder)), LargestStep(64, 8))
    asked.clear()
    sampler = _rust.SamplerState(temperature=0.0)
    for tokens in ([1] * 7, [1] * 8, [1]):
        runner.add(1, tokens, most_cached=0)
        assert runner.reserve(1, 9)
        runner.execute(Batch([1], [len(tokens)], tokens, [sampler], [0]))
        runner.release(1)
    runner.close()
    assert set(asked) == {8}


def doubled(x: Tensor, factor: int) -> Tensor:
    return x * factor


def test_a_function_compiled_again_and_again_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, with the guard that failed and the cure; each compilation is counted by its reason."""
    function = CompiledFunction("doubled", doubled)
    function(torch.ones(4), 2)
    function.begin_serving(1)
    with caplog.at_level(logging.WARNING):
        for number in range(3, 4 + functions.MOST_RECOMPILES):
            assert function.from_rows == 1
            assert float(function(torch.ones(4, dtype=DTYPES[number - 3]), 2)[0]) == 2
    stats = function.stats
    assert (stats.from_rows, stats.num_compiles) == (None, functions.MOST_RECOMPILES + 2)
    assert sum(stats.recompiles.values()) == functions.MOST_RECOMPILES + 1
    assert all("dtype" in reason for reason in stats.recompiles)
    (told,) = [record.getMessage() for record in caplog.records if "doubled" in record.getMessage()]
    assert "dtype" in told
    assert "Set engine.compile to off" in told


def failing(x: Tensor) -> Tensor:
    print("a call that torch cannot compile")
    return x


def test_what_torch_cannot_compile_is_eager() -> None:
    """A function that breaks the graph is given up at once, with torch's reason."""
    function = CompiledFunction("failing", failing)
    with pytest.raises(functions.CompileError, match="Unsupported"):
        function(torch.ones(2))
    assert function.from_rows is None


def test_wrong_results_are_not_taken(tiny_model_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that computes something else than the eager one is given up when the model is loaded."""
    monkeypatch.setitem(stages.FUNCTIONS, "gated", lambda x, activation: x.chunk(2, -1)[0] * 2)
    monkeypatch.setattr(choice, "_REPEATS", 1)
    runner = TorchRunner(tiny_model_path, dataclasses.replace(OPTIONS, compile_folder=str(folder)), LargestStep(16, 2))
    (gate,) = [one for one in runner.compile_stats().functions if one.name == "gated 192"]  # type: ignore[union-attr]
    runner.close()
    assert (gate.from_rows, "wrong by" in gate.fault) == (None, True)


def sorting_gate(gate_up: Tensor, activation: str) -> Tensor:
    """The gate, after work that nothing needs and that no compiler knows to leave out."""
    gate, up = gate_up.chunk(2, -1)
    smallest = gate_up.repeat(1, 4).sort(-1).values[:, :1]
    active = torch.nn.functional.silu(gate) if activation == "silu" else torch.nn.functional.gelu(gate)
    return active * up + 0 * smallest


def test_what_is_right_and_slower_is_passed_over(
    tiny_model_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled function that computes the same and takes longer serves no number of rows, and is no fault."""
    monkeypatch.setitem(stages.FUNCTIONS, "gated", sorting_gate)
    runner = TorchRunner(tiny_model_path, dataclasses.replace(OPTIONS, compile_folder=str(folder)), LargestStep(64, 8))
    (gate,) = [one for one in runner.compile_stats().functions if one.name == "gated 192"]  # type: ignore[union-attr]
    runner.close()
    assert (gate.num_compiles, gate.from_rows, gate.fault) == (1, None, "")


def test_batch_invariance_refuses_compiled_code(tiny_model_path: Path, folder: Path) -> None:
    """Compiled code sums by the number of rows: the setting is refused by name."""
    options = dataclasses.replace(OPTIONS, compile_folder=str(folder), batch_invariant=True)
    with pytest.raises(ConfigError, match="engine\\.compile is on"):
        needs_of(tiny_model_path, options, LargestStep(16, 2))


def test_the_cache_is_bounded_and_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest files go first; a folder that another user may write, or has, is closed or refused."""
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(bytes(100))
        os.utime(tmp_path / f"{number}", (number, number))
    prune(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    tmp_path.chmod(0o777)
    open_cache(tmp_path)
    assert tmp_path.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(ConfigError, match="another user"):
        open_cache(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        open_cache(tmp_path / "2" / "below-a-file")
