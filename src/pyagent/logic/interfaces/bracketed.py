"""Code of nested brackets, printed on one line where it fits, else with an item a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_WIDTH = 110


class Group(NamedTuple):
    """A bracket: how it opens, the items within it, how it closes."""

    opening: str
    items: Sequence[Code]
    closing: str = ")"


Code = str | Group


def after(prefix: str, code: Code) -> Code:
    """Return code with something before it: `child: Text(...)`."""
    return prefix + code if isinstance(code, str) else code._replace(opening=prefix + code.opening)


def printed(code: Code, depth: int, end: str = "") -> str:
    """Return code as lines that are indented by two spaces for each of `depth`, but for the first."""
    flat = one_line(code)
    if isinstance(code, str) or len(flat) + 2 * depth + len(end) <= _WIDTH:
        return flat + end
    inner = "".join(f"{'  ' * (depth + 1)}{printed(item, depth + 1, ',')}\n" for item in code.items)
    return f"{code.opening}\n{inner}{'  ' * depth}{code.closing}{end}"


def one_line(code: Code) -> str:
    """Return code on one line."""
    if isinstance(code, str):
        return code
    return f"{code.opening}{', '.join(one_line(item) for item in code.items)}{code.closing}"
