"""Reads Flutter: the widgets that `build` returns, by their constructors and named arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.calls import Node, Parser, text_of, walk_calls
from pyagent.logic.interfaces.elements import Element, InputType, Kind
from pyagent.logic.interfaces.flutter_writing import HINTS, KEYBOARDS

_KEYBOARD_TO_TYPE: dict[str, InputType] = {f"TextInputType.{name}": kind for kind, name in KEYBOARDS.items()}
_HINT_TO_PURPOSE = {f"AutofillHints.{name}": purpose for purpose, name in HINTS.items()}
_CONTAINERS: dict[str, Kind] = {
    "Row": "row",
    "Wrap": "row",
    "Column": "column",
    "ListView": "column",
    "GridView.count": "grid",
    "Stack": "column",
}
_CHILDREN = (
    "child",
    "body",
    "home",
    "content",
    "title",
    "children",
    "slivers",
    "actions",
    "builder",
    "appBar",
    "floatingActionButton",
)
_COLOR = re.compile(r"Color\(\s*0x[fF]{2}([0-9A-Fa-f]{6})\s*\)")


def read_flutter(text: str) -> Element:
    """Return the widgets of a library of Dart as a page; raises `RequestError` naming the line that cannot be read."""
    return _Reading(text).page()


class _Reading:
    def __init__(self, text: str) -> None:
        self._values: dict[str, Node] = {}
        self._root = self._largest(Parser(text, "Dart"))
        self._readers: dict[str, Callable[[Node], Element]] = {
            "Text": _text,
            "TextFormField": self._field,
            "TextField": self._field,
            "CheckboxListTile": self._checkbox,
            "SwitchListTile": self._checkbox,
            "DropdownButtonFormField": self._select,
            "RadioGroup": self._radio,
            "ListBody": _list,
            "DataTable": _table,
            "LinearProgressIndicator": _progress,
            "Image.asset": _image,
            "Image.network": _image,
            "DefaultTabController": self._tabs,
        }

    def _largest(self, parser: Parser) -> Node:
        """Return the longest widget that is returned; and take the map of initial values, where there is one."""
        found = Node("other")
        size = 0
        while parser.at < len(parser.tokens):
            start = parser.at
            is_widget = parser.peek() in {"return", "=>"} and re.match(
                r"[A-Z]", parser.peek(2 if parser.peek(1) == "const" else 1)
            )
            if parser.peek() == "values" and parser.peek(1) == "=" and parser.peek(2) == "{":
                parser.at += 2
                self._values = parser.map_literal()
            elif is_widget:
                parser.at += 1
                node = parser.value()
                if node.kind == "call" and parser.at - start > size:
                    found, size = node, parser.at - start
            else:
                parser.at += 1
        if found.kind != "call":
            raise RequestError("there is no widget that `build` returns")
        return found

    def page(self) -> Element:
        root = self._root
        locale = next(iter(walk_calls([root], lambda node: node.name == "Locale")), None)
        titled = next(iter(walk_calls([root], lambda node: node.name in {"Title", "MaterialApp"})), None)
        scaffold = next(iter(walk_calls([root], lambda node: node.name == "Scaffold")), Node("call"))
        styled = next(iter(walk_calls([root], lambda node: node.name == "DefaultTextStyle.merge")), Node("call"))
        bar = next(iter(walk_calls([scaffold], lambda node: node.name == "AppBar")), Node("call"))
        title = text_of(None if titled is None else titled.argument("title"))
        return Element(
            kind="page",
            id=_key(scaffold),
            text=title or _inner_text(bar.argument("title")),
            language=text_of(None if locale is None else locale.place(0)),
            color=_color(styled, "color"),
            background=_colored(scaffold.argument("backgroundColor")),
            children=_unwrapped(tuple(self._elements(root))),
            line=root.line,
        )

    def _elements(self, node: Node) -> Iterator[Element]:
        if node.kind != "call":
            for each in [*node.items, *node.body]:
                yield from self._elements(each)
            return
        name = node.name
        if name in self._readers:
            yield self._with_place(node, self._readers[name](node))
        elif name.split(".")[0] in {
            "ElevatedButton",
            "FilledButton",
            "TextButton",
            "OutlinedButton",
            "IconButton",
            "FloatingActionButton",
        }:
            yield self._with_place(node, _button(node))
        elif name == "Semantics":
            yield from self._semantics(node)
        elif name == "InputDecorator":
            yield self._decorated(node)
        elif name in _CONTAINERS:
            kind = _CONTAINERS[name]
            count = node.argument("crossAxisCount")
            columns = min(max(int(count.source), 1), 12) if count is not None and count.source.isdigit() else 2
            children = self._below(node)
            yield Element(
                kind=kind, id=_key(node), columns=columns if kind == "grid" else 0, children=children, line=node.line
            )
        else:
            yield from self._below(node)

    def _below(self, node: Node) -> tuple[Element, ...]:
        inside = [each for label, each in node.arguments if label in _CHILDREN]
        return tuple(element for each in inside for element in self._elements(each))

    def _with_place(self, node: Node, element: Element) -> Element:
        return msgspec.structs.replace(element, id=_key(node), line=node.line)

    def _semantics(self, node: Node) -> Iterator[Element]:
        below = self._below(node)
        level = node.argument("headingLevel")
        if node.argument("header") is not None and len(below) == 1:
            number = int(level.source) if level is not None and level.source in "123456" else 2
            yield msgspec.structs.replace(below[0], kind="heading", level=number)
        elif node.argument("link") is not None and len(below) == 1:
            url = node.argument("linkUrl")
            target = text_of(url.place(0)) if url is not None and url.kind == "call" else "#"
            link = below[0]
            yield Element(
                kind="link",
                id=link.id,
                text=link.text,
                target=target,
                color=link.color,
                background=link.background,
                line=link.line,
            )
        else:
            label = text_of(node.argument("label"))
            yield from (msgspec.structs.replace(each, text=each.text or label) for each in below)

    def _decorated(self, node: Node) -> Element:
        label = _label(node)
        child = node.argument("child")
        below = self._below(node)
        if len(below) == 1 and below[0].kind in {"table", "progress"}:
            return msgspec.structs.replace(below[0], text=label)
        inner = below[0].children if child is not None and child.name == "Column" and below else below
        return Element(kind="group", id=_key(node), text=label, children=inner, line=node.line)

    def _value(self, node: Node, name: str) -> Node | None:
        """Return the first value of an input: one that stands there, or in the map of values."""
        given = node.argument(name)
        place = re.match(r"values\['([a-z0-9_]+)'\]", given.source) if given is not None else None
        return self._values.get(place[1]) if place else given

    def _field(self, node: Node) -> Element:
        value = self._value(node, "initialValue")
        lines = node.argument("maxLines")
        said = text_of(value) if value is not None and value.kind == "text" else ""
        if lines is not None and lines.source != "1":
            return _with_label(Element(kind="area", value=said), _label(node))
        hints = node.argument("autofillHints")
        purposes = [_HINT_TO_PURPOSE.get(each.name, "") for each in hints.items] if hints is not None else []
        element = Element(kind="input", type=_type(node), value=said, autocomplete=purposes[0] if purposes else "")
        return _with_label(element, _label(node))

    def _checkbox(self, node: Node) -> Element:
        value = self._value(node, "value")
        checked = value is not None and value.name == "true"
        return _with_label(Element(kind="checkbox", checked=checked), _inner_text(node.argument("title")))

    def _select(self, node: Node) -> Element:
        items = node.argument("items")
        options = tuple(_inner_text(each.argument("child")) for each in items.items) if items is not None else ()
        value = self._value(node, "initialValue")
        chosen = text_of(value) if value is not None and value.kind == "text" else ""
        return _with_label(Element(kind="select", options=options, value=chosen), _label(node))

    def _radio(self, node: Node) -> Element:
        tiles = list(walk_calls([node], lambda each: each.name == "RadioListTile"))
        texts = list(walk_calls([node], lambda each: each.name in {"RadioListTile", "Text"}))
        label = text_of(texts[0].place(0)) if texts and texts[0].name == "Text" else ""
        value = self._value(node, "groupValue")
        chosen = text_of(value) if value is not None and value.kind == "text" else ""
        options = tuple(_inner_text(each.argument("title")) for each in tiles)
        return _with_label(Element(kind="radio", options=options, value=chosen), label)

    def _tabs(self, node: Node) -> Element:
        bar = next(iter(walk_calls(_inside(node), lambda each: each.name == "TabBar")), Node("call"))
        tabs = list(walk_calls(_inside(bar), lambda each: each.name == "Tab"))
        view = next(iter(walk_calls([node], lambda each: each.name == "TabBarView")), None)
        children = view.argument("children") if view is not None else None
        pages = [tuple(self._elements(each)) for each in children.items] if children is not None else []
        pages += [()] * (len(tabs) - len(pages))
        return Element(
            kind="tabs",
            children=tuple(
                Element(
                    kind="tab",
                    id=_key(tab),
                    text=text_of(tab.argument("text")),
                    children=_unwrapped(page),
                    line=tab.line,
                )
                for tab, page in zip(tabs, pages, strict=False)
            ),
        )


def _unwrapped(elements: tuple[Element, ...]) -> tuple[Element, ...]:
    """Return what is in a column that only lays out a page or a tab."""
    is_wrapped = len(elements) == 1 and elements[0].kind == "column" and not elements[0].id
    return elements[0].children if is_wrapped else elements


def _inside(node: Node) -> list[Node]:
    return [each for _, each in node.arguments]


def _key(node: Node) -> str:
    key = node.argument("key")
    return text_of(key.place(0)) if key is not None and key.kind == "call" else ""


def _label(node: Node) -> str:
    decoration = node.argument("decoration")
    return (
        ""
        if decoration is None
        else text_of(decoration.argument("labelText")) or _inner_text(decoration.argument("label"))
    )


def _inner_text(node: Node | None) -> str:
    """Return the text of a `Text` that a node is or holds."""
    if node is None:
        return ""
    found = next(iter(walk_calls([node], lambda each: each.name == "Text")), None)
    return text_of(None if found is None else found.place(0))


def _with_label(element: Element, label: str) -> Element:
    is_required = label.endswith("*")
    return msgspec.structs.replace(element, text=label.rstrip("* ") if is_required else label, required=is_required)


def _type(node: Node) -> InputType:
    hidden, action, keyboard = (node.argument(name) for name in ("obscureText", "textInputAction", "keyboardType"))
    if hidden is not None and hidden.name == "true":
        return "password"
    if action is not None and action.name.endswith(".search"):
        return "search"
    return _KEYBOARD_TO_TYPE.get(keyboard.name if keyboard is not None else "", "text")


def _colored(node: Node | None) -> str:
    found = _COLOR.fullmatch(_source(node)) if node is not None else None
    return f"#{found[1].lower()}" if found else ""


def _source(node: Node) -> str:
    first = node.place(0)
    return f"{node.name}({'' if first is None else first.source})"


def _color(node: Node, name: str) -> str:
    style = node.argument("style")
    return "" if style is None else _colored(style.argument(name))


def _text(node: Node) -> Element:
    return Element(
        kind="text",
        text=text_of(node.place(0)),
        color=_color(node, "color"),
        background=_color(node, "backgroundColor"),
    )


def _button(node: Node) -> Element:
    text = (
        _inner_text(node.argument("child")) or _inner_text(node.argument("label")) or text_of(node.argument("tooltip"))
    )
    style = node.argument("style")
    fixed = style.argument("fixedSize") if style is not None else None
    sides = [each.source for _, each in fixed.arguments] if fixed is not None else []
    size = (
        (int(sides[0]), int(sides[1]))
        if len(sides) == 2 and all(side.isdigit() and len(side) < 5 for side in sides)
        else None
    )
    return Element(
        kind="button",
        text=text,
        size=size,
        color=_color(node, "foregroundColor"),
        background=_color(node, "backgroundColor"),
    )


def _list(node: Node) -> Element:
    children = node.argument("children")
    texts = (text_of(each.place(0)).removeprefix("• ") for each in (children.items if children is not None else []))
    return Element(kind="list", options=tuple(texts))


def _table(node: Node) -> Element:
    def texts(of: Node | None) -> tuple[str, ...]:
        return tuple(_inner_text(each) for each in of.items) if of is not None else ()

    rows = node.argument("rows")
    cells = tuple(texts(row.argument("cells")) for row in rows.items) if rows is not None else ()
    return Element(kind="table", head=texts(node.argument("columns")), rows=cells)


def _progress(node: Node) -> Element:
    value = node.argument("value")
    number = re.fullmatch(r"\d(?:\.\d+)?", value.source) if value is not None else None
    percent = round(100 * min(float(number[0]), 1.0)) if number else 0
    return Element(kind="progress", text=text_of(node.argument("semanticsLabel")), percent=percent)


def _image(node: Node) -> Element:
    label = text_of(node.argument("semanticLabel"))
    hidden = node.argument("excludeFromSemantics")
    return Element(
        kind="image", text=label, source=text_of(node.place(0)), decorative=hidden is not None and hidden.name == "true"
    )
