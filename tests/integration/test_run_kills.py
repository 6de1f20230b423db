"""A run in processes that are killed with -9: a short form of `make run-kills`."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "run_kills.py"


def test_killed_runs_end_as_if_they_were_not() -> None:
    """A run killed five times, and resumed each time, has the journal of one left alone, and no effect twice."""
    seed = random.randrange(2**32)
    command = [sys.executable, str(BENCHMARK), "--kills", "5", "--steps", "8", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert "5 deaths by kill -9" in done.stdout
