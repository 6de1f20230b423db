"""How often repetitions within repetitions of a Lark grammar repeat what is innermost. Pure.

llguidance takes a terminal's body for one regex, the terminals that it names included: a thousandfold of a thousandfold
is a million states, of which it tires after a second. Of a rule's repetitions it tires in the middle of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pyagent.core.structured_output.lark_parts import is_terminal, num_repeated, parts_in, rule_name

_MOST = 10**9
_Body = list[str | int | tuple[int, int]]
"""What a rule consists of: `(`, `)`, names, regexes by what `counted` says of them, and how often what is before is
repeated."""


@dataclass(slots=True)
class _Grammar:
    """One grammar's bodies by their names."""

    bodies: dict[str, _Body] = field(default_factory=dict[str, _Body])
    body: _Body = field(default_factory=_Body)


def repeated_in_lark(lark: str, counted: Callable[[str], tuple[int, int]]) -> tuple[int, int]:
    """Return how often nested repetitions repeat what is innermost: the most in a terminal, and in a rule.

    `counted` says of a regex how often it repeats what is innermost, and that where repetitions are nested in it.
    """
    counts = [count for grammar in _grammars(lark, counted) for count in _counts(grammar)]
    return max((most for most, _ in counts), default=1), max((most for _, most in counts), default=1)


def regexes_in(lark: str) -> Iterator[str]:
    """Yield the regular expressions of a grammar."""
    return (part["regex"] for part, _ in parts_in(lark) if part["regex"])


def _grammars(lark: str, counted: Callable[[str], tuple[int, int]]) -> list[_Grammar]:
    """Return the grammar, and those nested in it, whose names are their own."""
    open_ones, found = [_Grammar()], list[_Grammar]()
    for part, _ in parts_in(lark):
        grammar = open_ones[-1]
        if part["nested"]:
            open_ones.append(_Grammar())
        elif part["end"] and len(open_ones) > 1:
            found.append(open_ones.pop())
        elif part["head"]:
            grammar.body = grammar.bodies.setdefault(rule_name(part), [])
        elif part["open"] != "~":
            grammar.body.append(_item(part, counted))
    return [*found, *open_ones]


def _item(part: re.Match[str], counted: Callable[[str], tuple[int, int]]) -> str | int | tuple[int, int]:
    if part["repeat"]:
        return num_repeated(part)
    if part["regex"]:
        return counted(part["regex"])
    return "(" if part["open"] else ")" if part["close"] else part["name"] or ""


def _counts(grammar: _Grammar) -> Iterator[tuple[int, int]]:
    """Yield the most of each terminal, with what it names, and of each rule, to which its terminals are one."""
    weights = dict[str, int]()
    for start, body in grammar.bodies.items():
        left = [(start, False)] if is_terminal(start) else []
        while left:  # what is named first; of names that lead back, one turn counts
            name, is_ready = left.pop()
            if is_ready:
                weights[name], most = _weighed(grammar.bodies[name], weights)
                yield most, 1
            elif name not in weights:
                weights[name] = 1
                named = (part for part in grammar.bodies[name] if isinstance(part, str) and part in grammar.bodies)
                left += [(name, True), *((part, False) for part in named)]
        if not is_terminal(start):
            yield 1, _weighed([part for part in body if not isinstance(part, tuple)], {})[1]


def _weighed(body: _Body, weights: Mapping[str, int]) -> tuple[int, int]:
    """Return how often a body repeats what is innermost in it, and that where a repetition is within another."""
    groups, last, most = [1], 1, 1  # `last`: repetitions within what a quantifier here would repeat
    for part in body:
        if isinstance(part, int):
            most = max(most, last * part if last > 1 else 1)
            last = min(last * max(1, part), _MOST)
        elif part == "(":
            groups.append(1)
            last = 1
            continue
        elif part == ")":
            last = groups.pop() if len(groups) > 1 else last
        else:
            last, inner = part if isinstance(part, tuple) else (weights.get(part, 1), 1)
            most = max(most, inner)
        groups[-1] = max(groups[-1], last)
    return max(groups), most
