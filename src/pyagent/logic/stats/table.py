"""Tables of numbers from what people have: CSV, TSV, JSON, lines, numbers in a sentence. Bounded, and never guessing.

Cells stay texts until a column is asked for. A first row with anything but numbers names the columns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.field_errors import json_error
from pyagent.core.nearest import did_you_mean
from pyagent.core.one_line import printable
from pyagent.logic.stats.exact_numbers import MISSING, Column, column_of, is_number, read_plain

MAX_ROWS = 1_000_000
MAX_CELLS = 5_000_000
MAX_COLUMNS = 10_000
MAX_TEXT_CHARACTERS = 1_000_000
_MAX_NAME_CHARACTERS = 60
_MAX_TOLD = 8
_LOOKED_AT = 50
"""Cells by which a column is taken for one of numbers."""
_MAX_BITS = 4_000
_NUMBER = r"[+\-\N{MINUS SIGN}]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?"
_RUN = re.compile(rf"(?<![\w.])(?:{_NUMBER})(?:(?:\s*[,;]\s*|\s+){_NUMBER})*(?![\w%])", re.ASCII)
_SERIES = re.compile(rf"(?<!\w)([^\W\d]\w{{0,40}})\s{{0,9}}[:=]\s{{0,9}}({_NUMBER}(?:(?:\s*,\s*|[ \t]+){_NUMBER})+)")
_PAIRS = re.compile(rf"\(\s*({_NUMBER})\s*[,;]\s*({_NUMBER})\s*\)")
_FEWEST = 3
"""A sentence's numbers are data from this many on: one or two are a degree, or a share."""


@dataclass(frozen=True)
class Table:
    """Columns of cells by name, all of one length."""

    columns: Mapping[str, Sequence[str]]

    @property
    def names(self) -> list[str]:
        """The columns in their order."""
        return list(self.columns)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), ()))

    @property
    def numeric(self) -> list[str]:
        """The columns whose first cells are numbers, or stand for none."""
        return [name for name, cells in self.columns.items() if _looks_numeric(cells)]

    def partly_numeric(self, exclude: Collection[str | None]) -> list[str]:
        """Return the columns, but for some, whose first cells are numbers and something else."""
        others = {name: cells for name, cells in self.columns.items() if name not in exclude}
        return [name for name, cells in others.items() if any(is_number(cell) for cell in cells[:_LOOKED_AT])]

    def named(self, name: str, what: str) -> str:
        """Return the column of that name, large or small; raises `RequestError` with the nearest one there is."""
        if name in self.columns:
            return name
        alike = [each for each in self.columns if each.lower() == name.strip().lower()]
        if len(alike) == 1:
            return alike[0]
        hint = did_you_mean(name, self.names, f"the columns are {told(self.names)}")
        raise RequestError(f"there is no column {printable(name[:_MAX_NAME_CHARACTERS])!r}; {hint}", param=what)

    def numbers(self, names: Sequence[str]) -> tuple[list[Column], list[int]]:
        """Return columns without the rows that lack a number in one of them, and these rows, the first being 1."""
        plain = [read_plain(name, self.columns[name]) for name in names]
        if all(column is not None for column in plain):
            return [column for column in plain if column is not None], []
        cells = [self.columns[name] for name in names]
        left_out = sorted({row for each in cells for row, cell in enumerate(each, 1) if _is_missing(cell)})
        without = frozenset(left_out)
        kept = [[(row, cell) for row, cell in enumerate(each, 1) if row not in without] for each in cells]
        return [column_of(name, each) for name, each in zip(names, kept, strict=True)], left_out


def told(names: Sequence[str]) -> str:
    """Return some names for a sentence."""
    more = f" and {len(names) - _MAX_TOLD:,} more" if len(names) > _MAX_TOLD else ""
    return ", ".join(names[:_MAX_TOLD]) + more


