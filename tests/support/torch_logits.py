"""Rows of logits of the torch runner, of models whose architecture a plugin may bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyagent import _rust
from pyagent.core.runners.architecture import BroughtArchitecture
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions


def runner_of(path: Path, kinds: dict[str, BroughtArchitecture], **options: Any) -> Any:
    """A torch runner that keeps the rows of logits that it samples from."""
    from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner

    class Kept(TorchRunner):
        started: set[int]

        def logits(self, packed: Any) -> Any:
            logits = super().logits(packed)
            self.rows = logits.cpu().numpy().copy()
            return logits

    told = {"dtype": "f32", "kv_dtype": "f32", **options}
    runner = Kept(path, RunnerOptions(threads=2, kv_bytes=1 << 24, architectures=kinds, **told), LargestStep(2048, 64))
    runner.started = set()
    return runner


def compute(runner: Any, *segments: tuple[int, Sequence[int]]) -> Any:
    """Compute the next tokens of sequences, which may be new; returns the row of logits after each."""
    for sequence, tokens in segments:
        if sequence not in runner.started:
            runner.started.add(sequence)
            runner.add(sequence, list(tokens), most_cached=0)
        assert runner.reserve(sequence, runner.pool.num_tokens(sequence) + len(tokens))
    batch = Batch(
        sequence_ids=[sequence for sequence, _ in segments],
        lengths=[len(tokens) for _, tokens in segments],
        tokens=[token for _, tokens in segments for token in tokens],
        samplers=[_rust.SamplerState(temperature=0.0) for _ in segments],
        steps=[0] * len(segments),
    )
    assert not runner.execute(batch).errors
    return runner.rows
