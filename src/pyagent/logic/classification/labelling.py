"""Labels many texts: chooses by what, scores them side by side, fuses, calibrates, and descends a taxonomy by levels.

A classifier in exact code goes first where there are examples enough, and a model is asked about the texts it is not
sure of. All prompts of a batch begin alike, and the first of them alone computes that beginning.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pyagent.core.errors import BackendError, ContextOverflowError, RequestError
from pyagent.core.fleet.choices import choose
from pyagent.core.fleet.context import Context
from pyagent.core.messages import Message
from pyagent.core.naive_bayes import NaiveBayes, probabilities, spread
from pyagent.logic.classification.by_embedding import Nearness
from pyagent.logic.classification.by_model import (
    Choices,
    Likelihoods,
    check_labels,
    shots_of,
)
from pyagent.logic.classification.calibration import Calibration, Scored, calibrated, fit_temperature
from pyagent.logic.classification.outcome import Labelled, LabelShare, along, best_first, several, single
from pyagent.logic.classification.taxonomy import Node, every
from pyagent.logic.classification.texts import Example, Item
from pyagent.logic.classification.trained import Classifier, has_enough, train

Method = Literal["auto", "trained", "likelihood", "choice", "embedding", "fused"]
CalibrationKind = Literal["auto", "none", "contextual", "temperature"]
MAX_CONCURRENCY = 8
SURE = 0.6
"""Below this probability a trained classifier is not believed alone."""
_MAX_FITTED = 60
_NONE = "something else"


class Scorer(Protocol):
    """Gives log scores by label."""

    async def prepare(self) -> None:
        """Do what is the same for all texts."""
        ...

    async def scores(self, text: str) -> dict[str, float]:
        """Return the scores of a text."""
        ...


@dataclass(frozen=True, slots=True)
class How:
    """By what texts are labelled."""

    method: Method = "auto"
    calibration: CalibrationKind = "auto"
    num_shots: int = 8
    descriptions: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Labelling:
    """One classification under way. `calibration` and `notes` say what came of it."""

    context: Context
    how: How
    examples: Sequence[Example]
    calibration: Calibration | None = None
    notes: dict[str, None] = field(default_factory=dict[str, None])

    async def one_each(self, labels: Sequence[str], items: Sequence[Item], threshold: float) -> list[Labelled]:
        """Return the likeliest label of each text."""
        found = await self._shares(labels, self.examples, items)
        return [
            single(item.place, item.text, shares, method, threshold)
            for item, (shares, method) in zip(items, found, strict=True)
        ]

    async def all_that_fit(self, labels: Sequence[str], items: Sequence[Item], threshold: float) -> list[Labelled]:
        """Return all labels that fit each text, each for itself."""
        found = await self._several(labels, items)
        return [
            several(item.place, item.text, shares, method, threshold)
            for item, (shares, method) in zip(items, found, strict=True)
        ]

    async def down(self, root: Node, items: Sequence[Item], threshold: float) -> list[Labelled]:
        """Return the path of each text through a taxonomy, level by level, as far as it is likely enough."""
        paths: list[list[LabelShare]] = [[] for _ in items]
        methods, rivals = [""] * len(items), dict[int, LabelShare]()
        waiting: dict[int, tuple[Node, list[int]]] = {id(root): (root, list(range(len(items))))}
        while waiting:
            _, (node, numbers) = waiting.popitem()
            if len(node.children) == 1:
                found = [({node.children[0].name: 1.0}, methods[nth] or "only") for nth in numbers]
            else:
                below = _examples_below(node, self.examples)
                labels = [child.name for child in node.children]
                found = await self._shares(labels, below, [items[nth] for nth in numbers])
            for nth, (shares, method) in zip(numbers, found, strict=True):
                ranked = best_first(shares)
                methods[nth] = method
                if len(ranked) > 1:
                    rivals[nth] = ranked[1]
                if math.prod(step.probability for step in paths[nth]) * ranked[0].probability < threshold:
                    continue
                paths[nth].append(ranked[0])
                child = next(each for each in node.children if each.name == ranked[0].label)
                if child.children:
                    waiting.setdefault(id(child), (child, []))[1].append(nth)
        return [
            along(item.place, item.text, paths[nth], methods[nth], rivals.get(nth)) for nth, item in enumerate(items)
        ]

    # -- one label ----------------------------------------------------------------------------------------------------

    async def _shares(
        self, labels: Sequence[str], examples: Sequence[Example], items: Sequence[Item]
    ) -> list[tuple[dict[str, float], str]]:
        """Return the probabilities of each text's labels, and by what they were found."""
        known = set(labels)
        examples = [each for each in examples if each.label in known]
        method = self.how.method
        if method == "trained" or (method in {"auto", "fused"} and has_enough(examples, labels)):
            return await self._trained_first(labels, examples, items)
        return await self._by_model(method, labels, examples, items)

    async def _trained_first(
        self, labels: Sequence[str], examples: Sequence[Example], items: Sequence[Item]
    ) -> list[tuple[dict[str, float], str]]:
        if not has_enough(examples, labels, 2):
            raise RequestError("training takes at least two examples of each label", param="examples")
        found = await asyncio.to_thread(self._by_training, labels, examples, items)
        is_fused = self.how.method == "fused"
        doubtful = [nth for nth, (shares, _) in enumerate(found) if is_fused or max(shares.values()) < SURE]
        if self.how.method == "trained" or not doubtful:
            return found
        self.context.progress(f"{len(doubtful):,} of {len(items):,} texts are doubtful: a model is asked")
        try:
            told = await self._by_model(self.how.method, labels, examples, [items[nth] for nth in doubtful])
        except (BackendError, RequestError) as error:
            if is_fused:
                raise
            self.notes[f"{len(doubtful):,} doubtful texts are labelled without a model: {error}"] = None
            return found
        for nth, (shares, method) in zip(doubtful, told, strict=True):
            found[nth] = fused([found[nth][0], shares]), f"trained + {method}"
        return found

    def _by_training(
        self, labels: Sequence[str], examples: Sequence[Example], items: Sequence[Item]
    ) -> list[tuple[dict[str, float], str]]:
        classifier = train([(each.text, each.label) for each in examples])
        temperature = self._fitted(classifier)
        found: list[tuple[dict[str, float], str]] = []
        for item in items:
            scores = classifier.scores(item.text)
            even = dict.fromkeys(labels, 1 / len(labels))
            found.append((even if scores is None else probabilities(scores, temperature), "trained"))
        return found

    def _fitted(self, classifier: Classifier) -> float:
        if self.how.calibration == "none":
            return 1.0
        fitted = calibrated(classifier.leave_one_out())
        self.calibration = self.calibration or fitted
        return fitted.temperature or 1.0

    async def _by_model(
        self, method: Method, labels: Sequence[str], examples: Sequence[Example], items: Sequence[Item]
    ) -> list[tuple[dict[str, float], str]]:
        shots = shots_of(examples, labels, self.how.num_shots)
        scorers = await self._scorers(method, labels, examples, shots)
        rest = [each for each in examples if each not in shots]
        fitted = [(name, scorer, await self._temperature(scorer, rest)) for name, scorer in scorers]
        name = " + ".join(name for name, _, _ in fitted)
        self.context.progress(f"{len(items):,} texts, {len(labels):,} labels, by {name}")
        for _, scorer, _ in fitted:
            if isinstance(scorer, Nearness):
                await scorer.prepare_texts([item.text for item in items])

        async def shares_of(item: Item) -> dict[str, float]:
            text = item.text
            return fused([probabilities(await scorer.scores(text), heat) for _, scorer, heat in fitted])

        found = await self._in_turn(shares_of, items)
        return [(shares, name) for shares in found]

    async def _in_turn(
        self, shares_of: Callable[[Item], Awaitable[dict[str, float]]], items: Sequence[Item]
    ) -> list[dict[str, float]]:
        """Label the first text alone, so that what all prompts begin with is computed once, then the rest."""
        first = [await shares_of(items[0])] if items else []
        most = min(MAX_CONCURRENCY, max(1, len(items)))
        return first + await self.context.map(shares_of, items[1:], max_concurrency=most)

    async def _scorers(
        self, method: Method, labels: Sequence[str], examples: Sequence[Example], shots: Sequence[Example]
    ) -> list[tuple[str, Scorer]]:
        """Return what the texts are scored by, made ready."""
        descriptions = self.how.descriptions
        nearness = Nearness(self.context, labels, descriptions, examples)
        if method == "embedding":
            await nearness.prepare()
            return [("embedding", nearness)]
        check_labels(labels)
        choices = Choices(self.context, labels, descriptions, shots, self.how.calibration in {"auto", "contextual"})
        scorers: list[tuple[str, Scorer]] = []
        if method != "choice":
            likelihoods = Likelihoods(self.context, labels, descriptions)
            try:
                await likelihoods.prepare()
                scorers = [("likelihood", likelihoods)]
            except ContextOverflowError:
                raise
            except RequestError as error:
                if method == "likelihood":
                    raise
                self.notes[f"labelled by choice: {error}"] = None
        if not scorers:
            await choices.prepare()
            scorers = [("choice", choices)]
        if method == "fused":
            await nearness.prepare()
            scorers.append(("embedding", nearness))
        return scorers

    async def _temperature(self, scorer: Scorer, examples: Sequence[Example]) -> float:
        """Return the temperature of a scorer: fitted on examples where that is asked for, else 1."""
        if self.how.calibration == "temperature":
            chosen = spread(examples, _MAX_FITTED)
            if len(chosen) < 10:
                raise RequestError(
                    f"a temperature is fitted on at least 10 examples beside those shown, got {len(chosen)}",
                    param="calibration",
                )

            async def scored(example: Example) -> Scored:
                return await scorer.scores(example.text), example.label

            rows = await self.context.map(scored, chosen, max_concurrency=MAX_CONCURRENCY)
            fitted = calibrated(rows)
            self.calibration = self.calibration or fitted
            return fitted.temperature or fit_temperature(rows)
        return 1.0

    # -- several labels -----------------------------------------------------------------------------------------------

    async def _several(self, labels: Sequence[str], items: Sequence[Item]) -> list[tuple[dict[str, float], str]]:
        """Return how likely each label is by itself: against all that is something else."""
        method = self.how.method
        if method == "trained" or (method in {"auto", "fused"} and has_enough(self.examples, labels)):
            return await asyncio.to_thread(self._several_trained, labels, items)
        check_labels(labels)
        if method == "choice":
            return await self._several_by_choice(labels, items)
        if method == "embedding":
            return await self._several_near(labels, items)
        likelihoods = Likelihoods(self.context, [*labels, _NONE], self.how.descriptions)
        try:
            await likelihoods.prepare()
        except ContextOverflowError:
            raise
        except RequestError as error:
            if method != "auto":
                raise
            self.notes[f"labelled by choice: {error}"] = None
            return await self._several_by_choice(labels, items)

        async def shares_of(item: Item) -> dict[str, float]:
            scores = await likelihoods.scores(item.text)
            return {each: _against(scores[each], scores[_NONE]) for each in labels}

        return [(shares, "likelihood") for shares in await self._in_turn(shares_of, items)]

    def _several_trained(self, labels: Sequence[str], items: Sequence[Item]) -> list[tuple[dict[str, float], str]]:
        if not has_enough(self.examples, labels, 2):
            raise RequestError("training takes at least two examples of each label", param="examples")
        found: list[dict[str, float]] = [{} for _ in items]
        for label in labels:
            pairs = [(each.text, label if label in each.all_labels else "") for each in self.examples]
            if all(own for _, own in pairs):
                raise RequestError(
                    f"all examples have the label {label!r}: some have to be without it", param="examples"
                )
            classifier = NaiveBayes(pairs)
            temperature = 1.0 if self.how.calibration == "none" else fit_temperature(classifier.leave_one_out())
            for shares, item in zip(found, items, strict=True):
                shares[label] = probabilities(classifier.scores(item.text), temperature)[label]
        return [(shares, "trained") for shares in found]

    async def _several_by_choice(
        self, labels: Sequence[str], items: Sequence[Item]
    ) -> list[tuple[dict[str, float], str]]:
        async def share(label: str, text: str) -> float:
            asked = Message("user", f"{text[:4_000]}\n\nIs this about {label}? Answer yes or no.")
            choice = await choose(self.context, [asked], ["yes", "no"])
            return float(choice.answer == "yes") if choice.probabilities is None else choice.probabilities["yes"]

        bias = {label: await share(label, "N/A") for label in labels} if self.how.calibration != "none" else {}

        async def shares_of(item: Item) -> dict[str, float]:
            found: dict[str, float] = {}
            for label in labels:
                fits, usual = await share(label, item.text), bias.get(label, 0.5)
                found[label] = _against(_log(fits) - _log(usual), _log(1 - fits) - _log(1 - usual))
            return found

        return [(shares, "choice") for shares in await self._in_turn(shares_of, items)]

    async def _several_near(self, labels: Sequence[str], items: Sequence[Item]) -> list[tuple[dict[str, float], str]]:
        one_label = [Example(each.text, label) for each in self.examples for label in each.all_labels]
        nearness = Nearness(self.context, labels, self.how.descriptions, one_label)
        await nearness.prepare()
        await nearness.prepare_texts([item.text for item in items])
        near: list[tuple[dict[str, float], str]] = []
        for item in items:
            scores = await nearness.scores(item.text)
            usual = math.fsum(scores.values()) / len(scores)
            near.append(({label: _against(score, usual) for label, score in scores.items()}, "embedding"))
        return near


def fused(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the product of several opinions, made to sum to one; no opinion rules a label out alone."""
    if len(parts) == 1:
        return dict(parts[0])
    return probabilities({label: math.fsum(_log(part[label]) for part in parts) for label in parts[0]})


def _log(share: float) -> float:
    return math.log(max(1e-6, share))


def _against(score: float, other: float) -> float:
    return 1.0 / (1.0 + math.exp(max(-700.0, min(700.0, other - score))))


def _examples_below(node: Node, examples: Sequence[Example]) -> list[Example]:
    """Return the examples of a node's children: those that have the label of one, or of one below it.

    Raises `RequestError` for an example whose label stands below several of them.
    """
    taught, child_of = {each.label for each in examples}, dict[str, str]()
    for child in node.children:
        for below in every(child):
            other = child_of.setdefault(below.name, child.name)
            if other != child.name and below.name in taught:
                raise RequestError(
                    f"the label {below.name!r} stands below {other!r} and {child.name!r}: an example of "
                    "it does not say which",
                    param="taxonomy",
                )
    return [Example(each.text, child_of[each.label]) for each in examples if each.label in child_of]
