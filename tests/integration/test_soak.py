"""A few seconds of the soak: `make soak` is the long form, which alone can judge memory."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("options", [{}, {"process": True}], ids=["here", "own process"])
def test_random_work_leaves_nothing_behind(
    options: dict[str, Any], tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of all kinds, some broken off: probes have the text of their first time, and every block is back."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    soak = importlib.import_module("soak")
    engine = {"models": [str(tiny_model_path)], "threads": 1, **options}
    faults = asyncio.run(soak.run_phase("a moment", engine, minutes=0.05, memory=2_000_000_000, seed=7))
    assert [fault for fault in faults if "resident memory" not in fault] == []
