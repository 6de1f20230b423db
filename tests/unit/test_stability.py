"""Rows of scores: when they improve, when they only scatter, and the gate for releases."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.cli.root import run
from pyagent.core.errors import RequestError
from pyagent.core.fleet.stability import Gate, trend


@given(st.integers(3, 60), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_a_straight_rise_is_one(length: int, slope: float, start: float) -> None:
    """Scores that rise evenly improve, whatever their size; reversed they fall."""
    line = trend([start + slope * place for place in range(length)])
    assert line is not None
    assert line.slope == pytest.approx(slope, rel=1e-3)
    assert line.is_rising
    assert not line.is_falling


def test_scatter_is_rarely_called_a_trend() -> None:
    """Of 2,000 rows of 20 scores that only scatter at most 1 % are said to rise; of slow rises at least 95 % are."""
    generator = random.Random(1)
    flat = [[generator.gauss(0.5, 0.1) for _ in range(20)] for _ in range(2_000)]
    rising = [[0.02 * place + generator.gauss(0, 0.05) for place in range(20)] for _ in range(500)]
    assert sum(bool((line := trend(row)) and line.is_rising) for row in flat) <= 20
    assert sum(bool((line := trend(row)) and line.is_rising) for row in rising) >= 475
    assert trend([1.0, 2.0]) is None
    assert not trend([1.0, 1.0, 1.0]).is_rising  # type: ignore[union-attr]


def test_the_gate_names_each_fault() -> None:
    """Mean, variance and a fall are judged apart."""
    wanted = Gate(min_mean=0.9, max_variance=0.001)
    assert wanted.faults([0.91, 0.92, 0.9]) == []
    assert wanted.faults([0.8]) == ["the mean is 0.8, below 0.9"]
    assert wanted.faults([0.8, 1.1]) == ["the variance is 0.0225, above 0.001"]
    assert wanted.faults([0.99, 0.97, 0.95, 0.93]) == ["the scores fall by 0.02 each"]
    assert Gate(min_mean=0.9, allows_falling=True).faults([0.99, 0.97, 0.95, 0.93]) == []


def test_the_command_passes_or_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is for a release's script, the sentence for people."""
    assert run(["runs", "gate", "--min", "0.9", "--score", "0.95", "--score", "0.96"]) == 0
    assert capsys.readouterr().out.startswith("passed (2 scores")
    assert run(["runs", "gate", "--min", "0.9", "--variance", "0", "--score", "0.5"]) == 1
    assert "refused: the mean is 0.5, below 0.9" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [[], ["--score", "x"], ["--score", "nan"], ["--score", "1", "--variance", "inf"]])
def test_the_command_refuses_what_is_no_number(wrong: list[str]) -> None:
    """A bound or a score that compares with nothing would pass everything."""
    with pytest.raises(RequestError):
        run(["runs", "gate", "--min", "0.9", *wrong])
