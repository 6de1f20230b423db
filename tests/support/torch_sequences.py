"""A torch runner whose rows of logits are kept, its sequences by number, and what holds them against a reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyagent import _rust
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions

STEP = LargestStep(2048, 64)
EXACT = RunnerOptions(threads=2, kv_bytes=1 << 24, kv_dtype="f32", dtype="f32")


def torch_runner(path: Path, options: RunnerOptions = EXACT) -> Any:
    """A torch runner that keeps the rows of logits that it samples from."""
    from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner

    class Kept(TorchRunner):
        def logits(self, packed: Any) -> Any:
            logits = super().logits(packed)
            self.rows = logits.cpu().numpy().copy()
            return logits

    return Kept(path, options, STEP)


class Sequences:
    """A runner's sequences, by number: each call goes on with some of them."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.started: set[int] = set()

    def compute(self, *segments: tuple[int, Sequence[int]]) -> list[int]:
        """Compute the next tokens of some sequences, which may be new; returns the likeliest token after each."""
        for sequence, tokens in segments:
            if sequence not in self.started:
                self.started.add(sequence)
                assert self.runner.add(sequence, list(tokens), most_cached=0) == 0
            assert self.runner.reserve(sequence, self.runner.pool.num_tokens(sequence) + len(tokens))
        batch = Batch(
            sequence_ids=[sequence for sequence, _ in segments],
            lengths=[len(tokens) for _, tokens in segments],
            tokens=[token for _, tokens in segments for token in tokens],
            samplers=[_rust.SamplerState(temperature=0.0) for _ in segments],
            steps=[0] * len(segments),
        )
        output = self.runner.execute(batch)
        assert not output.errors
        return output.tokens


def expect_logits(runner: Any, tokens: Sequence[int], expected: Any) -> None:
    """Prefixes of all lengths at once, then chunks beside sequences that decode: to 1e-5 of the largest logit.

    `expected` are those of each of the tokens, 60 or more; the last steps decode alone.
    """
    import numpy as np

    sequences = Sequences(runner)
    close = 1e-5 * np.abs(expected).max()
    sequences.compute(*((length, tokens[:length]) for length in range(1, 61)))
    assert np.abs(runner.rows - expected[:60]).max() < close
    done = 0
    for chunk, is_first in ((7, False), (1, True), (20, True), (1, False), (31, False)):
        beside = [(length, [tokens[runner.pool.num_tokens(length)]]) for length in (3, 17, 30)]
        mine = (100, tokens[done : done + chunk])
        done += chunk
        sequences.compute(*([mine, *beside] if is_first else [*beside, mine]))
        rows = np.roll(runner.rows, -1, axis=0) if is_first else runner.rows
        places = [runner.pool.num_tokens(length) - 1 for length in (3, 17, 30, 100)]
        assert np.abs(rows - expected[places]).max() < close
