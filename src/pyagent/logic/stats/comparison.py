"""Two means compared whose variances may differ: Welch's t-test (Welch, 1947; Satterthwaite, 1946)."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

import msgspec

from pyagent.logic.stats.distributions import student_quantile, student_tail

_CONFIDENCE = 0.95


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The first mean less the second, t, its degrees of freedom, the two-sided p-value, and a 95 % interval."""

    difference: float
    t: float
    df: float
    p: float
    interval: tuple[float, float]


def welch(one: Sequence[float], other: Sequence[float]) -> Comparison | None:
    """Return the comparison of two samples; None where one has fewer than two values, or neither varies.

    The p-value is that of one look at the data: who looks again and again, and stops when it is low, errs more often.
    """
    if min(len(one), len(other)) < 2:
        return None
    errors = [_variance(values) / len(values) for values in (one, other)]
    spread = sum(errors)
    if spread <= 0:
        return None
    difference = fsum(one) / len(one) - fsum(other) / len(other)
    # of the shares, not of the errors: tiny errors squared would be 0
    shares = [error / spread for error in errors]
    df = 1 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, (one, other), strict=True))
    t = difference / sqrt(spread)
    reach = student_quantile(_CONFIDENCE, df) * sqrt(spread)
    interval = (difference - reach, difference + reach)
    return Comparison(difference=difference, t=t, df=df, p=student_tail(t, df), interval=interval)


def _variance(values: Sequence[float]) -> float:
    mean = fsum(values) / len(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
