"""The classification agent: labels texts by a trained classifier, a model's probabilities, embeddings, or several."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from pyagent.core.errors import Decline, RequestError
from pyagent.core.fleet.agent import Agent, Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import short_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.documents import read_documents
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.classification.labelling import CalibrationKind, How, Labelling, Method
from pyagent.logic.classification.outcome import Classification
from pyagent.logic.classification.taxonomy import Node, every, labels_of, read_taxonomy
from pyagent.logic.classification.texts import (
    MAX_TEXTS,
    Example,
    Item,
    counts_by_label,
    labels_in,
    read_examples,
    read_items,
    read_lines,
)

_ASKED = re.compile(
    r"\b(?:multi-?label )?(?:classif(?:y|ies|ication)|categori[sz]e)\b"
    r"|\bwhich (?:category|label|class|genre|topic)\b"
    r"|\b(?:label|tag) (?:this|these|the|each|every)\b.{0,40}\b(?:as|with)\b"
    r"|\bsentiments? of\b|\bspam or (?:ham|not)\b"
    r"|\bpositive(?:, neutral,?)?,? or negative\b|\bpositive, negative,? or neutral\b",
    re.IGNORECASE,
)


class Classify(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What texts are labelled as, and by what. Labels are those given, of the taxonomy, or of the examples.

    `taxonomy` and `examples` name files; programs may give them as they are. With `multi` a text has all labels from
    `threshold` (0.5) on, else the likeliest, or none when that is below `threshold` (0). With `lines` each line is
    a text.
    """

    labels: list[str] = []
    descriptions: dict[str, str] = {}
    multi: bool = False
    taxonomy: str | dict[str, Any] = ""  # Any: labels within labels, and a type of JSON schema
    examples: str | list[Example] = ""
    threshold: float | None = None
    method: Method = "auto"
    calibration: CalibrationKind = "auto"
    shots: int = 8
    lines: bool = False

    def check(self) -> None:
        """Raise `RequestError` for what does not go together."""
        if self.threshold is not None and not 0.0 <= self.threshold <= 1.0:
            raise RequestError(f"expected threshold from 0 to 1, got {self.threshold}", param="threshold")
        if not 0 <= self.shots <= 50:
            raise RequestError(f"expected shots from 0 to 50, got {self.shots}", param="shots")
        if self.taxonomy and (self.multi or self.labels):
            raise RequestError("a taxonomy has its own labels, one at each level", param="taxonomy")
        if self.method == "trained" and not self.examples:
            raise RequestError("a classifier is trained on examples: name a file of them", param="examples")
        if self.calibration == "temperature" and not self.examples:
            raise RequestError("a temperature is fitted on examples: name a file of them", param="calibration")

    def how(self) -> How:
        """Return by what texts are labelled."""
        return How(self.method, self.calibration, self.shots, self.descriptions)


class ClassificationAgent:
    """Labels texts."""

    name = "classification"
    description = (
        "Classifies texts: says which of several labels, categories or sentiments fits each, one or many, or down a "
        "taxonomy, with probabilities."
    )
    typical_tasks = typical_tasks_of("classification")
    is_pure = True
    arguments = Classify

    def score(self, task: Task) -> float | None:
        """Asks to classify, or which of some labels fits."""
        if _ASKED.search(task.text[:1000]) and (task.files or labels_in(task.text)[0]):
            return Score(0.85, "it asks to classify, by labels that it names")
        return None

    async def run(self, context: Context, task: Task) -> Classification:
        """Return the labels of the text, the files' texts, or the results of earlier steps."""
        asked = task.arguments_as(Classify)
        asked.check()
        examples = await _examples(asked)
        root = await _taxonomy(asked)
        asked, text = _read_in_words(asked, examples, root, task.text)
        items = await _items(task, text, asked.lines)
        labelling = Labelling(context, asked.how(), examples)
        if root is not None:
            found = await labelling.down(root, items, asked.threshold or 0.0)
        elif asked.multi:
            found = await labelling.all_that_fit(
                asked.labels, items, 0.5 if asked.threshold is None else asked.threshold
            )
        else:
            found = await labelling.one_each(asked.labels, items, asked.threshold or 0.0)
        return Classification(
            items=found,
            num_without_label=sum(each.label is None for each in found),
            labels=[node.name for node in every(root)][1:] if root else asked.labels,
            is_multi=asked.multi,
            calibration=labelling.calibration,
            note="; ".join(labelling.notes),
        )


async def _examples(asked: Classify) -> list[Example]:
    if not isinstance(asked.examples, str):
        return [example for example in asked.examples if example.text.strip()]
    if not asked.examples:
        return []
    [document] = await read_documents([asked.examples])
    return await asyncio.to_thread(read_examples, short_path(document.path), document.text)


async def _taxonomy(asked: Classify) -> Node | None:
    if not asked.taxonomy:
        return None
    if not isinstance(asked.taxonomy, str):
        return read_taxonomy(asked.taxonomy)
    [document] = await read_documents([asked.taxonomy])
    return await asyncio.to_thread(read_taxonomy, document.text)


def _read_in_words(asked: Classify, examples: Sequence[Example], root: Node | None, text: str) -> tuple[Classify, str]:
    """Return the arguments with their labels, and what of the task is to be labelled."""
    labels = asked.labels
    if len(labels) == 1 and "," in labels[0]:
        labels = [each for each in labels[0].split(",") if each.strip()]
    if not labels and examples:
        labels = list(counts_by_label(examples))
    if not labels and root is None:
        labels, text = labels_in(text)
        if not labels and asked == Classify():
            raise Decline("it names no labels to choose from, such as `--labels good,bad`")
    if root is None:
        labels = labels_of(labels)
        if len(labels) < (1 if asked.multi else 2):
            raise RequestError("classification takes two labels or more, such as `--labels good,bad`", param="labels")
    unknown = [name for name in asked.descriptions if root is None and name not in labels]
    if unknown:
        raise RequestError(f"there is a description of {unknown[0]!r}, which is no label", param="descriptions")
    return msgspec.structs.replace(asked, labels=labels), text


async def _items(task: Task, text: str, by_line: bool) -> list[Item]:
    items = read_lines("text", text) if by_line else [Item("text", text.strip())] if text.strip() else []
    for document in await read_documents(task.files):
        name = short_path(document.path)
        items += await asyncio.to_thread(read_items, name, document.text, by_line=by_line)
    items += [Item(f"step {step}", text_of(result)) for step, result in task.results.items()]
    items = [item for item in items if item.text.strip()]
    if not items:
        raise RequestError("there is no text to label: give words, or a file", param="text")
    if len(items) > MAX_TEXTS:
        raise RequestError(f"there are more than {MAX_TEXTS:,} texts", param="files")
    return items


class ClassifyText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text and the labels to choose from; with `multi` all that fit."""

    text: str
    labels: list[str]
    multi: bool = False


async def _tool(arguments: ClassifyText, context: Context) -> Classification:
    task = Task(text=arguments.text, arguments={"labels": arguments.labels, "multi": arguments.multi})
    return await ClassificationAgent().run(context, task)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The classification agent."""
    return [ClassificationAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """Classification as a tool."""
    function: Callable[[ClassifyText, Context], Awaitable[object]] = _tool
    description = "Says which of several labels fits a text, with probabilities."
    return [FleetTool("classify_text", description, ClassifyText, function, effect="none", takes_context=True)]
