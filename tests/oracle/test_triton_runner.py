"""The torch runner over Triton's kernels, interpreted: the logits are those over torch's own operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.reference_decoder import write_family

from pyagent import _rust
from pyagent.core.runners.attention import AttentionBackend, AttentionChoice
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.torch.attention_backends import PlainAttention, TritonAttention
from pyagent.infrastructure.engine.runners.torch.input_batch import read_once, shared_tokens
from pyagent.infrastructure.engine.runners.torch.kernels.stages import TritonStages
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner
from pyagent.infrastructure.engine.runners.torch.stages import Stages, TorchStages, Trial, choose_stages
from pyagent.infrastructure.engine.runners.torch.step import PackedStep

pytestmark = pytest.mark.oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class KeptLogits(TorchRunner):
    """A torch runner over stages of the test's choice, which keeps the logits of its last step."""

    def __init__(self, path: Path, stages: Stages, attention: AttentionBackend, kv_dtype: Any) -> None:
        self._given = stages
        options = RunnerOptions(
            threads=2,
            kv_bytes=1 << 22,
            kv_dtype=kv_dtype,
            dtype="f32",
            attention=AttentionChoice((attention,), is_auto=False),
        )
        super().__init__(path, options, LargestStep(256, 8))

    def choose_stages(self, trial: Trial) -> Stages:
        return self._given

    def logits(self, packed: PackedStep) -> torch.Tensor:
        logits = super().logits(packed)
        self.rows = logits.clone()
        return logits

    def compute(self, *segments: tuple[int, Sequence[int]]) -> torch.Tensor:
        """Compute the next tokens of sequences, the first of which are new; returns a row of logits for each."""
        for sequence, tokens in segments:
            assert self.reserve(sequence, self.pool.num_tokens(sequence) + len(tokens))
        self.execute(
            Batch(
                sequence_ids=[sequence for sequence, _ in segments],
                lengths=[len(tokens) for _, tokens in segments],
                tokens=[token for _, tokens in segments for token in tokens],
                samplers=[_rust.SamplerState(temperature=0.0) for _ in segments],
                steps=[0] * len(segments),
            )
        )
        return self.rows


@pytest.mark.parametrize(
    ("family", "kv_dtype", "close"),
    [("gemma2", "f32", 1e-5), ("qwen3", "fp8", 1e-2), ("phi3-longrope", "f32", 1e-5)],
)
def test_logits_are_those_of_torchs_own_operations(family: str, kv_dtype: Any, close: float, tmp_path: Path) -> None:
    """Prompts, chunks and decoding side by side: each logit to 1e-5 of the largest; FP8 may round otherwise."""
    config, _ = write_family(tmp_path, family)
    tokens = [(7 * place + place * place) % config["vocab_size"] for place in range(40)]
    steps = [[(1, tokens[:19]), (2, tokens[:3])], [(1, tokens[19:20]), (2, tokens[3:20])], [(1, [5]), (2, [6])]]
    results: list[list[torch.Tensor]] = []
    for stages, attention in ((TorchStages(), PlainAttention()), (TritonStages(), TritonAttention())):
        runner = KeptLogits(tmp_path, stages, attention, kv_dtype)
        for sequence, prompt in steps[0]:
            assert runner.add(sequence, prompt) == 0
        results.append([runner.compute(*step) for step in steps])
    for ours, expected in zip(*results, strict=True):
        assert float((ours - expected).abs().max()) < close * float(expected.abs().max())


def trial(folder: Path, family: str = "gemma2") -> Trial:
    write_family(folder, family)
    return Trial(open_model(folder, {}).config, DEVICE, torch.float32, torch.float32)


def test_trial_finds_no_fault_with_the_kernels(tmp_path: Path) -> None:
    """Kernels that compute as torch does pass, norms of heads and all."""
    assert trial(tmp_path).fault(TritonStages()) is None


class WrongKeys(TorchStages):
    def rotate_and_store(
        self, heads: Any, cos_sin: Any, rows: torch.Tensor, caches: Any, **options: Any
    ) -> torch.Tensor:
        return super().rotate_and_store(heads, cos_sin, rows.roll(1), caches, **options)


class NotANumber(TorchStages):
    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return super().gated(gate_up, activation) * torch.nan


class NoCompiler(TorchStages):
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        raise RuntimeError("failed to find a C compiler\nset CC")


@pytest.mark.parametrize(
    ("stages", "fault"),
    [
        (WrongKeys(), "the keys is wrong by"),
        (NotANumber(), "the gate is wrong by nan"),
        (NoCompiler(), "RuntimeError: failed to find a C compiler$"),
    ],
)
def test_trial_names_the_stage_that_is_wrong(stages: Stages, fault: str, tmp_path: Path) -> None:
    """Wrong numbers, numbers in the wrong rows, no numbers, and errors: each is told with the stage's name."""
    found = trial(tmp_path).fault(stages)
    assert found is not None
    assert re.match(fault, found), found


def test_kernels_are_not_taken_without_a_gpu(tmp_path: Path) -> None:
    """The interpreter, which is there in this test, serves no model by itself."""
    cpu = Trial(trial(tmp_path).config, torch.device("cpu"), torch.float32, torch.float32)
    assert not isinstance(choose_stages(cpu), TritonStages)


@pytest.mark.parametrize(
    ("tables", "num_queries", "num_tokens", "expected"),
    [
        ([[1, 2, 3], [1, 2, 4]], [1, 1], [40, 45], 32),
        ([[1, 2, 3], [1, 2, 3]], [1, 1], [32, 32], 16),  # a fork: one token of each is its own
        ([[1, 2, 3], [1, 2, 3]], [1, 1], [33, 33], 32),
        ([[1, 2, 0], [9, 9, 9], [1, 2, 5]], [1, 7, 1], [30, 40, 40], 16),  # a chunk's pages do not count
        ([[1, 2], [3, 2]], [1, 1], [30, 30], 0),
        ([[1, 2, 3]], [1], [40], 0),
        ([[1, 2, 3], [1, 2, 4], [1, 5, 6]], [1, 1, 1], [40, 40, 40], 16),
    ],
)
def test_tokens_that_all_decoding_sequences_share_are_counted(
    tables: list[list[int]], num_queries: list[int], num_tokens: list[int], expected: int
) -> None:
    """Whole blocks in the same pages, of which no sequence's last token is one."""
    assert shared_tokens(np.array(tables, np.int32), num_queries, num_tokens) == expected


def test_few_numbers_of_shared_tokens_are_read_once() -> None:
    """Short beginnings are read by each sequence; of longer ones at least 4/5, in four sizes for a power of two."""
    lengths = range(0, 131_073, 16)
    found = [read_once(length) for length in lengths]
    assert [found[length // 16] for length in (240, 256, 304, 1008, 4096, 4112)] == [0, 256, 256, 896, 4096, 4096]
    assert all(0.8 * length < read <= length for length, read in zip(lengths, found, strict=True) if length >= 256)
    assert all(read % 16 == 0 for read in found)
    assert len(set(found)) == 38
