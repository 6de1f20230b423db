"""Reads PySide6 and PyQt: widgets and layouts by their classes, nested by what is added to what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import msgspec

from pyagent.logic.interfaces.colors import read_color
from pyagent.logic.interfaces.elements import Element, InputType, Kind
from pyagent.logic.interfaces.markup import read_markup
from pyagent.logic.interfaces.python_code import argument, calls, is_true, items, parse_python, said, whole
from pyagent.logic.interfaces.qt_writing import HINTS
from pyagent.logic.interfaces.tag_reading import all_tags, text_in

_LAYOUTS: dict[str, Kind] = {
    "QHBoxLayout": "row",
    "QVBoxLayout": "column",
    "QGridLayout": "grid",
    "QFormLayout": "column",
}
_ADDS = frozenset(
    {"addWidget", "addLayout", "addRow", "addTab", "setLayout", "setCentralWidget", "setWidget", "insertWidget"}
)
_CONTAINERS = frozenset({"QWidget", "QFrame", "QGroupBox", "QScrollArea", "QTabWidget", "QStackedWidget", "QSplitter"})
_COLOR_RULE = re.compile(r"(?:^|[;{\s])(color|background|background-color)\s*:\s*([^;}]+)")
_HINT_TO_TYPE: dict[str, InputType] = {hint: kind for kind, hint in HINTS.items()}
_ROOT = "self"


class _Part(msgspec.Struct):
    """A widget or a layout: what made it, what was called of it, and what was added to it, with a label or title."""

    name: str
    call: ast.Call
    did: dict[str, list[ast.Call]] = {}
    below: list[tuple[str, _Part]] = []


def read_qt(text: str) -> Element:
    """Return a module's widgets as a page; raises `RequestError` for what is no Python."""
    return _Reading(parse_python(text)).page()


