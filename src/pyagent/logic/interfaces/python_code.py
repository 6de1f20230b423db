"""What writers and readers of Python share: lines with their indentation, and calls read by `ast` in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.elements import Element
from pyagent.logic.interfaces.mending import clean


class Code:
    """Lines of Python as they are written, and names for variables that have no id."""

    def __init__(self, depth: int) -> None:
        self.lines: list[str] = []
        self.depth = depth
        self._counts: dict[str, int] = {}

    def add(self, line: str) -> None:
        """Write a line at the current depth."""
        self.lines.append(f"{'    ' * self.depth}{line}" if line else "")

    def name(self, element: Element, kind: str) -> str:
        """Return the name of a variable: of the id with the kind behind it, which no keyword and no other name has."""
        if element.id:
            return f"{element.id}_{kind}"
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}{self._counts[kind]}"


class Called(NamedTuple):
    """A call as a statement has it: what it is assigned to, if anything, and whose method it is, if one's."""

    target: str
    owner: str
    name: str
    call: ast.Call


def parse_python(text: str) -> ast.Module:
    """Return a module's tree; raises `RequestError` naming the line that is no Python."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise RequestError(f"line {error.lineno}: this is not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RequestError(f"this is not Python that can be read: {error or 'it nests too deep'}") from error


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of all blocks within it, in their order."""
    left = [*reversed(body)]
    while left:
        statement = left.pop()
        yield statement
        inner: list[ast.stmt] = []
        for field in ("body", "handlers", "orelse", "finalbody"):
            for one in getattr(statement, field, []):
                inner += one.body if isinstance(one, ast.ExceptHandler) else [one]
        left.extend(reversed(inner))


def calls(body: list[ast.stmt]) -> Iterator[Called]:
    """Yield the calls that statements are: `x = f()`, `x.f()`, and `f().g()` as both of its calls."""
    for statement in statements(body):
        match statement:
            case ast.Assign(targets=[target], value=ast.Call() as call):
                yield from _chain(ast.unparse(target), call)
            case ast.AnnAssign(target=target, value=ast.Call() as call):
                yield from _chain(ast.unparse(target), call)
            case ast.Expr(value=ast.Call() as call):
                yield from _chain("", call)
            case _:
                pass


def _chain(target: str, call: ast.Call) -> Iterator[Called]:
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
        made = f"(line {call.lineno}, column {call.col_offset})"
        yield from _chain(made, function.value)
        yield Called(target, made, function.attr, call)
    elif isinstance(function, ast.Attribute):
        yield Called(target, ast.unparse(function.value), function.attr, call)
    elif isinstance(function, ast.Name):
        yield Called(target, "", function.id, call)


def option(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call's keyword is given."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def said(node: ast.expr | None) -> str:
    """Return a text that stands in code; for one that is computed its source in braces, for none nothing."""
    match node:
        case None:
            return ""
        case ast.Constant(value=str() as text):
            return clean(text)
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return str(number)
        case ast.Call(func=ast.Name(id="Content" | "Text"), args=[first, *_]):
            return said(first)
        case _:
            return clean(f"{{{ast.unparse(node)}}}")


def argument(call: ast.Call, name: str, place: int = -1) -> str:
    """Return a call's keyword as a text, or its argument at a place."""
    node = option(call, name)
    if node is None and 0 <= place < len(call.args):
        node = call.args[place]
    return said(node)


def is_true(node: ast.expr | None) -> bool:
    """Whether a node is the constant True."""
    return isinstance(node, ast.Constant) and node.value is True


def items(node: ast.expr | None) -> tuple[str, ...]:
    """Return the texts of a list or tuple that stands in code."""
    return tuple(said(each) for each in node.elts) if isinstance(node, ast.List | ast.Tuple) else ()


def whole(node: ast.expr | None) -> int:
    """Return a whole number that stands in code; 0 for anything else."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else 0
