"""Exact search in a file of vectors: time of one query over 100,000 rows, and recall against brute force in float64.

    python benchmarks/vector_search.py [--rows 100000] [--dimensions 384]

Recall is of the ten nearest of each query, against sums in float64 of the same rows in Python.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from array import array
from operator import mul
from pathlib import Path

from pyagent import _rust

_QUERIES = 20
_CHECKED_QUERIES = 2


def main() -> None:
    """Write rows, search them, and print a line of figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    given = parser.parse_args()
    source = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.f32"
        path.write_bytes(_rows(source, given.rows, given.dimensions))
        queries = [[source.gauss(0, 1) for _ in range(given.dimensions)] for _ in range(_QUERIES)]
        seconds = [_timed(path, query) for query in queries]
        recall = statistics.mean(_recall(path, query, given.dimensions) for query in queries[:_CHECKED_QUERIES])
    ordered = sorted(seconds)
    print(
        f"{given.rows} x {given.dimensions}: p50 {ordered[len(ordered) // 2] * 1000:.1f} ms, "
        f"slowest {ordered[-1] * 1000:.1f} ms, {_rust.available_cores()} threads, recall@10 {recall:.3f}"
    )


def _rows(source: random.Random, num_rows: int, num_dimensions: int) -> bytes:
    """Return rows that are pieces of one long list of random numbers: quick to make, and all different."""
    pool = array("f", (source.gauss(0, 1) for _ in range(1_000_000)))
    begins = (source.randrange(len(pool) - num_dimensions) for _ in range(num_rows))
    return b"".join(pool[begin : begin + num_dimensions].tobytes() for begin in begins)


def _timed(path: Path, query: list[float]) -> float:
    started = time.perf_counter()
    _rust.nearest_rows(path, query, 50, _rust.available_cores())
    return time.perf_counter() - started


def _recall(path: Path, query: list[float], num_dimensions: int) -> float:
    rows, rounded = array("f", path.read_bytes()), array("f", query)
    scores = [
        (sum(map(mul, rows[begin : begin + num_dimensions], rounded)), -begin)
        for begin in range(0, len(rows), num_dimensions)
    ]
    best = {-begin // num_dimensions for _, begin in sorted(scores, reverse=True)[:10]}
    found = {row for row, _ in _rust.nearest_rows(path, query, 10, 1)}
    return len(best & found) / len(best)


if __name__ == "__main__":
    main()
