"""Reads Textual: what `compose` yields, nested by its `with` blocks, with the colours of the app's `CSS`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import cast, get_args

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.css import Sheet
from pyagent.logic.interfaces.elements import Element, InputType, Kind
from pyagent.logic.interfaces.python_code import argument, is_true, option, parse_python, said, whole

_TYPES = frozenset(get_args(InputType))
_CONTAINERS: dict[str, Kind] = {
    "Horizontal": "row",
    "HorizontalGroup": "row",
    "HorizontalScroll": "row",
    "Vertical": "column",
    "VerticalGroup": "column",
    "VerticalScroll": "column",
    "Container": "column",
    "ScrollableContainer": "column",
    "Grid": "grid",
    "ItemGrid": "grid",
    "Center": "column",
    "Middle": "column",
    "Group": "column",
}
_LABELLED = frozenset({"input", "area", "select", "radio", "progress", "table"})
_MAX_DEPTH = 60


def read_textual(text: str) -> Element:
    """Return an app or a screen as a page; raises `RequestError` for what is no Python, or composes nothing."""
    module = parse_python(text)
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    composed = [
        (each, one)
        for each in classes
        for one in each.body
        if isinstance(one, ast.FunctionDef) and one.name == "compose"
    ]
    if not composed:
        raise RequestError("there is no class with `compose`, as an app of Textual has")
    outer = max(composed, key=lambda pair: any("App" in ast.unparse(base) for base in pair[0].bases))
    return _Reading(outer[0]).page(outer[1])


class _Reading:
    def __init__(self, owner: ast.ClassDef) -> None:
        self._constants = {
            target.id: said(node.value) if target.id != "CSS" else _raw(node.value)
            for node in owner.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._sheet = Sheet.read(self._constants.get("CSS", ""))
        self._variables: dict[str, ast.Call] = {}
        self._did: dict[str, list[ast.Call]] = {}

    def page(self, compose: ast.FunctionDef) -> Element:
        children = self._block(compose.body, 0)
        outer = children[0] if len(children) == 1 and children[0].kind == "column" else None
        style = self._sheet.style_of("Screen", {})
        return Element(
            kind="page",
            id="" if outer is None else outer.id,
            text=self._constants.get("TITLE", ""),
            color=style.color,
            background=style.background,
            children=children if outer is None else outer.children,
            line=compose.lineno,
        )

    def _block(self, body: Sequence[ast.stmt], depth: int) -> tuple[Element, ...]:
        if depth > _MAX_DEPTH:
            raise RequestError(f"line {body[0].lineno}: blocks are nested more than {_MAX_DEPTH} deep")
        found: list[Element] = []
        for statement in body:
            for element in self._statement(statement, depth):
                before = found[-1] if found and _may_follow_label(statement) else None
                if (
                    element.kind in _LABELLED
                    and not element.text
                    and before is not None
                    and before.kind == "text"
                    and not before.id
                ):
                    found[-1] = _with_label(element, before.text)
                else:
                    found.append(element)
        return tuple(found)

    def _statement(self, statement: ast.stmt, depth: int) -> Iterator[Element]:
        match statement:
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call), *_], body=body):
                yield from self._with(call, body, depth)
            case ast.Expr(value=ast.Yield(value=ast.expr() as value)):
                yield from self._yielded(value, depth)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                self._variables[name] = call
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call):
                self._did.setdefault(f"{name}.{method}", []).append(call)
            case ast.If() | ast.For():
                yield from self._block([*statement.body, *statement.orelse], depth + 1)
            case _:
                pass

    def _yielded(self, value: ast.expr, depth: int) -> Iterator[Element]:
        name = value.id if isinstance(value, ast.Name) else ""
        call = self._variables.get(name) if name else value
        if not isinstance(call, ast.Call):
            return
        inside = [
            ast.Expr(ast.Yield(each), lineno=call.lineno) for each in call.args if isinstance(each, ast.Call | ast.Name)
        ]
        if _class(call) in _CONTAINERS:
            yield from self._with(call, cast("list[ast.stmt]", inside), depth)
        elif (element := self._widget(call, name)) is not None:
            yield element

    def _with(self, call: ast.Call, body: Sequence[ast.stmt], depth: int) -> Iterator[Element]:
        kind, given, classes = _class(call), argument(call, "id"), argument(call, "classes").split()
        children = self._block(body, depth + 1)
        if kind == "RadioSet":
            options = tuple(option for child in children for option in child.options)
            value = next((child.value for child in children if child.value), "")
            element = Element(kind="radio", options=options, value=value)
        elif kind == "TabbedContent":
            element = Element(kind="tabs", children=children)
        elif kind == "TabPane":
            element = Element(kind="tab", text=argument(call, "title", 0), children=children)
        elif "field" in classes:
            yield from children
            return
        elif "list" in classes:
            element = Element(kind="list", options=tuple(child.text.removeprefix("• ") for child in children))
        elif "group" in classes and children:
            element = Element(kind="group", text=children[0].text, children=children[1:])
        else:
            container = _CONTAINERS.get(kind, "column")
            element = Element(
                kind=container, columns=_columns(classes) if container == "grid" else 0, children=children
            )
        yield msgspec.structs.replace(element, id=given, line=call.lineno)

    def _widget(self, call: ast.Call, name: str) -> Element | None:
        read = self._control(call, name)
        if read is None:
            return None
        given, classes = argument(call, "id"), argument(call, "classes")
        style = self._sheet.style_of(_class(call), {"id": given, "class": classes})
        plain = read.kind in {"heading", "text", "link", "button"}
        color, background = (style.color, style.background) if plain else ("", "")
        return msgspec.structs.replace(read, id=given, line=call.lineno, color=color, background=background)

    def _control(self, call: ast.Call, name: str) -> Element | None:  # noqa: PLR0911 - one for each class
        text = argument(call, "label", 0)
        match _class(call):
            case "Label" | "Static" | "Markdown":
                return _text(call, argument(call, "content", 0))
            case "Input" | "MaskedInput":
                return Element(kind="input", type=_type(call), value=argument(call, "value", 0))
            case "TextArea":
                return Element(kind="area", value=argument(call, "text", 0))
            case "Checkbox" | "Switch":
                return _with_label(Element(kind="checkbox", checked=is_true(option(call, "value"))), text)
            case "RadioButton":
                return Element(kind="radio", options=(text,), value=text if is_true(option(call, "value")) else "")
            case "Select":
                pairs = call.args[0].elts if call.args and isinstance(call.args[0], ast.List | ast.Tuple) else []
                options = tuple(said(pair.elts[0]) for pair in pairs if isinstance(pair, ast.Tuple) and pair.elts)
                return Element(kind="select", options=options, value=argument(call, "value"))
            case "Button":
                return Element(kind="button", text=text)
            case "Link":
                return Element(kind="link", text=argument(call, "text", 0), target=argument(call, "url") or "#")
            case "ProgressBar":
                updates = self._did.get(f"{name}.update", [])
                percent = whole(option(updates[-1], "progress")) if updates else 0
                return Element(kind="progress", percent=min(max(percent, 0), 100))
            case "DataTable":
                heads = [each.args for each in self._did.get(f"{name}.add_columns", [])]
                rows = [tuple(said(cell) for cell in each.args) for each in self._did.get(f"{name}.add_row", [])]
                return Element(
                    kind="table", head=tuple(said(cell) for cell in (heads[0] if heads else [])), rows=tuple(rows)
                )
            case _:
                return None


def _may_follow_label(statement: ast.stmt) -> bool:
    """Whether a statement shows an input itself, not a box of several things."""
    if isinstance(statement, ast.With):
        call = statement.items[0].context_expr
        return isinstance(call, ast.Call) and _class(call) == "RadioSet"
    return isinstance(statement, ast.Expr)


def _raw(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _class(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _columns(classes: Sequence[str]) -> int:
    found = next((match for each in classes if (match := re.fullmatch(r"grid-(\d{1,2})", each))), None)
    return min(max(int(found[1]), 1), 12) if found else 2


def _text(call: ast.Call, text: str) -> Element:
    classes = argument(call, "classes").split()
    if "image" in classes:
        return Element(kind="image", text=text, source=argument(call, "name"), decorative=not text)
    if "legend" in classes:
        return Element(kind="heading", text=text, level=6)
    level = next((int(match[1]) for each in classes if (match := re.fullmatch(r"heading-([1-6])", each))), 0)
    return Element(kind="heading", text=text, level=level) if level else Element(kind="text", text=text)


def _type(call: ast.Call) -> InputType:
    if is_true(option(call, "password")):
        return "password"
    if argument(call, "type") in {"number", "integer"}:
        return "number"
    named = next((each for each in argument(call, "classes").split() if each in _TYPES), "text")
    return cast("InputType", named)


def _with_label(element: Element, label: str) -> Element:
    is_required = label.endswith("*") and element.kind not in {"progress", "table"}
    return msgspec.structs.replace(element, text=label.rstrip("* ") if is_required else label, required=is_required)
