"""Regression: linear with one or several predictors, polynomial, exponential, power and logarithmic, with intervals.

The last three are linear in logarithms and fitted so: their residuals are those of the logarithm that is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf, log, log1p, pi, sqrt
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.stats.distributions import fisher_tail, student_quantile, student_tail
from pyagent.logic.stats.exact_numbers import Column, column_of_floats, real, shown
from pyagent.logic.stats.least_squares import Solution, Sums, constant, solve, sums_of, sums_of_powers

Model = Literal["linear", "polynomial", "exponential", "power", "logarithmic"]
Criterion = Literal["aicc", "bic"]
MAX_DEGREE = 12
MAX_PREDICTORS = 40
_MAX_CHOSEN_DEGREE = 6
_ROUNDED_AWAY = Fraction(1, 10**26)
_HIGH_INFLATION = 10.0
_SHOWN_IN_EQUATION = 8


class Coefficient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An estimate with its interval. An exact fit has no `t` and `p`. `inflation` is the variance inflation factor."""

    name: str
    estimate: float
    std_error: float
    t: float | None = None
    p: float | None = None
    low: float
    high: float
    inflation: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected at a place: the interval of the curve itself, and the wider one of a new point."""

    at: dict[str, float]
    value: float
    curve_low: float
    curve_high: float
    low: float
    high: float


class Fit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fitted model. Where the logarithm is explained, so are `r_squared` and the errors; `r_squared_of_y` is not.

    `aicc` and `bic` count the residual variance as a parameter; an exact fit has none, and no `f`.
    """

    model: Model
    equation: str
    degree: int = 1
    num_points: int
    num_free: int
    coefficients: list[Coefficient]
    r_squared: float
    adjusted_r_squared: float
    r_squared_of_y: float | None = None
    residual_std_error: float
    f: float | None = None
    f_p: float | None = None
    aicc: float | None = None
    bic: float | None = None
    confidence: float
    predictions: list[Prediction] = []
    choice: str = ""
    notes: list[str] = []


@dataclass(frozen=True)
class Curve:
    """A solution as a function of the predictors: what is explained, and where it is from."""

    fit: Fit
    solution: Solution
    quantile: float
    row: Callable[[Sequence[Fraction]], list[Fraction]]
    is_log: bool

    def at(self, predictors: Mapping[str, Fraction]) -> Prediction:
        """Return the value and both intervals at a place."""
        row = self.row(list(predictors.values()))
        value, leverage = self.solution.value(row), self.solution.leverage(row)
        variance = self.solution.residual_squares / self.solution.num_free
        middle = real(value)
        of_curve = self.quantile * _root(variance * leverage)
        of_point = self.quantile * _root(variance * (1 + leverage))
        back = _raised if self.is_log else _same
        return Prediction(
            at={name: real(each) for name, each in predictors.items()},
            value=back(middle),
            curve_low=back(middle - of_curve),
            curve_high=back(middle + of_curve),
            low=back(middle - of_point),
            high=back(middle + of_point),
        )


@dataclass(frozen=True)
class Wanted:
    """What to fit, and how."""

    model: Model = "linear"
    degree: int | None = None
    criterion: Criterion = "aicc"
    confidence: float = 0.95
    has_constant: bool = True


def regress(predictors: Sequence[Column], explained: Column, wanted: Wanted) -> Curve:
    """Return the fitted curve; raises `RequestError` for what cannot be fitted, with the reason."""
    if not predictors:
        raise RequestError("a regression needs a predictor: name one by x", param="x")
    if len(predictors) > 1 and wanted.model != "linear":
        raise RequestError(f"{wanted.model} takes one predictor; several are for linear", param="method")
    if len(predictors) > MAX_PREDICTORS:
        raise RequestError(f"there are {len(predictors)} predictors; the most is {MAX_PREDICTORS}", param="x")
    if wanted.model == "polynomial":
        return _polynomial(predictors[0], explained, wanted)
    logs_x, logs_y = wanted.model in {"power", "logarithmic"}, wanted.model in {"exponential", "power"}
    columns = [_logarithm(predictors[0])] if logs_x else list(predictors)
    target = _logarithm(explained) if logs_y else explained
    first = [constant(len(explained))] if wanted.has_constant else []
    solution = _solution(sums_of([*first, *columns], target), is_rounded=logs_x or logs_y)
    front = [Fraction(1)] if wanted.has_constant else []

    def row(values: Sequence[Fraction]) -> list[Fraction]:
        return [*front, *([_fraction_log(values[0], predictors[0].name)] if logs_x else values)]

    return _curve(solution, predictors, explained, wanted, row)


