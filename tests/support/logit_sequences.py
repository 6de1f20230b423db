"""Logits of sequences computed whole, in chunks and in batches, beside those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyagent import _rust
from pyagent.core.runners.architecture import BroughtArchitecture
from pyagent.infrastructure.engine.runners.family import Family

TOKENS = [(7 * place + place * place) % 250 for place in range(500)]


class Sequences:
    """Logits of sequences that are computed in pieces, alone or in a batch."""

    def __init__(self, path: Path, architectures: Mapping[str, BroughtArchitecture] = MappingProxyType({})) -> None:
        family = Family.of(path, architectures)
        inner = None if family is None else family.evaluated().inner
        self.model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 25, kv_type="f32", family=inner)
        self.vocab_size = self.model.info()["vocab_size"]
        self.pool = _rust.BlockPool(self.model.info()["num_pages"], groups=self.model.info()["kv_groups"])
        self.done: dict[int, int] = {}

    def logits(self, *segments: tuple[int, list[int]]) -> Any:
        """Those of all tokens of (sequence, tokens)."""
        import numpy as np

        for sequence, tokens in segments:
            if sequence not in self.done:
                self.pool.clear_index()
                self.pool.add(sequence, tokens)
            self.done[sequence] = self.done.get(sequence, 0) + len(tokens)
            self.pool.reserve(sequence, self.done[sequence])
        lengths = [len(tokens) for _, tokens in segments]
        tokens = [token for _, tokens in segments for token in tokens]
        self.model.execute(self.pool, [sequence for sequence, _ in segments], lengths, tokens, num_outputs=lengths)
        return np.frombuffer(self.model.logits(), dtype="<f4").reshape(-1, self.vocab_size).copy()


def logits_beside(
    model: _rust.CpuModel, pool: _rust.BlockPool, tokens: list[int], lengths: list[int], other: list[int]
) -> bytes:
    """The logits after every token of a text, in steps of such lengths, each beside one token of another text."""
    logits, row_bytes = list[bytes](), 4 * model.info()["vocab_size"]
    pool.add(0, tokens)
    pool.add(1, other)
    for number, length in enumerate(lengths):
        done = sum(lengths[:number])
        pool.reserve(0, done + length)
        pool.reserve(1, number + 1)
        step = [*tokens[done : done + length], other[number]]
        model.execute(pool, [0, 1], [length, 1], step, num_outputs=[length, 1])
        logits.append(model.logits()[:-row_bytes])
    return b"".join(logits)


def reference_logits(model: Any) -> Any:
    """transformers' logits of each of the tokens."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def expect_same(
    path: Path, expected: Any, architectures: Mapping[str, BroughtArchitecture] = MappingProxyType({})
) -> None:
    """Whole, in chunks, and one token at a time beside others: each logit within 1e-4, and the same argmax."""
    import numpy as np

    sequences = Sequences(path, architectures)
    whole = sequences.logits((0, TOKENS))
    assert np.abs(whole - expected).max() < 1e-4
    second = np.sort(expected, axis=1)[:, -2]
    is_clear = expected.max(axis=1) - second > 2e-4
    assert (whole.argmax(axis=1) == expected.argmax(axis=1))[is_clear].all()
    assert is_clear.mean() > 0.98
    chunks = [sequences.logits((1, TOKENS[start : start + 130])) for start in range(0, 390, 130)]
    others = [sequences.logits((2, TOKENS[:200])), *chunks]
    assert np.array_equal(np.concatenate(others[1:]), whole[:390])
    for place in range(12):
        pair = sequences.logits((1, [TOKENS[390 + place]]), (2, [TOKENS[200 + place]]))
        assert np.array_equal(pair, whole[[390 + place, 200 + place]])
    assert np.array_equal(sequences.logits((1, TOKENS[402:500])), whole[402:])
