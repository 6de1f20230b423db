"""Reads Tkinter: widgets by their classes, nested by their parents, laid out by `pack` and `grid` or a style's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import cast, get_args

import msgspec

from pyagent.logic.interfaces.colors import read_color
from pyagent.logic.interfaces.elements import Element, InputType, Kind
from pyagent.logic.interfaces.python_code import Called, argument, calls, is_true, items, option, parse_python, whole

_TYPES = frozenset(get_args(InputType))
_WIDGETS = frozenset(
    {
        "Frame",
        "LabelFrame",
        "Labelframe",
        "Label",
        "Entry",
        "Spinbox",
        "Combobox",
        "Checkbutton",
        "Radiobutton",
        "Button",
        "Text",
        "ScrolledText",
        "Treeview",
        "Notebook",
        "Progressbar",
        "Listbox",
        "Message",
        "Canvas",
    }
)
_VARIABLES = frozenset({"StringVar", "BooleanVar", "IntVar", "DoubleVar", "PhotoImage"})
_LAYOUT = re.compile(r"(?:.*\.)?(Row|Column|Grid|Field|List|Radio)(\d{0,2})\.T(?:Frame|Labelframe)")


class _Widget(msgspec.Struct):
    name: str
    parent: str
    call: ast.Call
    below: list[_Widget] = []
    placed: list[ast.Call] = []
    did: list[Called] = []


def read_tkinter(text: str) -> Element:
    """Return a module's widgets as a page; raises `RequestError` for what is no Python."""
    return _Reading(parse_python(text)).page()