def _polynomial(x: Column, explained: Column, wanted: Wanted) -> Curve:
    if wanted.degree is not None and not 1 <= wanted.degree <= MAX_DEGREE:
        raise RequestError(f"expected a degree from 1 to {MAX_DEGREE}, got {wanted.degree}", param="degree")
    highest = wanted.degree or min(_MAX_CHOSEN_DEGREE, len(explained) - 4, len(set(x.whole)) - 1)
    if highest < 1:
        needs = "choosing a degree needs at least 5 points and 2 places"
        raise RequestError(f"{needs}; there are {len(explained)} points", param="degree")
    sums = sums_of_powers(x, highest, explained)
    degree, choice = wanted.degree or 0, ""
    if not degree:
        degree, choice = _chosen_degree(sums, highest, wanted.criterion)
    first = [] if not wanted.has_constant else [0]
    solution = _solution(sums.of([*first, *range(1, degree + 1)]))

    def row(values: Sequence[Fraction]) -> list[Fraction]:
        return [values[0] ** power for power in range(0 if wanted.has_constant else 1, degree + 1)]

    curve = _curve(solution, [x], explained, wanted, row)
    fit = msgspec.structs.replace(curve.fit, degree=degree, choice=choice)
    return Curve(fit, curve.solution, curve.quantile, curve.row, curve.is_log)


def _chosen_degree(sums: Sums, highest: int, criterion: Criterion) -> tuple[int, str]:
    """Return the degree of the least criterion, and why in words; an exact fit of the lowest degree goes first."""
    said: dict[int, float] = {}
    for degree in range(1, highest + 1):
        solution = solve(sums.of(range(degree + 1)))
        if solution.residual_squares == 0:
            return degree, f"degree {degree} is the lowest that fits exactly"
        aicc, bic = criteria(solution)
        said[degree] = aicc if criterion == "aicc" else bic
    best = min(said, key=lambda degree: said[degree])
    name = "AICc" if criterion == "aicc" else "BIC"
    others = ", ".join(f"{degree}: {value:.6g}" for degree, value in said.items() if degree != best)
    return best, f"degree {best} has the least {name}, {said[best]:.6g}{f' ({others})' if others else ''}"


def criteria(solution: Solution) -> tuple[float, float]:
    """Return AICc (infinite with too few points) and BIC of the normal likelihood."""
    n, k = solution.num_rows, len(solution.coefficients) + 1
    deviance = n * (log(2 * pi) + _log_fraction(solution.residual_squares / n) + 1)
    aicc = deviance + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else inf
    return aicc, deviance + k * log(n)


def _solution(sums: Sums, *, is_rounded: bool = False) -> Solution:
    """Return the solution; residuals that are only the rounding of logarithms are none."""
    solution = solve(sums)
    if is_rounded and solution.residual_squares <= solution.total_squares * _ROUNDED_AWAY:
        return Solution(
            solution.names,
            solution.coefficients,
            solution.inverse,
            Fraction(0),
            solution.total_squares,
            solution.num_rows,
            solution.has_constant,
        )
    return solution


