"""Attacks on a real server for a second each: `make hostile` is the long form, which bounds times and memory too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).parents[2] / "benchmarks" / "hostile_tour.py"
ATTACKS = ("slow bodies", "wide schemas", "lists of models")


def test_server_outlives_a_hostile_tour(tiny_model_path: Path) -> None:
    """Beside each attack a client that asks again once gets every answer, and the server ends cleanly."""
    command = [sys.executable, str(TOUR), "--seconds", "1", "--settle-seconds", "0", "--model", str(tiny_model_path)]
    for name in ATTACKS:
        command += ["--only", name]
    told = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert "memory" in told.stdout, told.stderr
    missed = [line for line in told.stdout.splitlines() if line.startswith("missed: ")]
    slow = ("/ready took", "missed: memory")  # as fast as the machine is idle
    assert [line for line in missed if not any(word in line for word in slow)] == [], told.stdout + told.stderr
