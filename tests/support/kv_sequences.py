"""A model and its block pool, driven step by step, as a runner drives them."""

from __future__ import annotations

import random
from pathlib import Path

from support.tiny_model import vocabulary

from pyagent import _rust


def head_of(path: Path) -> Path:
    """Return where the head of a model's file would be, in a folder of its own."""
    return path.with_suffix(".head")


def random_tokens(seed: int, count: int) -> list[int]:
    """Return so many of the tiny vocabulary's tokens, none of which ends a text."""
    draw, num_tokens = random.Random(seed), len(vocabulary()[0])
    return [draw.randrange(3, num_tokens) for _ in range(count)]


class Memory:
    """A model and its pool, as a runner has them; a head of EAGLE-3 that lies beside the model is attached."""

    def __init__(self, path: Path, swap_dir: Path | None = None, *, threads: int = 1) -> None:
        found = head_of(path)
        head = found if found.is_dir() else None
        self.model = _rust.CpuModel.load(path, threads=threads, kv_bytes=8 << 20, swap_dir=swap_dir, head=head)
        self.model.attach_drafter(head)
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])

    def add(self, sequence: int, tokens: list[int]) -> int:
        """Start a sequence on what is cached; return how many of its tokens that is."""
        num_cached = self.pool.add(sequence, tokens)
        part, copies = self.pool.take_part(sequence, tokens[num_cached : min(num_cached + 16, len(tokens) - 1)])
        self.model.copy_pages(copies)
        return num_cached + part

    def compute(self, *segments: tuple[int, list[int]]) -> list[bytes]:
        """The logits after each segment's last token."""
        for sequence, tokens in segments:
            self.pool.reserve(sequence, self.pool.num_tokens(sequence) + len(tokens))
        lengths = [len(tokens) for _, tokens in segments]
        log = [token for _, tokens in segments for token in tokens]
        ids = [sequence for sequence, _ in segments]
        _, _, errors, *_ = self.model.execute(self.pool, ids, lengths, log, num_outputs=[1] * len(ids))
        assert not errors
        self.pool.check()
        logits, size = self.model.logits(), len(self.model.logits()) // len(ids)
        return [logits[start : start + size] for start in range(0, len(logits), size)]

    def whole(self, tokens: list[int]) -> bytes:
        """The logits after tokens that are computed at once, from nothing."""
        self.pool.clear_index()
        self.pool.add(99, tokens)
        (logits,) = self.compute((99, tokens))
        self.pool.release(99)
        self.pool.clear_index()
        return logits


def assert_histories_change_no_bits(memory: Memory) -> None:
    """Another turn, a branch of the prompt, chunks beside another sequence, a fork, a sequence swapped out: as cold."""
    tokens, ways = random_tokens(1, 310), (random_tokens(2, 40), random_tokens(3, 40))
    turns = [tokens, [*tokens, *ways[0]], [*tokens[:100], *ways[1]]]
    expected = [memory.whole(turn) for turn in turns]
    for number, (turn, logits) in enumerate(zip(turns, expected, strict=True)):
        num_cached = memory.add(number, turn)
        assert memory.compute((number, turn[num_cached:])) == [logits]
        assert (num_cached > 90) == (number > 0)
        memory.pool.release(number)
    memory.pool.clear_index()
    memory.pool.add(1, tokens)
    memory.pool.add(4, turns[2])
    memory.compute((1, tokens[:70]))
    memory.compute((1, tokens[70:200]), (4, turns[2][:90]))
    assert memory.compute((1, tokens[200:]), (4, turns[2][90:])) == [expected[0], expected[2]]
    memory.pool.release(4)
    memory.model.copy_pages(memory.pool.fork(1, 2))
    handle = memory.model.swap_out(memory.pool.pages_in_use(1))
    memory.pool.release(1)
    other = memory.compute((2, ways[1]))
    memory.pool.release(2)
    memory.pool.clear_index()
    assert other == [memory.whole([*tokens, *ways[1]])]
    num_cached, places = memory.pool.restore(1, tokens)
    memory.model.swap_in(handle, places)
    memory.pool.commit(1, tokens[num_cached:])
    assert memory.compute((1, ways[0])) == [expected[1]]
