"""Whether a row of scores is good enough, steady, and still improving. Pure; more is better.

`trend` fits a line by least squares. A row improves while its line rises by more than `MIN_STANDARD_ERRORS` of the
slope's standard error: scores that only scatter do that by chance about once in a thousand rows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import fmean, pvariance

import msgspec

from pyagent.core.errors import RequestError

MIN_STANDARD_ERRORS = 3.0
MIN_SCORES = 3
"""Scores that a trend needs: a line through two fits always."""


def checked_score(score: object) -> float:
    """Return a score as a number; raises `RequestError` for what is none."""
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= sys.float_info.max:
        raise RequestError(f"a score is a finite number, got {score!r:.80}", param="score")
    return float(score)


class Trend(msgspec.Struct, frozen=True):
    """A line through scores: its `slope` a score, and the slope's standard error."""

    slope: float
    error: float

    @property
    def is_rising(self) -> bool:
        """Whether the scores improve, beyond what scatter explains."""
        return self.slope > MIN_STANDARD_ERRORS * self.error

    @property
    def is_falling(self) -> bool:
        """Whether the scores get worse, beyond what scatter explains."""
        return self.slope < -MIN_STANDARD_ERRORS * self.error


def trend(scores: Sequence[float]) -> Trend | None:
    """Return the line through scores in their order; None for too few."""
    if len(scores) < MIN_SCORES:
        return None
    middle, mean = (len(scores) - 1) / 2, fmean(scores)
    spread = math.fsum((place - middle) ** 2 for place in range(len(scores)))
    slope = math.fsum((place - middle) * (score - mean) for place, score in enumerate(scores)) / spread
    left = math.fsum((score - mean - slope * (place - middle)) ** 2 for place, score in enumerate(scores))
    return Trend(slope, math.sqrt(left / (len(scores) - 2) / spread))


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What scores have to be: `min_mean` on average, with at most `max_variance`, and not falling."""

    min_mean: float
    max_variance: float | None = None
    allows_falling: bool = False

    def faults(self, scores: Sequence[float]) -> list[str]:
        """Return why scores do not pass; nothing when they do."""
        faults = list[str]()
        mean, variance, line = fmean(scores), pvariance(scores), trend(scores)
        if mean < self.min_mean:
            faults.append(f"the mean is {mean:.6g}, below {self.min_mean:g}")
        if self.max_variance is not None and variance > self.max_variance:
            faults.append(f"the variance is {variance:.6g}, above {self.max_variance:g}")
        if line is not None and line.is_falling and not self.allows_falling:
            faults.append(f"the scores fall by {-line.slope:.6g} each")
        return faults
