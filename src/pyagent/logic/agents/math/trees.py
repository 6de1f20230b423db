"""Trees of `grammar` as values of sympy. Runs in the worker process only.

Powers, factorials and sums whose size can be foreseen are refused before they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math.grammar import Node, parse

# sympy's types are too partial to check against: in the files that run in the worker, and only there, it is `Any`
sp: Any = import_module("sympy")
Expr = Any

MAX_RESULT_DIGITS = 100_000
MAX_FACTORIAL = 25_000
MAX_ORDER = 50


def _functions(names: str) -> dict[str, Callable[..., Expr]]:
    return {name: getattr(sp, name) for name in names.split()}


def _log(value: Expr, base: Expr = None) -> Expr:
    return sp.log(value) if base is None else sp.log(value, base)


def _round(value: Expr, num_digits: Expr = 0) -> Expr:
    """Half away from zero, exactly."""
    scale = sp.Integer(10) ** min(_whole(sp.Integer(num_digits)), MAX_ORDER)
    return sp.sign(value) * sp.floor(sp.Abs(value) * scale + sp.Rational(1, 2)) / scale


_OF_ONE: dict[str, Callable[[Expr], Expr]] = {
    "log2": lambda x: sp.log(x, 2),
    "log10": lambda x: sp.log(x, 10),
    "isprime": lambda x: sp.true if sp.isprime(_whole(x)) else sp.false,
    "factorial": lambda x: sp.factorial(_bounded(x)),
    "factorial2": lambda x: sp.factorial2(_bounded(x)),
    "det": lambda m: matrix_of(m).det(),
    "inverse": lambda m: inverse(matrix_of(m)),
    "transpose": lambda m: matrix_of(m).T,
    "rank": lambda m: sp.Integer(matrix_of(m).rank()),
    "trace": lambda m: matrix_of(m).trace(),
    "eigenvalues": lambda m: sp.Matrix(eigenvalues(matrix_of(m))),
}
_PLAIN: dict[str, Callable[..., Expr]] = {
    **_functions("sin cos tan cot sec csc asin acos atan sinh cosh tanh asinh acosh atanh exp sqrt cbrt"),
    **_functions("sign gamma erf zeta re im conjugate arg atan2 binomial root gcd lcm"),
    "ln": sp.log,
    "abs": sp.Abs,
    "floor": sp.floor,
    "ceil": sp.ceiling,
    "mod": sp.Mod,
    "min": sp.Min,
    "max": sp.Max,
    "log": _log,
    "round": _round,
}


def build(node: Node) -> Expr:
    """Return the sympy value of a tree."""
    return _BUILD[node.kind](node)


def _build_sum(node: Node) -> Expr:
    parts = [build(part) for part in node.parts]
    if any(is_matrix(part) for part in parts):
        return _fold(lambda a, b: a + b, parts)
    return sp.Add(*parts)


def _build_product(node: Node) -> Expr:
    parts = [build(part) for part in node.parts]
    if any(is_matrix(part) for part in parts):
        return _fold(lambda a, b: a * b, parts)
    return sp.Mul(*parts)


def _fold(function: Callable[[Expr, Expr], Expr], parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        try:
            result = function(result, part)
        except (TypeError, sp.ShapeError) as error:
            raise RequestError(f"these matrices do not fit each other: {error}", param="expression") from error
    return result


def _build_reciprocal(node: Node) -> Expr:
    value: Expr = build(node.parts[0])
    if not is_matrix(value) and value.is_zero:
        raise RequestError("a division by zero is not defined", param="expression")
    return inverse(value) if is_matrix(value) else 1 / value


def _build_power(node: Node) -> Expr:
    base, exponent = (build(part) for part in node.parts)
    if is_matrix(base):
        return inverse(base) ** -exponent if exponent.is_negative else base**exponent
    _check_power(base, exponent)
    return sp.Pow(base, exponent)


def _check_power(base: Expr, exponent: Expr) -> None:
    if not (exponent.is_Rational and base.is_Rational) or base in (0, 1, -1):
        return
    size = max(abs(base.p), base.q)
    num_digits = abs(exponent.p) / exponent.q * math.log10(size) if exponent.p.bit_length() < 60 else math.inf
    if num_digits > MAX_RESULT_DIGITS:
        raise RequestError(f"the power would have more than {MAX_RESULT_DIGITS:,} digits", param="expression")


def _build_mod(node: Node) -> Expr:
    """`a mod n`: with whole numbers a power is never written out, and a negative one is the inverse modulo n."""
    left, right = node.parts
    modulus: Expr = build(right)
    if modulus.is_zero:
        raise RequestError("the remainder of a division by zero is not defined", param="expression")
    if left.kind == "^":
        base, exponent = (build(part) for part in left.parts)
        if base.is_Integer and exponent.is_Integer and modulus.is_Integer:
            return _power_mod(int(base), int(exponent), int(modulus))
    value: Expr = build(left)
    is_fraction = value.is_Rational and not value.is_Integer and modulus.is_Integer
    if is_fraction and node.kind == "mod" and "." not in _numerals(left):
        if left.kind == "*" and any(part.kind == "^" for part in left.parts):
            return sp.Mod(value.p * _power_mod(value.q, -1, int(modulus)), modulus)
        raise RequestError("a fraction mod n: write 7*2^-1 mod 3 in whole numbers, 7/2 % 3 in fractions", param="text")
    return sp.Mod(value, modulus)


def _power_mod(base: int, exponent: int, modulus: int) -> Expr:
    try:
        return sp.Integer(pow(base, exponent, modulus))
    except ValueError as error:
        raise RequestError(f"{base} has no inverse modulo {modulus}", param="expression") from error


def _numerals(node: Node) -> str:
    """Return the numbers in a tree, as they were written."""
    return node.text + " ".join(_numerals(part) for part in node.parts)


def _build_call(node: Node) -> Expr:
    if node.text in {"sum", "product"}:
        return _build_range(node)
    values = [build(part) for part in node.parts]
    if node.text in _OF_ONE:
        return _OF_ONE[node.text](values[0])
    if node.text == "binomial" and values[0].is_Integer and abs(values[0]) > MAX_RESULT_DIGITS:
        raise RequestError(f"binomial takes numbers up to {MAX_RESULT_DIGITS:,}", param="expression")
    return _PLAIN[node.text](*values)


def _build_range(node: Node) -> Expr:
    body, variable, low, high = node.parts
    if variable.kind != "symbol":
        raise RequestError(f"{node.text} runs over a letter: {node.text}(k^2, k, 1, 10)", param="expression")
    bounds = (sp.Symbol(variable.text), build(low), build(high))
    if (
        node.text == "product"
        and bounds[1].is_Integer
        and bounds[2].is_Integer
        and bounds[2] - bounds[1] > MAX_FACTORIAL
    ):
        raise RequestError(f"a product has at most {MAX_FACTORIAL:,} factors", param="expression")
    return (sp.summation if node.text == "sum" else sp.product)(build(body), bounds)


def _bounded(value: Expr) -> Expr:
    if value.is_number and value > MAX_FACTORIAL:
        raise RequestError(f"factorials go up to {MAX_FACTORIAL:,}!", param="expression")
    return value


def _whole(value: Expr) -> int:
    if not value.is_Integer:
        raise RequestError(f"expected a whole number, got {value}", param="expression")
    return int(value)


_BUILD: dict[str, Callable[[Node], Expr]] = {
    "number": lambda node: sp.Rational(node.text),
    "constant": lambda node: getattr(sp, node.text),
    "symbol": lambda node: sp.Symbol(node.text),
    "matrix": lambda node: sp.Matrix(
        len(node.parts) // node.num_columns, node.num_columns, [build(part) for part in node.parts]
    ),
    "+": _build_sum,
    "*": _build_product,
    "%": _build_mod,
    "mod": _build_mod,
    "^": _build_power,
    "negative": lambda node: -build(node.parts[0]),
    "reciprocal": _build_reciprocal,
    "call": _build_call,
}


def expression_of(text: str) -> Expr:
    """Return the value of a text that is no equation."""
    node = parse(text)
    if node.kind == "=":
        raise RequestError(f"expected an expression, got the equation {text!r}", param="expression")
    return build(node)


def as_zero(node: Node) -> Expr:
    """Return what is zero when the equation holds."""
    if node.kind == "=":
        left, right = (build(part) for part in node.parts)
        return left - right
    return build(node)


def is_zero(value: Expr) -> bool:
    """Whether a value is zero for all its unknowns; raises `RequestError` where that is not known."""
    if sp.simplify(value) == 0:
        return True
    known: bool | None = value.equals(0)
    if known is None:
        raise RequestError("whether both sides are equal is not known here", param="expression")
    return known


def variable_of(value: Expr, name: str | None) -> Expr:
    """Return the variable named, or the only one; x among several."""
    if name is not None:
        node = parse(name)
        if node.kind != "symbol":
            raise RequestError(f"{name!r} is not a variable", param="variable")
        return sp.Symbol(node.text)
    names = sorted(symbol.name for symbol in value.free_symbols)
    if len(names) > 1 and "x" not in names:
        raise RequestError(f"which variable: {', '.join(names)}?", param="variable")
    return sp.Symbol("x" if not names or "x" in names else names[0])


# -- matrices ---------------------------------------------------------------------------------------------------------


def is_matrix(value: Expr) -> bool:
    """Whether it is a matrix."""
    return isinstance(value, sp.MatrixBase)


def matrix_of(value: Expr) -> Expr:
    """Return the value, which has to be a matrix."""
    if not is_matrix(value):
        raise RequestError("expected a matrix such as [[1, 2], [3, 4]]", param="expression")
    return value


def inverse(matrix: Expr) -> Expr:
    """Return the inverse of a square matrix that has one."""
    if matrix.rows != matrix.cols:
        raise not_square(matrix)
    if matrix.det() == 0:
        raise RequestError("the matrix has no inverse: its determinant is 0", param="expression")
    return matrix.inv()


def eigenvalues(matrix: Expr) -> list[Expr]:
    """Return the eigenvalues, each as often as it counts."""
    if matrix.rows != matrix.cols:
        raise not_square(matrix)
    return [sp.simplify(value) for value, count in matrix.eigenvals().items() for _ in range(count)]


def not_square(matrix: Expr) -> RequestError:
    """Return the refusal of a matrix whose width is not its height."""
    return RequestError(f"expected a square matrix, got {matrix.rows} by {matrix.cols}", param="expression")
