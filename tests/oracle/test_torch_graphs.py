"""Captured steps on torch's CPU device, by the twin of a capture: sizes, filling up, replay, what gives way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.captured_steps import Graphing, GraphingFactory, RunAgain
from support.native import answers_of, mixed_requests
from support.reference_decoder import write_family

from pyagent import _rust
from pyagent.core.backends import collect
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import KvReservation, LargestStep, RunnerOptions
from pyagent.core.runners.runner import ModelRunner
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import LoadedModel
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.runners.torch.graphs import GraphKey, StepGraphs
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

pytestmark = pytest.mark.oracle

EXACT = RunnerOptions(threads=1, kv_bytes=1 << 22, kv_dtype="f32", dtype="f32")
STEP = LargestStep(256, 6)
SHAPE = BatchShape(100, 40, 1)


def compute(runner: Any, tokens: Sequence[int], sequences: Sequence[int]) -> list[int]:
    """Compute a token for each sequence; returns the likeliest after each."""
    for sequence in sequences:
        assert runner.reserve(sequence, runner.pool.num_tokens(sequence) + 1)
    samplers = [_rust.SamplerState(temperature=0.0) for _ in sequences]
    return runner.execute(
        Batch(list(sequences), [1] * len(sequences), list(tokens), samplers, [0] * len(sequences))
    ).tokens


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_replayed_steps_compute_what_eager_ones_do(family: str, tmp_path: Path) -> None:
    """Sequences that join, leave and cross pages, in rows that are filled up: the same tokens as without graphs."""
    write_family(tmp_path, family)
    said: list[list[list[int]]] = []
    for kind in (Graphing, TorchRunner):
        runner, steps = kind(tmp_path, EXACT, STEP), []
        tokens = {sequence: 3 * sequence for sequence in range(5)}
        for sequence, token in tokens.items():
            runner.add(sequence, [token])
        for step in range(60):
            present = [sequence for sequence in tokens if (step // 7 + sequence) % 5 > 1]
            found = compute(runner, [tokens[sequence] for sequence in present], present)
            tokens |= dict(zip(present, found, strict=True))
            steps.append(found)
            if step % 5 == 0:
                while isinstance(runner, Graphing) and runner.when_idle():
                    pass
        said.append(steps)
        if isinstance(runner, Graphing):
            assert runner.graphs is not None
            assert runner.graphs.num_replayed > 30
            assert len(runner.graphs) > len(runner.twin.places) == 1  # of one output for all
        runner.close()
    assert said[0] == said[1]


def test_steps_are_eager_where_attention_reads_what_is_not_there(tmp_path: Path) -> None:
    """A form of attention that goes by the host's lengths gets no graph: Gemma 2's, without Triton."""
    write_family(tmp_path, "gemma2")
    runner = Graphing(tmp_path, EXACT, STEP)
    assert runner.graphs is None
    assert not runner.when_idle()


def test_graphs_go_with_the_attention_they_were_captured_with(tmp_path: Path) -> None:
    """The plain form goes by the host's lengths: no graphs, until another backend is taken, and then new ones."""
    write_family(tmp_path, "qwen3")
    runner = Graphing(tmp_path, EXACT, STEP)
    before = runner.graphs
    assert before is not None
    runner.use_attention("torch")
    assert (runner.attention, runner.graphs) == ("torch", None)
    runner.use_attention("sdpa")
    assert runner.graphs not in {None, before}


def test_sizes_are_learnt_in_idle_moments_and_the_engine_says_the_same(tiny_model_path: Path) -> None:
    """An engine that had a moment replays most steps, and its answers are those of an engine without graphs."""

    async def answers(factory: TorchRunnerFactory) -> tuple[list[str], int]:
        options = EngineOptions(EXACT, runners=RunnerChoice((factory,)), async_scheduling="on")
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options)
        try:
            texts = [(await collect(backend.chat(request))).text for request in mixed_requests(6) * 2]
            model = await backend.load()
            assert isinstance(model, LoadedModel)
            runner = model.runner
            return texts, runner.graphs.num_replayed if isinstance(runner, Graphing) and runner.graphs else 0
        finally:
            await backend.close()

    (texts, num_replayed), (expected, _) = (
        asyncio.run(answers(kind)) for kind in (GraphingFactory(), TorchRunnerFactory())
    )
    assert texts == expected
    assert num_replayed > 50


