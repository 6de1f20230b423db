"""A part of a cached block is used again by copy: fewer tokens are computed, and no bit changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tiny_model import vocabulary

from pyagent.core.runners.factory import KvDtype, RunnerOptions
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.runners.cpu import CpuRunner

NUM_TOKENS = len(vocabulary()[0])
BLOCK = 16


class Schedule:
    """Sequences that start, are computed in chunks beside each other, fork, and end in the middle; by dice.

    Each prompt goes on somewhere in an earlier text. What it computes is compared with a pool that knows nothing.
    """

    def __init__(self, runner: CpuRunner, cold: CpuRunner, draw: random.Random) -> None:
        self.runner, self._cold, self._draw = runner, cold, draw
        self._running: dict[int, list[int]] = {}
        self._texts: list[list[int]] = [[]]
        self._last_id = 0

    def start(self) -> None:
        draw, earlier = self._draw, self._draw.choice(self._texts)
        prompt = earlier[: draw.randrange(len(earlier) + 1)] + self._some(1, 40)
        self._last_id = sequence = self._last_id + 1
        num_cached = self.runner.add(sequence, prompt)
        assert num_cached < len(prompt)
        self._running[sequence] = prompt[:num_cached]
        if not self._go_on(sequence, prompt[num_cached:]):
            self.end(sequence)

    def draw_some(self) -> None:
        if self._running:
            sequence = self._draw.choice([*self._running])
            if not self._go_on(sequence, self._some(1, 20)):
                self.end(sequence)

    def fork(self) -> None:
        if self._running:
            parent = self._draw.choice([*self._running])
            self._last_id += 1
            if self.runner.fork(parent, self._last_id):
                self._running[self._last_id] = self._running[parent].copy()

    def end(self, sequence: int | None = None) -> None:
        if self._running:
            sequence = sequence or self._draw.choice([*self._running])
            self._texts.append(self._running.pop(sequence))
            self.runner.release(sequence)

    def end_all(self) -> None:
        while self._running:
            self.end()
        self.runner.pool.check()
        stats = self.runner.stats()
        assert (stats.active, stats.free) == (0, stats.limit)

    def _some(self, least: int, most: int) -> list[int]:
        return [self._draw.randrange(3, NUM_TOKENS) for _ in range(self._draw.randint(least, most))]

    def _go_on(self, sequence: int, tokens: list[int]) -> bool:
        """Computes tokens in chunks; False when memory is short. The last logits are those of a cold pool."""
        logits, done = b"", self._running[sequence]
        while tokens:
            chunk, tokens = tokens[: (size := self._draw.choice([1, 7, 16, 60]))], tokens[size:]
            if not self.runner.reserve(sequence, len(done) + len(chunk)):
                return False
            logits = _compute(self.runner, sequence, chunk)
            done += chunk
        self._cold.pool.clear_index()
        self._cold.add(1, done)
        self._cold.reserve(1, len(done))
        assert _compute(self._cold, 1, done) == logits
        self._cold.release(1)
        return True


def _compute(runner: CpuRunner, sequence: int, tokens: list[int]) -> bytes:
    """The last token's logits."""
    runner.model.execute(runner.pool, [sequence], [len(tokens)], tokens, num_outputs=[1])
    return runner.model.logits()


@pytest.fixture(scope="module", params=["llama f16", "llama int8", "gemma f16", "gemma int8", "gemma in slabs"])
def runners(
    request: pytest.FixtureRequest, tiny_model_path: Path, tiny_gemma_path: Path
) -> Iterator[tuple[CpuRunner, CpuRunner]]:
    """Two runners of one model: one with little memory, one to compare with."""
    name, *_, kind = request.param.split()
    path = tiny_gemma_path if name == "gemma" else tiny_model_path
    kv_type: KvDtype = "int8" if kind == "int8" else "bf16"
    cold = CpuRunner(path, RunnerOptions(threads=1, kv_dtype=kv_type))
    kv_bytes = 40 * cold.pages_per_block * cold.info.page_bytes
    options = RunnerOptions(threads=1, kv_bytes=kv_bytes, kv_dtype=kv_type)
    kv = Ledger(1 << 40).reserve("KV", kv_bytes // 2) if kind == "slabs" else None
    yield CpuRunner(path, options, kv), cold
    cold.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(["start", "start", "draw", "end", "fork"]), max_size=40), seed=st.integers(0, 999)
)
def test_random_schedules_compute_the_same_bits(
    runners: tuple[CpuRunner, CpuRunner], steps: list[str], seed: int
) -> None:
    """With parts of blocks copied, evicted and forked, every sequence's logits are those of a cold start."""
    runner, cold = runners
    runner.pool.clear_index()
    schedule = Schedule(runner, cold, random.Random(seed))
    act = {"start": schedule.start, "draw": schedule.draw_some, "end": schedule.end, "fork": schedule.fork}
    for step in steps:
        act[step]()
        runner.pool.check()
    schedule.end_all()


def test_all_but_what_is_new_is_found(runners: tuple[CpuRunner, CpuRunner]) -> None:
    """Wherever in a block a turn ended, the next computes its own 20 tokens; a repeated prompt computes one."""
    runner, _ = runners
    draw = random.Random(7)
    for length in range(100, 117):
        runner.pool.clear_index()
        tokens = [draw.randrange(3, NUM_TOKENS) for _ in range(length + 20)]
        for sequence, (num_tokens, num_cached) in enumerate(
            [(length, 0), (length + 20, length), (length + 20, length + 19)]
        ):
            assert runner.lookup(tokens[:num_tokens])[0] == num_cached
            assert runner.add(sequence, tokens[:num_tokens]) == num_cached
            assert runner.reserve(sequence, num_tokens)
            _compute(runner, sequence, tokens[num_cached:num_tokens])
            runner.release(sequence)


def test_turns_leave_no_pages_behind(runners: tuple[CpuRunner, CpuRunner]) -> None:
    """The ends of earlier turns are given up when a later turn has gone on from them."""
    runner, _ = runners
    runner.pool.clear_index()
    draw = random.Random(8)
    tokens = [draw.randrange(3, NUM_TOKENS) for _ in range(140)]
    for sequence, end in enumerate(range(5, 140, 5)):
        num_cached = runner.add(sequence, tokens[:end])
        assert num_cached == max(0, end - 5)
        assert runner.reserve(sequence, end)
        _compute(runner, sequence, tokens[num_cached:end])
        runner.release(sequence)
    assert runner.stats().cached <= -(-140 // BLOCK) * runner.pages_per_block
