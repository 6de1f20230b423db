"""Which of several variants is better, looked at after each reward: a test whose error rate holds however often.

Rewards of two variants are paired in the order they came. Under the hypothesis that both are equally good, the capital
of a gambler who bets on the sign of their difference is a martingale: it passes 1/alpha at any time with a probability
of at most alpha (Ville, 1939). So 1 over the most that it ever was is a p-value at all times, for any rewards from 0 to
1, without an assumption about their distribution (Shafer, 2021; Waudby-Smith and Ramdas, 2024, section 4: a mixture of
bets). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from pyagent.core.learning.outcomes import Outcome

ALPHA = 0.05
"""Chance to call one of several equally good variants better."""
MAX_OUTCOMES = 2_000
"""Outcomes after which a test that found nothing is over."""
_BETS = tuple(sign * size / 20 for size in range(1, 20) for sign in (1, -1))
"""Fractions of the capital that are bet, each with an equal part of it: a few are near the best for any difference."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a test stands: the better variant, once there is one, and the p-value of each pair of variants.

    `num_pairs` has the number of paired rewards of each. A test without a better variant may be `is_over`, too.
    """

    better: str = ""
    p_values: Mapping[tuple[str, str], float]
    num_pairs: Mapping[tuple[str, str], int]
    num_outcomes: int
    is_over: bool


def always_valid_p(differences: Iterable[float]) -> float:
    """Return the p-value of differences from -1 to 1, in their order, under a mean of 0, valid at every length."""
    logs, peak = [0.0] * len(_BETS), 0.0
    for difference in differences:
        if not difference:
            continue
        logs = [log + math.log1p(bet * difference) for log, bet in zip(logs, _BETS, strict=True)]
        top = max(logs)
        capital = top + math.log(math.fsum(math.exp(log - top) for log in logs) / len(logs))
        peak = max(peak, capital)
    return math.exp(-peak)


def verdict(rows: Sequence[Outcome], variants: Sequence[str]) -> Verdict:
    """Return how the test of these variants stands, by their judged outcomes in the order of the judgements.

    One is better when it beats each other by its pair's p-value, times the number of pairs (Bonferroni).
    """
    judged = sorted((row for row in rows if row.quality is not None and row.arm in variants), key=_when)
    rewards = {name: [row.quality or 0.0 for row in judged if row.arm == name] for name in variants}
    pairs = [*combinations(variants, 2)]
    p_values: dict[tuple[str, str], float] = {}
    num_pairs: dict[tuple[str, str], int] = {}
    beaten: dict[str, set[str]] = {name: set() for name in variants}
    for one, other in pairs:
        differences = [a - b for a, b in zip(rewards[one], rewards[other], strict=False)]
        p = min(1.0, always_valid_p(differences) * len(pairs))
        p_values[one, other], num_pairs[one, other] = p, len(differences)
        if p <= ALPHA:
            winner, loser = (one, other) if math.fsum(differences) > 0 else (other, one)
            beaten[winner].add(loser)
    better = next((name for name in variants if len(beaten[name]) == len(variants) - 1), "")
    return Verdict(
        better=better,
        p_values=p_values,
        num_pairs=num_pairs,
        num_outcomes=len(rows),
        is_over=bool(better) or len(rows) >= MAX_OUTCOMES,
    )


def _when(row: Outcome) -> int:
    return row.judged
