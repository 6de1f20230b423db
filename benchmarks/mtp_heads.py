"""What a head that drafts (MTP) takes of a model's steps on the CPU, and what its drafts give if all or none are right.

    .oracle/bin/python benchmarks/mtp_heads.py [--kind Q4_K] [--threads 2]     (needs numpy and gguf)

Random weights in the shape of Qwen 3.5 4B: four of its 32 layers, with its head behind them; the vocabulary is cut too.
So a head takes eight times the part of a step that it takes of the whole model. One sequence; steps with the head and
without it, passes of the head, and steps that verify are taken in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from hybrids import Writer

from pyagent import _rust

ROUNDS, CONTEXT, PROMPT = 20, 200, 256
MOST = 3


class Sequence:
    """A model with one sequence, which masks have sample what is wanted."""

    def __init__(
        self, path: Path, threads: int, *, mtp: bool, assistant: Path | None = None, head: Path | None = None
    ) -> None:
        self.model = _rust.CpuModel.load(path, threads=threads, kv_bytes=1 << 29, mtp=mtp, head=head)
        self.model.attach_drafter(head or assistant)
        info = self.model.info()
        self.vocab = info["vocab_size"]
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        self.draw = np.random.default_rng(5)
        self.sampler = _rust.SamplerState(temperature=0.0)
        self.begin()

    def tokens(self, count: int) -> list[int]:
        return [int(token) for token in self.draw.integers(8, self.vocab, count)]

    def begin(self) -> None:
        self.pool.add(0, [1])
        self.pool.reserve(0, CONTEXT)
        self.model.execute(self.pool, [0], [CONTEXT], self.tokens(CONTEXT), [self.sampler], [0])

    def prompt(self) -> float:
        self.pool.clear_index()
        self.pool.add(9, [1])
        self.pool.reserve(9, PROMPT)
        tokens, start = self.tokens(PROMPT), time.perf_counter()
        self.model.execute(self.pool, [9], [PROMPT], tokens, num_outputs=[1])
        seconds = time.perf_counter() - start
        self.pool.release(9)
        return seconds

    def verify(self, num_drafts: int, num_right: int) -> float:
        """Seconds of a step with so many drafts, of which so many are right."""
        drafts = self.tokens(num_drafts)
        sampled = [*drafts[:num_right], 7]
        row_bytes = -(-self.vocab // 32) * 4
        masks = bytearray(row_bytes * (1 + num_drafts))
        for row in range(1 + num_drafts):
            token = sampled[min(row, num_right)]
            masks[row_bytes * row + token // 8] |= 1 << token % 8
        known = self.pool.num_tokens(0)
        self.pool.reserve(0, known + 1)
        self.pool.reserve(0, known + 1 + num_drafts)
        rows, start = 1 + num_drafts, time.perf_counter()
        self.model.execute(
            self.pool,
            [0],
            [rows],
            [5, *drafts],
            [self.sampler],
            [0],
            {0: bytes(masks)},
            num_outputs=[rows],
            num_drafts={0: num_drafts},
        )
        return time.perf_counter() - start

    def draft(self, num_drafts: int) -> float:
        """Seconds of so many passes of the head."""
        self.pool.reserve(0, self.pool.num_tokens(0) + num_drafts)
        start, token, before = time.perf_counter(), 5, None
        for ahead in range(num_drafts):
            (likeliest,), _ = self.model.draft(self.pool, [0], [token], [ahead], [before])
            assert likeliest is not None
            token, before = likeliest[0], 0
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("Q4_K", "Q8_0"), default="Q4_K")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        Writer(path, "qwen35", gguf.GGMLQuantizationType[arguments.kind], has_head=True).write()
        with_head, without = (Sequence(path, arguments.threads, mtp=mtp) for mtp in (True, False))
        report(compare(with_head, without), f"{arguments.kind}, {arguments.threads} threads", "a head")


def compare(drafted: Sequence, plain: Sequence) -> dict[str, float]:
    """Return the median seconds of what a model with a drafter does and of what one without does, in turns."""
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        seconds.setdefault("step without", []).append(plain.verify(0, 0))
        seconds.setdefault("step with", []).append(drafted.verify(0, 0))
        for count in range(1, MOST + 1):
            seconds.setdefault(f"draft {count}", []).append(drafted.draft(count))
            seconds.setdefault(f"none {count}", []).append(drafted.verify(count, 0))
            seconds.setdefault(f"all {count}", []).append(drafted.verify(count, count))
    for _ in range(3):
        seconds.setdefault("prompt without", []).append(plain.prompt())
        seconds.setdefault("prompt with", []).append(drafted.prompt())
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(found: dict[str, float], how: str, what: str) -> None:
    """Print what drafts take of a step, and what they give where all or none are right."""
    plain = found["step without"]
    print(f"{how}; a step without {what}: {plain * 1e3:.2f} ms")
    print(f"with one that does not draft: {found['step with'] / plain:.3f} of that")
    print(f"prompt of {PROMPT}: {found['prompt with'] / found['prompt without']:.3f} of the time without")
    for count in range(1, MOST + 1):
        draft = found[f"draft {count}"]
        none, right = draft + found[f"none {count}"], draft + found[f"all {count}"]
        steps = f"{draft / plain:.2f} of a step to draft, {found[f'none {count}'] / plain:.2f} to verify"
        speed = f"none right {plain / none:.2f}, all right {(1 + count) * plain / right:.2f}"
        print(f"{count} drafts: {steps}; times the tokens a second, {speed}")


if __name__ == "__main__":
    main()