class Cramped(Graphing):
    """A torch runner on a device whose allocator has room for steps of 20 tokens, and for no more."""

    num_refused = 0

    def logits(self, packed: PackedStep) -> torch.Tensor:
        if sum(packed.num_queries) > 20:
            Cramped.num_refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().logits(packed)


class CrampedFactory(TorchRunnerFactory):
    """Its factory, as a plugin would bring it."""

    name = "cramped"

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        return Cramped(path, options, step, kv)


def test_steps_that_the_device_has_no_memory_for_are_made_smaller(tiny_model_path: Path) -> None:
    """Out of memory in the midst of steps launched ahead: requests are put off and go on, and say the same."""
    kv_bytes = 1000 * 2 * 2 * 16 * 2 * 16 * 4
    answers = answers_of(CrampedFactory(), tiny_model_path, kv_bytes, "on", dtype="f32")
    assert Cramped.num_refused > 0
    assert answers == answers_of(CPU, tiny_model_path, kv_bytes)


def graphs_of(captured: list[int]) -> StepGraphs:
    """Graphs that note how many rows each capture had."""

    shared = torch.empty(SHAPE.num_slots, 1)

    def computed(key: GraphKey) -> torch.Tensor:
        captured.append(key.num_rows)
        return shared[: key.num_rows].fill_(float(key.num_rows))

    return StepGraphs(RunAgain(), SHAPE, computed)


def ask(graphs: StepGraphs, num_rows: int, num_blocks: int = 4, times: int = 4) -> Any:
    """Ask for a step's graph a few times; returns what was found last."""
    return [graphs.find(GraphKey(num_rows, num_blocks, (0,))) for _ in range(times)][-1]


def test_a_size_is_captured_once_it_was_asked_for_often() -> None:
    """Rows and pages are rounded up, as far as the batch goes; what was captured is not due again."""
    graphs = graphs_of([])
    assert ask(graphs, 9, 5, times=3) is None
    assert graphs.due is None
    ask(graphs, 11, 6, times=1)
    assert graphs.due == GraphKey(12, 8, (0,))
    assert graphs.overdue is None
    graphs.add(GraphKey(12, 8, (0,)))
    assert graphs.due is None
    ask(graphs, 99, 33, times=64)
    assert graphs.overdue == GraphKey(100, 40, (0,))


def test_a_larger_graph_serves_up_to_twice_as_large_and_no_other_prefix() -> None:
    """The smallest that fits is taken; beyond twice the rows or pages, and with other shared pages, steps are eager."""
    graphs = graphs_of([])
    for num_rows in (32, 16):
        graphs.add(GraphKey(num_rows, 8, (0,)))
    assert ask(graphs, 14)().shape == (16, 1)
    assert ask(graphs, 18, 8)().shape == (32, 1)
    assert ask(graphs, 4) is None
    assert ask(graphs, 14, 9) is None
    assert ask(graphs, 14, 2) is None
    assert graphs.find(GraphKey(14, 4, (32,))) is None


def test_the_least_recently_used_graphs_give_way() -> None:
    """There are 48 at most, and none after giving up."""
    graphs = graphs_of([])
    for shared in range(48):
        graphs.add(GraphKey(8, 4, (16 * shared,)))
    assert graphs.find(GraphKey(8, 4, (0,))) is not None
    graphs.add(GraphKey(8, 4, (16 * 48,)))
    assert len(graphs) == 48
    assert graphs.find(GraphKey(8, 4, (0,))) is not None
    assert graphs.find(GraphKey(8, 4, (16,))) is None
    graphs.give_up()
    assert len(graphs) == 0
    assert graphs.due is None
