"""A tree of elements as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from pyagent.core.one_line import printable
from pyagent.logic.interfaces.elements import Element

_MAX_SHOWN = 80


def outline(page: Element) -> str:
    """Return a page as a line for each element, indented by what it is in."""
    return "\n".join(_lines(page, 0))


def _lines(element: Element, depth: int) -> Iterator[str]:
    words: list[str] = [element.kind]
    if element.level:
        words.append(str(element.level))
    if element.kind == "input":
        words.append(element.type)
    if element.text:
        words.append(repr(printable(element.label[:_MAX_SHOWN])))
    if element.options:
        words.append(f"({', '.join(printable(option[:30]) for option in element.options[:8])})")
    if element.head:
        words.append(f"[{' | '.join(printable(cell[:30]) for cell in element.head[:8])}], {len(element.rows)} rows")
    words += [f"-> {printable(element.target[:_MAX_SHOWN])}"] if element.target else []
    words += [f"#{element.id}"] if element.id else []
    words += [f"line {element.line}"] if element.line else []
    yield f"{'  ' * depth}{' '.join(words)}"
    for child in element.children:
        yield from _lines(child, depth + 1)
