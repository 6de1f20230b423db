"""What choices are to be good at: quality, time and cost, each with a direction, a weight and a bound. Pure.

A metric that is to be low counts as `scale / (scale + value)`, so that every objective is from 0 to 1 and a bandit's
assumptions hold; the reward is their weighted mean. An arm whose mean surely breaks a bound is not chosen while another
keeps all of them: it is tested by a confidence bound that grows with all outcomes, as in Con-LCB (Kagrecha, Nair and
Jagannathan, 2023, Constrained regret minimization for multi-criterion multi-armed bandits), so that a few unlucky
outcomes shut no arm out for good. The front is Pareto's: no other arm is as good in everything and better in something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

import msgspec

Metric = Literal["quality", "seconds", "usd", "tokens"]
Goal = Literal["maximise", "minimise"]
MIN_KNOWN = 3
"""Outcomes of an arm from which on its means are held against the bounds."""
_MOST_DEVIATION = 0.5
"""Of values from 0 to 1."""


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: how much it weighs, the bound its mean has to keep, and for costs the value that counts as half."""

    metric: Metric
    weight: float = 1.0
    bound: float | None = None
    scale: float = 1.0

    @property
    def goal(self) -> Goal:
        """Return the direction in which the metric is better."""
        return "maximise" if self.metric == "quality" else "minimise"

    def utility(self, value: float) -> float:
        """Return how good a value is, from 0 to 1."""
        if self.goal == "maximise":
            return min(1.0, max(0.0, value))
        return self.scale / (self.scale + max(0.0, value))

    def is_kept(self, values: Sequence[float], num_outcomes: int) -> bool:
        """Return whether the mean of an arm's values may keep the bound, where all arms have so many outcomes.

        The mean is given its deviation times sqrt(ln n / n_a) for its luck: of a quality the greatest there is, of a
        cost, which has no greatest, the sample's.
        """
        if self.bound is None or len(values) < MIN_KNOWN:
            return True
        is_quality = self.goal == "maximise"
        deviation = _MOST_DEVIATION if is_quality else stdev(values)
        luck = deviation * math.sqrt(math.log(max(num_outcomes, len(values))) / len(values))
        mean = fmean(values)
        return mean + luck >= self.bound if is_quality else mean - luck <= self.bound


QUALITY: tuple[Objective, ...] = (Objective(metric="quality"),)


def utility(metrics: Mapping[str, float], objectives: Sequence[Objective]) -> float | None:
    """Return the weighted mean of the objectives' utilities; None where a metric that weighs is not known."""
    weighed = [each for each in objectives if each.weight > 0]
    if any(each.metric not in metrics for each in weighed) or not weighed:
        return None
    total = sum(each.weight for each in weighed)
    return min(1.0, sum(each.weight * each.utility(metrics[each.metric]) for each in weighed) / total)


def broken_bounds(
    values: Mapping[str, Sequence[float]], num_outcomes: int, objectives: Sequence[Objective]
) -> list[str]:
    """Return the metrics whose bound an arm's mean surely breaks, by its values and the number of all outcomes."""
    return [each.metric for each in objectives if not each.is_kept(values.get(each.metric, ()), num_outcomes)]


def pareto_front(points: Mapping[str, Mapping[str, float]], objectives: Sequence[Objective]) -> list[str]:
    """Return the names of points that no other dominates; a point without all of the metrics is on no front."""
    gains = {
        name: tuple(point[each.metric] if each.goal == "maximise" else -point[each.metric] for each in objectives)
        for name, point in points.items()
        if all(each.metric in point for each in objectives)
    }
    return [name for name, own in gains.items() if not any(_dominates(other, own) for other in gains.values())]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = [*zip(one, other, strict=True)]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