def read_file(name: str, text: str) -> Table:
    """Return the table of a file: JSON by its ending, else rows of cells."""
    suffix = name.lower().rpartition(".")[2]
    if suffix == "json":
        return _from_json(name, text)
    lines = text.lstrip("\ufeff")
    first = next((line for line in lines[:100_000].splitlines() if line.strip()), "")
    signs = "\t" if suffix == "tsv" else "\t;,"
    delimiter = next((sign for sign in signs if sign in first), None)
    if delimiter is None and suffix not in {"csv", "tsv"}:
        return _from_rows(name, (line.split() for line in lines.splitlines()))
    reader = csv.reader(io.StringIO(lines), delimiter=delimiter or ",", strict=True, skipinitialspace=True)
    try:
        return _from_rows(name, reader)
    except csv.Error as error:
        raise RequestError(f"{name} is not CSV: {error} in line {reader.line_num}", param="files") from error


def read_text(text: str) -> Table | None:
    """Return the numbers of a text: rows under names, `x: 1, 2; y: 3, 4`, `(1, 3) (2, 4)`, or one series; else None."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise RequestError(f"the text has more than {MAX_TEXT_CHARACTERS:,} characters; give a file", param="text")
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [[cell.strip() for cell in re.split(r"[,;\t]", line)] for line in lines]
    widths = {len(row) for row in rows}
    if len(rows) > _FEWEST and len(widths) == 1 and min(widths) > 1 and all(_is_row(row) for row in rows[1:]):
        return _from_rows("the text", rows)
    if series := _SERIES.findall(text):
        columns = {_clean(name): re.split(r"[\s,]+", numbers) for name, numbers in series}
        return _checked("the text", columns, len(series))
    pairs = _PAIRS.findall(text)
    if len(pairs) >= _FEWEST:
        return Table({"x": [x for x, _ in pairs], "y": [y for _, y in pairs]})
    return _one_series(text)


def _one_series(text: str) -> Table | None:
    runs = [re.split(r"[\s,;]+", match[0]) for match in _RUN.finditer(text)]
    long = [run for run in runs if len(run) >= _FEWEST]
    if len(long) > 1:
        raise RequestError("the text has several series of numbers: name them, as x: 1, 2, 3; y: 2, 4, 6", param="text")
    return Table({"y": long[0]}) if long else None


def read_data(data: Mapping[str, Sequence[int | float | str | None]]) -> Table:
    """Return the table of a program's columns."""
    columns = {_clean(name): [_cell(cell) for cell in cells] for name, cells in data.items()}
    return _checked("data", columns, len(data))


def _is_row(cells: Sequence[str]) -> bool:
    return all(_is_missing(cell) or is_number(cell) for cell in cells)


