"""The Mann-Kendall test and Sen's slope: definitions, ties, bounds, and numbers that floats cannot tell apart."""

from __future__ import annotations

from itertools import permutations
from math import comb
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.logic.stats.distributions import normal_quantile
from pyagent.logic.stats.exact_numbers import Column, column_of
from pyagent.logic.stats.trend import Trend, mann_kendall


def _column(name: str, values: list[float]) -> Column:
    return column_of(name, enumerate((repr(value) for value in values), 1))


def _trend(y: list[float], x: list[float] | None = None) -> Trend:
    places = x or [float(place) for place in range(1, len(y) + 1)]
    return mann_kendall(_column("x", places), _column("y", y), 0.95)


def test_trend_with_ties_by_hand() -> None:
    """S, the variance with a tie of two and one of three, and tau-b, worked by hand."""
    trend = _trend([1, 2, 2, 3, 3, 3, 4])
    assert (trend.s, trend.num_tied_values) == (17, 5)
    assert trend.variance == pytest.approx((7 * 6 * 19 - 2 * 1 * 9 - 3 * 2 * 11) / 18, rel=1e-15)
    assert trend.z == pytest.approx(16 / trend.variance**0.5, rel=1e-15)
    assert trend.tau_b == pytest.approx(17 / (21 * 17) ** 0.5, rel=1e-15)
    assert (trend.direction, trend.p_method, trend.slope) == ("rising", "normal", 0.5)


def test_exact_p_is_the_share_of_all_orders() -> None:
    """Without ties p counts the orders of six values whose S is as far from 0."""
    trend = _trend([1, 2, 3, 4, 6, 5])

    def s(order: tuple[int, ...]) -> int:
        return sum((b > a) - (b < a) for place, a in enumerate(order) for b in order[place + 1 :])

    orders = list(permutations(range(6)))
    assert trend.p == sum(abs(s(order)) >= trend.s for order in orders) / len(orders)
    assert (trend.p_method, trend.direction, _trend([6, 5, 4, 3, 2, 1]).direction) == ("exact", "rising", "falling")


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=4, max_size=30))
def test_s_counts_every_pair(points: list[tuple[int, int]]) -> None:
    """The n log n count is that of the definition, ties in both columns included."""
    try:
        trend = mann_kendall(Column("x", [x for x, _ in points], 1), Column("y", [y for _, y in points], 1), 0.95)
    except RequestError:
        assert len({x for x, _ in points}) == 1 or len({y for _, y in points}) == 1
        return
    pairs = [(one, other) for place, one in enumerate(points) for other in points[place + 1 :]]
    signs = [((b[0] > a[0]) - (b[0] < a[0])) * ((b[1] > a[1]) - (b[1] < a[1])) for a, b in pairs]
    assert len(signs) == comb(len(points), 2)
    assert trend.s == sum(signs)


def test_trend_of_too_little_is_refused() -> None:
    """Three points, or one value, have no trend."""
    with pytest.raises(RequestError, match="at least 4 points"):
        _trend([1, 2, 3])
    with pytest.raises(RequestError, match="y is the same in each row"):
        _trend([2, 2, 2, 2])


def test_many_points_have_a_test_and_no_slope() -> None:
    """Beyond 3,000 points the pairs are not looked at one by one."""
    trend = _trend([float(place % 1_000) for place in range(4_000)])
    assert (trend.slope, trend.num_points, trend.p_method) == (None, 4_000, "normal")


@pytest.mark.parametrize("num_values", [7, 100_000])
def test_slopes_are_those_of_the_middle_pairs(num_values: int) -> None:
    """The slope and its interval are the ranks of all sorted slopes, of which only parts are sorted."""
    chance = Random(3)
    x, y = (sorted(chance.randrange(num_values) for _ in range(200)) for _ in range(2))
    chance.shuffle(y)
    trend = mann_kendall(Column("x", x, 10), Column("y", y, 100), 0.9)
    pairs = [(one, other) for one in range(200) for other in range(one + 1, 200) if x[one] != x[other]]
    slopes = sorted((y[other] - y[one]) / (x[other] - x[one]) / 10 for one, other in pairs)
    reach = normal_quantile(0.9) * trend.variance**0.5
    low, high = round((len(slopes) - reach) / 2) - 1, round((len(slopes) + reach) / 2)
    assert trend.slope == pytest.approx(median(slopes), rel=1e-12)
    assert (trend.slope_low, trend.slope_high) == (pytest.approx(slopes[low]), pytest.approx(slopes[high]))
    assert trend.intercept == pytest.approx(median(y) / 100 - median(slopes) * median(x) / 10, rel=1e-9, abs=1e-12)


def test_places_that_floats_cannot_tell_apart_have_a_slope() -> None:
    """Numbers of 21 digits differ, and so do the slopes between them."""
    whole = [10**20 + place for place in range(1, 6)]
    trend = mann_kendall(Column("x", whole, 1), Column("y", [2 * each for each in whole], 1), 0.95)
    assert (trend.slope, trend.direction, trend.s) == (2.0, "rising", 10)


@pytest.mark.parametrize(
    ("x", "y"),
    [([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), ([1, 2, 3, 4, 5], [1, 1, 1, 2, 2]), ([1, 1, 1, 2, 3, 3], [4, 4, 4, 5, 5, 6])],
)
def test_variance_is_that_of_s_over_all_orders(x: list[int], y: list[int]) -> None:
    """Also with ties of two and of three in both columns."""

    def s(order: tuple[int, ...]) -> int:
        pairs = [(one, other) for one in range(len(x)) for other in range(one)]
        return sum(
            ((x[one] > x[other]) - (x[one] < x[other])) * ((order[one] > order[other]) - (order[one] < order[other]))
            for one, other in pairs
        )

    squares = [s(order) ** 2 for order in permutations(y)]
    trend = mann_kendall(Column("x", x, 1), Column("y", y, 1), 0.95)
    assert trend.variance == pytest.approx(sum(squares) / len(squares), rel=1e-12)
