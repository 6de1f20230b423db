"""The GPU's benchmark, on a tiny model of torch's CPU device: a machine with a GPU is too rare to find it broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_rows_of_kernels_are_measured() -> None:
    """Each kernel's row, by tiny shapes in Triton's interpreter, is one of the benchmark's table."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import gpu_engine
        import gpu_kernels
    finally:
        sys.path.pop(0)
    rows = gpu_engine.kernel_rows(gpu_kernels.measured(gpu_kernels.TINY))
    assert len({row.name for row in rows}) == len(rows) >= 14


@pytest.mark.slow
def test_every_row_of_the_gpu_benchmark_is_measured() -> None:
    """`--tiny` measures all rows that a machine without a GPU has, transformers' too."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_engine.py"), "--tiny"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert said.returncode == 0, said.stderr
    rows = [line.split("|")[1:-1] for line in said.stdout.splitlines() if line.startswith("| ")][1:]
    assert not [row for row in rows if "not measured" in row[1]]
    names = " ".join(row[0] for row in rows)
    for name in (
        "a large copy",
        "load",
        "decode, 1 sequence",
        "prefill",
        "serving",
        "beside transformers",
        "invariant",
        "compiled",
    ):
        assert name in names
