"""Computes actions with sympy. Runs in the worker process only, which may be killed at any moment.

Takes trees of `grammar`, never text. Powers, factorials and sums whose size can be foreseen are refused before they are
computed; the rest is bounded by the worker's time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math import actions as act
from pyagent.logic.agents.math.grammar import Node, parse

# sympy's types are too partial to check against: its values are `Any` in this file, and in this file only.
sp: Any = import_module("sympy")
Expr = Any

MAX_RESULT_DIGITS = 100_000
MAX_FACTORIAL = 25_000
MAX_RANGE = 1_000_000
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
    "det": lambda m: _matrix(m).det(),
    "inverse": lambda m: _inverse(_matrix(m)),
    "transpose": lambda m: _matrix(m).T,
    "rank": lambda m: sp.Integer(_matrix(m).rank()),
    "trace": lambda m: _matrix(m).trace(),
    "eigenvalues": lambda m: sp.Matrix(_eigenvalues(_matrix(m))),
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


def compute(action: act.Action) -> act.Solved:
    """The answer to an action. Raises `RequestError` for what has none, and whatever sympy raises."""
    return _COMPUTE[type(action)](action)


# -- trees to sympy ---------------------------------------------------------------------------------------------------


def build(node: Node) -> Expr:
    """The sympy value of a tree."""
    return _BUILD[node.kind](node)


def _build_sum(node: Node) -> Expr:
    parts = [build(part) for part in node.parts]
    if any(_is_matrix(part) for part in parts):
        return _fold(lambda a, b: a + b, parts)
    return sp.Add(*parts)


def _build_product(node: Node) -> Expr:
    parts = [build(part) for part in node.parts]
    if any(_is_matrix(part) for part in parts):
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


def _build_power(node: Node) -> Expr:
    base, exponent = (build(part) for part in node.parts)
    if _is_matrix(base):
        return _inverse(base) ** -exponent if exponent.is_negative else base**exponent
    _check_power(base, exponent)
    return sp.Pow(base, exponent)


def _check_power(base: Expr, exponent: Expr) -> None:
    if not (exponent.is_Rational and base.is_Rational) or base in (0, 1, -1):
        return
    size = max(abs(base.p), base.q)
    num_digits = abs(exponent.p) / exponent.q * math.log10(size) if exponent.p.bit_length() < 60 else math.inf
    if num_digits > MAX_RESULT_DIGITS:
        raise RequestError(f"the power would have more than {MAX_RESULT_DIGITS:,} digits", param="expression")


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
    "%": lambda node: sp.Mod(*(build(part) for part in node.parts)),
    "^": _build_power,
    "negative": lambda node: -build(node.parts[0]),
    "reciprocal": lambda node: _inverse(value) if _is_matrix(value := build(node.parts[0])) else 1 / value,
    "call": _build_call,
}


# -- the actions ------------------------------------------------------------------------------------------------------


def _evaluate(action: act.Evaluate) -> act.Solved:
    node = parse(action.expression)
    if node.kind == "=":
        if node.symbols():
            return _solve(act.Solve(equations=[action.expression]))
        left, right = (build(part) for part in node.parts)
        return act.Solved(action.expression, "true" if sp.simplify(left - right) == 0 else "false")
    value = build(node)
    return _solved(action.expression, value if _is_matrix(value) or value.free_symbols else _neat(value))


def _neat(value: Expr) -> Expr:
    """The shorter of a constant and its simplified form."""
    if value.is_Rational or value.is_Boolean or not value.is_finite:
        return value
    simpler = sp.nsimplify(value) if value.is_Float else sp.simplify(value)
    return simpler if sp.count_ops(simpler) < sp.count_ops(value) else value


def _factor(action: act.Factor) -> act.Solved:
    value = _expression(action.expression)
    if value.is_Integer:
        factors = sp.factorint(int(value))
        text = " * ".join(f"{prime}^{power}" if power > 1 else f"{prime}" for prime, power in factors.items())
        return act.Solved(action.expression, text or str(value))
    return _solved(action.expression, sp.factor(value))


def _differentiate(action: act.Differentiate) -> act.Solved:
    value = _expression(action.expression)
    variable = _variable(value, action.variable)
    if not 0 <= action.order <= MAX_ORDER:
        raise RequestError(f"the order goes from 0 to {MAX_ORDER}, got {action.order}", param="order")
    times = "" if action.order == 1 else f"^{action.order}"
    question = f"d{times}/d{variable}{times} ({action.expression})"
    return _solved(question, sp.simplify(sp.diff(value, variable, action.order)))


def _integrate(action: act.Integrate) -> act.Solved:
    value = _expression(action.expression)
    variable = _variable(value, action.variable)
    if (action.lower is None) != (action.upper is None):
        raise RequestError("an integral has both bounds or none", param="lower" if action.upper else "upper")
    if action.lower is None or action.upper is None:
        result, bounds = sp.integrate(value, variable), ""
    else:
        result = sp.integrate(value, (variable, _expression(action.lower), _expression(action.upper)))
        bounds = f" from {action.lower} to {action.upper}"
    question = f"integral of ({action.expression}) d{variable}{bounds}"
    if result.has(sp.Integral):
        if result.free_symbols or not bounds:
            raise RequestError(f"the {question} has no closed form known here", param="expression")
        return act.Solved(question, _number(result), is_exact=False, note="numeric: no closed form known here")
    return _solved(question, sp.simplify(result), note="" if bounds else "plus a constant")


def _limit(action: act.Limit) -> act.Solved:
    value = _expression(action.expression)
    variable = _variable(value, action.variable)
    side = {"both": "+-", "left": "-", "right": "+"}[action.side]
    point = _expression(action.point)
    try:
        result = sp.limit(value, variable, point, "-" if point == sp.oo else "+" if point == -sp.oo else side)
    except ValueError as error:
        raise RequestError(f"the limit does not exist: {error}", param="expression") from error
    side = "" if action.side == "both" else f" from the {action.side}"
    question = f"limit of ({action.expression}) as {variable} goes to {action.point}{side}"
    if result is sp.zoo:
        raise RequestError(f"the {question} does not exist", param="expression")
    return _solved(question, result)


def _series(action: act.Series) -> act.Solved:
    value = _expression(action.expression)
    if not 1 <= action.order <= MAX_ORDER:
        raise RequestError(f"the order goes from 1 to {MAX_ORDER}, got {action.order}", param="order")
    variable = _variable(value, action.variable)
    result = sp.series(value, variable, _expression(action.point), action.order)
    return _solved(f"series of ({action.expression}) at {variable} = {action.point}", result)


def _solve(action: act.Solve) -> act.Solved:
    equations = [_as_zero(parse(text)) for text in action.equations]
    question = "; ".join(action.equations)
    unknown: list[Expr] = sorted({symbol for equation in equations for symbol in equation.free_symbols}, key=str)
    variables: list[Expr] = [sp.Symbol(parse(name).text) for name in action.variables] or unknown
    has_unknowns = any(parse(text).symbols() for text in action.equations)
    if all(sp.simplify(equation) == 0 for equation in equations):
        return act.Solved(question, "true for every value" if has_unknowns else "true")
    if not unknown:
        return act.Solved(question, "no solution" if has_unknowns else "false")
    if any(equation.has(sp.Abs) for equation in equations):  # sympy solves these over the reals only
        real = {symbol: sp.Symbol(symbol.name, real=True) for symbol in unknown}
        equations = [equation.subs(real) for equation in equations]
        variables = [real[variable] for variable in variables]
    try:
        solutions: list[dict[Expr, Expr]] = sp.solve(
            equations[0] if len(equations) == 1 else equations, variables, dict=True
        )
    except NotImplementedError:
        return _solve_numerically(question, equations, variables)
    if not solutions:
        return _unsolved(question, equations, variables)
    values = [value for solution in solutions for value in solution.values()]
    exact = " or ".join(_solution(solution, variables, _text) for solution in solutions)
    approximate = " or ".join(_solution(solution, variables, _number) for solution in solutions)
    is_plain = all(_is_plain(value) for value in values)
    is_periodic = any(equation.has(sp.sin, sp.cos, sp.tan) for equation in equations)
    note = "and others: sin, cos and tan repeat" if is_periodic else ""
    return act.Solved(question, exact, None if is_plain else approximate, note=note)


def _unsolved(question: str, equations: list[Expr], variables: list[Expr]) -> act.Solved:
    """No solution came back: say so only where that proves that there is none."""
    if len(equations) == len(variables) == 1:
        if sp.solveset(equations[0], variables[0]) == sp.EmptySet:
            return act.Solved(question, "no solution")
        return _solve_numerically(question, equations, variables)
    is_linear = all(equation.is_polynomial(*variables) for equation in equations) and all(
        sp.Poly(equation, *variables).total_degree() <= 1 for equation in equations
    )
    return act.Solved(question, "no solution" if is_linear else "no solution found")


def _solve_numerically(question: str, equations: list[Expr], variables: list[Expr]) -> act.Solved:
    if len(equations) == len(variables) and all(equation.free_symbols <= set(variables) for equation in equations):
        for start in (0.5, 1, -1, 2, 5, -5, 10):
            try:
                found = sp.nsolve(equations, variables, [start] * len(variables))
            except (ValueError, ZeroDivisionError, TypeError):
                continue
            solution = dict(zip(variables, list(found), strict=True))
            note = "numeric, one solution: no closed form known here"
            text = _solution(solution, variables, _number)
            return act.Solved(question, text, is_exact=False, note=note)
    raise RequestError(f"no way is known here to solve {question}", param="equations")


def _solution(solution: dict[Expr, Expr], variables: list[Expr], show: Callable[[Expr], str]) -> str:
    return ", ".join(f"{name} = {show(solution[name])}" for name in variables if name in solution)


def _matrix_action(action: act.Matrix) -> act.Solved:
    matrix = _matrix(build(parse(action.expression)))
    question = f"{action.operation} of {action.expression}"
    if action.operation == "eigenvalues":
        values = _eigenvalues(matrix)
        is_plain = all(_is_plain(value) for value in values)
        return act.Solved(question, _listed(values, _text), None if is_plain else _listed(values, _number))
    operations: dict[str, Callable[[Expr], Expr]] = {
        "determinant": lambda m: sp.simplify(m.det()),
        "inverse": _inverse,
        "rank": lambda m: sp.Integer(m.rank()),
        "transpose": lambda m: m.T,
        "trace": lambda m: m.trace(),
    }
    try:
        return _solved(question, operations[action.operation](matrix))
    except sp.matrices.exceptions.NonSquareMatrixError as error:
        raise _not_square(matrix) from error


def _expression(text: str) -> Expr:
    node = parse(text)
    if node.kind == "=":
        raise RequestError(f"expected an expression, got the equation {text!r}", param="expression")
    return build(node)


def _as_zero(node: Node) -> Expr:
    if node.kind == "=":
        left, right = (build(part) for part in node.parts)
        return left - right
    return build(node)


def _variable(value: Expr, name: str | None) -> Expr:
    """The variable named, or the only one; x among several."""
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


def _is_matrix(value: Expr) -> bool:
    return isinstance(value, sp.MatrixBase)


def _matrix(value: Expr) -> Expr:
    if not _is_matrix(value):
        raise RequestError("expected a matrix such as [[1, 2], [3, 4]]", param="expression")
    return value


def _inverse(matrix: Expr) -> Expr:
    if matrix.rows != matrix.cols:
        raise _not_square(matrix)
    if matrix.det() == 0:
        raise RequestError("the matrix has no inverse: its determinant is 0", param="expression")
    return matrix.inv()


def _eigenvalues(matrix: Expr) -> list[Expr]:
    if matrix.rows != matrix.cols:
        raise _not_square(matrix)
    return [sp.simplify(value) for value, count in matrix.eigenvals().items() for _ in range(count)]


def _not_square(matrix: Expr) -> RequestError:
    return RequestError(f"expected a square matrix, got {matrix.rows} by {matrix.cols}", param="expression")


# -- showing ----------------------------------------------------------------------------------------------------------


def _solved(question: str, value: Expr, note: str = "") -> act.Solved:
    if value in (sp.zoo, sp.nan):
        raise RequestError(f"{question} is not defined (a division by zero)", param="expression")
    if not _is_matrix(value) and value.is_Float:
        return act.Solved(question, _number(value), is_exact=False, note=note)
    return act.Solved(question, _text(value), _approximate(value), note=note)


def _text(value: Expr) -> str:
    if _is_matrix(value):
        return sp.sstr(value.tolist())
    is_constant = not value.free_symbols
    text: str = sp.sstr(value, order="old" if is_constant else None)
    if len(text) > 2 * MAX_RESULT_DIGITS:
        raise RequestError(f"the result has {len(text):,} characters", param="expression")
    return {"True": "true", "False": "false"}.get(text, text)


def _approximate(value: Expr) -> str | None:
    """Six digits of a constant that is not a plain number already."""
    if _is_matrix(value) or value.is_Boolean or value.is_infinite or (_is_plain(value) and not _is_fraction(value)):
        return None
    return _number(value)


def _is_plain(value: Expr) -> bool:
    """Whether six digits would say no more than it does."""
    return bool(value.free_symbols) or all(part.is_Rational for part in value.as_real_imag())


def _is_fraction(value: Expr) -> bool:
    return bool(value.is_Rational) and not value.is_Integer


def _number(value: Expr) -> str:
    number = sp.N(value, 6)
    parts = number.as_real_imag()
    if not all(part.is_Float or part.is_Integer for part in parts):
        return sp.sstr(number)
    try:
        real, imaginary = (float(part) for part in parts)
    except OverflowError:
        return sp.sstr(number)
    if imaginary == 0:
        return f"{real:.6g}"
    size = "I" if abs(imaginary) == 1 else f"{abs(imaginary):.6g}*I"
    sign = "-" if imaginary < 0 else "+"
    return f"{real:.6g} {sign} {size}" if real else f"{sign.strip('+')}{size}"


def _listed(values: list[Expr], show: Callable[[Expr], str]) -> str:
    return ", ".join(show(value) for value in values)


_COMPUTE: dict[type, Callable[[Any], act.Solved]] = {
    act.Evaluate: _evaluate,
    act.Simplify: lambda action: _solved(action.expression, sp.simplify(_expression(action.expression))),
    act.Expand: lambda action: _solved(action.expression, sp.expand(_expression(action.expression))),
    act.Factor: _factor,
    act.Differentiate: _differentiate,
    act.Integrate: _integrate,
    act.Limit: _limit,
    act.Series: _series,
    act.Solve: _solve,
    act.Matrix: _matrix_action,
}