def _curve(
    solution: Solution,
    predictors: Sequence[Column],
    explained: Column,
    wanted: Wanted,
    row: Callable[[Sequence[Fraction]], list[Fraction]],
) -> Curve:
    if solution.total_squares == 0:
        raise RequestError(f"{explained.name} is the same in each row: there is nothing to explain", param="y")
    n, size, num_free = solution.num_rows, len(solution.coefficients), solution.num_free
    quantile = student_quantile(wanted.confidence, num_free)
    variance = solution.residual_squares / num_free
    left = solution.residual_squares / solution.total_squares
    num_tested = size - solution.has_constant
    is_exact = solution.residual_squares == 0
    f = None if is_exact else (solution.total_squares - solution.residual_squares) / num_tested / variance
    aicc, bic = (None, None) if is_exact else criteria(solution)
    coefficients = [_coefficient(solution, at, quantile, variance) for at in range(size)]
    if len(predictors) > 1:
        coefficients = _inflated(coefficients, solution, predictors)
    is_log = wanted.model in {"exponential", "power"}
    fit = Fit(
        model=wanted.model,
        equation=_equation(wanted.model, coefficients, predictors[0].name, explained.name),
        num_points=n,
        num_free=num_free,
        coefficients=_named(coefficients, wanted.model),
        r_squared=real(1 - left),
        adjusted_r_squared=real(1 - left * (n - solution.has_constant) / num_free),
        residual_std_error=_root(variance),
        f=None if f is None else real(f),
        f_p=None if f is None else fisher_tail(real(f), num_tested, num_free),
        aicc=None if aicc == inf else aicc,
        bic=bic,
        confidence=wanted.confidence,
    )
    curve = Curve(fit, solution, quantile, row, is_log)
    notes = _notes(fit, wanted, is_exact=is_exact)
    of_y = _r_squared_of_y(curve, predictors, explained) if is_log else None
    fit = msgspec.structs.replace(fit, notes=notes, r_squared_of_y=of_y)
    return Curve(fit, solution, quantile, row, is_log)


def _coefficient(solution: Solution, at: int, quantile: float, variance: Fraction) -> Coefficient:
    estimate = solution.coefficients[at]
    squared_error = variance * solution.inverse[at][at]
    middle, error = real(estimate), _root(squared_error)
    t = None if squared_error == 0 else middle / error
    return Coefficient(
        name=solution.names[at] or "(constant)",
        estimate=middle,
        std_error=error,
        t=t,
        p=None if t is None else student_tail(t, solution.num_free),
        low=middle - quantile * error,
        high=middle + quantile * error,
    )


def _inflated(
    coefficients: Sequence[Coefficient], solution: Solution, predictors: Sequence[Column]
) -> list[Coefficient]:
    """Return coefficients with the factor by which other predictors inflate each variance."""
    first = len(coefficients) - len(predictors)
    told = list(coefficients)
    for at, column in enumerate(predictors, first):
        squares = Fraction(sum(value * value for value in column.whole), column.scale**2)
        if solution.has_constant:
            squares -= Fraction(sum(column.whole) ** 2, column.scale**2 * len(column))
        told[at] = msgspec.structs.replace(told[at], inflation=real(solution.inverse[at][at] * squares))
    return told


def _notes(fit: Fit, wanted: Wanted, *, is_exact: bool) -> list[str]:
    notes: list[str] = []
    if is_exact:
        notes.append("every point is on the curve: there is no error to estimate, and nothing to test against")
    if not wanted.has_constant:
        notes.append(
            "through the origin, R² is about 0 and not about the mean: it does not compare with that of other models"
        )
    if wanted.model in {"exponential", "power"}:
        notes.append("fitted to ln y: R² and the residual standard error are those of ln y")
    high = [each.name for each in fit.coefficients if (each.inflation or 0) > _HIGH_INFLATION]
    if high:
        notes.append(f"predictors that move together (inflation above 10) cannot be told apart well: {', '.join(high)}")
    return notes


