"""How likely something fails, by what the journal knows: recent failures count more, and are forgotten by half-lives.

A fresh process begins with it: a link that failed in most of its last calls begins with an open circuit breaker, and an
agent that did comes after those of equal score. Both are tried again as time passes without a failure. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from pyagent.core.fleet.rollups import RollupRow

HALF_LIFE_SECONDS = 600.0
LOOK_BACK_SECONDS = 8 * HALF_LIFE_SECONDS
_TRUST = 2.0
"""Successes that everything begins with: it takes three failures in a row to count as failing."""
_FAILING = 0.5
_MAX_AHEAD_SECONDS = 60.0


def failure_rates(rows: Iterable[RollupRow], now: float) -> dict[str, tuple[float, float]]:
    """Return, by key, the weights of recent failures and of all recent calls; each halves in ten minutes."""
    weights: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for row in rows:
        at = row.rollup.last_at or row.start
        if at > now + _MAX_AHEAD_SECONDS:  # of a clock that has been set back: it would count as new for as long
            continue
        at = min(at, now)
        weight = 0.5 ** ((now - at) / HALF_LIFE_SECONDS)
        failed, called = weights[row.key]
        weights[row.key] = failed + weight * row.rollup.failures, called + weight * row.rollup.count
    return dict(weights)


def failing(rates: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return what fails in most of its recent calls, with the seconds until it counts as well again."""
    return {
        key: HALF_LIFE_SECONDS * math.log2((failed / _FAILING - called) / _TRUST)
        for key, (failed, called) in rates.items()
        if failed / (called + _TRUST) > _FAILING
    }
