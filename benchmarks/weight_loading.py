"""Reading a model's weights beside a plain read of the same files, both from the system's page cache.

    .oracle/bin/python benchmarks/weight_loading.py [--gigabytes 2] [--dtype bf16] [--as f32]

Writes shards of random weights and loads them in turns with `readinto` of the same files by as many threads: into
buffers that are used again, which is the page cache's rate, and into new memory, which the system must give first.
Loading is the torch runner's `load_weights` on torch's CPU device; what it does beside reading is told apart: other
data types, and oneDNN's layout, which a GPU does not need. Prints seconds of wall clock and of processors for each GB,
ratios of each round, and by how much memory grew beyond the weights at most: what loading goes through.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from gpu_model import LLAMA_3_8B, write

from pyagent._rust import available_cores
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.runners.torch.device import DTYPES, target_of
from pyagent.infrastructure.engine.runners.torch.models import open_model
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress

MIB = 1 << 20
PIECE = 16 * MIB
VOCAB = 8192


class Cost(NamedTuple):
    """Seconds of wall clock, and of processors."""

    wall: float
    processors: float


def cost_of(work: Callable[[], object]) -> Cost:
    """Do it; what it returns is dropped afterwards."""
    wall, processors = time.perf_counter(), time.process_time()
    kept = work()
    cost = Cost(time.perf_counter() - wall, time.process_time() - processors)
    del kept
    return cost


class Watch:
    """The most memory beyond what there was, mapped files aside, while something runs."""

    def __init__(self) -> None:
        self.most = 0
        self._before = self._anonymous_bytes()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _anonymous_bytes(self) -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

    def _look(self) -> None:
        while not self._is_over.wait(0.005):
            self.most = max(self.most, self._anonymous_bytes() - self._before)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


def plain_read(files: list[Path], num_threads: int, *, is_kept: bool) -> list[mmap.mmap]:
    """Read files, a piece after another, into new memory or each thread's own buffer."""
    pieces = [(file, start) for file in files for start in range(0, file.stat().st_size, PIECE)]
    own = threading.local()

    def memory() -> mmap.mmap:
        if is_kept:
            return mmap.mmap(-1, PIECE)
        own.memory = getattr(own, "memory", None) or mmap.mmap(-1, PIECE)
        return own.memory

    def read(piece: tuple[Path, int]) -> mmap.mmap:
        file, start = piece
        target = memory()
        with file.open("rb", buffering=0) as source:
            source.seek(start)
            done = 0
            while (num_bytes := source.readinto(memoryview(target)[done:])) > 0:
                done += num_bytes
        return target

    with ThreadPoolExecutor(num_threads) as threads:
        return list(threads.map(read, pieces))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--dtype", default="bf16", choices=sorted(DTYPES), help="of the file")
    parser.add_argument("--as", dest="loaded_as", choices=sorted(DTYPES), help="of the weights; the file's otherwise")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    dtype, asked = DTYPES[options.dtype], RunnerOptions(dtype=options.loaded_as or options.dtype)
    layer_bytes = replace(LLAMA_3_8B, num_layers=1).num_products * dtype.itemsize
    num_layers = max(1, round((options.gigabytes * 1e9 - 2 * VOCAB * 4096 * dtype.itemsize) / layer_bytes))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), replace(LLAMA_3_8B, num_layers=num_layers, vocab=VOCAB), dtype, torch.device("cpu"))
        measure(Path(folder), asked, options.repeats)


def measure(folder: Path, asked: RunnerOptions, repeats: int) -> None:
    """Measure a folder, and print."""
    files, num_threads, target = sorted(folder.glob("*.safetensors")), available_cores(), target_of(asked)
    part = ModelPart.of(open_model(folder, {}).config, Shard(0, 1, 1))
    reading: list[float] = []

    def load() -> object:
        progress = ReadProgress()
        kept = open_model(folder, {}).load(part, target, num_threads, progress)
        reading.append(progress.phases()["read"])
        return kept

    gigabytes = sum(file.stat().st_size for file in files) / 1e9
    ways: dict[str, Callable[[], object]] = {
        "page cache": lambda: plain_read(files, num_threads, is_kept=False),
        "into new memory": lambda: plain_read(files, num_threads, is_kept=True),
        "load_weights": load,
    }
    costs = [{way: cost_of(work) for way, work in ways.items()} for _ in range(repeats + 1)][1:]
    print(f"{gigabytes:.2f} GB in {len(files)} files as {target.dtype}, {num_threads} threads, {repeats} rounds")
    for way in ways:
        wall, processors = (statistics.median(cost[way][place] for cost in costs) / gigabytes for place in (0, 1))
        print(f"{way:>16}: {wall:5.2f} s/GB, {processors:5.2f} s/GB of processors, {1 / wall:5.2f} GB/s")
    read = [cost["page cache"].wall / ours for cost, ours in zip(costs, reading[1:], strict=True)]
    whole = [cost["into new memory"].wall / cost["load_weights"].wall for cost in costs]
    for text, ratios in (("its reading / page cache", read), ("load_weights / into new memory", whole)):
        print(f"{text}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    with Watch() as watch:
        kept = load()
    del kept
    more = watch.most - open_model(folder, {}).weight_bytes(part, target)
    print(f"beyond the weights, at most: {more / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
