"""Numbers as they are written: `0.1` is one tenth. A column is whole numbers over one power of ten; sums are exact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

MAX_EXPONENT = 100
_MAX_CHARACTERS = 60
_NUMBER = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,4}))?", re.ASCII)
_PLAIN = re.compile(r"(?:-?[0-9]{1,18}+(?:\.[0-9]{1,18}+)?+(?:\n|\Z))++")
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?"})
"""What stands for no number, in small letters."""


@dataclass(frozen=True)
class Column:
    """Numbers by name: value `i` is `whole[i] / scale`."""

    name: str
    whole: Sequence[int]
    scale: int

    @cached_property
    def values(self) -> list[float]:
        """The numbers, rounded to what the machine computes with."""
        return [each / self.scale for each in self.whole]

    def __len__(self) -> int:
        return len(self.whole)


def read_number(cell: str) -> tuple[int, int]:
    """Return a number as `(m, e)`, which is m * 10^e; raises `ValueError` saying why there is none."""
    if cell.isdecimal() and cell.isascii() and len(cell) <= _MAX_CHARACTERS:
        return int(cell), 0
    match = _NUMBER.fullmatch(cell.replace("\N{MINUS SIGN}", "-").strip()) if len(cell) <= _MAX_CHARACTERS else None
    if match is None:
        raise ValueError(f"expected a number such as 12, 1.5 or 2e-3, got {printable(cell[:40])!r}")
    before, _, after = match[2].partition(".")
    mantissa, exponent = int(before + after), int(match[3] or 0) - len(after)
    if mantissa and not -MAX_EXPONENT <= exponent + len(str(mantissa)) <= MAX_EXPONENT:
        raise ValueError(f"{printable(cell[:40])} is beyond 1e-{MAX_EXPONENT} to 1e{MAX_EXPONENT}")
    return -mantissa if match[1] == "-" else mantissa, exponent if mantissa else 0


def read_plain(name: str, cells: Sequence[str]) -> Column | None:
    """Return cells that all are plain decimals as a column, in a third of the time; None where one is not."""
    if not _PLAIN.fullmatch("\n".join(cells)):
        return None
    parts = [cell.partition(".") for cell in cells]
    decimals = max((len(after) for _, _, after in parts), default=0)
    return Column(name, [int(before + after.ljust(decimals, "0")) for before, _, after in parts], 10**decimals)


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        read_number(cell)
    except ValueError:
        return False
    return True


def column_of(name: str, cells: Iterable[tuple[int, str]]) -> Column:
    """Return cells, each with its row's number, as a column; raises `RequestError` naming the row of a wrong one."""
    read: list[tuple[int, int]] = []
    for row, cell in cells:
        try:
            read.append(read_number(cell))
        except ValueError as error:
            raise RequestError(f"column {name}, row {row}: {error}", param="data") from error
    lowest = min((exponent for _, exponent in read), default=0)
    if lowest >= 0:
        return Column(name, [mantissa * 10**exponent for mantissa, exponent in read], 1)
    powers = {exponent: 10 ** (exponent - lowest) for _, exponent in read}
    return Column(name, [mantissa * powers[exponent] for mantissa, exponent in read], 10**-lowest)


def column_of_floats(name: str, values: Sequence[float]) -> Column:
    """Return floats as a column, each as exactly the binary fraction that it is."""
    ratios = [value.as_integer_ratio() for value in values]
    scale = max((below for _, below in ratios), default=1)
    return Column(name, [above * (scale // below) for above, below in ratios], scale)


def real(value: Fraction | int) -> float:
    """Return a fraction rounded; raises `RequestError` for what no float can hold."""
    try:
        rounded = float(value)
    except OverflowError:
        rounded = 0.0
    if value and not rounded:
        text = "a result is beyond what a float holds (1e-308 to 1e308): give the columns in other units"
        raise RequestError(text, param="data")
    return rounded


def shown(value: float) -> str:
    """Return six digits of a number, and all before the point where these are at most nine."""
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e9 else f"{value:.6g}"
