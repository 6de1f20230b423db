"""Plain arithmetic, exact and at once: what needs neither sympy nor a process to bound it.

Whole numbers, decimals, the four operations and whole powers, as long as every number on the way stays small.
"""

from __future__ import annotations

from fractions import Fraction

from pyagent.logic.agents.math.actions import Action, Evaluate, Solved
from pyagent.logic.agents.math.grammar import Node, parse

_MAX_BITS = 1_000


def solved_at_once(action: Action) -> Solved | None:
    """Return what sympy would answer; None for all that is more than plain arithmetic, or not defined.

    Raises `RequestError` where the expression cannot be read.
    """
    if not isinstance(action, Evaluate) or (value := _value(parse(action.expression))) is None:
        return None
    approximate = None if value.denominator == 1 else f"{float(value):.6g}"
    return Solved(action.expression, str(value), approximate)


def _value(node: Node) -> Fraction | None:
    if node.kind == "number":
        return _small(Fraction(node.text)) if node.text.replace(".", "").isdigit() else None
    if node.kind not in {"+", "*", "^", "negative", "reciprocal"}:
        return None
    values: list[Fraction] = []
    for part in node.parts:
        if (value := _value(part)) is None:
            return None
        values.append(value)
    return _combined(node.kind, values)


def _combined(kind: str, values: list[Fraction]) -> Fraction | None:
    result = values[0]
    if kind == "negative":
        return -result
    if kind == "reciprocal":
        return 1 / result if result else None
    if kind == "^":
        return _power(result, values[1])
    for value in values[1:]:
        combined = _small(result + value if kind == "+" else result * value)
        if combined is None:
            return None
        result = combined
    return result


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1 or (not base and exponent < 0):
        return None
    if abs(exponent) * _bits(base) > _MAX_BITS:
        return None
    power = base ** int(exponent)
    assert isinstance(power, Fraction)
    return power


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _small(value: Fraction) -> Fraction | None:
    return value if _bits(value) <= _MAX_BITS else None
