"""Reads SwiftUI: the views of `body`, by their initialisers, closures and modifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.calls import Node, Parser, text_of, walk_calls
from pyagent.logic.interfaces.colors import read_color
from pyagent.logic.interfaces.elements import Element, InputType, Kind
from pyagent.logic.interfaces.swiftui_writing import CONTENT_TYPES, KEYBOARDS

_KEYBOARD_TO_TYPE: dict[str, InputType] = {f".{name}": kind for kind, name in KEYBOARDS.items()}
_CONTENT_TO_PURPOSE = {f".{name}": purpose for purpose, name in CONTENT_TYPES.items()}
_CONTAINERS: dict[str, Kind] = {
    "HStack": "row",
    "LazyHStack": "row",
    "VStack": "column",
    "LazyVStack": "column",
    "ZStack": "column",
    "Form": "column",
    "List": "column",
    "LazyVGrid": "grid",
}
_FONTS = {".largeTitle": 1, ".title": 2, ".title2": 3, ".title3": 4}
_RGB = re.compile(r"Color\(red: (\d{1,3}) / 255, green: (\d{1,3}) / 255, blue: (\d{1,3}) / 255\)")


def read_swiftui(text: str) -> Element:
    """Return the views of a file of Swift as a page; raises `RequestError` naming the line that cannot be read."""
    return _Reading(text).page()


class _Reading:
    def __init__(self, text: str) -> None:
        self._values: dict[str, Node] = {}
        self._parser = Parser(text, "Swift")
        self._body, self._line = self._largest()

    def _largest(self) -> tuple[list[Node], int]:
        """Return the longest `some View` and its line; and take the first values of `@State`."""
        parser = self._parser
        found: list[Node] = []
        size, line = 0, 1
        while parser.at < len(parser.tokens):
            start = parser.at
            if parser.peek() == "View" and parser.peek(1) == "{" and parser.tokens[start - 1].text == "some":
                parser.at += 1
                nodes = parser.block()
                if parser.at - start > size:
                    found, size, line = nodes, parser.at - start, parser.line(start)
            elif parser.peek() == "var" and parser.peek(2) == "=":
                name = parser.peek(1)
                parser.at += 3
                self._values[f"${name}"] = parser.value()
            else:
                parser.at += 1
        if not found:
            raise RequestError("there is no `body` of some View with views in it")
        return found, line

    def page(self) -> Element:
        outer = self._body[0] if len(self._body) == 1 else Node("call")
        title = outer.modifier("navigationTitle") or next(
            (each for each in _modified(self._body) if each.name == "navigationTitle"), None
        )
        locales = walk_calls([each for _, each in _all_arguments(outer)], lambda node: node.name == "Locale")
        language = next((text_of(each.argument("identifier")) for each in locales), "")
        color, background = _colors(outer) if len(self._body) == 1 else ("", "")
        children = tuple(element for node in self._body for element in self._elements(node))
        is_wrapped = (
            len(children) == 1
            and children[0].kind == "column"
            and outer.name in {"ScrollView", "NavigationStack", "VStack"}
        )
        return Element(
            kind="page",
            id=_identifier(outer),
            text=_first_text(title.arguments) if title is not None else "",
            language=language,
            color=color,
            background=background,
            children=children[0].children if is_wrapped else children,
            line=self._line,
        )

    def _elements(self, node: Node) -> Iterator[Element]:
        if node.kind != "call":
            for each in [*node.items, *node.body]:
                yield from self._elements(each)
            return
        if node.name == "LabeledContent":
            yield from self._labelled(node)
            return
        read = self._control(node) or self._made(node)
        if read is None:
            yield from self._below(node.body)
            return
        color, background = _colors(node) if read.kind in {"heading", "text", "button", "link"} else ("", "")
        size = _size(node) if read.kind == "button" else None
        yield msgspec.structs.replace(
            read, id=_identifier(node), line=node.line, color=color, background=background, size=size
        )

    def _below(self, nodes: Sequence[Node]) -> tuple[Element, ...]:
        return tuple(element for node in nodes for element in self._elements(node))

    def _labelled(self, node: Node) -> Iterator[Element]:
        label = _said_in(node.argument("label")) or _first_text(node.arguments)
        for each in self._below(node.body):
            yield _with_label(each, label)

    def _control(self, node: Node) -> Element | None:
        match node.name:
            case "TextField" | "SecureField":
                kind: InputType = "password" if node.name == "SecureField" else _type(node)
                content = _modifier_name(node, "textContentType")
                purpose = _CONTENT_TO_PURPOSE.get(content, "")
                label = _first_text(node.arguments) or _said_in(node.argument("label"))
                return _with_label(
                    Element(kind="input", type=kind, value=self._value(node, "text"), autocomplete=purpose), label
                )
            case "TextEditor":
                return Element(kind="area", value=self._value(node, "text"))
            case "Toggle":
                state = node.argument("isOn")
                first = self._values.get(state.name if state is not None else "")
                checked = first is not None and first.name == "true"
                return _with_label(
                    Element(kind="checkbox", checked=checked), _first_text(node.arguments) or _said(node.body)
                )
            case "Picker":
                options = tuple(_text_of_view(each) for each in node.body if each.kind == "call")
                is_radio = _modifier_name(node, "pickerStyle") in {".inline", ".radioGroup", ".segmented"}
                element = Element(
                    kind="radio" if is_radio else "select", options=options, value=self._value(node, "selection")
                )
                return _with_label(element, _first_text(node.arguments) or _said_in(node.argument("label")))
            case "ProgressView":
                value = node.argument("value")
                number = re.fullmatch(r"\d(?:\.\d+)?", value.source) if value is not None else None
                percent = round(100 * min(float(number[0]), 1.0)) if number else 0
                return Element(kind="progress", text=_said(node.body) or _first_text(node.arguments), percent=percent)
            case _:
                return None

    def _made(self, node: Node) -> Element | None:  # noqa: PLR0911 - one for each view
        match node.name:
            case "Text" | "Label":
                return _text(node)
            case "Button":
                label = _first_text(node.arguments) or _said_in(node.argument("label"))
                label = label or (_said(node.body) if node.argument("action") is not None else "")
                return Element(kind="button", text=label or _modifier_text(node, "accessibilityLabel"))
            case "Link":
                url = node.argument("destination")
                target = text_of(url.argument("string")) if url is not None and url.kind == "call" else "#"
                return Element(kind="link", text=_first_text(node.arguments) or _said(node.body), target=target)
            case "Image":
                return _image(node)
            case "GroupBox" | "Section":
                text = (
                    _first_text(node.arguments) or _said_in(node.argument("label")) or _said_in(node.argument("header"))
                )
                return Element(kind="group", text=text, children=self._below(node.body))
            case "TabView":
                return Element(
                    kind="tabs", children=tuple(self._tab(each) for each in node.body if each.kind == "call")
                )
            case "Grid":
                return _table(node)
            case name if name in _CONTAINERS:
                return self._container(node)
            case _:
                return None

    def _container(self, node: Node) -> Element:
        first = node.body[0] if len(node.body) == 1 else Node("other")
        items = first.place(0) if first.name == "ForEach" else None
        if items is not None and items.kind == "list":
            return Element(kind="list", options=tuple(text_of(each) for each in items.items))
        kind = _CONTAINERS[node.name]
        repeated = node.argument("columns")
        count = repeated.argument("count") if repeated is not None and repeated.kind == "call" else None
        columns = min(max(int(count.source), 1), 12) if count is not None and count.source.isdigit() else 2
        return Element(kind=kind, columns=columns if kind == "grid" else 0, children=self._below(node.body))

    def _tab(self, node: Node) -> Element:
        item = node.modifier("tabItem")
        title = _said(item.body) if item is not None else _first_text(node.arguments)
        children = self._below(node.body) if node.name in {"VStack", "Tab"} else tuple(self._elements(node))
        return Element(kind="tab", id=_identifier(node), text=title, children=children, line=node.line)

    def _value(self, node: Node, name: str) -> str:
        """Return the first value of the state that an input changes."""
        state = node.argument(name)
        first = self._values.get(state.name if state is not None else "")
        return text_of(first) if first is not None and first.kind == "text" else ""


def _all_arguments(node: Node) -> Iterator[tuple[str, Node]]:
    for modifier in node.modifiers:
        yield from modifier.arguments


def _modified(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield from node.modifiers
        yield from _modified(node.body)


def _identifier(node: Node) -> str:
    return _modifier_text(node, "accessibilityIdentifier")


def _modifier_text(node: Node, name: str) -> str:
    modifier = node.modifier(name)
    return _first_text(modifier.arguments) if modifier is not None else ""


def _modifier_name(node: Node, name: str) -> str:
    modifier = node.modifier(name)
    first = modifier.place(0) if modifier is not None else None
    return first.name if first is not None else ""


def _first_text(arguments: Sequence[tuple[str, Node]]) -> str:
    """Return the text that the first argument is, or the view of a text that it makes."""
    if not arguments or arguments[0][0] not in {"", "verbatim", "label", "title", "decorative"}:
        return ""
    node = arguments[0][1]
    return _text_of_view(node) if node.kind == "call" else (text_of(node) if node.kind in {"text", "other"} else "")


def _text_of_view(node: Node) -> str:
    return _first_text(node.arguments)


def _said(nodes: Sequence[Node]) -> str:
    """Return what the first text below some views says."""
    found = next(iter(walk_calls(list(nodes), lambda node: node.name in {"Text", "Label"})), None)
    return "" if found is None else _text_of_view(found)


def _said_in(closure: Node | None) -> str:
    return "" if closure is None else _said([closure])


def _with_label(element: Element, label: str) -> Element:
    text = label or element.label
    is_required = text.endswith("*")
    return msgspec.structs.replace(element, text=text.rstrip("* ") if is_required else text, required=is_required)


def _type(node: Node) -> InputType:
    return _KEYBOARD_TO_TYPE.get(_modifier_name(node, "keyboardType"), "text")


def _colors(node: Node) -> tuple[str, str]:
    found: list[str] = []
    for names in (("foregroundColor", "foregroundStyle"), ("background", "backgroundStyle")):
        modifier = next((each for name in names if (each := node.modifier(name)) is not None), None)
        first = modifier.place(0) if modifier is not None else None
        found.append(_color(first) if first is not None else "")
    return found[0], found[1]


def _color(node: Node) -> str:
    if node.kind != "call":
        return (
            read_color(node.name.rpartition(".")[2])
            if node.name in {".black", ".white", "Color.black", "Color.white"}
            else ""
        )
    source = f"Color({', '.join(f'{label}: {each.source}' for label, each in node.arguments)})"
    parts = _RGB.fullmatch(source)
    return (
        "#" + "".join(f"{int(part):02x}" for part in parts.groups())
        if parts and all(int(part) < 256 for part in parts.groups())
        else ""
    )


def _size(node: Node) -> tuple[int, int] | None:
    frame = node.modifier("frame")
    sides = [frame.argument(name) for name in ("width", "height")] if frame is not None else []
    numbers = [
        int(side.source) for side in sides if side is not None and side.source.isdigit() and len(side.source) < 5
    ]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _text(node: Node) -> Element:
    heading = _modifier_name(node, "accessibilityHeading")
    font = _modifier_name(node, "font")
    level = int(heading[-1]) if re.fullmatch(r"\.h[1-6]", heading) else _FONTS.get(font, 0)
    text = _text_of_view(node)
    return Element(kind="heading", text=text, level=level) if level else Element(kind="text", text=text)


def _image(node: Node) -> Element:
    source = next((text_of(each) for label, each in node.arguments if label in {"", "systemName", "decorative"}), "")
    label = node.argument("label")
    said = _text_of_view(label) if label is not None else _modifier_text(node, "accessibilityLabel")
    hidden = node.argument("decorative") is not None or node.modifier("accessibilityHidden") is not None
    return Element(kind="image", text=said, source=source, decorative=hidden)


def _table(node: Node) -> Element:
    rows = [tuple(_text_of_view(cell) for cell in row.body) for row in node.body if row.name == "GridRow"]
    caption = next((_text_of_view(each) for each in node.body if each.name == "Text"), "")
    return Element(kind="table", text=caption, head=rows[0] if rows else (), rows=tuple(rows[1:]))
