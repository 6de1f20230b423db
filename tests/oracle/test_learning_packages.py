"""Welch's t-test against scipy."""

from __future__ import annotations

import numpy as np
import pytest

from pyagent.logic.stats.comparison import welch

pytestmark = pytest.mark.oracle
stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("seed", range(30))
def test_welch_is_that_of_scipy(seed: int) -> None:
    """t, degrees of freedom, p and the interval are scipy's, for samples of other sizes and variances."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 60, size=2)
    one = random.normal(0.5, 10.0 ** random.integers(-3, 3), sizes[0])
    other = random.normal(0.6, 10.0 ** random.integers(-3, 3), sizes[1])
    found = welch(list(one), list(other))
    expected = stats.ttest_ind(one, other, equal_var=False)
    assert found is not None
    interval = expected.confidence_interval(0.95)
    assert found.t == pytest.approx(expected.statistic, rel=1e-10)
    assert found.df == pytest.approx(expected.df, rel=1e-10)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-8)


def test_welch_of_marks_is_that_of_scipy() -> None:
    """So it is for good and bad marks, where the p-value is tiny."""
    one, other = [1.0] * 90 + [0.0] * 10, [0.0] * 80 + [1.0] * 20
    found, expected = welch(one, other), stats.ttest_ind(one, other, equal_var=False)
    assert found is not None
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert found.p < 1e-25