def _named(coefficients: Sequence[Coefficient], model: Model) -> list[Coefficient]:
    """Return the coefficients under the names that the model's formula has."""
    names = {"exponential": ["ln a", "b"], "power": ["ln a", "b"], "logarithmic": ["a", "b"]}.get(model)
    if names is None:
        return list(coefficients)
    names = names[-len(coefficients) :]
    return [msgspec.structs.replace(each, name=name) for each, name in zip(coefficients, names, strict=True)]


def _equation(model: Model, coefficients: Sequence[Coefficient], x: str, y: str) -> str:
    values = [each.estimate for each in coefficients]
    if model in {"exponential", "power"}:
        factor = f"{shown(_raised(values[0]))} " if len(values) > 1 else ""
        power = shown(values[-1])
        return f"{y} = {factor}{f'e^({power} {x})' if model == 'exponential' else f'{x}^({power})'}"
    if model == "logarithmic":
        names = ["", f"ln({x})"][-len(values) :]
        return f"{y} = {_terms(list(zip(values, names, strict=True)))}"
    terms = [(each.estimate, "" if each.name == "(constant)" else each.name) for each in coefficients]
    more = f" + ... ({num_more} terms more)" if (num_more := len(terms) - _SHOWN_IN_EQUATION) > 0 else ""
    return f"{y} = {_terms(terms[:_SHOWN_IN_EQUATION])}{more}"


def _terms(terms: Sequence[tuple[float, str]]) -> str:
    text = ""
    for value, name in terms:
        digits = shown(abs(value))
        number = name if name and digits == "1" else f"{digits} {name}".strip()
        sign = "-" if value < 0 else "+"
        text += f" {sign} {number}" if text else f"{'-' if value < 0 else ''}{number}"
    return text


def _r_squared_of_y(curve: Curve, predictors: Sequence[Column], explained: Column) -> float | None:
    """Return R² of the values themselves, where the curve gives them back."""
    coefficients = [float(each) for each in curve.solution.coefficients]
    xs = predictors[0].values
    terms = [log(x) for x in xs] if curve.fit.model == "power" else xs
    first = coefficients[0] if len(coefficients) > 1 else 0.0
    try:
        fitted = [exp(first + coefficients[-1] * term) for term in terms]
        ys = explained.values
        mean = sum(ys) / len(ys)
        left = sum((y - each) ** 2 for y, each in zip(ys, fitted, strict=True))
        return 1 - left / sum((y - mean) ** 2 for y in ys)
    except (OverflowError, ZeroDivisionError):
        return None


def _logarithm(column: Column) -> Column:
    for row, value in enumerate(column.whole, 1):
        if value <= 0:
            text = f"{column.name} is {value / column.scale:g} in point {row}; logarithms are of numbers above 0"
            raise RequestError(text, param="method")
    return column_of_floats(column.name, [_exact_log(value, column.scale) for value in column.whole])


def _exact_log(above: int, below: int) -> float:
    """Return the logarithm of a fraction; near 1 without losing digits."""
    return log1p((above - below) / below) if abs(above - below) * 2 < below else log(above / below)


def _fraction_log(value: Fraction, name: str) -> Fraction:
    if value <= 0:
        raise RequestError(f"{name} is {float(value):g}: logarithms are of numbers above 0", param="at")
    return Fraction(_exact_log(value.numerator, value.denominator))


def _log_fraction(value: Fraction) -> float:
    """Return the logarithm of a fraction that may be beyond what a float holds."""
    return log(value.numerator) - log(value.denominator)


def _root(value: Fraction) -> float:
    """Return the root, also of squares beyond what a float holds."""
    try:
        rounded = float(value)
    except OverflowError:
        rounded = 0.0
    if not value or rounded > 1e-290:
        return sqrt(rounded)
    return _raised(_log_fraction(value) / 2)


def _raised(value: float) -> float:
    try:
        raised = exp(value)
    except OverflowError:
        raised = inf
    if raised in {0.0, inf}:
        text = "a result is beyond what a float holds (1e-308 to 1e308): give the columns in other units"
        raise RequestError(text, param="data")
    return raised


def _same(value: float) -> float:
    return value
