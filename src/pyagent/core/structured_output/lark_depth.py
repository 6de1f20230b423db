"""How deep the rules of a Lark grammar lead into one another: llguidance follows them by calls, on a stack that ends.

A chain of 3,500 rules, or of 400 with twenty parentheses each, ends the process. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyagent.core.errors import RequestError
from pyagent.core.structured_output.lark_parts import parts_in, rule_name

_MAX_DEPTH = 1000
"""References and parentheses on the way: a third of what a stack of 8 MB takes."""


def check_depth(lark: str) -> None:
    """Raise `RequestError` for a grammar whose rules lead too deep."""
    bodies, weights = _rules(lark)
    if sum(weights.values()) <= _MAX_DEPTH:
        return
    done = set[str]()
    for start in bodies:
        depth, left = 0, [(start, True)]
        while left:
            name, is_entered = left.pop()
            if not is_entered:
                depth -= weights[name]
            elif name not in done and name in bodies:
                done.add(name)
                depth += weights[name]
                if depth > _MAX_DEPTH:
                    text = f"its rules lead more than {_MAX_DEPTH} deep into one another; simplify them"
                    raise RequestError(f"response_format.grammar: {text}", param="response_format.grammar")
                left.append((name, False))
                left += [(other, True) for other in reversed(bodies[name])]


def _rules(lark: str) -> tuple[Mapping[str, list[str]], Mapping[str, int]]:
    """Return the names in each rule, `start` first, and how much of a stack each rule takes."""
    bodies, weights = {"start": list[str]()}, {"start": 1}
    rule, depth = "start", 0
    for part, _ in parts_in(lark):
        if part["head"]:
            rule, depth = rule_name(part), 0
            bodies.setdefault(rule, [])
            weights.setdefault(rule, 1)
        elif part["name"]:
            bodies[rule].append(part["name"])
        elif part["open"] or part["nested"]:
            depth += 1
            weights[rule] = max(weights[rule], 1 + depth)
        elif part["close"] or part["end"]:
            depth -= 1
    return bodies, weights
