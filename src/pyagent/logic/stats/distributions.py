"""Student's t, Fisher's F and the normal distribution: tails and quantiles, right also where they are tiny."""

from __future__ import annotations

from math import erfc, exp, lgamma, log, log1p, sqrt
from statistics import NormalDist

_SMALLEST = 1e-300
_PRECISION = 4e-16
_LARGE = 50.0


def student_tail(t: float, df: float) -> float:
    """Return the probability of a value as far from 0 as `t`, to both sides."""
    return _beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))


def fisher_tail(f: float, above: int, below: int) -> float:
    """Return the probability of a value greater than `f`."""
    whole = below + above * f
    return _beta(below / 2, above / 2, below / whole, above * f / whole)


def normal_tail(z: float) -> float:
    """Return the probability of a value as far from 0 as `z`, to both sides."""
    return erfc(abs(z) / sqrt(2))


def normal_quantile(confidence: float) -> float:
    """Return how far from 0 the values of this share reach, to both sides."""
    return -NormalDist().inv_cdf((1 - confidence) / 2)


def student_quantile(confidence: float, df: float) -> float:
    """Return how far from 0 the values of this share reach, to both sides: by bisection on the tail's logarithm."""
    tail = 1 - confidence
    low, high = 0.0, 1.0
    while student_tail(high, df) > tail:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if student_tail(middle, df) > tail else (low, middle)
    return (low + high) / 2


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), where `rest` is 1 - x (DLMF 8.17)."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    log_front = a * _log(x, rest) + b * _log(rest, x) - _log_beta(a, b)
    if x <= (a + 1) / (a + b + 2):
        return exp(log_front) * _fraction(a, b, x) / a
    return 1 - exp(log_front) * _fraction(b, a, rest) / b


def _log_beta(a: float, b: float) -> float:
    """Return the logarithm of B(a, b); where one is large by Stirling's series, as two large values would cancel."""
    small, large = min(a, b), max(a, b)
    if large < _LARGE:
        return lgamma(a) + lgamma(b) - lgamma(a + b)
    both = large + small
    grown = (large - 0.5) * log1p(small / large) + small * (log(both) - 1) + _stirling(both) - _stirling(large)
    return lgamma(small) - grown


def _stirling(z: float) -> float:
    return (1 - (1 / 30 - 1 / (105 * z * z)) / (z * z)) / (12 * z)


def _log(x: float, rest: float) -> float:
    return log(x) if x < 0.5 else log1p(-rest)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of I_x(a, b), DLMF 8.17.22, by Lentz's method."""
    above, below = 1.0, _apart(1 - (a + b) * x / (a + 1))
    below = 1 / below
    value = below
    for n in range(1, 100_000):
        even = n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n))
        below, above = 1 / _apart(1 + even * below), _apart(1 + even / above)
        value *= below * above
        odd = -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1))
        below, above = 1 / _apart(1 + odd * below), _apart(1 + odd / above)
        value *= below * above
        if abs(below * above - 1) < _PRECISION:
            break
    return value


def _apart(value: float) -> float:
    """Return a value that can be divided by."""
    return value if abs(value) > _SMALLEST else _SMALLEST
