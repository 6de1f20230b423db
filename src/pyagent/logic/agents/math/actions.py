"""What the math agent can be asked for, as typed values, and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.logic.agents.math.grammar import parse


class _Action(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag=str.lower, forbid_unknown_fields=True):
    def texts(self) -> list[str]:
        """Return the expressions in it."""
        values = (getattr(self, name) for name in ("expression", "point", "lower", "upper") if hasattr(self, name))
        return [value for value in values if value is not None]

    def check(self) -> None:
        """Raise `RequestError` when an expression in it cannot be read."""
        for text in self.texts():
            parse(text)


class Evaluate(_Action, frozen=True):
    """The value of an expression, exact; matrices and their functions too."""

    expression: str


class Simplify(_Action, frozen=True):
    """An expression in its simplest form."""

    expression: str


class Expand(_Action, frozen=True):
    """An expression multiplied out."""

    expression: str


class Factor(_Action, frozen=True):
    """A whole number or a polynomial in factors."""

    expression: str


class Differentiate(_Action, frozen=True):
    """The derivative of an order by a variable."""

    expression: str
    variable: str | None = None
    order: int = 1


class Integrate(_Action, frozen=True):
    """The integral, between bounds if both are given."""

    expression: str
    variable: str | None = None
    lower: str | None = None
    upper: str | None = None


class Limit(_Action, frozen=True):
    """The limit as a variable goes to a point."""

    expression: str
    point: str
    variable: str | None = None
    side: Literal["both", "left", "right"] = "both"


class Series(_Action, frozen=True):
    """The Taylor series around a point, up to an order."""

    expression: str
    variable: str | None = None
    point: str = "0"
    order: int = 6


class Solve(_Action, frozen=True):
    """The solutions of equations; without `=`, an expression is set to zero."""

    equations: list[str]
    variables: list[str] = []

    def texts(self) -> list[str]:
        """Return the equations."""
        return [*self.equations, *self.variables]


class Matrix(_Action, frozen=True):
    """A property of a matrix, written `[[1, 2], [3, 4]]`."""

    expression: str
    operation: Literal["determinant", "inverse", "eigenvalues", "rank", "transpose", "trace"]


Action = Evaluate | Simplify | Expand | Factor | Differentiate | Integrate | Limit | Series | Solve | Matrix


class Solved(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was computed. `approximate` is given where `exact` is not a plain number; `note` says what else to know.

    `reading` is how a model read the question, if one did; then `is_exact` is false, whatever was computed of it.
    """

    question: str
    exact: str
    approximate: str | None = None
    is_exact: bool = True
    note: str = ""
    reading: str = ""

    def __str__(self) -> str:
        sign = ":" if "=" in self.question else " =" if self.is_exact or self.reading else " ≈"
        approximate = f" ≈ {self.approximate}" if self.approximate else ""
        reading = f"a model read the question as {self.reading}: see whether that is it" if self.reading else ""
        notes = "; ".join(filter(None, [self.note, reading]))
        return f"{self.question}{sign} {self.exact}{approximate}" + (f"  ({notes})" if notes else "")
