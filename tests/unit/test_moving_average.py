"""The exponential moving average."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.moving_average import moving_average

values = st.floats(0, 1e6)


@given(st.lists(values, min_size=1, max_size=20), st.floats(0, 1))
def test_moving_average_is_the_weighted_sum_of_its_values(seen: list[float], weight: float) -> None:
    """A value counts `weight`, and less by the factor 1 - weight with each later one; the first is the start."""
    average = None
    for value in seen:
        average = moving_average(average, value, weight)
    shares = [(1 - weight) ** age * (weight if age < len(seen) - 1 else 1) for age in reversed(range(len(seen)))]
    expected = sum(share * value for share, value in zip(shares, seen, strict=True))
    assert average == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert min(seen) - 1e-6 <= average <= max(seen) + 1e-6