class _Reading:
    def __init__(self, module: ast.Module) -> None:
        self._widgets: dict[str, _Widget] = {}
        self._roots: list[_Widget] = []
        self._variables: dict[str, ast.Call] = {}
        self._styles: dict[str, ast.Call] = {}
        self._title = ""
        for called in calls(module.body):
            self._take(called)

    def _take(self, called: Called) -> None:
        call = called.call
        if called.name in _VARIABLES:
            self._variables[called.target] = call
        elif called.name in _WIDGETS and called.owner in {"", "tk", "ttk", "tkinter", "tkinter.ttk", "scrolledtext"}:
            self._add(called)
        elif called.name == "title":
            self._title = self._title or argument(call, "string", 0)
        elif called.name == "configure" and called.owner not in self._widgets:
            self._styles[argument(call, "style", 0)] = call
        elif (widget := self._widgets.get(called.owner)) is None:
            return
        elif called.name in {"pack", "grid", "place"}:
            widget.placed.append(call)
        else:
            widget.did.append(called)

    def _add(self, called: Called) -> None:
        first = called.call.args[0] if called.call.args else option(called.call, "master")
        widget = _Widget(called.name, "" if first is None else ast.unparse(first), called.call)
        key = called.target or f"(line {called.call.lineno}, column {called.call.col_offset})"
        self._widgets[key] = widget
        parent = self._widgets.get(widget.parent)
        (self._roots if parent is None else parent.below).append(widget)

    def page(self) -> Element:
        roots = self._roots
        is_frame = len(roots) == 1 and roots[0].name == "Frame" and not _layout(roots[0])[0]
        outer = roots[0] if is_frame else None
        children = self._elements(roots if outer is None else outer.below)
        page = Element(kind="page", text=self._title, children=children, line=1)
        color, background = self._colors(".")
        given = "" if outer is None else argument(outer.call, "name")
        return msgspec.structs.replace(page, id=given, color=color, background=background)

    def _elements(self, widgets: Sequence[_Widget]) -> tuple[Element, ...]:
        """Return widgets as elements; a label is that of the input that follows it."""
        found: list[Element] = []
        label: Element | None = None
        for widget in widgets:
            for element in self._element(widget):
                if label is not None and element.kind in {"input", "area", "select", "progress"} and not element.text:
                    found[-1] = _with_label(element, label.text)
                else:
                    found.append(element)
                label = element if widget.name == "Label" and element.kind == "text" else None
        return _with_radios(found)

    def _element(self, widget: _Widget) -> Iterator[Element]:
        call = widget.call
        read = self._control(widget)
        if read is None:
            yield from self._container(widget)
            return
        color, background = self._colors(argument(call, "style"))
        color = color or read_color(argument(call, "foreground") or argument(call, "fg"))
        background = background or read_color(argument(call, "background") or argument(call, "bg"))
        plain = read.kind in {"heading", "text", "link", "button"}
        yield msgspec.structs.replace(
            read,
            id=argument(call, "name"),
            line=call.lineno,
            color=color if plain else "",
            background=background if plain else "",
        )

    def _control(self, widget: _Widget) -> Element | None:  # noqa: PLR0911 - one for each class
        call = widget.call
        text = argument(call, "text")
        match widget.name:
            case "Label" | "Message":
                return self._label(widget, text)
            case "Entry" | "Spinbox":
                return Element(kind="input", type=_type(widget), value=self._value(call))
            case "Combobox":
                return Element(kind="select", options=items(option(call, "values")), value=self._value(call))
            case "Checkbutton":
                node = self._variables.get(_source(call, "variable"))
                checked = node is not None and is_true(option(node, "value"))
                return _with_label(Element(kind="checkbox", checked=checked), text)
            case "Radiobutton":
                chosen = self._value(call, "variable")
                return Element(
                    kind="radio", options=(text,), value=text if chosen and chosen == argument(call, "value") else ""
                )
            case "Button":
                return Element(kind="button", text=text)
            case "Text" | "ScrolledText":
                inserted = next((argument(each.call, "chars", 1) for each in widget.did if each.name == "insert"), "")
                return Element(kind="area", value=inserted)
            case "Treeview":
                return _table(widget)
            case "Progressbar":
                most = whole(option(call, "maximum")) or 100
                return Element(kind="progress", percent=min(100, round(100 * whole(option(call, "value")) / most)))
            case "Listbox":
                return Element(
                    kind="list",
                    options=tuple(argument(each.call, "", 1) for each in widget.did if each.name == "insert"),
                )
            case _:
                return None

    def _label(self, widget: _Widget, text: str) -> Element:
        call, style = widget.call, argument(widget.call, "style")
        if option(call, "image") is not None:
            picture = self._variables.get(_source(call, "image"))
            source = "" if picture is None else argument(picture, "file")
            return Element(kind="image", text=text, source=source, decorative=not text)
        for each in widget.did:
            opened = [
                one
                for one in ast.walk(each.call)
                if isinstance(one, ast.Call) and ast.unparse(one.func) == "webbrowser.open"
            ]
            if each.name == "bind" and opened:
                return Element(kind="link", text=text, target=argument(opened[0], "url", 0))
        if found := re.search(r"Heading([1-6])\.TLabel", style):
            return Element(kind="heading", text=text, level=int(found[1]))
        return Element(kind="text", text=text)

    def _container(self, widget: _Widget) -> Iterator[Element]:
        call = widget.call
        name, columns = _layout(widget)
        children = self._elements(widget.below)
        given, text = argument(call, "name"), argument(call, "text")
        if widget.name == "Notebook":
            yield Element(kind="tabs", id=given, children=self._tabs(widget), line=call.lineno)
        elif name == "field":
            yield from _field(children)
        elif name == "list":
            options = tuple(child.text.removeprefix("• ") for child in children)
            yield Element(kind="list", id=given, options=options, line=call.lineno)
        elif widget.name in {"LabelFrame", "Labelframe"}:
            is_radio = len(children) == 1 and _is_button(children[0])
            group = children[0] if is_radio else Element(kind="group", text=text, children=children)
            group = _with_label(group, text) if group.kind == "radio" else group
            yield msgspec.structs.replace(group, id=given, line=call.lineno)
        elif name or len(children) > 1:
            kind = cast("Kind", name or _placed(widget.below))
            grid = columns or (_num_columns(widget.below) if kind == "grid" else 0)
            yield Element(kind=kind, id=given, columns=grid, children=children, line=call.lineno)
        else:
            yield from children

    def _tabs(self, widget: _Widget) -> tuple[Element, ...]:
        titles = {ast.unparse(each.call.args[0]): each for each in widget.did if each.name == "add" and each.call.args}
        keys = {id(one): key for key, one in self._widgets.items()}
        tabs: list[Element] = []
        for frame in widget.below:
            added = titles.get(keys.get(id(frame), ""))
            title = "" if added is None else argument(added.call, "text")
            children = self._elements(frame.below)
            tabs.append(
                Element(
                    kind="tab", id=argument(frame.call, "name"), text=title, children=children, line=frame.call.lineno
                )
            )
        return tuple(tabs)

    def _value(self, call: ast.Call, name: str = "textvariable") -> str:
        variable = self._variables.get(_source(call, name))
        return "" if variable is None else argument(variable, "value")

    def _colors(self, style: str) -> tuple[str, str]:
        """Return the colours of a style, or of the ones that its name ends in."""
        while style:
            if (call := self._styles.get(style)) is not None and (
                option(call, "foreground") or option(call, "background")
            ):
                is_link = style == "Link.TLabel"
                return (
                    ("", "")
                    if is_link
                    else (read_color(argument(call, "foreground")), read_color(argument(call, "background")))
                )
            style = style.partition(".")[2]
        return "", ""