class _Reading:
    def __init__(self, module: ast.Module) -> None:
        self._root = _Part("QWidget", ast.Call(ast.Name("QWidget"), [], []))
        self._parts: dict[str, _Part] = {_ROOT: self._root}
        self._added: set[int] = set()
        for called in calls(module.body):
            if re.fullmatch(r"Q[A-Z]\w*", called.name) and called.target and called.name != "QApplication":
                part = self._part(called.call)
                self._parts[called.target] = part
                if called.name in _LAYOUTS and called.call.args:
                    self._add(self._parts.get(ast.unparse(called.call.args[0])), part, "")
            elif (owner := self._parts.get(called.owner)) is not None:
                owner.did.setdefault(called.name, []).append(called.call)
                if called.name in _ADDS:
                    self._take(owner, called.name, called.call)

    @staticmethod
    def _part(call: ast.Call) -> _Part:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        return _Part(name, call)

    def _take(self, owner: _Part, how: str, call: ast.Call) -> None:
        """Take what a call adds: `addRow(label, widget)`, `addTab(widget, title)`, `addWidget(widget, row, column)`."""
        arguments = call.args
        if how == "addRow" and len(arguments) == 2:
            label = self._found(arguments[0])
            text = said(arguments[0]) if label is None else argument(label.call, "text", 0)
            self._add(owner, self._found(arguments[1]), text.replace("&&", "&"))
        elif arguments:
            title = said(arguments[1]).replace("&&", "&") if how == "addTab" and len(arguments) > 1 else ""
            self._add(
                owner,
                self._found(arguments[1] if how == "insertWidget" and len(arguments) > 1 else arguments[0]),
                title,
            )

    def _found(self, node: ast.expr) -> _Part | None:
        if isinstance(node, ast.Call):
            return self._part(node)
        return self._parts.get(ast.unparse(node))

    def _add(self, owner: _Part | None, part: _Part | None, title: str) -> None:
        if (
            owner is not None
            and part is not None
            and part is not owner
            and id(part) not in self._added
            and part is not self._root
        ):
            self._added.add(id(part))
            owner.below.append((title, part))

    def page(self) -> Element:
        root = self._root
        below = root.below if len(root.below) != 1 or root.below[0][1].name not in _LAYOUTS else root.below[0][1].below
        color, background = _colors(root)
        locale = next((call.args[0] for call in root.did.get("setLocale", []) if call.args), None)
        return Element(
            kind="page",
            id=_said_by(root, "setObjectName"),
            text=_said_by(root, "setWindowTitle"),
            language=argument(locale, "", 0) if isinstance(locale, ast.Call) else "",
            color=color,
            background=background,
            children=self._elements(below),
            line=1,
        )

    def _elements(self, parts: Sequence[tuple[str, _Part]]) -> tuple[Element, ...]:
        buddies = {
            ast.unparse(call.args[0]): part for _, part in parts for call in part.did.get("setBuddy", []) if call.args
        }
        found: list[Element] = []
        for label, part in parts:
            if "setBuddy" in part.did:
                continue
            named = next((one for name, one in buddies.items() if self._parts.get(name) is part), None)
            text = label or ("" if named is None else argument(named.call, "text", 0).replace("&&", "&"))
            found += self._element(part, text)
        return tuple(found)

    def _element(self, part: _Part, label: str) -> Iterator[Element]:
        if part.name == "QFormLayout":
            yield from self._elements(part.below)
            return
        read = self._control(part, label)
        if read is None:
            yield from self._container(part)
            return
        color, background = _colors(part) if read.kind in {"heading", "text", "link", "button"} else ("", "")
        given = _said_by(part, "setObjectName")
        fixed = [whole(each) for call in part.did.get("setFixedSize", []) for each in call.args]
        size = (fixed[0], fixed[1]) if len(fixed) == 2 and read.kind == "button" else None
        yield msgspec.structs.replace(
            read, id=given, line=part.call.lineno, color=color, background=background, size=size
        )

    def _control(self, part: _Part, label: str) -> Element | None:  # noqa: PLR0911 - one for each class
        raw = argument(part.call, "text", 0)
        text = raw.replace("&&", "&")
        match part.name:
            case "QLabel" if "setPixmap" in part.did:
                return self._image(part, argument(part.call, "text", 0))
            case "QLabel":
                return _label(part)
            case "QLineEdit" | "QSpinBox" | "QDoubleSpinBox" | "QDateEdit":
                return _with_label(Element(kind="input", type=_type(part), value=raw), label)
            case "QPlainTextEdit" | "QTextEdit":
                return _with_label(Element(kind="area", value=raw), label)
            case "QComboBox":
                options = items(next((call.args[0] for call in part.did.get("addItems", []) if call.args), None))
                options += tuple(said(call.args[0]) for call in part.did.get("addItem", []) if call.args)
                return _with_label(
                    Element(kind="select", options=options, value=_said_by(part, "setCurrentText")), label
                )
            case "QCheckBox":
                return _with_label(Element(kind="checkbox", checked=_is_set(part, "setChecked")), text)
            case "QRadioButton":
                return Element(kind="radio", options=(text,), value=text if _is_set(part, "setChecked") else "")
            case "QPushButton" | "QToolButton":
                return Element(kind="button", text=text or _said_by(part, "setAccessibleName"))
            case "QProgressBar":
                percent = next((whole(call.args[0]) for call in part.did.get("setValue", []) if call.args), 0)
                return Element(kind="progress", text=label, percent=min(max(percent, 0), 100))
            case "QListWidget":
                return Element(
                    kind="list",
                    options=items(next((call.args[0] for call in part.did.get("addItems", []) if call.args), None)),
                )
            case "QTableWidget":
                return _table(part, label)
            case _:
                return None

    def _image(self, part: _Part, text: str) -> Element:
        shown = next((call.args[0] for call in part.did["setPixmap"] if call.args), None)
        picture = None if shown is None else self._found(shown)
        name = _said_by(part, "setAccessibleName") or text
        source = "" if picture is None else argument(picture.call, "fileName", 0)
        return Element(kind="image", text=name, source=source, decorative=not name)

    def _container(self, part: _Part) -> Iterator[Element]:
        given, line = _said_by(part, "setObjectName"), part.call.lineno
        below = part.below
        if part.name == "QTabWidget":
            yield Element(
                kind="tabs", id=given, line=line, children=tuple(self._tab(title, one) for title, one in below)
            )
            return
        inner = (
            below[0][1].below
            if part.name in _CONTAINERS and len(below) == 1 and below[0][1].name in _LAYOUTS
            else below
        )
        children = self._elements(inner)
        if part.name == "QGroupBox":
            text = (argument(part.call, "title", 0) or _said_by(part, "setTitle")).replace("&&", "&")
            yield msgspec.structs.replace(_group(text, children), id=given, line=line)
        elif part.name in _LAYOUTS:
            stretched = [whole(call.args[0]) + 1 for call in part.did.get("setColumnStretch", []) if call.args]
            placed = [whole(call.args[2]) + 1 for call in part.did.get("addWidget", []) if len(call.args) > 2]
            columns = min(12, max([*stretched, *placed], default=2)) if part.name == "QGridLayout" else 0
            yield Element(kind=_LAYOUTS[part.name], id=given, columns=columns, children=children, line=line)
        else:
            yield from children

    def _tab(self, title: str, part: _Part) -> Element:
        inner = part.below[0][1].below if len(part.below) == 1 and part.below[0][1].name in _LAYOUTS else part.below
        given = _said_by(part, "setObjectName")
        return Element(kind="tab", id=given, text=title, children=self._elements(inner), line=part.call.lineno)


