"""Labels by a language model: how likely each label makes the text, or how likely the text makes each label.

The first (a noisy channel, Min et al., arXiv 2108.04106) asks for the probability of the text after `This text is about
LABEL:`, and needs a backend that scores prompts. The second lets the model choose under constraint, and divides out
what it prefers without a text. Both give log scores, up to a term that all labels share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyagent.core.errors import RequestError
from pyagent.core.fleet.choices import MAX_OPTIONS, choose
from pyagent.core.fleet.context import Context
from pyagent.core.messages import Message
from pyagent.logic.classification.calibration import without_bias
from pyagent.logic.classification.texts import Example

_MAX_SCORED = 1_500
_MAX_SHOWN = 4_000
_NO_CONTENT = ("N/A", "", "[MASK]")
_LEAST = math.log(1e-9)


def check_labels(labels: Sequence[str]) -> None:
    """Raise `RequestError` for more labels than a model is asked about at once."""
    if len(labels) > MAX_OPTIONS:
        raise RequestError(
            f"a model is asked about at most {MAX_OPTIONS} labels at once, got {len(labels):,}; "
            "give a taxonomy, or examples of each label to train on",
            param="labels",
        )


@dataclass(slots=True)
class Likelihoods:
    """Scores texts by how likely each label makes them. What a label alone costs is asked for once."""

    context: Context
    labels: Sequence[str]
    descriptions: Mapping[str, str]
    _given: dict[str, float] = field(default_factory=dict[str, float])

    async def prepare(self) -> None:
        """Ask for what each beginning costs, which is the same for all texts."""
        beginnings = [self._beginning(label) for label in self.labels]
        costs = await self.context.map(self.context.likelihood, beginnings)
        self._given = dict(zip(beginnings, costs, strict=True))

    async def scores(self, text: str) -> dict[str, float]:
        """Return the log probability of a text after each label, one after another."""
        said = " ".join(text[: 2 * _MAX_SCORED].split())[:_MAX_SCORED]
        found: dict[str, float] = {}
        for label in self.labels:
            beginning = self._beginning(label)
            found[label] = await self.context.likelihood(f"{beginning} {said}") - self._given[beginning]
        return found

    def _beginning(self, label: str) -> str:
        described = self.descriptions.get(label)
        return f"This text is about {label}, {described}:" if described else f"This text is about {label}:"


@dataclass(slots=True)
class Choices:
    """Scores texts by the model's choice among the labels, with examples before it that are the same for all texts."""

    context: Context
    labels: Sequence[str]
    descriptions: Mapping[str, str]
    shots: Sequence[Example]
    is_calibrated: bool
    _priors: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])

    async def prepare(self) -> None:
        """Ask what the model prefers where there is no text, which also computes what all prompts begin with."""
        for text in _NO_CONTENT if self.is_calibrated else ():
            choice = await choose(self.context, self._messages(text), self.labels)
            if choice.probabilities is None:
                return
            self._priors.append(choice.probabilities)

    async def scores(self, text: str) -> dict[str, float]:
        """Return the log probability of each label; without log probabilities the label chosen has all of it."""
        choice = await choose(self.context, self._messages(text[:_MAX_SHOWN]), self.labels)
        if choice.probabilities is None:
            return {label: 0.0 if label == choice.answer else _LEAST for label in self.labels}
        scores = {label: math.log(max(1e-9, share)) for label, share in choice.probabilities.items()}
        return without_bias(scores, self._priors)

    def _messages(self, text: str) -> list[Message]:
        told = ", ".join(self.labels)
        described = "".join(
            f"\n{label}: {self.descriptions[label]}" for label in self.labels if label in self.descriptions
        )
        messages = [Message("system", f"You label texts. Answer with one of the labels: {told}.{described}")]
        for shot in self.shots:
            messages += [Message("user", shot.text[:500]), Message("assistant", shot.label)]
        return [*messages, Message("user", text)]


def shots_of(examples: Sequence[Example], labels: Sequence[str], num_shots: int) -> list[Example]:
    """Return so many examples at most, as many of each label as of the others, the labels in turn."""
    of_label = {label: [each for each in examples if each.label == label] for label in labels}
    rounds = range(max((len(found) for found in of_label.values()), default=0))
    in_turn = [of_label[label][nth] for nth in rounds for label in labels if nth < len(of_label[label])]
    return in_turn[:num_shots]
