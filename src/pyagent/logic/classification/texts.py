"""The texts to label and the labelled examples: rows of CSV or JSON lines, or lines of a text. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.classification.taxonomy import delimiter_of, label_of

MAX_TEXTS = 20_000
_MAX_CELL = 1_000_000
_QUOTED = re.compile(r"[\"“”«»'‘’](?P<text>[^\"“”«»\n]{3,})[\"“”«»'‘’]")
_LIST = re.compile(
    r"(?P<labels>\b[\w-]{1,40}(?:, ?[\w-]{1,40}){0,40},? (?:or|and|und|ou|o) [\w-]{1,40})\s*(?P<end>[:?.]|\n|$)\s*"
)
_BEFORE = re.compile(r"\b(?:as|is|it|this|into|either|one of|among|best|be|:)$", re.IGNORECASE)


class Item(msgspec.Struct, frozen=True):
    """A text, and where it stands: `reviews.csv:3`."""

    place: str
    text: str


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text with its label, or its labels where it has several."""

    text: str
    label: str = ""
    labels: tuple[str, ...] = ()

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Its labels."""
        return (self.label,) if self.label else self.labels


def read_examples(name: str, text: str) -> list[Example]:
    """Return the examples of a CSV or JSON lines file: `text`, and `label` or `labels`.

    Several labels in a cell of `labels` are separated by `;`. Raises `RequestError` naming the row that is wrong.
    """
    examples: list[Example] = []
    for nth, row in _rows(name, text):
        if not isinstance(row.get("text"), str):
            raise RequestError(f"{name}:{nth} has no `text`", param="examples")
        examples.append(_example(f"{name}:{nth}", row))
    if not examples:
        raise RequestError(f"{name} has no example", param="examples")
    return examples


def _example(place: str, row: dict[str, object]) -> Example:
    many = row.get("labels")
    if isinstance(many, str):
        many = [each for each in many.split(";") if each.strip()]
    if isinstance(many, list):
        return Example(str(row["text"]), labels=tuple(label_of(each) for each in cast("list[object]", many)))
    if not isinstance(row.get("label"), str):
        raise RequestError(f"{place} has neither `label` nor `labels`", param="examples")
    return Example(str(row["text"]), label_of(row["label"]))


def read_items(name: str, text: str, *, by_line: bool) -> list[Item]:
    """Return the texts of a file: the `text` of its rows (CSV, JSON lines), its lines if asked for, else all of it."""
    if name.lower().endswith((".csv", ".jsonl")):
        items: list[Item] = []
        for nth, row in _rows(name, text):
            if not isinstance(row.get("text"), str):
                raise RequestError(f"{name}:{nth} has no `text`; the columns are {', '.join(row)}", param="files")
            items.append(Item(f"{name}:{nth}", str(row["text"])))
        return items
    return read_lines(name, text) if by_line else [Item(name, text)]


def read_lines(name: str, text: str) -> list[Item]:
    """Return each line that says something."""
    lines = enumerate(text.splitlines(), 1)
    return [Item(f"{name}:{nth}", line.strip()) for nth, line in lines if line.strip()]


def _rows(name: str, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield number and fields of each row."""
    rows = _json_rows(name, text) if name.lower().endswith(".jsonl") else _csv_rows(name, text)
    for count, row in enumerate(rows):
        if count >= MAX_TEXTS:
            raise RequestError(f"{name} has more than {MAX_TEXTS:,} rows", param="files")
        yield row


def _json_rows(name: str, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    for nth, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield nth, msgspec.json.decode(line.encode(errors="replace"), type=dict[str, object])
            except (msgspec.DecodeError, RecursionError) as error:
                raise RequestError(f"{name}:{nth} is no JSON object: {error}", param="files") from error


def _csv_rows(name: str, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    csv.field_size_limit(_MAX_CELL)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter_of(text), skipinitialspace=True)
    try:
        for row in reader:
            yield reader.line_num, {str(key).strip().lower(): value for key, value in row.items()}
    except csv.Error as error:
        raise RequestError(f"{name}:{reader.line_num} is no CSV: {error}", param="files") from error


def labels_in(text: str) -> tuple[list[str], str]:
    """Return the labels that a task in words names, `Is it good, fair or bad: ...`, and the text to label.

    Labels of several words are not read from a sentence. Both are empty where it names none.
    """
    quoted = _QUOTED.search(text)
    without = text if quoted is None else text[: quoted.start()] + text[quoted.end() :]
    for found in _LIST.finditer(without[:2_000]):
        names = [each for each in re.split(r",? (?:or|and|und|ou|o) |, ?", found["labels"]) if each]
        before = names[0]
        names = names[1:] if len(names) > 2 and _BEFORE.search(before) else names
        rest = without[found.end() :].strip()
        subject = quoted["text"] if quoted else rest
        if subject.strip() and len(names) > 1:
            return names, subject.strip()
    return [], ""


def counts_by_label(examples: Sequence[Example]) -> dict[str, int]:
    """Return how many examples each label has, in the order they come."""
    counts: dict[str, int] = {}
    for example in examples:
        for label in example.all_labels:
            counts[label] = counts.get(label, 0) + 1
    return counts
