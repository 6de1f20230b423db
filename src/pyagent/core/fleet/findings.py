"""What the numbers of runs say is odd: agents, tools and links that got slow, dear or unreliable. Pure.

Each is compared with its own past: its newest window with the median and the MAD (median absolute deviation) of those
before, so that a few bad windows in the past hide nothing. Few counts say nothing. A z-score is of the MAD scaled to a
normal distribution's standard deviation, and the spread never counts as less than a part of the median, or a thing
that is always alike would be odd at its first difference.

An alert has one of three levels; `trend` is the slope of the last windows, by Theil and Sen, as a part of the median
for each window.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from pyagent.core.fleet.rollups import Kind, Rollup, RollupRow

Level = Literal["info", "warning", "critical"]
Quantity = Literal["seconds", "tokens", "usd", "failures"]
WINDOW_SECONDS = 3_600
LOOK_BACK_SECONDS = 7 * 86_400
_LEVELS: tuple[tuple[float, Level], ...] = ((8.0, "critical"), (5.0, "warning"), (3.5, "info"))
_ORDER: dict[Level, int] = {"critical": 0, "warning": 1, "info": 2}
_MIN_WINDOWS = 5
_MIN_COUNT = 3
"""Counts that a window needs to be compared, and that make a failure rate mean something."""
_MAD_TO_SIGMA = 1.4826
_LEAST_SPREAD = 0.1
"""Of the median; of failure rates of 1."""
_TREND_WINDOWS = 12
_FAILING: tuple[tuple[float, Level], ...] = ((0.9, "critical"), (0.5, "warning"))
"""Failure rates that are odd whatever the past was."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something odd. `value` is the newest window's, `usual` the median of those before."""

    level: Level
    kind: Kind
    key: str
    quantity: Quantity
    value: float
    usual: float
    z_score: float
    trend: float
    count: int
    text: str


def findings_of(rows: Iterable[RollupRow], window_seconds: int = WINDOW_SECONDS) -> list[Finding]:
    """Return what is odd, the worst first."""
    windows_of: defaultdict[tuple[Kind, str], dict[int, Rollup]] = defaultdict(dict)
    for row in rows:
        start = row.start - row.start % max(window_seconds, row.grain)
        windows_of[row.kind, row.key].setdefault(start, Rollup()).merge(row.rollup)
    found = [
        finding
        for (kind, key), windows in windows_of.items()
        for finding in _of_one(kind, key, [windows[start] for start in sorted(windows)])
    ]
    return sorted(found, key=lambda one: (_ORDER[one.level], -one.z_score, one.kind, one.key, one.quantity))


def _of_one(kind: Kind, key: str, windows: Sequence[Rollup]) -> list[Finding]:
    windows = [window for window in windows if window.count >= _MIN_COUNT]
    if not windows:
        return []
    found: list[Finding] = []
    for quantity in ("seconds", "tokens", "usd", "failures"):
        series = [value for window in windows if (value := _value(window, quantity)) is not None]
        if series and (finding := _odd(kind, key, quantity, series, windows[-1].count)):
            found.append(finding)
    return found


def _value(window: Rollup, quantity: Quantity) -> float | None:
    """Return a window's mean of a quantity, or its failure rate; None where it has none."""
    if quantity == "failures":
        return window.failures / window.count
    measure = {"seconds": window.seconds, "tokens": window.tokens, "usd": window.usd}[quantity]
    return measure.total / measure.count / 1e6 if measure.count else None


def _odd(kind: Kind, key: str, quantity: Quantity, series: Sequence[float], count: int) -> Finding | None:
    *past, value = series
    usual = statistics.median(past) if past else 0.0
    z_score = _z_score(value, past, 1.0 if quantity == "failures" else usual) if len(past) >= _MIN_WINDOWS else 0.0
    levels = _levels(z_score, _LEVELS)
    if quantity == "failures":
        levels += _levels(value, _FAILING)
    if not levels:
        return None
    level = min(levels, key=lambda each: _ORDER[each])
    return Finding(
        level=level,
        kind=kind,
        key=key,
        quantity=quantity,
        value=value,
        usual=usual,
        z_score=z_score,
        trend=_trend(series[-_TREND_WINDOWS:], usual),
        count=count,
        text=_text(f"{kind} {key}" if key else "all runs", quantity, value, usual, count),
    )


def _levels(value: float, steps: Sequence[tuple[float, Level]]) -> list[Level]:
    """Return the levels that a value reaches."""
    reached: list[Level] = []
    for least, level in steps:
        if value >= least:
            reached.append(level)
    return reached


def _z_score(value: float, past: Sequence[float], scale: float) -> float:
    usual = statistics.median(past)
    mad = statistics.median(abs(each - usual) for each in past)
    spread = max(_MAD_TO_SIGMA * mad, _LEAST_SPREAD * scale)
    return (value - usual) / spread if spread > 0 else 0.0


def _trend(series: Sequence[float], usual: float) -> float:
    """Return the median slope between all pairs of windows (Theil and Sen), as a part of what is usual."""
    slopes = [(right - left) / (j - i) for (i, left), (j, right) in combinations(enumerate(series), 2)]
    return statistics.median(slopes) / usual if slopes and usual > 0 else 0.0


def _text(name: str, quantity: Quantity, value: float, usual: float, count: int) -> str:
    if quantity == "failures":
        return f"{name} failed in {value:.0%} of the last {count} calls, and usually in {usual:.0%}"
    unit = {"seconds": " s", "tokens": " tokens", "usd": " USD"}[quantity]
    return f"{name} takes {value:.3g}{unit} on average, and usually {usual:.3g}{unit}"
