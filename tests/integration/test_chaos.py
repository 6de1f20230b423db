"""Ten seconds of chaos: `make chaos` is the long form."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("seed", [3])
def test_chain_answers_exactly_while_one_link_is_healthy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three upstreams fail, hang, drop streams and send garbage: every answer is right, and once."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    chaos = importlib.import_module("chaos")
    outcome, chain = chaos.run(5.0, num_clients=4, seed=seed, num_requests=100)
    assert chaos.faults_of(outcome, is_timed=False) == []
    assert len(outcome.times) >= 100
    assert outcome.num_resumed["continue"]
    assert all(state.num_in_flight == 0 for state in chain.link_states())
    assert any(state.failures for state in chain.link_states())
