"""Makes any tree of elements one that every writer takes: ids, labels, order of headings, values that fit.

What a model or a person left out is filled in by rules, and each rule that changed something is told. Mending a mended
tree changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from pyagent.logic.interfaces.elements import (
    COLOR,
    COLORED,
    LABELLED,
    NAMED,
    Element,
    Kind,
    check_bounds,
    is_id,
    walk,
)
from pyagent.logic.interfaces.purposes import purpose_of

_OWN_FIELDS: dict[Kind, tuple[str, ...]] = {
    "page": ("text", "language"),
    "grid": ("columns",),
    "group": ("text",),
    "tab": ("text",),
    "heading": ("text", "level"),
    "text": ("text",),
    "input": ("text", "type", "required", "value", "autocomplete"),
    "area": ("text", "required", "value"),
    "checkbox": ("text", "required", "checked"),
    "select": ("text", "required", "options", "value"),
    "radio": ("text", "required", "options", "value"),
    "button": ("text", "size"),
    "list": ("options",),
    "table": ("text", "head", "rows"),
    "image": ("text", "source", "decorative"),
    "link": ("text", "target"),
    "progress": ("text", "percent"),
}
_WHOLE = {"list": "options", "table": "head", "heading": "text", "text": "text"}
"""Fields without which an element says nothing."""
_JOINERS = "\u200c\u200d"
_SAFE_ADDRESS = re.compile(r"(?:https?://|mailto:|tel:|[./#?]|[\w-]+(?:[./?#]|$))[^\s\"'<>\\^`{}|]*", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{2,8}){0,3}", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?", re.ASCII)
_DATE = re.compile(r"(?:19|20)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])", re.ASCII)
_MAX_COLUMNS = 12
_MAX_PIXELS = 4_000


def mend(root: Element) -> tuple[Element, list[str]]:
    """Return a page that every writer takes, and what was changed; raises `RequestError` for one past the bounds."""
    check_bounds(root)
    mending = _Mending()
    page = root if root.kind == "page" else Element(kind="page", children=(root,))
    mended = mending.page(page)
    check_bounds(mended)
    return mended, list(dict.fromkeys(mending.notes))


def clean(text: str) -> str:
    """Return a text on one line, without characters that are not seen."""
    spaced = "".join(letter if letter.isprintable() or letter in _JOINERS else " " for letter in text)
    return " ".join(spaced.split())


class _Mending:
    """One tree's mending: the ids that are taken, the level of the last heading, and what was changed."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._ids: set[str] = set()
        self._level = 0

    def page(self, page: Element) -> Element:
        mended = self._own(page)
        kept = [each for child in page.children if (each := self._mended(child, page.kind)) is not None]
        headings = [each for child in kept for each in walk(child) if each.kind == "heading"]
        title = mended.text or (headings[0].text if headings else "Page")
        if not mended.text:
            self.notes.append(f"the page is titled {title!r}")
        if not headings:
            kept.insert(0, Element(kind="heading", text=title, level=1))
            self.notes.append("the page got its title as a heading")
        language = mended.language if _LANGUAGE.fullmatch(mended.language) else "en"
        if language != mended.language:
            self.notes.append("the page's language is taken for English (en)")
        return self._with_ids(msgspec.structs.replace(mended, text=title, language=language, children=tuple(kept)))

    def _mended(self, element: Element, parent: Kind) -> Element | None:
        element = self._placed(element, parent)
        mended = self._filled(self._own(element))
        needed = _WHOLE.get(element.kind)
        if needed is not None and not getattr(mended, needed):
            self.notes.append(f"an empty {element.kind} is left out")
            return None
        children = [each for child in element.children if (each := self._mended(child, element.kind)) is not None]
        if element.kind == "tab" and not children:
            children = [Element(kind="text", text=mended.text)]
        if element.kind in {"row", "column", "grid", "group", "tabs"} and not children:
            self.notes.append(f"an empty {element.kind} is left out")
            return None
        return msgspec.structs.replace(mended, children=tuple(children))

    def _placed(self, element: Element, parent: Kind) -> Element:
        """Return an element as one of a kind that may stand below its parent."""
        if parent == "tabs" and element.kind != "tab":
            self.notes.append(f"a {element.kind} among tabs got a tab of its own")
            return Element(kind="tab", text=element.text or "Tab", children=(element,))
        if element.kind == "tab" and parent != "tabs":
            self.notes.append("a tab that stands alone became a group")
            element = msgspec.structs.replace(element, kind="group")
        if element.kind == "page":
            self.notes.append("a page inside the page became a column")
            element = msgspec.structs.replace(element, kind="column")
        if element.kind == "group" and not clean(element.text):
            element = msgspec.structs.replace(element, kind="column")
        if element.kind in {"select", "radio"} and not any(map(clean, element.options)):
            self.notes.append(f"a {element.kind} without options became an input")
            element = msgspec.structs.replace(element, kind="input")
        return element

    def _own(self, element: Element) -> Element:
        """Return an element with the fields of its kind only, each of them clean."""
        fields = {name: _cleaned(getattr(element, name)) for name in _OWN_FIELDS.get(element.kind, ())}
        if element.kind in COLORED:
            fields |= {"color": _color(element.color), "background": _color(element.background)}
        if element.kind in LABELLED and fields["text"].endswith("*"):
            fields["text"] = fields["text"].rstrip("* ")
            fields["required"] = element.kind in {"input", "area", "checkbox", "select", "radio"}
            if element.kind == "progress":
                del fields["required"]
        return Element(kind=element.kind, id=element.id, **fields)

    def _filled(self, element: Element) -> Element:
        """Return an element whose values fit its kind."""
        changed: dict[str, Any] = {}  # Any: values of fields
        match element.kind:
            case "heading" if element.text:
                changed["level"] = self._next_level(element.level)
            case "input":
                changed = {"value": _value(element), "autocomplete": element.autocomplete}
                changed["autocomplete"] = purpose_of(element.text, element.type, element.autocomplete)
            case "select" | "radio":
                options = _unique(element.options)
                changed = {"options": options, "value": element.value if element.value in options else ""}
            case "list":
                changed["options"] = tuple(option for option in element.options if option)
            case "table":
                changed = _table(element)
            case "grid":
                changed["columns"] = min(max(element.columns or 2, 1), _MAX_COLUMNS)
            case "image":
                changed["decorative"] = not element.text
            case "progress":
                changed["percent"] = min(max(element.percent, 0), 100)
            case "button" if element.size is not None:
                changed["size"] = tuple(min(max(pixels, 1), _MAX_PIXELS) for pixels in element.size)
            case _:
                pass
        return self._named(msgspec.structs.replace(element, **changed))

    def _next_level(self, wanted: int) -> int:
        level = 1 if self._level == 0 else min(max(wanted or 2, 2), self._level + 1, 6)
        if wanted and wanted != level:
            self.notes.append(f"a heading of level {wanted} became one of level {level}")
        self._level = level
        return level

    def _named(self, element: Element) -> Element:
        """Return an element with the name that its users read, where its kind has one."""
        if element.kind not in NAMED or element.text or element.kind == "image":
            return element
        spoken = element.id.replace("_", " ").strip() or (element.type if element.type != "text" else element.kind)
        self.notes.append(f"a {element.kind} without a name is called {spoken!r}")
        return msgspec.structs.replace(element, text=clean(spoken.capitalize()).rstrip("* ") or element.kind)

    def _with_ids(self, root: Element) -> Element:
        """Return a tree whose ids are unique: given ones first, then of what people use."""
        for element in walk(root):
            if is_id(element.id):
                self._ids.add(element.id)
        used: set[str] = set()
        return self._identified(root, used)

    def _identified(self, element: Element, used: set[str]) -> Element:
        wanted = element.id
        needs_one = element.kind in NAMED or wanted or element.color or element.background or element.size
        given = wanted if not needs_one or (is_id(wanted) and wanted not in used) else self._new_id(element)
        if wanted and given != wanted:
            self.notes.append(f"the id {wanted[:40]!r} became {given!r}")
        used.add(given)
        changed: dict[str, Any] = {}  # Any: values of fields
        if element.kind == "image" and not _is_safe(element.source):
            changed["source"] = f"{given}.png"
        if element.kind == "link" and not _is_safe(element.target):
            changed["target"] = "#"
        self.notes += [f"the address of {given} became {changed[name]!r}" for name in changed if getattr(element, name)]
        children = tuple(self._identified(child, used) for child in element.children)
        return msgspec.structs.replace(element, id=given, children=children, **changed)

    def _new_id(self, element: Element) -> str:
        words = re.sub(r"[^a-z0-9]+", "_", (element.id or element.text).lower()).strip("_")[:30].strip("_")
        stem = words if is_id(words) else f"{element.kind}_{words}".strip("_")
        number, found = 1, stem
        while found in self._ids:
            number += 1
            found = f"{stem}_{number}"
        self._ids.add(found)
        return found


