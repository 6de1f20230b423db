"""What the host does for a decode step of the torch runner, beside launching it: pack it, and tell the pool afterwards.

Run: `python benchmarks/input_batch.py --rows 64 --context 2000` (needs torch).
"""

from __future__ import annotations

import argparse
import statistics
import time

from pyagent import _rust
from pyagent.core.runners.batch import Batch
from pyagent.infrastructure.engine.runners.torch.device_batch import BatchShape
from pyagent.infrastructure.engine.runners.torch.input_batch import InputBatch
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers

MICROSECONDS = 1e6


def main() -> None:
    """Measure steps and print the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--context", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    blocks = (arguments.context + arguments.steps) // 16 + 2
    pool = _rust.BlockPool(arguments.rows * blocks)
    ids = list(range(arguments.rows))
    for sequence in ids:
        pool.add(sequence, [sequence])
        pool.reserve(sequence, arguments.context + arguments.steps)
        pool.commit(sequence, [sequence, *range(arguments.context + sequence % 16 - 1)])
    inputs = InputBatch(BatchShape(arguments.rows, blocks, 1), KvLayers.of([None]))
    samplers = [_rust.SamplerState(seed=sequence) for sequence in ids]
    packing: list[float] = []
    telling: list[float] = []
    for step in range(arguments.steps - 16):
        batch = Batch(list(ids), [1] * len(ids), [step] * len(ids), samplers, [step] * len(ids))
        start = time.perf_counter()
        inputs.pack(batch, pool)
        packed = time.perf_counter()
        for sequence in ids:
            pool.commit(sequence, [step])
        packing.append(packed - start)
        telling.append(time.perf_counter() - packed)
    for name, seconds in (("pack", packing), ("commit", telling)):
        p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
        print(f"{name:8} p50 {MICROSECONDS * p50:7.0f} us  p95 {MICROSECONDS * p95:7.0f} us")


if __name__ == "__main__":
    main()