def _said_by(part: _Part, method: str) -> str:
    """Return the first argument of the last call of a method."""
    return next((said(call.args[0]) for call in reversed(part.did.get(method, [])) if call.args), "")


def _is_set(part: _Part, method: str) -> bool:
    return any(call.args and is_true(call.args[0]) for call in part.did.get(method, []))


def _colors(part: _Part) -> tuple[str, str]:
    found = {name: read_color(value) for name, value in _COLOR_RULE.findall(_said_by(part, "setStyleSheet"))}
    return found.get("color", ""), found.get("background-color", "") or found.get("background", "")


def _type(part: _Part) -> InputType:
    if part.name in {"QSpinBox", "QDoubleSpinBox"}:
        return "number"
    if part.name == "QDateEdit":
        return "date"
    if "Password" in _said_by(part, "setEchoMode"):
        return "password"
    if _is_set(part, "setClearButtonEnabled"):
        return "search"
    hint = _said_by(part, "setInputMethodHints").rpartition(".")[2].rstrip("}")
    return _HINT_TO_TYPE.get(hint, "text")


def _label(part: _Part) -> Element:
    text = argument(part.call, "text", 0)
    if "RichText" in _said_by(part, "setTextFormat") or (text.startswith("<a ") and "setTextFormat" not in part.did):
        links = [tag for tag in all_tags(read_markup(text)) if tag.name == "a"]
        if links:
            return Element(kind="link", text=text_in(links[0]), target=str(links[0].attributes.get("href", "#")))
    levels = [
        whole(call.args[1])
        for call in part.did.get("setProperty", [])
        if len(call.args) > 1 and said(call.args[0]) == "level"
    ]
    if levels and 1 <= levels[0] <= 6:
        return Element(kind="heading", text=text, level=levels[0])
    return Element(kind="text", text=text)


def _with_label(element: Element, label: str) -> Element:
    is_required = label.endswith("*")
    return msgspec.structs.replace(element, text=label.rstrip("* ") if is_required else label, required=is_required)


def _group(text: str, children: tuple[Element, ...]) -> Element:
    if children and all(child.kind == "radio" and not child.text for child in children):
        options = tuple(option for child in children for option in child.options)
        value = next((child.value for child in children if child.value), "")
        return _with_label(Element(kind="radio", options=options, value=value), text)
    return Element(kind="group", text=text, children=children)


def _table(part: _Part, label: str) -> Element:
    sizes = [whole(each) for each in part.call.args]
    head = items(next((call.args[0] for call in part.did.get("setHorizontalHeaderLabels", []) if call.args), None))
    num_rows = min(sizes[0], 200) if len(sizes) == 2 else 0
    cells = [["" for _ in head] for _ in range(num_rows)]
    for call in part.did.get("setItem", []):
        if len(call.args) == 3 and isinstance(item := call.args[2], ast.Call):
            row, column = whole(call.args[0]), whole(call.args[1])
            if 0 <= row < num_rows and 0 <= column < len(head):
                cells[row][column] = argument(item, "text", 0)
    return Element(kind="table", text=label, head=head, rows=tuple(tuple(row) for row in cells))
