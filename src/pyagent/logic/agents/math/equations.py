"""Solves equations: exactly where that is known, and never as if it were all when it may not be.

Runs in the worker process only. What sympy finds for an equation that is no polynomial is compared with a search for
sign changes, so that a root it misses is given as a number.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from itertools import pairwise

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math import actions as act
from pyagent.logic.agents.math.grammar import parse
from pyagent.logic.agents.math.showing import has_numeric_roots, is_plain, number, text_of
from pyagent.logic.agents.math.trees import Expr, as_zero, is_zero, sp

_MAY_BE_MORE = "there may be more solutions"
_REPEATS = "and others: sin, cos and tan repeat"
_GRID = [math.sinh(7 * (place + 0.317) / 2000) for place in range(-2000, 2000)]
"""Where signs are compared: from -548 to 548, densest at 0, and at no number people write."""
_MAX_ROOTS = 12


def solve(action: act.Solve) -> act.Solved:
    """Return the solutions, exact where they are known so, with a note where there may be more."""
    equations = [as_zero(parse(text)) for text in action.equations]
    question = "; ".join(action.equations)
    unknown: list[Expr] = sorted({symbol for equation in equations for symbol in equation.free_symbols}, key=str)
    variables: list[Expr] = [sp.Symbol(parse(name).text) for name in action.variables] or unknown
    has_unknowns = any(parse(text).symbols() for text in action.equations)
    if all(_is_always_true(equation) for equation in equations):
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
    return _shown(question, equations, variables, solutions)


def _is_always_true(equation: Expr) -> bool:
    return bool(sp.simplify(equation) == 0) if equation.free_symbols else is_zero(equation)


def _shown(
    question: str, equations: list[Expr], variables: list[Expr], solutions: list[dict[Expr, Expr]]
) -> act.Solved:
    """Return the solutions as texts, with the real roots that are not among them and what is known of others."""
    values = [value for solution in solutions for value in solution.values()]
    exact = [_solution(solution, variables, text_of) for solution in solutions]
    approximate = [_solution(solution, variables, number) for solution in solutions]
    if any(has_numeric_roots(value) for value in values):
        note = "numeric: these roots have no form in radicals"
        return act.Solved(question, " or ".join(approximate), is_exact=False, note=note)
    missed, note = _others(equations, variables, values)
    numeric = [f"{variables[0]} ≈ {root:.6g}" for root in missed]
    approximate += [f"{variables[0]} = {root:.6g}" for root in missed]
    return act.Solved(
        question,
        " or ".join([*exact, *numeric]),
        " or ".join(approximate) if missed or not all(is_plain(value) for value in values) else None,
        is_exact=not missed,
        note=note,
    )


def _others(equations: list[Expr], variables: list[Expr], values: list[Expr]) -> tuple[list[float], str]:
    """Return real roots that are not among the values, and a remark on solutions that were not searched for."""
    if any(_is_periodic(equation) for equation in equations):
        return [], _REPEATS
    if all(sp.numer(sp.together(equation)).is_polynomial(*variables) for equation in equations):
        return [], ""
    if len(equations) > 1 or len(variables) > 1 or equations[0].free_symbols != set(variables):
        return [], _MAY_BE_MORE
    equation, variable = equations[0], variables[0]
    known = [float(value) for value in values if value.is_number and value.is_real]
    missed = [root for root in _real_roots(equation, variable) if not any(_is_near(root, other) for other in known)]
    with contextlib.suppress(Exception):  # solveset fails in as many ways as there are equations; then nothing is known
        if not missed and sp.solveset(equation, variable, sp.S.Reals).is_FiniteSet:
            return [], ""
    return missed, f"the root with ≈ is numeric; {_MAY_BE_MORE}" if missed else _MAY_BE_MORE


def _is_periodic(equation: Expr) -> bool:
    return bool(equation.has(sp.sin, sp.cos, sp.tan, sp.cot, sp.sec, sp.csc))


def _is_near(root: float, other: float) -> bool:
    return abs(root - other) <= 1e-6 * (1 + abs(root))


def _real_roots(equation: Expr, variable: Expr) -> list[float]:
    """Real roots where the sign changes, between -548 and 548, in ascending order."""
    function = sp.lambdify(variable, equation, modules="math")

    def value(x: float) -> float:
        try:
            y = function(x)
        except (ValueError, OverflowError, ZeroDivisionError, NameError, TypeError):
            return math.nan
        return float(y) if isinstance(y, int | float) else math.nan

    roots: list[float] = []
    points = [(x, value(x)) for x in _GRID]
    for (left, at_left), (right, at_right) in pairwise(points):
        if at_left * at_right < 0:
            root = _bisect(value, left, right)
            if abs(value(root)) <= 1e-6 * min(abs(at_left), abs(at_right)):  # else a pole
                roots.append(0.0 if abs(root) < 1e-12 else root)
    return roots


def _bisect(function: Callable[[float], float], left: float, right: float) -> float:
    is_left_positive = function(left) > 0
    for _ in range(100):
        middle = (left + right) / 2
        if (function(middle) > 0) == is_left_positive:
            left = middle
        else:
            right = middle
    return right


def _unsolved(question: str, equations: list[Expr], variables: list[Expr]) -> act.Solved:
    """No solution came back: say so only where that proves that there is none."""
    if len(equations) == len(variables) == 1:
        if sp.solveset(equations[0], variables[0]) == sp.EmptySet:
            return act.Solved(question, "no solution")
        return _solve_numerically(question, equations, variables)
    is_linear = all(equation.is_polynomial(*variables) for equation in equations) and all(
        sp.Poly(equation, *variables).total_degree() <= 1 for equation in equations
    )
    return act.Solved(question, "no solution" if is_linear else "no solution found", is_exact=is_linear)


def _solve_numerically(question: str, equations: list[Expr], variables: list[Expr]) -> act.Solved:
    if len(equations) == len(variables) == 1 and equations[0].free_symbols == set(variables):
        roots = _real_roots(equations[0], variables[0])
        if roots:
            text = " or ".join(f"{variables[0]} = {root:.6g}" for root in roots[:_MAX_ROOTS])
            note = f"numeric: no closed form known here; {_MAY_BE_MORE}"
            return act.Solved(question, text, is_exact=False, note=note)
    if len(equations) == len(variables) and all(equation.free_symbols <= set(variables) for equation in equations):
        for start in (0.5, 1, -1, 2, 5, -5, 10):
            try:
                found = sp.nsolve(equations, variables, [start] * len(variables))
            except (ValueError, ZeroDivisionError, TypeError):
                continue
            solution = dict(zip(variables, list(found), strict=True))
            note = "numeric, one solution: no closed form known here"
            text = _solution(solution, variables, number)
            return act.Solved(question, text, is_exact=False, note=note)
    raise RequestError(f"no way is known here to solve {question}", param="equations")


def _solution(solution: dict[Expr, Expr], variables: list[Expr], show: Callable[[Expr], str]) -> str:
    return ", ".join(f"{name} = {show(solution[name])}" for name in variables if name in solution)
