"""Regression against statsmodels, trends and distributions against scipy, on published and on random data."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from pyagent.logic.stats.distributions import fisher_tail, student_quantile, student_tail
from pyagent.logic.stats.exact_numbers import Column, column_of
from pyagent.logic.stats.regression import Wanted, regress
from pyagent.logic.stats.table import read_file
from pyagent.logic.stats.trend import mann_kendall

pytestmark = pytest.mark.oracle
pytest.importorskip("statsmodels")
_NIST = Path(__file__).parents[1] / "data/nist"


def _columns(name: str, names: list[str]) -> list[Column]:
    return read_file(name, (_NIST / name).read_text()).numbers(names)[0]


def _column(name: str, values: list[float]) -> Column:
    return column_of(name, enumerate(map(repr, values), 1))


@pytest.mark.parametrize(
    ("name", "y", "x", "has_constant"),
    [
        ("norris.csv", "y", ["x"], True),
        ("noint1.csv", "y", ["x"], False),
        ("longley.csv", "employed", ["gnp", "unemployed", "armed_forces"], True),
        ("longley.csv", "employed", ["unemployed", "armed_forces"], False),
    ],
)
def test_fits_are_those_of_statsmodels(name: str, y: str, x: list[str], has_constant: bool) -> None:
    """Estimates, errors, t, p, intervals, R², F, likelihood criteria and predictions, at 1e-8."""
    import numpy as np
    import statsmodels.api as sm

    *predictors, explained = _columns(name, [*x, y])
    curve = regress(predictors, explained, Wanted(has_constant=has_constant, confidence=0.9))
    fit = curve.fit
    matrix = np.column_stack([each.values for each in predictors])
    matrix = sm.add_constant(matrix) if has_constant else matrix
    theirs = sm.OLS(explained.values, matrix).fit()
    low, high = theirs.conf_int(0.1).T
    ours = fit.coefficients
    for mine, its in (
        ([each.estimate for each in ours], theirs.params),
        ([each.std_error for each in ours], theirs.bse),
        ([each.t for each in ours], theirs.tvalues),
        ([each.p for each in ours], theirs.pvalues),
        ([each.low for each in ours], low),
        ([each.high for each in ours], high),
    ):
        assert mine == pytest.approx(list(its), rel=1e-7)
    k = len(ours) + 1
    aicc = -2 * theirs.llf + 2 * k + 2 * k * (k + 1) / (len(explained) - k - 1)
    assert (fit.r_squared, fit.adjusted_r_squared, fit.f, fit.f_p, fit.aicc) == pytest.approx(
        (theirs.rsquared, theirs.rsquared_adj, theirs.fvalue, theirs.f_pvalue, aicc), rel=1e-7
    )
    at = curve.at({each.name: Fraction(each.whole[0] * 2, each.scale) for each in predictors})
    place = matrix[:1] * 2
    if has_constant:
        place[0, 0] = 1
    table = theirs.get_prediction(place).summary_frame(0.1).iloc[0]
    assert (at.value, at.curve_low, at.curve_high, at.low, at.high) == pytest.approx(
        tuple(table[["mean", "mean_ci_lower", "mean_ci_upper", "obs_ci_lower", "obs_ci_upper"]]), rel=1e-8
    )


def test_inflation_is_that_of_statsmodels() -> None:
    """The variance inflation factors of Longley's predictors."""
    import numpy as np
    import statsmodels.api as sm
    from statsmodels.stats.outliers_influence import variance_inflation_factor

    names = ["deflator", "gnp", "unemployed", "armed_forces", "population", "year"]
    *x, y = _columns("longley.csv", [*names, "employed"])
    matrix = sm.add_constant(np.column_stack([each.values for each in x]))
    theirs = [variance_inflation_factor(matrix, place) for place in range(1, 7)]
    assert [each.inflation for each in regress(x, y, Wanted()).fit.coefficients[1:]] == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("method", ["exponential", "power", "logarithmic"])
