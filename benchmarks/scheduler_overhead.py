"""What the scheduler and its books cost a step: many decoding requests with long contexts, and a runner that idles.

The block pool is the real one. Parts: `plan` (choose, reserve blocks, make the batch), `books` (take the drawn tokens
into the logs), `news` (detokenise and tell each client). Run: `python benchmarks/scheduler_overhead.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time

from plain_requests import make_request

from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import RunnerOptions
from pyagent.core.runners.runner import RunnerInfo
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.request import Output
from pyagent.infrastructure.engine.runners.paged import PagedRunner
from pyagent.infrastructure.engine.scheduler.scheduler import SchedulerLimits


class IdleRunner(PagedRunner):
    """Reserves and releases in a real pool, computes nothing, draws the same token for all."""

    def __init__(self, num_blocks: int) -> None:
        info = RunnerInfo("idle", 1 << 17, 1 << 20, 0, num_blocks, 0, (("full", 0, 1),))
        super().__init__(info, RunnerOptions(threads=1))

    def execute(self, batch: Batch) -> StepOutput:
        self._commit(batch)
        return StepOutput([7] * len(batch.samplers))


def measure(num_requests: int, context: int, num_steps: int) -> dict[str, list[float]]:
    """Microseconds of each part, step by step."""
    blocks = num_requests * ((context + num_steps + num_requests) // 16 + 40)
    runner = IdleRunner(blocks)
    limits = SchedulerLimits(max_num_seqs=num_requests, max_num_batched_tokens=max(8192, num_requests))
    engine = Engine(runner, limits)
    sink: list[Output] = []
    for number in range(num_requests):
        tokens = [number, *range(context - number % 16 - 1)]
        engine.scheduler.add(make_request(number, tokens, 10**6, sink.append))
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