def _source(call: ast.Call, name: str) -> str:
    node = option(call, name)
    return "" if node is None else ast.unparse(node)


def _type(widget: _Widget) -> InputType:
    if widget.name == "Spinbox":
        return "number"
    if argument(widget.call, "show"):
        return "password"
    named = argument(widget.call, "style").split(".")[0].lower()
    return cast("InputType", named) if named in _TYPES else "text"


def _layout(widget: _Widget) -> tuple[str, int]:
    found = _LAYOUT.fullmatch(argument(widget.call, "style"))
    return (found[1].lower(), int(found[2] or 0)) if found else ("", 0)


def _placed(widgets: Sequence[_Widget]) -> Kind:
    places = [place for widget in widgets for place in widget.placed]
    if any(whole(option(place, "column")) for place in places) and any(whole(option(place, "row")) for place in places):
        return "grid"
    is_row = any(
        whole(option(place, "column")) or argument(place, "side") in {"left", "{tk.LEFT}", "{LEFT}"} for place in places
    )
    return "row" if is_row else "column"


def _num_columns(widgets: Sequence[_Widget]) -> int:
    return min(
        12, 1 + max((whole(option(place, "column")) for widget in widgets for place in widget.placed), default=1)
    )


def _with_label(element: Element, label: str) -> Element:
    is_required = label.endswith("*")
    return msgspec.structs.replace(element, text=label.rstrip("* ") if is_required else label, required=is_required)


def _with_radios(found: list[Element]) -> tuple[Element, ...]:
    """Return elements with radio buttons that stand beside each other taken together."""
    merged: list[Element] = []
    for element in found:
        last = merged[-1] if merged else None
        if _is_button(element) and last is not None and _is_button(last):
            value = last.value or element.value
            merged[-1] = msgspec.structs.replace(last, options=last.options + element.options, value=value)
        else:
            merged.append(element)
    return tuple(merged)


def _is_button(element: Element) -> bool:
    """Whether an element is of radio buttons that have no common label yet."""
    return element.kind == "radio" and not element.text


def _field(children: Sequence[Element]) -> Iterator[Element]:
    """Yield what a field holds: a table's caption is the text before it."""
    if len(children) == 2 and children[1].kind == "table":
        yield msgspec.structs.replace(children[1], text=children[0].text)
    else:
        yield from children


def _table(widget: _Widget) -> Element:
    head = [argument(each.call, "text") for each in widget.did if each.name == "heading"]
    rows = [items(option(each.call, "values")) for each in widget.did if each.name == "insert"]
    return Element(kind="table", head=tuple(head), rows=tuple(rows))
