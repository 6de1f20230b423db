"""Which characters may begin, continue and extend the texts of a grammar's parts. Pure.

Sets of characters are integers: the grammar's own ranges and letters divide all characters into classes that it cannot
tell apart, and each has a bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pyagent.core.errors import RequestError
from pyagent.core.structured_output.nodes import (
    Chars,
    Either,
    Node,
    Ref,
    Repeat,
    Sequence,
    Text,
    Token,
    nodes_in,
    refs,
)

_MAX_CLASSES = 2048


class Summary(NamedTuple):
    """The characters of a regular node's texts: at the beginning, after it, and after which it is not yet at its end.

    `ext` are those by which a whole text of it may go on to a longer one; it may have too many, never too few.
    """

    is_empty: bool
    first: int
    inner: int
    ext: int


EMPTY = Summary(is_empty=True, first=0, inner=0, ext=0)
"""Of the empty text."""


def too_complex(why: str) -> RequestError:
    """Return the error for a grammar that would take too long."""
    return RequestError(f"response_format.grammar is too complex: {why}", param="response_format.grammar")


class Characters:
    """The classes of a grammar, and what of it is regular: the rules that never lead to themselves."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        points = {point for body in rules.values() for point in _points(body)}
        if len(points) > _MAX_CLASSES:
            raise too_complex(f"it tells more than {_MAX_CLASSES} characters apart")
        self._points = sorted(points | {0})
        self.all = (1 << len(self._points)) - 1
        self._summaries = dict[str, Summary]()
        self._node_summaries = dict[Node, Summary]()
        self._regular_nodes = dict[Node, bool]()
        self.regular = self._regular()

    def is_regular(self, node: Node) -> bool:
        """Whether one terminal can describe it."""
        found = self._regular_nodes.get(node)
        if found is None:
            is_known = all(name in self.regular for name in refs(node))
            found = self._regular_nodes[node] = is_known and not _has_token(node)
        return found

    def summary(self, node: Node) -> Summary:
        """Return the characters of a regular node."""
        found = self._node_summaries.get(node)
        if found is None:
            found = self._node_summaries[node] = self._summed(node)
        return found

    def _regular(self) -> dict[str, None]:
        """Return the names of the rules that are regular, each after those that it refers to."""
        users, num_left = dict[str, list[str]](), dict[str, int]()
        for name, body in self._rules.items():
            called = {*refs(body)}
            num_left[name] = len(called) + _has_token(body)
            for other in called:
                users.setdefault(other, []).append(name)
        ready = [name for name, number in num_left.items() if not number]
        for name in ready:
            for user in users.get(name, ()):
                num_left[user] -= 1
                if not num_left[user]:
                    ready.append(user)
            self._summaries[name] = self.summary(self._rules[name])
        return dict.fromkeys(ready)

    def _summed(self, node: Node) -> Summary:
        match node:
            case Text(text):
                sets = [self._set(ord(letter), ord(letter)) for letter in text]
                return Summary(is_empty=False, first=sets[0], inner=_union(sets[1:]), ext=0) if sets else EMPTY
            case Chars(ranges, is_negated):
                found = _union(self._set(low, high) for low, high in ranges)
                return Summary(is_empty=False, first=self.all & ~found if is_negated else found, inner=0, ext=0)
            case Ref(name):
                return self._summaries[name]
            case Sequence(items):
                summed = EMPTY
                for item in items:
                    summed = _joined(summed, self.summary(item))
                return summed
            case Either(items):
                summed = self.summary(items[0])
                for item in items[1:]:
                    summed = _either(summed, self.summary(item))
                return summed
            case Repeat(item, least, most):
                return _repeated(self.summary(item), least, most)
            case Token():
                raise AssertionError("a token is not regular")

    def _set(self, low: int, high: int) -> int:
        begin, end = bisect_right(self._points, low) - 1, bisect_right(self._points, high)
        return (1 << end) - (1 << begin)


def _joined(one: Summary, other: Summary) -> Summary:
    """Return the summary of one after the other.

    Where the first could go on by what begins the second, a text can be divided in two ways: any character within may
    extend it then.
    """
    first = one.first | (other.first if one.is_empty else 0)
    inner = one.inner | other.inner | (other.first if one.first else 0)
    ext = other.ext | (one.ext | other.first if other.is_empty else 0)
    if one.ext & other.first:
        ext |= inner | one.ext
    return Summary(one.is_empty and other.is_empty, first, inner, ext)


def _either(one: Summary, other: Summary) -> Summary:
    ext = one.ext | other.ext
    if one.first & other.first:
        ext |= one.inner | other.inner
    ext |= (other.first if one.is_empty else 0) | (one.first if other.is_empty else 0)
    return Summary(one.is_empty or other.is_empty, one.first | other.first, one.inner | other.inner, ext)


def _repeated(one: Summary, least: int, most: int | None) -> Summary:
    if most == 0:
        return EMPTY
    inner = one.inner | (one.first if most != 1 else 0)
    ext = one.ext | (one.first if most != least or one.is_empty else 0)
    if one.ext & one.first:
        ext |= inner
    return Summary(one.is_empty or not least, one.first, inner, ext)


def _union(sets: Iterator[int] | list[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _points(body: Node) -> Iterator[int]:
    """Yield where the characters that a node tells apart begin."""
    for node in nodes_in(body):
        if isinstance(node, Text):
            yield from (point for letter in set(node.text) for point in (ord(letter), ord(letter) + 1))
        elif isinstance(node, Chars):
            yield from (point for low, high in node.ranges for point in (low, high + 1))


def _has_token(node: Node) -> bool:
    return any(isinstance(one, Token) for one in nodes_in(node))
