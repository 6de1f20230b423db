"""Values of sympy as the texts people read. Runs in the worker process only."""

from __future__ import annotations

from collections.abc import Callable

from pyagent.core.errors import RequestError
from pyagent.logic.agents.math import actions as act
from pyagent.logic.agents.math.trees import MAX_RESULT_DIGITS, Expr, is_matrix, sp


def solved(question: str, value: Expr, note: str = "") -> act.Solved:
    """Return the answer that a value is; raises `RequestError` for what is no value."""
    if value is sp.zoo:
        raise RequestError(f"{question} is not defined (a division by zero)", param="expression")
    if value is sp.nan:
        raise RequestError(f"{question} is not defined: it could be any value", param="expression")
    if value.has(sp.AccumBounds):
        raise RequestError(f"the {question} does not exist: it goes to and fro in {value.args}", param="expression")
    if has_numeric_roots(value):
        note = "; ".join(filter(None, [note, "numeric: no form in radicals"]))
        return act.Solved(question, number(value), is_exact=False, note=note)
    if not is_matrix(value) and value.is_Float:
        return act.Solved(question, number(value), is_exact=False, note=note)
    return act.Solved(question, text_of(value), _approximate(value), note=note)


def has_numeric_roots(value: Expr) -> bool:
    """Whether it names roots of a polynomial that have no form in radicals; people want their numbers."""
    return bool(value.has(sp.polys.rootoftools.ComplexRootOf))


def text_of(value: Expr) -> str:
    """Return the value as the grammar writes it."""
    if is_matrix(value):
        return sp.sstr(value.tolist())
    is_constant = not value.free_symbols
    text: str = sp.sstr(value, order="old" if is_constant else None)
    if len(text) > 2 * MAX_RESULT_DIGITS:
        raise RequestError(f"the result has {len(text):,} characters", param="expression")
    return {"True": "true", "False": "false"}.get(text, text)


def _approximate(value: Expr) -> str | None:
    """Six digits of a constant that is not a plain number already."""
    if is_matrix(value) or value.is_Boolean or value.is_infinite or (is_plain(value) and not _is_fraction(value)):
        return None
    return number(value)


def is_plain(value: Expr) -> bool:
    """Whether six digits would say no more than it does."""
    return bool(value.free_symbols) or all(part.is_Rational for part in value.as_real_imag())


def _is_fraction(value: Expr) -> bool:
    return bool(value.is_Rational) and not value.is_Integer


def number(value: Expr) -> str:
    """Six digits of a constant."""
    rounded = sp.N(value, 6)
    if is_matrix(rounded):
        return sp.sstr(rounded.tolist())
    parts = rounded.as_real_imag()
    if not all(part.is_Float or part.is_Integer for part in parts):
        return sp.sstr(rounded)
    try:
        real, imaginary = (float(part) for part in parts)
    except OverflowError:
        return sp.sstr(rounded)
    if imaginary == 0:
        return f"{real:.6g}"
    size = "I" if abs(imaginary) == 1 else f"{abs(imaginary):.6g}*I"
    sign = "-" if imaginary < 0 else "+"
    return f"{real:.6g} {sign} {size}" if real else f"{sign.strip('+')}{size}"


def listed(values: list[Expr], show: Callable[[Expr], str]) -> str:
    """Values one after the other."""
    return ", ".join(show(value) for value in values)
