"""The parts of a grammar of characters, as values, and the walk through them. Pure; `gbnf.py` reads them from text.

Two parts that look alike are two: each stands in a place of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of some ranges of code points, or of all others."""

    ranges: tuple[tuple[int, int], ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token of the model's by its id or its name, or any other token."""

    id: int | None
    name: str
    is_negated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """What a rule says."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One after another; of none, the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    """One of several."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """So many of one after another; without an end where `most` is None."""

    item: Node
    least: int
    most: int | None


Node = Text | Chars | Token | Ref | Sequence | Either | Repeat


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node is put together from."""
    match node:
        case Sequence(items) | Either(items):
            return items
        case Repeat(item, _, _):
            return (item,)
        case _:
            return ()


def nodes_in(node: Node) -> Iterator[Node]:
    """Yield a node and all that are within it."""
    left = [node]
    while left:
        yield (found := left.pop())
        left += parts_of(found)


def refs(node: Node) -> Iterator[str]:
    """Yield the names that a node refers to."""
    return (one.name for one in nodes_in(node) if isinstance(one, Ref))
