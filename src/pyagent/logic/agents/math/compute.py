"""Computes actions with sympy. Runs in the worker process only, which may be killed at any moment.

What it costs beyond what `trees` foresees is bounded by the worker's time and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math import actions as act
from pyagent.logic.agents.math.equations import solve
from pyagent.logic.agents.math.grammar import Node, parse
from pyagent.logic.agents.math.showing import has_numeric_roots, is_plain, listed, number, solved, text_of
from pyagent.logic.agents.math.trees import (
    MAX_ORDER,
    Expr,
    build,
    eigenvalues,
    expression_of,
    inverse,
    is_matrix,
    is_zero,
    matrix_of,
    not_square,
    sp,
    variable_of,
)

_OF_ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")


def compute(action: act.Action) -> act.Solved:
    """Return the answer to an action. Raises `RequestError` for what has none, and whatever sympy raises."""
    return _COMPUTE[type(action)](action)


def _evaluate(action: act.Evaluate) -> act.Solved:
    node = parse(action.expression)
    if node.kind == "=":
        if node.symbols():
            return solve(act.Solve(equations=[action.expression]))
        left, right = (build(part) for part in node.parts)
        return act.Solved(action.expression, "true" if is_zero(left - right) else "false")
    value = build(node)
    return solved(
        action.expression, value if is_matrix(value) or value.free_symbols else _neat(value), _conventions(node)
    )


def _conventions(node: Node) -> str:
    """Return what is to be known of functions that people use in two ways."""
    notes: list[str] = []
    if node.calls("log", num_arguments=1):
        notes.append("log is the natural logarithm; log10 is to base 10")
    if any(node.calls(name) for name in _OF_ANGLES) and not (node.has_constant("pi") or node.symbols()):
        notes.append("angles are in radians; write 30° for degrees")
    return "; ".join(notes)


def _neat(value: Expr) -> Expr:
    """Return the shorter of a constant and its simplified form."""
    if value.is_Rational or value.is_Boolean or value.is_Float or not value.is_finite:
        return value
    simpler = sp.simplify(value)
    return simpler if sp.count_ops(simpler) < sp.count_ops(value) else value


def _factor(action: act.Factor) -> act.Solved:
    value = expression_of(action.expression)
    if value.is_Integer:
        factors = sp.factorint(int(value))
        text = " * ".join(f"{prime}^{power}" if power > 1 else f"{prime}" for prime, power in factors.items())
        return act.Solved(action.expression, text or str(value))
    return solved(action.expression, sp.factor(value))


def _differentiate(action: act.Differentiate) -> act.Solved:
    value = expression_of(action.expression)
    variable = variable_of(value, action.variable)
    if not 0 <= action.order <= MAX_ORDER:
        raise RequestError(f"the order goes from 0 to {MAX_ORDER}, got {action.order}", param="order")
    times = "" if action.order == 1 else f"^{action.order}"
    question = f"d{times}/d{variable}{times} ({action.expression})"
    return solved(question, sp.simplify(sp.diff(value, variable, action.order)))


def _integrate(action: act.Integrate) -> act.Solved:
    value = expression_of(action.expression)
    variable = variable_of(value, action.variable)
    if (action.lower is None) != (action.upper is None):
        raise RequestError("an integral has both bounds or none", param="lower" if action.upper else "upper")
    if action.lower is None or action.upper is None:
        limits, bounds = variable, ""
    else:
        limits = (variable, expression_of(action.lower), expression_of(action.upper))
        bounds = f" from {action.lower} to {action.upper}"
    result = sp.integrate(value, limits)
    question = f"integral of ({action.expression}) d{variable}{bounds}"
    if result.has(sp.Integral, sp.RootSum):
        if result.free_symbols or not bounds or result.has(sp.floor, sp.ceiling, sp.Mod, sp.sign):
            raise RequestError(f"the {question} has no closed form known here", param="expression")
        return act.Solved(question, number(result), is_exact=False, note="numeric: no closed form known here")
    return solved(question, sp.simplify(result), note="" if bounds else "plus a constant")


def _limit(action: act.Limit) -> act.Solved:
    value = expression_of(action.expression)
    variable = variable_of(value, action.variable)
    side = {"both": "+-", "left": "-", "right": "+"}[action.side]
    point = expression_of(action.point)
    try:
        result = sp.limit(value, variable, point, "-" if point == sp.oo else "+" if point == -sp.oo else side)
    except ValueError as error:
        raise RequestError(f"the limit does not exist: {error}", param="expression") from error
    side = "" if action.side == "both" else f" from the {action.side}"
    question = f"limit of ({action.expression}) as {variable} goes to {action.point}{side}"
    if result is sp.zoo:
        raise RequestError(f"the {question} does not exist", param="expression")
    return solved(question, result)


def _series(action: act.Series) -> act.Solved:
    value = expression_of(action.expression)
    if not 1 <= action.order <= MAX_ORDER:
        raise RequestError(f"the order goes from 1 to {MAX_ORDER}, got {action.order}", param="order")
    variable = variable_of(value, action.variable)
    result = sp.series(value, variable, expression_of(action.point), action.order)
    return solved(f"series of ({action.expression}) at {variable} = {action.point}", result)


def _matrix_action(action: act.Matrix) -> act.Solved:
    matrix = matrix_of(build(parse(action.expression)))
    question = f"{action.operation} of {action.expression}"
    if action.operation == "eigenvalues":
        values = eigenvalues(matrix)
        if any(has_numeric_roots(value) for value in values):
            note = "numeric: no form in radicals"
            return act.Solved(question, listed(values, number), is_exact=False, note=note)
        are_plain = all(is_plain(value) for value in values)
        return act.Solved(question, listed(values, text_of), None if are_plain else listed(values, number))
    operations: dict[str, Callable[[Expr], Expr]] = {
        "determinant": lambda m: sp.simplify(m.det()),
        "inverse": inverse,
        "rank": lambda m: sp.Integer(m.rank()),
        "transpose": lambda m: m.T,
        "trace": lambda m: m.trace(),
    }
    try:
        return solved(question, operations[action.operation](matrix))
    except sp.matrices.exceptions.NonSquareMatrixError as error:
        raise not_square(matrix) from error


_COMPUTE: dict[type, Callable[[Any], act.Solved]] = {
    act.Evaluate: _evaluate,
    act.Simplify: lambda action: solved(action.expression, sp.simplify(expression_of(action.expression))),
    act.Expand: lambda action: solved(action.expression, sp.expand(expression_of(action.expression))),
    act.Factor: _factor,
    act.Differentiate: _differentiate,
    act.Integrate: _integrate,
    act.Limit: _limit,
    act.Series: _series,
    act.Solve: solve,
    act.Matrix: _matrix_action,
}
