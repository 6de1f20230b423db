"""An interface as a tree of a closed set of elements. Knows no framework, no file and no model.

What a tree may hold is bounded here; `mending.mend` makes any tree within the bounds one that each writer takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import field_error

Kind = Literal[
    "page",
    "row",
    "column",
    "grid",
    "group",
    "tabs",
    "tab",
    "heading",
    "text",
    "input",
    "area",
    "checkbox",
    "select",
    "radio",
    "button",
    "list",
    "table",
    "image",
    "link",
    "progress",
]
InputType = Literal["text", "email", "password", "number", "date", "search", "url", "tel"]

KINDS: tuple[Kind, ...] = get_args(Kind)
CONTAINERS = frozenset({"page", "row", "column", "grid", "group", "tabs", "tab"})
INPUTS = frozenset({"input", "area", "checkbox", "select", "radio"})
LABELLED = INPUTS | {"progress"}
"""Those that a label of their own names."""
NAMED = LABELLED | {"button", "link", "image", "tab"}
"""Those that have an id, always."""
COLORED = frozenset({"page", "heading", "text", "button", "link"})
MAX_DEPTH = 16
"""Of what is written: Python has no more than 20 blocks within each other."""
MAX_ELEMENTS = 5_000
MAX_TEXT = 2_000
"""Characters of a text."""
MAX_ITEMS = 200
"""Options, rows, or cells of a row."""
_ID = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
COLOR = re.compile(r"#[0-9a-f]{6}", re.ASCII)


class Element(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One element, with those of its fields that its kind has.

    `text` is a title, label, caption or alternative text. `size` is width and height in CSS pixels, `color` and
    `background` are #rrggbb, `percent` is of a progress bar; `line` is where a reader found the element, from 1.
    """

    kind: Kind
    id: str = ""
    text: str = ""
    level: int = 0
    type: InputType = "text"
    required: bool = False
    checked: bool = False
    decorative: bool = False
    value: str = ""
    percent: int = 0
    options: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    columns: int = 0
    source: str = ""
    target: str = ""
    language: str = ""
    autocomplete: str = ""
    color: str = ""
    background: str = ""
    size: tuple[int, int] | None = None
    children: tuple[Element, ...] = ()
    line: int = 0

    @property
    def label(self) -> str:
        """What stands beside an input: its text, with a star where something must be entered."""
        return f"{self.text} *" if self.required else self.text


def walk(root: Element) -> Iterator[Element]:
    """Yield an element and all below it, in reading order."""
    left = [root]
    while left:
        element = left.pop()
        yield element
        left.extend(reversed(element.children))


def without_lines(root: Element) -> Element:
    """Return a tree without the lines that it was read from."""
    children = tuple(without_lines(child) for child in root.children)
    return msgspec.structs.replace(root, line=0, children=children)


def as_element(value: object) -> Element:
    """Return what a JSON or TOML object says, as an element; raises `RequestError` naming what is wrong."""
    try:
        element = msgspec.convert(value, Element)
    except msgspec.ValidationError as error:
        raise RequestError(f"the layout is not a tree of elements: {field_error(error, Element)}") from error
    except RecursionError as error:
        raise RequestError(f"the layout is nested more than {MAX_DEPTH} deep") from error
    check_bounds(element)
    return element


def check_bounds(root: Element) -> None:
    """Raise `RequestError` for a tree that is too deep or too large, or has children where none can be."""
    level, depth, num_elements = [root], 0, 0
    while level:
        depth += 1
        num_elements += len(level)
        if depth > MAX_DEPTH:
            raise RequestError(f"the layout is nested more than {MAX_DEPTH} deep")
        if num_elements > MAX_ELEMENTS:
            raise RequestError(f"the layout has more than {MAX_ELEMENTS:,} elements")
        for element in level:
            _check(element)
        level = [child for element in level for child in element.children]


def _check(element: Element) -> None:
    if element.children and element.kind not in CONTAINERS:
        raise RequestError(f"a {element.kind} holds no other elements: {element.id or element.text[:40]!r}")
    texts = [element.text, element.value, element.source, element.target, element.language, element.autocomplete]
    cells = [cell for row in element.rows[: MAX_ITEMS + 1] for cell in row[: MAX_ITEMS + 1]]
    if any(len(text) > MAX_TEXT for text in [*texts, *element.options, *element.head, *cells]):
        raise RequestError(f"a text of the {element.kind} {element.id!r:.50} has more than {MAX_TEXT:,} characters")
    counts = [len(element.options), len(element.head), len(element.rows), *(len(row) for row in element.rows)]
    if max(counts) > MAX_ITEMS or len(cells) > MAX_ELEMENTS:
        raise RequestError(
            f"the {element.kind} {element.id!r:.50} has more than {MAX_ITEMS} options, rows or cells of a row"
        )


def cut(root: Element, max_depth: int) -> Element:
    """Return a tree that was read, its texts and lists no longer than a tree may have.

    Raises `RequestError` for one with too many elements, or nested deeper than `max_depth`.
    """
    num_elements = sum(1 for _ in walk(root))
    if num_elements > MAX_ELEMENTS:
        raise RequestError(f"it has {num_elements:,} elements; the most is {MAX_ELEMENTS:,}")
    return _cut(root, max_depth)


def _cut(element: Element, depth_left: int) -> Element:
    if depth_left == 0:
        raise RequestError("its elements are nested too deep")

    def short(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text[:MAX_TEXT] for text in texts[:MAX_ITEMS])

    return msgspec.structs.replace(
        element,
        text=element.text[:MAX_TEXT],
        value=element.value[:MAX_TEXT],
        source=element.source[:MAX_TEXT],
        target=element.target[:MAX_TEXT],
        options=short(element.options),
        head=short(element.head),
        rows=tuple(short(row) for row in element.rows[:MAX_ITEMS]),
        children=tuple(_cut(child, depth_left - 1) for child in element.children),
    )


def is_id(text: str) -> bool:
    """Whether a text is an id in all frameworks: small letters, digits and underscores, from a letter, 40 at most."""
    return _ID.fullmatch(text) is not None