def _cleaned(value: Any) -> Any:  # Any: the value of a field
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return tuple(_cleaned(each) for each in cast("tuple[Any, ...]", value))
    return value


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))


def _table(element: Element) -> dict[str, Any]:  # Any: values of fields
    head, rows = element.head, element.rows
    if not head and rows:
        head, rows = rows[0], rows[1:]
    head = tuple(cell or f"Column {number}" for number, cell in enumerate(head, 1))
    padded = [(*row[: len(head)], *[""] * (len(head) - len(row))) for row in rows]
    return {"head": head, "rows": tuple(padded)}


def _value(element: Element) -> str:
    match element.type:
        case "password":
            return ""
        case "number":
            return element.value if _NUMBER.fullmatch(element.value) else ""
        case "date":
            return element.value if _DATE.fullmatch(element.value) else ""
        case _:
            return element.value


def _color(text: str) -> str:
    low = text.strip().lower()
    if re.fullmatch(r"#[0-9a-f]{3}", low):
        low = "#" + "".join(2 * digit for digit in low[1:])
    return low if COLOR.fullmatch(low) else ""


def _is_safe(address: str) -> bool:
    """Whether an address is of a page, a mail or a telephone, or below the page's own: never a script."""
    return bool(address) and _SAFE_ADDRESS.fullmatch(address) is not None