def test_logarithmic_fits_are_those_of_scipy(method: str) -> None:
    """A line through logarithms is scipy's `linregress` of them."""
    from math import log

    from scipy.stats import linregress

    chance = Random(5)
    x = [chance.uniform(0.5, 20) for _ in range(40)]
    y = [3 * each**0.7 * chance.uniform(0.8, 1.25) for each in x]
    fit = regress([_column("x", x)], _column("y", y), Wanted(method)).fit  # type: ignore[arg-type]
    theirs = linregress(
        x if method == "exponential" else [log(each) for each in x],
        y if method == "logarithmic" else [log(each) for each in y],
    )
    first, second = fit.coefficients
    assert (first.estimate, second.estimate, first.std_error, second.std_error, second.p) == pytest.approx(
        (theirs.intercept, theirs.slope, theirs.intercept_stderr, theirs.stderr, theirs.pvalue), rel=1e-10
    )


@pytest.mark.parametrize("spread", [3, 10, 10_000])
def test_trends_are_those_of_scipy(spread: int) -> None:
    """Tau-b, exact and normal p, the variance with ties, Sen's slope and its interval, over 60 random series."""
    from scipy.stats import kendalltau, norm, theilslopes

    chance = Random(spread)
    for size in range(5, 65):
        y = [float(chance.randint(0, spread)) for _ in range(size)]
        x = [float(place) for place in range(size)]
        trend = mann_kendall(_column("x", x), _column("y", y), 0.95)
        assert trend.tau_b == pytest.approx(kendalltau(x, y).statistic, rel=1e-12, abs=1e-15)
        if trend.p_method == "exact":
            assert trend.p == pytest.approx(kendalltau(x, y, method="exact").pvalue, rel=1e-10)
        p = kendalltau(x, y, method="asymptotic").pvalue
        assert p == pytest.approx(2 * norm.sf(abs(trend.s) / trend.variance**0.5), rel=1e-9)
        theirs = theilslopes(y, x)
        assert (trend.slope, trend.slope_low, trend.slope_high) == pytest.approx(
            (theirs.slope, theirs.low_slope, theirs.high_slope), rel=1e-12, abs=1e-15
        )
        assert trend.intercept == pytest.approx(theirs.intercept, rel=1e-12, abs=1e-12)


def test_ties_in_both_columns_are_those_of_scipy() -> None:
    """The variance has the terms of ties in the other column too."""
    from scipy.stats import kendalltau, norm

    chance = Random(1)
    for _ in range(50):
        x, y = ([float(chance.randint(0, 5)) for _ in range(30)] for _ in range(2))
        trend = mann_kendall(_column("x", x), _column("y", y), 0.95)
        theirs = kendalltau(x, y, method="asymptotic")
        assert trend.tau_b == pytest.approx(theirs.statistic, rel=1e-12, abs=1e-15)
        assert theirs.pvalue == pytest.approx(2 * norm.sf(abs(trend.s) / trend.variance**0.5), rel=1e-9)


@pytest.mark.parametrize("df", [1, 2, 9, 34, 1_000, 1_000_000])
def test_distributions_are_those_of_scipy(df: int) -> None:
    """Tails to 1e-290 and quantiles, at 1e-9."""
    from scipy.stats import f as fisher
    from scipy.stats import t as student

    for value in (0.001, 0.5, 1.9, 5.0, 20.0, 2331.0):
        if (tail := 2 * student.sf(value, df)) > 1e-290:
            assert student_tail(value, df) == pytest.approx(tail, rel=1e-9)
    for confidence in (0.5, 0.9, 0.95, 0.999):
        assert student_quantile(confidence, df) == pytest.approx(student.ppf((1 + confidence) / 2, df), rel=1e-9)
    for above in (1, 2, 30):
        for value in (0.1, 1.0, 2.5, 30.0):
            assert fisher_tail(value, above, df) == pytest.approx(fisher.sf(value, above, df), rel=1e-8, abs=1e-290)
