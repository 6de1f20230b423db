"""Twenty joins and leaves: `benchmarks/cluster_joins.py` is the long form."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_node_that_comes_and_goes_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes keep no socket, task, thread, member, connection or file more of a third that joined twenty times."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    joins = importlib.import_module("cluster_joins")
    before, after = joins.run(20, 5)
    assert joins.grown(before, after) == []
    assert after.members == 4
