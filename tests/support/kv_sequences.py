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
