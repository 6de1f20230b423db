"""How far probabilities may be believed: temperature scaling, calibration error, contextual calibration. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from pyagent.core.naive_bayes import probabilities

Scored = tuple[Mapping[str, float], str]
"""Log scores by label, and the label that is right."""
NUM_BINS = 10
_LEAST, _MOST = math.log(0.05), math.log(1_000.0)
_GOLDEN = (math.sqrt(5) - 1) / 2


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was fitted, on how many examples, and what it came to on those that were left out of the fit.

    `ece_before` and `ece` are expected calibration errors in ten bins; `accuracy` is the part that is told rightly.
    """

    kind: str
    num_examples: int = 0
    temperature: float | None = None
    accuracy: float | None = None
    ece_before: float | None = None
    ece: float | None = None


def fit_temperature(rows: Sequence[Scored]) -> float:
    """Return the temperature at which the right labels are likeliest (Guo et al., arXiv 1706.04599).

    The mean log loss has one minimum in the inverse temperature; it is found by golden section over logarithms.
    """
    low, high = _LEAST, _MOST
    for _ in range(40):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _loss(rows, math.exp(left)) <= _loss(rows, math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def _loss(rows: Sequence[Scored], temperature: float) -> float:
    total = 0.0
    for scores, label in rows:
        top = max(scores.values())
        rest = math.fsum(math.exp((score - top) / temperature) for score in scores.values())
        total += math.log(rest) - (scores[label] - top) / temperature
    return total


def calibrated(rows: Sequence[Scored]) -> Calibration:
    """Fit the temperature on all; tell accuracy and errors by a fit on each half that is tried on the other."""
    halves = rows[::2], rows[1::2]
    told: list[tuple[float, bool]] = []
    for fitted_on, tried_on in (halves, halves[::-1]):
        temperature = fit_temperature(fitted_on) if fitted_on else 1.0
        told += [_told(scores, label, temperature) for scores, label in tried_on]
    return Calibration(
        kind="temperature",
        num_examples=len(rows),
        temperature=round(fit_temperature(rows), 4),
        accuracy=round(sum(is_right for _, is_right in told) / len(told), 4),
        ece_before=round(expected_calibration_error([_told(scores, label, 1.0) for scores, label in rows]), 4),
        ece=round(expected_calibration_error(told), 4),
    )


def _told(scores: Mapping[str, float], label: str, temperature: float) -> tuple[float, bool]:
    by_label = probabilities(scores, temperature)
    best = max(by_label, key=lambda each: by_label[each])
    return by_label[best], best == label


def expected_calibration_error(told: Sequence[tuple[float, bool]]) -> float:
    """Return how far probability and truth are apart on average, in ten bins of equal width (Naeini et al., 2015)."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(NUM_BINS)]
    for probability, is_right in told:
        bins[min(NUM_BINS - 1, int(probability * NUM_BINS))].append((probability, is_right))
    gaps = (
        abs(math.fsum(probability for probability, _ in each) - sum(is_right for _, is_right in each)) for each in bins
    )
    return math.fsum(gaps) / len(told) if told else 0.0


def without_bias(scores: Mapping[str, float], priors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the scores without what the model prefers when there is no text (Zhao et al., arXiv 2102.09690).

    `priors` are the probabilities for texts without content; their mean is divided out.
    """
    if not priors:
        return dict(scores)
    return {
        label: score - math.log(max(1e-9, math.fsum(prior.get(label, 0.0) for prior in priors) / len(priors)))
        for label, score in scores.items()
    }
