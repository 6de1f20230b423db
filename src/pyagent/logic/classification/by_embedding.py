"""Labels by embeddings: how near a text is to what is known of each label, its examples or else its name.

Talks to whatever embeds in the chain, through the context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyagent.core.fleet.context import Context
from pyagent.logic.classification.texts import Example

_BATCH = 64
_MAX_EMBEDDED = 2_000
_MAX_OF_LABEL = 50
_SHARPNESS = 20.0
"""Cosines of texts lie near each other: a difference of 0.05 is a factor of e."""


@dataclass(slots=True)
class Nearness:
    """Scores texts by the cosine to each label's centre: the mean of its examples, else of its name and description."""

    context: Context
    labels: Sequence[str]
    descriptions: Mapping[str, str]
    examples: Sequence[Example]
    _centres: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    _known: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    async def prepare(self) -> None:
        """Embed what is known of the labels."""
        texts_of = {label: self._texts(label) for label in self.labels}
        vectors = await self._embedded([text for texts in texts_of.values() for text in texts])
        begin = 0
        for label, texts in texts_of.items():
            self._centres[label] = _centre(vectors[begin : begin + len(texts)])
            begin += len(texts)

    def _texts(self, label: str) -> list[str]:
        of_label = [each.text[:_MAX_EMBEDDED] for each in self.examples if each.label == label]
        described = self.descriptions.get(label)
        return of_label[:_MAX_OF_LABEL] or [f"{label}: {described}" if described else label]

    async def prepare_texts(self, texts: Sequence[str]) -> None:
        """Embed texts that scores are asked for next, many at once."""
        for text, vector in zip(texts, await self._embedded([each[:_MAX_EMBEDDED] for each in texts]), strict=True):
            self._known[text] = vector

    async def scores(self, text: str) -> dict[str, float]:
        """Return the cosine to each label, as log scores."""
        vector = self._known.get(text)
        if vector is None:
            [vector] = await self._embedded([text[:_MAX_EMBEDDED]])
        unit = _unit(vector)
        return {label: _SHARPNESS * _dot(unit, centre) for label, centre in self._centres.items()}

    async def _embedded(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for begin in range(0, len(texts), _BATCH):
            vectors += await self.context.embed([text or " " for text in texts[begin : begin + _BATCH]])
        return vectors


def _centre(vectors: Sequence[Sequence[float]]) -> list[float]:
    return _unit([math.fsum(column) for column in zip(*map(_unit, vectors), strict=True)])


def _unit(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length else list(vector)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(one * other for one, other in zip(left, right, strict=True))