def _from_rows(name: str, rows: Iterable[Sequence[str]]) -> Table:
    reader = iter(rows)
    first = next((row for row in reader if any(cell.strip() for cell in row)), None)
    if first is None:
        raise RequestError(f"{name} has no rows", param="files")
    width = len(first)
    _check_size(name, 1, width)
    is_header = not _is_row([cell.strip() for cell in first])
    names = [_clean(cell) for cell in first] if is_header else _plain_names(width)
    names = [each or f"c{place}" for place, each in enumerate(names, 1)]
    body = [row for row in islice(reader, min(MAX_ROWS, MAX_CELLS // width) + 2) if row]
    body = body if is_header else [first, *body]
    _check_size(name, len(body), width)
    if {len(row) for row in body} - {width}:
        body = [_filled_up(name, number, row, width) for number, row in enumerate(body, 1)]
    columns = [[cell.strip() for cell in column] for column in zip(*body, strict=True)] or [[] for _ in names]
    return _checked(name, dict(zip(names, columns, strict=True)) if len(set(names)) == width else {}, width, names)


def _filled_up(name: str, number: int, row: Sequence[str], width: int) -> Sequence[str]:
    if len(row) > width:
        raise RequestError(f"{name}, row {number}: {len(row):,} cells, and there are {width:,} columns", param="files")
    return [*row, *[""] * (width - len(row))]


def _plain_names(width: int) -> list[str]:
    return {1: ["y"], 2: ["x", "y"]}.get(width) or [f"c{place}" for place in range(1, width + 1)]


def _check_size(name: str, num_rows: int, width: int) -> None:
    if width > MAX_COLUMNS:
        raise RequestError(f"{name} has {width:,} columns; the most is {MAX_COLUMNS:,}", param="files")
    if num_rows > MAX_ROWS or num_rows * width > MAX_CELLS:
        text = f"{name} has more than {MAX_ROWS:,} rows or {MAX_CELLS:,} cells; give a part of it"
        raise RequestError(text, param="files")


def _checked(name: str, columns: Mapping[str, Sequence[str]], width: int, names: Sequence[str] | None = None) -> Table:
    if len(columns) < width:
        given = list(names or columns)
        twice = next((each for place, each in enumerate(given) if each in given[:place]), "")
        raise RequestError(
            f"{name} names a column twice: {twice!r}" if twice else f"{name} names a column twice", param="data"
        )
    lengths = {each: len(cells) for each, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        some = ", ".join(f"{each} {length}" for each, length in islice(lengths.items(), _MAX_TOLD))
        raise RequestError(f"{name}: the columns differ in length: {some}", param="data")
    _check_size(name, next(iter(lengths.values()), 0), len(columns))
    if not columns or "" in columns or not any(lengths.values()):
        raise RequestError(f"{name} has no numbers", param="data")
    return Table(columns)


def _from_json(name: str, text: str) -> Table:
    try:
        value = cast("object", msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise RequestError(f"{name} is nested too deep", param="files") from error
        raise json_error(name, error, text.encode(errors="replace")) from error
    form = f"{name}: expected a list of numbers, rows or objects, or an object with a list for each column"
    if isinstance(value, dict):
        lists = cast("dict[str, object]", value)
        if not all(isinstance(cells, list) for cells in lists.values()):
            raise RequestError(form, param="files")
        columns = {_clean(key): _cells(name, cast("list[object]", cells)) for key, cells in lists.items()}
        return _checked(name, columns, len(lists))
    rows = cast("list[object]", value) if isinstance(value, list) else []
    if rows and all(isinstance(row, dict) for row in rows):
        return _from_objects(name, cast("list[dict[str, object]]", rows))
    if rows and all(isinstance(row, list) for row in rows):
        return _from_rows(name, (_cells(name, cast("list[object]", row)) for row in rows))
    if not rows:
        raise RequestError(form, param="files")
    return _from_rows(name, ([cell] for cell in _cells(name, rows)))


def _from_objects(name: str, rows: Sequence[Mapping[str, object]]) -> Table:
    keys = list(dict.fromkeys(key for row in islice(rows, MAX_ROWS) for key in row))
    _check_size(name, len(rows), len(keys))
    columns = {_clean(key): _cells(name, [row.get(key) for row in rows]) for key in keys}
    return _checked(name, columns, len(keys))


def _cells(name: str, values: Sequence[object]) -> list[str]:
    if any(isinstance(value, dict | list) for value in values):
        raise RequestError(f"{name}: expected a number in each place, got a list or an object", param="files")
    return [_cell(value) for value in values]


def _cell(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a number of {value.bit_length():,} bits"  # Python writes out only so many digits
    return "" if value is None else str(value)


def _clean(name: str) -> str:
    return " ".join(printable(name).split())[:_MAX_NAME_CHARACTERS]


def _is_missing(cell: str) -> bool:
    return len(cell) <= 4 and cell.lower() in MISSING


def _looks_numeric(cells: Sequence[str]) -> bool:
    some = [cell for cell in cells[:_LOOKED_AT] if not _is_missing(cell)]
    return bool(some) and all(is_number(cell) for cell in some)
