"""Least squares without rounding: sums, elimination and sums of squares in whole numbers, rounded once at the end.

So collinear columns are found as such, an exact fit has residuals of 0, and no data are ill-conditioned: what NIST's
reference sets certify comes out to the last digit. Bareiss, Math. Comp. 22 (1968): elimination without fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import mul

from pyagent.core.errors import RequestError
from pyagent.logic.stats.exact_numbers import Column

MAX_WORK = 600_000_000
"""Most products of sums, each counted by the machine words of its numbers: some half a minute."""

_ROWS_AT_A_TIME = 20_000


@dataclass(frozen=True)
class Sums:
    """The products of all columns with each other, the explained one last, in units of their scales."""

    names: tuple[str, ...]
    scales: tuple[int, ...]
    products: list[list[int]]
    num_rows: int

    def of(self, places: Sequence[int]) -> Sums:
        """Return those of some columns, in this order; the explained one stays last."""
        kept = [*places, len(self.names) - 1]
        return Sums(
            tuple(self.names[place] for place in kept),
            tuple(self.scales[place] for place in kept),
            [[self.products[row][place] for place in kept] for row in kept],
            self.num_rows,
        )


@dataclass(frozen=True)
class Solution:
    """Coefficients, the inverse of the matrix of products, the residuals' sum of squares, and that about the mean."""

    names: tuple[str, ...]
    coefficients: list[Fraction]
    inverse: list[list[Fraction]]
    residual_squares: Fraction
    total_squares: Fraction
    num_rows: int
    has_constant: bool

    @property
    def num_free(self) -> int:
        """The degrees of freedom that are left."""
        return self.num_rows - len(self.coefficients)

    def value(self, at: Sequence[Fraction]) -> Fraction:
        """Return what the coefficients make of one row."""
        return sum(map(mul, self.coefficients, at), Fraction(0))

    def leverage(self, at: Sequence[Fraction]) -> Fraction:
        """Return the variance of that value, in units of the residual variance."""
        return sum(
            (x * sum(map(mul, row, at), Fraction(0)) for x, row in zip(at, self.inverse, strict=True)), Fraction(0)
        )


def constant(num_rows: int) -> Column:
    """Return the column of the constant."""
    return Column("", [1] * num_rows, 1)


def sums_of(columns: Sequence[Column], explained: Column) -> Sums:
    """Return the products of all columns; raises `RequestError` where that takes too long."""
    all_columns = [*columns, explained]
    words = [_words(column) for column in all_columns]
    _check_work(len(explained), sum(one * other for place, one in enumerate(words) for other in words[place:]))
    products = [[0] * len(all_columns) for _ in all_columns]
    for place, one in enumerate(all_columns):
        for other in range(place, len(all_columns)):
            products[place][other] = products[other][place] = _product(one.whole, all_columns[other].whole)
    names, scales = tuple(each.name for each in all_columns), tuple(each.scale for each in all_columns)
    return Sums(names, scales, products, len(explained))


def sums_of_powers(x: Column, degree: int, explained: Column) -> Sums:
    """Return the products of the powers of one column, from its 0th on; as `sums_of`, with a list at a time."""
    words = _words(x)
    _check_work(
        len(x), sum(1 + power * words for power in range(2 * degree)) + degree * degree * words * _words(explained)
    )
    squares, crossed = list[int](), list[int]()
    power: Sequence[int] = [1] * len(x)
    for exponent in range(2 * degree + 1):
        squares.append(sum(power))
        if exponent <= degree:
            crossed.append(_product(power, explained.whole))
        if exponent < 2 * degree:
            power = [one * other for one, other in zip(power, x.whole, strict=True)]
    products = [[*squares[row : row + degree + 1], crossed[row]] for row in range(degree + 1)]
    products.append([*crossed, _product(explained.whole, explained.whole)])
    names = ["", *([x.name] if degree else []), *(f"{x.name}^{exponent}" for exponent in range(2, degree + 1))]
    scales = [x.scale**exponent for exponent in range(degree + 1)]
    return Sums((*names, explained.name), (*scales, explained.scale), products, len(x))


def _product(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the sum of products, some rows at a time: a sum of millions would keep every other thread waiting."""
    places = range(0, len(one), _ROWS_AT_A_TIME)
    return sum(sum(map(mul, one[at : at + _ROWS_AT_A_TIME], other[at : at + _ROWS_AT_A_TIME])) for at in places)


def _words(column: Column) -> int:
    return 1 + max((abs(each).bit_length() for each in column.whole), default=0) // 60


def _check_work(num_rows: int, words_a_row: int) -> None:
    if num_rows * words_a_row > MAX_WORK:
        text = f"{num_rows:,} rows of so many columns or digits take too long"
        raise RequestError(f"{text}; take fewer columns, a lower degree, or part of the rows", param="data")


def solve(sums: Sums) -> Solution:
    """Return the least squares solution; raises `RequestError` naming a column that others make up."""
    size, products, scales = len(sums.names) - 1, sums.products, sums.scales
    has_constant = sums.names[0] == ""
    if sums.num_rows <= size:
        needs = f"{size} coefficients need at least {size + 1} points"
        raise RequestError(f"{needs}, and there {'is' if sums.num_rows == 1 else 'are'} {sums.num_rows}", param="data")
    determinant, reduced = _eliminated(sums)
    inverse = [
        [Fraction(row[size + place] * scales[at] * scales[place], determinant) for place in range(size)]
        for at, row in enumerate(reduced)
    ]
    coefficients = [Fraction(row[-1] * scales[at], determinant * scales[-1]) for at, row in enumerate(reduced)]
    explained = sum(map(mul, products[-1][:size], (row[-1] for row in reduced)))
    square = scales[-1] ** 2
    total = Fraction(products[-1][-1], square)
    if has_constant:
        total -= Fraction(products[0][-1] ** 2, square * sums.num_rows)
    return Solution(
        names=sums.names[:size],
        coefficients=coefficients,
        inverse=inverse,
        residual_squares=Fraction(products[-1][-1] * determinant - explained, determinant * square),
        total_squares=total,
        num_rows=sums.num_rows,
        has_constant=has_constant,
    )


def _eliminated(sums: Sums) -> tuple[int, list[list[int]]]:
    """Return the determinant, and each row's part of the inverse and of the solution, both times the determinant."""
    size = len(sums.names) - 1
    rows = [
        [*sums.products[at][:size], *(int(at == place) for place in range(size)), sums.products[at][size]]
        for at in range(size)
    ]
    before = 1
    for at in range(size):
        pivot = rows[at][at]
        if pivot == 0:  # the leading minors of products are positive until a column depends on those before it
            raise _dependent(sums, at)
        for other in range(size):
            factor = rows[other][at]
            if other != at:
                rows[other] = [
                    (pivot * mine - factor * its) // before for mine, its in zip(rows[other], rows[at], strict=True)
                ]
        before = pivot
    return before, rows


def _dependent(sums: Sums, at: int) -> RequestError:
    name = sums.names[at] or "the constant"
    if at == 0 or (at == 1 and sums.names[0] == ""):
        return RequestError(f"{name} is the same in each row: no line can be told from it", param="x")
    others = ", ".join(other or "the constant" for other in sums.names[:at])
    return RequestError(f"{name} is collinear: it can be computed from {others}; leave one of them out", param="x")
