"""Naive Bayes over words: which class a text is most likely of, by examples, in exact code and without a model.

Multinomial over the words of a text and their pieces of four letters, each counted once for a text, with additive
smoothing and an even prior (McCallum and Nigam, 1998). Deterministic, and trained by counting.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
_WORD = re.compile(r"\w+|[?!%+*/=^<>@{}\[\]]")
_SMOOTHING = 0.3
_PIECE = 4
_MAX_WORDS = 2_000
_MAX_SCORES = 10_000
_MAX_WORD_CHARACTERS = 40


def features_of(text: str) -> frozenset[str]:
    """Return the words of a text, lower case, and their pieces; a bounded number of bounded words."""
    words = {match[0].lower()[:_MAX_WORD_CHARACTERS] for match in islice(_WORD.finditer(text), _MAX_WORDS)}
    found = set(words)
    for word in words:
        bounded = f"<{word}>"
        found.update(bounded[begin : begin + _PIECE] for begin in range(max(1, len(bounded) - _PIECE + 1)))
    return frozenset(found)


class NaiveBayes:
    """Trained on `(text, class)` examples; an example may come once for each class it has."""

    def __init__(self, examples: Sequence[tuple[str, str]]) -> None:
        self._examples = [(features_of(text), label) for text, label in examples]
        self._counts: dict[str, Counter[str]] = {}
        for features, label in self._examples:
            self._counts.setdefault(label, Counter()).update(features)
        self._totals = {label: counts.total() for label, counts in self._counts.items()}
        self._num_known = len({feature for counts in self._counts.values() for feature in counts})

    @property
    def labels(self) -> list[str]:
        """The classes, in the order of their first examples."""
        return list(self._counts)

    def scores(self, text: str) -> dict[str, float]:
        """Return the log likelihood of the text's features for each class; what no class has counts for none."""
        features = features_of(text)
        known = [each for each in features if any(each in counts for counts in self._counts.values())]
        return {label: self._score(label, known, 0) for label in self._counts}

    def leave_one_out(self) -> list[tuple[Mapping[str, float], str]]:
        """Return the scores of each example by all the others, with its class; of many examples, of some, evenly."""
        return [
            ({each: self._score(each, features, int(each == label)) for each in self._counts}, label)
            for features, label in spread(self._examples, max(50, _MAX_SCORES // max(1, len(self._counts))))
        ]

    def _score(self, label: str, features: Collection[str], num_left_out: int) -> float:
        """`num_left_out` is 1 when the features are of an example of the class, which is not to count."""
        counts = self._counts[label]
        total = self._totals[label] - num_left_out * len(features) + _SMOOTHING * max(1, self._num_known)
        return math.fsum(math.log((counts[each] - num_left_out + _SMOOTHING) / total) for each in features)


def spread(rows: Sequence[T], most: int) -> Sequence[T]:
    """Return at most so many rows, evenly from the first to the last."""
    return rows if len(rows) <= most else [rows[nth * len(rows) // most] for nth in range(most)]


def probabilities(scores: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """Return what log scores come to as probabilities: softmax of them divided by the temperature."""
    if not scores:
        return {}
    top = max(scores.values())
    weights = {label: math.exp((score - top) / temperature) for label, score in scores.items()}
    total = math.fsum(weights.values())
    return {label: weight / total for label, weight in weights.items()}
