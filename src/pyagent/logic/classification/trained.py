"""Classifiers trained on examples in exact code: naive Bayes over words, or over numbers where texts are such rows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyagent.core.naive_bayes import NaiveBayes, spread
from pyagent.logic.classification.calibration import Scored
from pyagent.logic.classification.texts import Example

MIN_EXAMPLES = 20
"""Examples of each label from which on a classifier is trained without being asked for."""
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d{1,30}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,3})?(?![\w.]*\d)")
_LEAST_VARIANCE = 1e-9
_HUGE = 1e100
_MAX_ROW_CHARACTERS = 100_000
_MAX_LEFT_OUT = 2_000


class Classifier(Protocol):
    """Scores texts by label: log likelihoods, up to a term that all labels share."""

    def scores(self, text: str) -> dict[str, float] | None:
        """Return a score for each label; None for a text that it cannot read."""
        ...

    def leave_one_out(self) -> list[Scored]:
        """Return the scores of each example by the others."""
        ...


def train(examples: Sequence[tuple[str, str]]) -> Classifier:
    """Return a classifier: over numbers where all examples are the same words around numbers, else over words."""
    is_short = all(_may_be_a_row(text) for text, _ in examples)
    forms = {_form(text) for text, _ in examples if is_short}
    if len(forms) == 1 and "#" in next(iter(forms)):
        return GaussianBayes([(numbers_in(text), label) for text, label in examples], next(iter(forms)))
    return NaiveBayes(examples)


def numbers_in(text: str) -> tuple[float, ...]:
    """Return the numbers of a text."""
    return tuple(max(-_HUGE, min(_HUGE, float(found))) for found in _NUMBER.findall(text))


def _may_be_a_row(text: str) -> bool:
    """Whether a text is short enough to be looked at for numbers."""
    return len(text) <= _MAX_ROW_CHARACTERS


def _form(text: str) -> str:
    return " ".join(_NUMBER.sub("#", text).split())


def has_enough(examples: Sequence[Example], labels: Sequence[str], least: int = MIN_EXAMPLES) -> bool:
    """Return whether each label has so many examples."""
    counts = dict.fromkeys(labels, 0)
    for example in examples:
        for label in example.all_labels:
            if label in counts:
                counts[label] += 1
    return bool(labels) and min(counts.values()) >= least


@dataclass(slots=True)
class _Moments:
    """Sums of a class's numbers."""

    num_rows: int
    sums: list[float]
    squares: list[float]


@dataclass(slots=True)
class GaussianBayes:
    """Gaussian naive Bayes over rows of numbers; a variance is at least a billionth of the largest."""

    examples: Sequence[tuple[tuple[float, ...], str]]
    form: str
    _moments: dict[str, _Moments] = field(default_factory=dict[str, _Moments])
    _floor: float = 0.0
    _centre: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        num_columns = len(self.examples[0][0])
        columns = list(zip(*(row for row, _ in self.examples), strict=True))
        self._centre = [math.fsum(column) / len(column) for column in columns]
        spread = [_variance(column, mean) for column, mean in zip(columns, self._centre, strict=True)]
        self._floor = _LEAST_VARIANCE * max(spread, default=1.0) or _LEAST_VARIANCE
        for row, label in self.examples:
            moments = self._moments.setdefault(label, _Moments(0, [0.0] * num_columns, [0.0] * num_columns))
            moments.num_rows += 1
            for nth, value in enumerate(self._centred(row)):
                moments.sums[nth] += value
                moments.squares[nth] += value * value

    def _centred(self, row: Sequence[float]) -> list[float]:
        return [value - mean for value, mean in zip(row, self._centre, strict=True)]

    def scores(self, text: str) -> dict[str, float] | None:
        """Return the log density of the text's numbers for each label; None for a text of another form."""
        if not _may_be_a_row(text) or _form(text) != self.form:
            return None
        row = self._centred(numbers_in(text))
        return {label: self._score(label, row, is_left_out=False) for label in self._moments}

    def leave_one_out(self) -> list[Scored]:
        """Return the scores of each example by the others; of some, evenly, where there are many."""
        return [
            ({each: self._score(each, self._centred(row), is_left_out=each == label) for each in self._moments}, label)
            for row, label in spread(self.examples, _MAX_LEFT_OUT)
        ]

    def _score(self, label: str, row: Sequence[float], *, is_left_out: bool) -> float:
        moments = self._moments[label]
        num_rows = moments.num_rows - is_left_out
        if not num_rows:
            return -1e9
        total = 0.0
        for value, sum_, square in zip(row, moments.sums, moments.squares, strict=True):
            mean = (sum_ - is_left_out * value) / num_rows
            variance = max(self._floor, (square - is_left_out * value * value) / num_rows - mean * mean)
            total -= 0.5 * (math.log(2 * math.pi * variance) + (value - mean) ** 2 / variance)
        return total


def _variance(column: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in column) / len(column)
