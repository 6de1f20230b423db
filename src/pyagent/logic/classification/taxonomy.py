"""Labels within labels: a taxonomy read from JSON, CSV or indented lines, and checked. Knows no model and no file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

MAX_LEVELS = 32
MAX_LABELS = 1_000
"""Labels beside each other; a taxonomy may have ten times as many in all."""
MAX_LABEL_CHARACTERS = 80


class Node(msgspec.Struct, frozen=True):
    """A label, and those below it."""

    name: str
    children: tuple[Node, ...] = ()


def label_of(text: object) -> str:
    """Return a label on one line; raises `RequestError` for what is none."""
    if not isinstance(text, str):
        raise RequestError(f"a label is a text, got {text!r:.60}", param="labels")
    name = " ".join(printable(" ".join(text.split())).split())
    if not name or len(name) > MAX_LABEL_CHARACTERS:
        raise RequestError(f"a label has 1 to {MAX_LABEL_CHARACTERS} characters, got {text!r:.90}", param="labels")
    return name


def labels_of(given: Iterable[str]) -> list[str]:
    """Return labels that are beside each other; raises `RequestError` for too few, too many, or two that read alike."""
    names: dict[str, str] = {}
    for nth, text in enumerate(given):
        if nth >= MAX_LABELS:
            raise RequestError(
                f"there are more than {MAX_LABELS:,} labels beside each other; give a taxonomy", param="labels"
            )
        name = label_of(text)
        if (before := names.setdefault(name.casefold(), name)) is not name:
            raise RequestError(f"two labels read alike: {before!r} and {name!r}", param="labels")
    return list(names.values())


def read_taxonomy(given: str | Mapping[str, object]) -> Node:
    """Return the root of a taxonomy: nested JSON, CSV with the columns `label` and `parent`, or indented lines.

    Raises `RequestError` for labels in a circle, too deep, too many, or twice beside each other.
    """
    if not isinstance(given, str):
        return _checked(Node("", _nested(given, 1)))
    text = given.strip("\n")
    if text.lstrip()[:1] in {"{", "["}:
        try:
            value = cast("object", msgspec.json.decode(text.encode(errors="replace")))
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"the taxonomy is no JSON that can be read: {error}", param="taxonomy") from error
        return _checked(Node("", _nested(value, 1)))
    first = [name.strip().lower() for name in text.partition("\n")[0].split(delimiter_of(text))]
    return _checked(_from_pairs(text) if set(first) >= {"label", "parent"} else _from_lines(text))


def _nested(value: object, level: int) -> tuple[Node, ...]:
    if level > MAX_LEVELS + 1:
        raise _too_deep()
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return tuple(Node(label_of(name), _nested(below, level + 1)) for name, below in entries)
    if isinstance(value, list):
        return tuple(node for entry in cast("list[object]", value) for node in _entry(entry, level))
    if value is None or value == "":
        return ()
    return (Node(label_of(value)),)


def _entry(entry: object, level: int) -> tuple[Node, ...]:
    is_nested = isinstance(entry, Mapping | list)
    return _nested(cast("object", entry), level) if is_nested else (Node(label_of(entry)),)


def _from_lines(text: str) -> Node:
    """Read labels by how far they are indented; `-` and `*` before a label do not count."""
    rows = [(len(line) - len(line.lstrip()), line.strip().lstrip("-* ")) for line in text.expandtabs(4).splitlines()]
    rows = [(depth, name) for depth, name in rows if name]
    parents: list[tuple[int, int]] = [(-1, -1)]
    pairs: list[tuple[int, str]] = []
    for nth, (depth, name) in enumerate(rows):
        while parents[-1][0] >= depth:
            parents.pop()
        pairs.append((parents[-1][1], label_of(name)))
        if len(parents) > MAX_LEVELS:
            raise _too_deep()
        parents.append((depth, nth))
    return _built(pairs)


def _built(rows: Sequence[tuple[int, str]]) -> Node:
    """Return the tree of rows that each name the number of their parent, which comes before them; -1 is the root."""
    below: dict[int, list[Node]] = {}
    for nth in range(len(rows) - 1, -1, -1):
        parent, name = rows[nth]
        below.setdefault(parent, []).append(Node(name, tuple(reversed(below.pop(nth, [])))))
    return Node("", tuple(reversed(below.pop(-1, []))))


def delimiter_of(text: str) -> str:
    """Return what separates the names in the first line of a CSV file: a comma, else a semicolon or a tab."""
    first = text.partition("\n")[0]
    return next((sign for sign in ",;\t" if sign in first), ",")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter_of(text), skipinitialspace=True)
    try:
        for row in reader:
            fields = {str(name).strip().lower(): value for name, value in row.items() if isinstance(value, str)}
            yield label_of(fields.get("label", "")), fields.get("parent", "").strip()
    except csv.Error as error:
        raise RequestError(f"the taxonomy is no CSV after line {reader.line_num}: {error}", param="taxonomy") from error


def _from_pairs(text: str) -> Node:
    """Read a row for each label that names its parent, in any order; an empty parent is the root."""
    parent_of: dict[str, str] = {}
    for name, parent in _pairs(text):
        if name in parent_of:
            raise RequestError(f"the label {name!r} has two rows in the taxonomy", param="taxonomy")
        parent_of[name] = label_of(parent) if parent else ""
    below: dict[str, list[str]] = {}
    for name, parent in parent_of.items():
        if parent and parent not in parent_of:
            raise RequestError(f"the taxonomy has no row for {parent!r}, the parent of {name!r}", param="taxonomy")
        below.setdefault(parent, []).append(name)
    order, waiting = list[tuple[int, str]](), [(-1, name, 1) for name in reversed(below.get("", []))]
    while waiting:
        parent_at, name, level = waiting.pop()
        if level > MAX_LEVELS:
            raise _too_deep()
        order.append((parent_at, name))
        waiting += [(len(order) - 1, child, level + 1) for child in reversed(below.get(name, []))]
    if len(order) < len(parent_of):
        left = sorted(parent_of.keys() - {name for _, name in order})
        raise RequestError(f"the taxonomy goes in a circle: {', '.join(left[:5])}", param="taxonomy")
    return _built(order)


def _checked(root: Node) -> Node:
    for num_labels, node in enumerate(every(root)):
        if node.children:
            labels_of(child.name for child in node.children)
        if num_labels > 10 * MAX_LABELS:
            raise RequestError(f"the taxonomy has more than {10 * MAX_LABELS:,} labels", param="taxonomy")
    if not root.children:
        raise RequestError("the taxonomy has no label", param="taxonomy")
    return root


def every(root: Node) -> Iterator[Node]:
    """Yield a node and all below it."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


def _too_deep() -> RequestError:
    return RequestError(f"the taxonomy has more than {MAX_LEVELS} levels", param="taxonomy")
