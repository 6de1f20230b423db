"""Twenty seconds of a storm over five nodes: `make cluster-chaos` is the long form."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support.networks import why_not

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no /dev/net/tun"),
]


def test_every_run_finishes_once_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are killed, paused, parted and started anew: each answer is right, each effect is there once.

    As the command runs it: the nodes' files are gone by the time their faults are told.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    chaos = importlib.import_module("cluster_chaos")
    result = chaos.run(20.0, num_clients=24, seed=5)
    assert result.faults == []
    outcome = result.clients.outcome
    assert min(outcome.finished[kind] for kind in ("story", "sum", "agent")) > 0
    assert sum(result.weather.counts.values()) >= 3
