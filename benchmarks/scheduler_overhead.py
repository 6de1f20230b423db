"""What the scheduler and its books cost a step: many decoding requests with long contexts, and a runner that idles.

The block pool is the real one. Parts: `plan` (choose, reserve blocks, make the batch), `books` (take the drawn tokens
into the logs), `news` (detokenise and tell each client). Run: `python benchmarks/scheduler_overhead.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time

from pyagent import _rust
from pyagent.core.messages import SamplingParams
from pyagent.core.runners.batch import PLAIN_KEY, Batch, PrefixKey, StepOutput
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output, Request
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits
from pyagent.infrastructure.engine.tokens.detokenizer import Detokenizer


class IdleRunner:
    """Reserves and releases in a real pool, computes nothing, draws the same token for all."""

    context_length = 1 << 20
    vocab_size = 1 << 17

    def __init__(self, num_blocks: int) -> None:
        self.pool = _rust.BlockPool(num_blocks)
        self.seconds = 0.0

    pages_per_block = 1
    num_lookahead_tokens = 0

    @property
    def free_pages(self) -> int:
        return self.pool.stats().free

    def num_pages(self, num_tokens: int) -> int:
        return self.pool.most_pages(num_tokens, 1)

    def lookup(self, tokens: list[int], key: PrefixKey = PLAIN_KEY) -> tuple[int, int]:
        return self.pool.lookup(tokens)

    def add(self, sequence_id: int, tokens: list[int], key: PrefixKey = PLAIN_KEY, *, is_resumed: bool = False) -> int:
        return self.pool.add(sequence_id, tokens)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        self.pool.reserve(sequence_id, num_tokens)
        return True

    def release(self, sequence_id: int) -> None:
        self.pool.release(sequence_id)

    def fork(self, parent: int, child: int) -> bool:
        return False

    def swap_seconds(self, num_tokens: int) -> float:
        return float("inf")

    def swap_out(self, sequence_id: int) -> bool:
        return False

    def swap_in(self, sequence_id: int, key: PrefixKey = PLAIN_KEY) -> bool:
        return False

    def drop_swapped(self, sequence_id: int) -> None:
        pass

    def stats(self) -> _rust.PoolStats:
        return self.pool.stats()

    def execute(self, batch: Batch) -> StepOutput:
        return StepOutput([7] * len(batch.samplers))


class Letters:
    """The bytes of each token: one letter."""

    has_leading_space = False

    def __getitem__(self, token: int) -> bytes:
        return b"a"


class Vocabulary:
    end_ids = frozenset({1, 2})


def make_request(number: int, num_prompt: int, max_tokens: int, sink: list[Output]) -> Request:
    return Request(
        id=number,
        tokens=[number, *range(num_prompt - 1)],
        params=SamplingParams(max_tokens=max_tokens),
        max_tokens=max_tokens,
        sampler=_rust.SamplerState(),
        tokenizer=Vocabulary(),
        detokenizer=Detokenizer(Letters()),
        grammar=None,
        on_output=sink.append,
    )


def measure(num_requests: int, context: int, num_steps: int) -> dict[str, list[float]]:
    """Microseconds of each part, step by step."""
    blocks = num_requests * ((context + num_steps + num_requests) // 16 + 40)
    runner = IdleRunner(blocks)
    limits = SchedulerLimits(max_num_seqs=num_requests, max_num_batched_tokens=max(8192, num_requests))
    engine = Engine(runner, limits)
    sink: list[Output] = []
    for number in range(num_requests):
        engine.scheduler.add(make_request(number, context - number % 16, 10**6, sink))
    while len(engine.scheduler.decode_batch) < num_requests:
        engine.step()
    parts: dict[str, list[float]] = {"plan": [], "books": [], "both": [], "news": []}
    for _ in range(num_steps):
        start = time.perf_counter()
        plan = engine.scheduler.plan()
        planned = time.perf_counter()
        assert plan is not None
        output = runner.execute(plan.batch)
        computed = time.perf_counter()
        engine.scheduler.apply_output(plan, output)
        landed = time.perf_counter()
        for request, token in zip(plan.sampled, output.tokens, strict=True):
            news = request.accept(token, None, landed)
            assert news is not None
            request.on_output(news)
        told = time.perf_counter()
        sink.clear()
        parts["plan"].append((planned - start) * 1e6)
        parts["books"].append((landed - computed) * 1e6)
        parts["both"].append((planned - start + landed - computed) * 1e6)
        parts["news"].append((told - landed) * 1e6)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    parts = measure(args.requests, args.context, args.steps)
    for name, values in parts.items():
        if values:
            cuts = statistics.quantiles(values, n=100)
            print(f"{name:8} median {cuts[49]:8.1f} us   p99 {cuts[98]:8.1f} us")


if __name__ == "__main__":
    main()
