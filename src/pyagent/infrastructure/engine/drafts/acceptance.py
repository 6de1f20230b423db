"""How often proposals are right, by where they are from and how much of the text they matched.

Every proposal is compared with what was sampled, also one that no step verified: to learn costs nothing. A request's
own record counts beside that of all requests, which counts alone at its beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

_MEMORY = 40.0
"""Tokens that count for a rate; what is older fades."""
_PRIOR_WEIGHT = 4.0
_PRIOR = (0.35, 0.5, 0.65, 0.8, 0.85)
"""What is expected before anything was seen, for matches of 2 or 3 tokens, 4 to 7, 8 to 15, 16 to 31, and more."""
MODEL = "model"
"""The source of what a draft model proposes; its classes are those of the probability that the model gives a token."""
_PROBABILITIES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
_MODEL_PRIOR = (0.1, 0.3, 0.5, 0.7, 0.85, 0.93, 0.98, 0.6)
ANY_PROBABILITY = len(_PROBABILITIES) + 1
"""The class of all tokens of a draft model: what is expected of one before it is drafted."""


def bucket_of(num_matched: int) -> int:
    """Return the class of a match's length."""
    return min(len(_PRIOR) - 1, max(0, num_matched.bit_length() - 2))


def bucket_of_probability(probability: float) -> int:
    """Return the class of a token to which a draft model gives this probability."""
    return bisect_right(_PROBABILITIES, probability)


@dataclass(slots=True)
class _Rate:
    right: float = 0.0
    total: float = 0.0

    def note(self, num_right: int, num_seen: int) -> None:
        fade = max(0.0, 1.0 - num_seen / _MEMORY) if self.total + num_seen > _MEMORY else 1.0
        self.right = self.right * fade + num_right
        self.total = self.total * fade + num_seen

    def mean(self, expected: float) -> float:
        return (self.right + _PRIOR_WEIGHT * expected) / (self.total + _PRIOR_WEIGHT)


@dataclass(slots=True)
class Acceptance:
    """Rates by source and class of match; those of a request have those of all as their `parent`."""

    parent: Acceptance | None = None
    _rates: dict[tuple[str, int], _Rate] = field(default_factory=dict[tuple[str, int], _Rate])

    def rate(self, source: str, bucket: int) -> float:
        """Return how likely a proposed token is right, when those before it were."""
        if self.parent is None:
            expected = (_MODEL_PRIOR if source == MODEL else _PRIOR)[bucket]
        else:
            expected = self.parent.rate(source, bucket)
        found = self._rates.get((source, bucket))
        return expected if found is None else found.mean(expected)

    def note(self, source: str, bucket: int, num_right: int, num_seen: int) -> None:
        """Record that of `num_seen` proposed tokens, up to the first wrong one, so many were right."""
        self._rates.setdefault((source, bucket), _Rate()).note(num_right, num_seen)
        if self.parent is not None:
            self.parent.note(source, bucket, num_right, num_seen)
