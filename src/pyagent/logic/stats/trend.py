"""The Mann-Kendall test for a trend of any form, with ties, and Sen's slope with its interval.

Mann 1945, Kendall 1975, Sen 1968; the variance with ties of both columns as in Kendall's Rank Correlation Methods.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import comb, sqrt
from statistics import median
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.stats.distributions import normal_quantile, normal_tail
from pyagent.logic.stats.exact_numbers import Column

MAX_SLOPE_POINTS = 3_000
"""Sen's slope looks at each pair: 4.5 million of them."""
_MAX_EXACT = 50
_NUM_SAMPLED = 10_000
_SAMPLED_A_PART = 40


class Trend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether values rise or fall with `x`: S counts the pairs that rise less those that fall.

    `p` is `exact` from all orders of up to 50 values without ties, else from the `normal` z, whose S is taken one
    nearer to 0. The slope is that of the middle pair; None for more than 3,000 points.
    """

    direction: Literal["rising", "falling", "none"]
    num_points: int
    s: int
    variance: float
    z: float
    p: float
    p_method: Literal["exact", "normal"]
    tau_b: float
    slope: float | None = None
    slope_low: float | None = None
    slope_high: float | None = None
    intercept: float | None = None
    confidence: float = 0.95
    num_tied_values: int = 0


def mann_kendall(x: Column, y: Column, confidence: float) -> Trend:
    """Return the test; raises `RequestError` for fewer than four points, or columns of one value."""
    num_points = len(x)
    if num_points < 4:
        raise RequestError(f"a trend needs at least 4 points, and there are {num_points}", param="data")
    ties_x, ties_y = _ties(x.whole), _ties(y.whole)
    pairs, tied_x, tied_y = comb(num_points, 2), _pairs(ties_x), _pairs(ties_y)
    for name, tied in ((x.name, tied_x), (y.name, tied_y)):
        if tied == pairs:
            raise RequestError(f"{name} is the same in each row: it has no trend", param="data")
    s = _concordance(x.whole, y.whole)
    variance = _variance(num_points, ties_x, ties_y)
    z = (abs(s) - 1) / sqrt(variance) if s else 0.0
    is_exact = not ties_x and not ties_y and num_points <= _MAX_EXACT
    p = _exact_p(num_points, abs(s)) if is_exact else min(1.0, normal_tail(max(z, 0.0)))
    trend = Trend(
        direction="none" if p >= 1 - confidence else "rising" if s > 0 else "falling",
        num_points=num_points,
        s=s,
        variance=variance,
        z=z if s >= 0 else -z,
        p=p,
        p_method="exact" if is_exact else "normal",
        tau_b=s / (sqrt(pairs - tied_x) * sqrt(pairs - tied_y)),
        confidence=confidence,
        num_tied_values=sum(ties_y),
    )
    return trend if num_points > MAX_SLOPE_POINTS else _with_slope(trend, x, y)


def _with_slope(trend: Trend, x: Column, y: Column) -> Trend:
    """Return the trend with the median slope of all pairs, and the slopes that many ranks around it (Gilbert 1987)."""
    xs, ys, unit = x.whole, y.whole, x.scale / y.scale
    slopes = [
        (ys[later] - y_first) / (xs[later] - x_first) * unit
        for first, (x_first, y_first) in enumerate(zip(xs, ys, strict=True))
        for later in range(first + 1, len(xs))
        if xs[later] != x_first
    ]
    reach = normal_quantile(trend.confidence) * sqrt(trend.variance)
    low = max(round((len(slopes) - reach) / 2) - 1, 0)
    high = min(round((len(slopes) + reach) / 2), len(slopes) - 1)
    half = len(slopes) // 2
    below, above, least, most = _ranked(slopes, [half - 1 if len(slopes) % 2 == 0 else half, half, low, high])
    slope = (below + above) / 2
    return msgspec.structs.replace(
        trend,
        slope=slope,
        slope_low=least,
        slope_high=most,
        intercept=median(y.values) - slope * median(x.values),
    )


def _ranked(values: Sequence[float], ranks: Sequence[int]) -> list[float]:
    """Return the values of these ranks, the least having 0.

    Only parts are sorted, as one sort of millions would keep every other thread waiting.
    """
    marks = sorted(values[:: max(1, len(values) // _NUM_SAMPLED)])[::_SAMPLED_A_PART]
    parts: list[list[float]] = [[] for _ in range(len(marks) + 1)]
    for value in values:
        parts[bisect_right(marks, value)].append(value)
    begins = [0, *accumulate(map(len, parts))]
    found: list[float] = []
    for rank in ranks:
        nth = bisect_right(begins, rank) - 1
        found.append(sorted(parts[nth])[rank - begins[nth]])
    return found


def _ties(values: Sequence[int]) -> list[int]:
    return [count for count in Counter(values).values() if count > 1]


def _pairs(ties: Sequence[int]) -> int:
    return sum(comb(count, 2) for count in ties)


def _variance(n: int, ties_x: Sequence[int], ties_y: Sequence[int]) -> float:
    def third(count: int) -> int:
        return count * (count - 1) * (count - 2)

    def weight(count: int) -> int:
        return count * (count - 1) * (2 * count + 5)

    variance = (weight(n) - sum(map(weight, ties_x)) - sum(map(weight, ties_y))) / 18
    variance += 2 * _pairs(ties_x) * _pairs(ties_y) / (n * (n - 1))
    return variance + sum(map(third, ties_x)) * sum(map(third, ties_y)) / (9 * third(n))


def _concordance(x: Sequence[int], y: Sequence[int]) -> int:
    """Return the pairs that rise less those that fall, in n log n steps (Knight 1966)."""
    order = sorted(zip(x, y, strict=True))
    ys = [value for _, value in order]
    pairs, both = comb(len(ys), 2), sum(comb(count, 2) for count in Counter(order).values())
    tied_x, tied_y = _pairs(_ties(x)), _pairs(_ties(y))
    falling = _inversions(ys)
    return pairs - tied_x - tied_y + both - 2 * falling


def _inversions(values: Sequence[int]) -> int:
    """Return how many pairs stand in the wrong order: each is told by the first bit in which its ranks differ."""
    rank_of = {value: rank for rank, value in enumerate(sorted(set(values)))}
    groups, found = [[rank_of[value] for value in values]], 0
    for bit in reversed([1 << place for place in range(len(rank_of).bit_length())]):
        parts: list[list[int]] = []
        for group in groups:
            num_high = 0
            for rank in group:
                if rank & bit:
                    num_high += 1
                else:
                    found += num_high
            if 0 < num_high < len(group):
                parts += [[rank for rank in group if not rank & bit], [rank for rank in group if rank & bit]]
            else:
                parts.append(group)
        groups = [part for part in parts if len(part) > 1]
    return found


def _exact_p(n: int, s: int) -> float:
    """Return the share of all orders of n values whose S is as far from 0: their inversions, counted by recursion."""
    counts = [1]
    for size in range(2, n + 1):
        grown = [0] * (len(counts) + size - 1)
        for place, count in enumerate(counts):
            for step in range(size):
                grown[place + step] += count
        counts = grown
    pairs = comb(n, 2)
    far = sum(count for place, count in enumerate(counts) if abs(pairs - 2 * place) >= s)
    return far / sum(counts)
