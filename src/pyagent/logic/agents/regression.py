"""The regression agent: fits curves to numbers of a file or a text, and tests for trends. Exact, and asks no model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import msgspec

from pyagent.core.errors import Decline, RequestError
from pyagent.core.fleet.agent import Agent, Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.one_line import printable
from pyagent.logic.agents.documents import read_documents
from pyagent.logic.agents.pictures import checked_target, save_picture
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.stats.charts import regression_picture, trend_picture
from pyagent.logic.stats.exact_numbers import Column, read_number
from pyagent.logic.stats.picture import Picture
from pyagent.logic.stats.regression import Criterion, Curve, Wanted, regress
from pyagent.logic.stats.report import Regression
from pyagent.logic.stats.table import Table, read_data, read_file, read_text, told
from pyagent.logic.stats.trend import Trend, mann_kendall

Method = Literal["linear", "polynomial", "exponential", "power", "logarithmic", "mann-kendall"]
_MAX_SCORED = 4_000
_MAX_LEFT_OUT = 100
_MAX_PREDICTIONS = 100
_METHODS: tuple[tuple[Method, str], ...] = (
    ("mann-kendall", r"mann[\s-]*kendall|sen'?s slope|monotonic trend"),
    ("exponential", r"exponential(?:ly)?"),
    ("power", r"power[\s-]law|power curve"),
    ("logarithmic", r"logarithmic|log curve"),
    ("polynomial", r"polynomial|quadratic|cubic|parabola"),
    ("linear", r"linear|straight line"),
)
_DEGREES = {"quadratic": 2, "parabola": 2, "cubic": 3}
_DEGREE = re.compile(r"\bdegree\s+(\d{1,2})\b|\b(quadratic|parabola|cubic)\b", re.IGNORECASE)
_ASKED = re.compile(
    r"\b(?:regress(?:ion|es)?|line of best fit|best[\s-]fit(?:ting)? line|trend\s?line|mann[\s-]*kendall|sen'?s slope|"
    r"least squares)\b|\bfit\b.{0,40}\b(?:line|curve|parabola|polynomial|quadratic|cubic|exponential|power law|model)\b"
    r"|\b(?:is|are)\b.{0,40}\b(?:rising|falling|increasing|decreasing)\b.{0,30}\btrend\b|\bmonotonic trend\b"
    r"|\bhow does\b.{0,60}\bdepend on\b",
    re.IGNORECASE | re.DOTALL,
)
_TABLES = (".csv", ".tsv", ".json", ".txt", ".dat")
_RELATES = re.compile(r"\b(?:on|against|from|vs\.?|versus|by|over|with)\b", re.IGNORECASE)


class FitArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to fit: `y` is explained by the columns `x`. Without `degree` a polynomial's is chosen by the `criterion`.

    `at` are places to predict at: `5`, or `size=5, age=2`. `data` has the numbers by column, where no file or text has.
    """

    y: str | None = None
    x: list[str] = []
    method: Method | None = None
    degree: int | None = None
    criterion: Criterion = "aicc"
    at: list[str] = []
    confidence: float = 0.95
    through_origin: bool = False
    data: dict[str, list[int | float | str | None]] = {}

    def check(self) -> None:
        """Raise `RequestError` for numbers that make no sense."""
        if not 0.5 <= self.confidence <= 0.9999:
            raise RequestError(f"expected confidence from 0.5 to 0.9999, got {self.confidence}", param="confidence")
        if self.degree is not None and self.method not in {None, "polynomial"}:
            raise RequestError(f"degree is for a polynomial, not for {self.method}", param="degree")
        if self.method == "mann-kendall" and (self.at or self.through_origin or len(self.x) > 1):
            raise RequestError(
                "mann-kendall tests one column for a trend: it takes y, one x and confidence", param="method"
            )
        if len(self.at) > _MAX_PREDICTIONS:
            raise RequestError(
                f"there are {len(self.at)} places to predict at; the most is {_MAX_PREDICTIONS}", param="at"
            )


class RegressionArguments(FitArguments, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to fit, and `plot`, the picture to write: FILE.svg, or FILE.png with the extra `stats`."""

    plot: str | None = None


class RegressionAgent:
    """Fits curves, and tests for trends."""

    name = "regression"
    description = (
        "Fits lines, polynomials, exponential and power curves to numbers of a table or text, with intervals and "
        "p-values, predicts, and tests for a trend (Mann-Kendall, Sen's slope)."
    )
    typical_tasks = typical_tasks_of("regression")
    arguments = RegressionArguments

    def score(self, task: Task) -> float | None:
        """Asks for a fit, a regression or a trend, of a table or of at least three numbers."""
        text = task.text[:_MAX_SCORED]
        has_table = any(name.lower().endswith(_TABLES) for name in task.files)
        if _ASKED.search(text) and (has_table or len(re.findall(r"\d+(?:\.\d+)?", text)) > 2):
            return Score(0.9, "it asks to fit numbers")
        return 0.0 if task.files and not has_table else None

    async def run(self, context: Context, task: Task) -> Regression:
        """Return the fit or the trend of the text's, the files', the arguments' or an earlier step's numbers."""
        arguments = _with_words(task.arguments_as(RegressionArguments), task.text)
        arguments.check()
        target = checked_target(arguments.plot)
        table = await _table(task, arguments)
        chosen = _chosen(table, arguments, task.text)
        context.progress(f"{table.num_rows:,} rows, {arguments.method or 'linear'}")
        outcome = await asyncio.to_thread(_fitted, table, chosen, arguments)
        picture = await save_picture(context, task, target, outcome.draw)
        return msgspec.structs.replace(outcome.report, picture=picture)


@dataclass(frozen=True)
class _Columns:
    """The columns by name; no `x` means the rows' own numbers."""

    y: str
    x: tuple[str, ...]


@dataclass(frozen=True)
class _Outcome:
    report: Regression
    x: Sequence[Column]
    y: Column
    found: Curve | Trend

    def draw(self) -> Picture:
        """Return the picture of what was found."""
        if isinstance(self.found, Trend):
            return trend_picture(self.found, self.x[0], self.y)
        return regression_picture(self.found, self.x, self.y)


async def _table(task: Task, arguments: FitArguments) -> Table:
    """Return the numbers of the one source there is: arguments, a file, an earlier step, or the text."""
    if len(task.files) + len(task.results) + bool(arguments.data) > 1:
        raise RequestError("the numbers come from one file, one step or `data`, not from several", param="files")
    if arguments.data:
        return await asyncio.to_thread(read_data, arguments.data)
    for document in await read_documents(task.files):
        return await asyncio.to_thread(read_file, document.path, document.text)
    for step, result in task.results.items():
        text = text_of(result)
        is_json = text.lstrip()[:1] in {"[", "{"}
        table = await (
            asyncio.to_thread(read_file, f"{step}.json", text) if is_json else asyncio.to_thread(read_text, text)
        )
        if table is None:
            raise RequestError(f"the result of {step} has no series of numbers", param="text")
        return table
    table = await asyncio.to_thread(read_text, task.text)
    if table is None:
        if not task.arguments:
            raise Decline("there are no numbers: give at least three, or a file")
        raise RequestError("there are no numbers: give at least three in the text, a file, or data", param="text")
    return table


def _with_words(arguments: RegressionArguments, text: str) -> RegressionArguments:
    """Return the arguments with the method and degree that the text names, where they do not say."""
    method, degree = arguments.method, arguments.degree
    words = text[:_MAX_SCORED]
    if method is None and degree is None:
        named = (each for each, forms in _METHODS if re.search(rf"\b(?:{forms})\b", words, re.IGNORECASE))
        method = next(named, None)
    if degree is None and method in {None, "polynomial"} and (found := _DEGREE.search(words)):
        degree = int(found[1]) if found[1] else _DEGREES[found[2].lower()]
    if degree is not None and method is None:
        method = "polynomial"
    return msgspec.structs.replace(arguments, method=method, degree=degree)


def _chosen(table: Table, arguments: FitArguments, text: str) -> _Columns:
    """Return which columns are meant; raises `RequestError` where that is not said and not plain."""
    names = table.names
    x = tuple(dict.fromkeys(table.named(name, "x") for each in arguments.x for name in _split(each, table)))
    if arguments.y is not None:
        y = table.named(arguments.y, "y")
        others = [name for name in names if name != y]
        if not x and len(others) > 1:
            raise RequestError(f"say what explains {y}, by x: some of {told(others)}", param="x")
        x = x or tuple(others)
    elif len(names) == 1:
        y = names[0]
    elif x:
        others = [name for name in names if name not in x]
        if len(others) != 1:
            raise RequestError(f"say what is explained, by y: one of {told(others)}", param="y")
        y = others[0]
    elif len(names) == 2:
        y = next((name for name in names if name.lower() == "y"), names[1])
        x = tuple(name for name in names if name != y)
    else:
        y, x = _mentioned(table, text)
    if y in x:
        raise RequestError(f"{y} cannot explain itself", param="x")
    if arguments.method == "mann-kendall" and len(x) > 1:
        raise RequestError(f"mann-kendall takes one x, not {told(x)}", param="x")
    return _Columns(y, x)


def _split(name: str, table: Table) -> list[str]:
    return [name] if name in table.columns else [part for part in name.split(",") if part.strip()]


def _mentioned(table: Table, text: str) -> tuple[str, tuple[str, ...]]:
    """Return the columns that a sentence names: `price on size and age`, the explained one first."""
    words = text[:_MAX_SCORED].lower()
    found = {
        match.start(): name
        for name in table.names
        if name.lower() in words and (match := re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", words))
    }
    named = [found[at] for at in sorted(found)]
    places = sorted(found)
    if len(named) > 1 and _RELATES.search(words, places[0], places[1]):
        return named[0], tuple(named[1:])
    raise RequestError(f"say what is explained by what, as y and x: the columns are {told(table.names)}", param="y")


def _fitted(table: Table, chosen: _Columns, arguments: FitArguments) -> _Outcome:
    columns, left_out = table.numbers([*chosen.x, chosen.y])
    *x, y = columns
    if not x:
        without = frozenset(left_out)
        x = [Column("row", [row for row in range(1, table.num_rows + 1) if row not in without], 1)]
    for column in columns:
        if not len(column):
            raise RequestError(f"no row has a number in each of {told([each.name for each in columns])}", param="data")
    report = Regression(
        x=[each.name for each in x], y=y.name, num_left_out=len(left_out), left_out=left_out[:_MAX_LEFT_OUT]
    )
    if arguments.method == "mann-kendall":
        trend = mann_kendall(x[0], y, arguments.confidence)
        return _Outcome(msgspec.structs.replace(report, trend=trend), x, y, trend)
    places = [_place(each, [column.name for column in x]) for each in arguments.at]
    wanted = Wanted(
        arguments.method or "linear",
        arguments.degree,
        arguments.criterion,
        arguments.confidence,
        not arguments.through_origin,
    )
    curve = regress(x, y, wanted)
    fit = msgspec.structs.replace(curve.fit, predictions=[curve.at(place) for place in places])
    return _Outcome(msgspec.structs.replace(report, fit=fit), x, y, curve)


def _place(text: str, names: Sequence[str]) -> dict[str, Fraction]:
    """Return a place to predict at: a number, or `name=number` for each predictor."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(names) == 1 and len(parts) == 1 and "=" not in text:
        return {names[0]: _number(parts[0])}
    given = {name.strip(): _number(number) for part in parts for name, _, number in [part.rpartition("=")]}
    if set(given) != set(names) or len(given) < len(parts):
        form = ", ".join(f"{name}=1" for name in names[:8])
        raise RequestError(f"expected a place such as {form}, got {printable(text[:80])!r}", param="at")
    return {name: given[name] for name in names}


def _number(text: str) -> Fraction:
    try:
        mantissa, exponent = read_number(text.strip())
    except ValueError as error:
        raise RequestError(f"a place to predict at: {error}", param="at") from error
    return mantissa * Fraction(10) ** exponent


async def _tool(arguments: FitArguments) -> Regression:
    arguments.check()
    if not arguments.data:
        raise RequestError("data has no columns", param="data")
    table = await asyncio.to_thread(read_data, arguments.data)
    outcome = await asyncio.to_thread(_fitted, table, _chosen(table, arguments, ""), arguments)
    return outcome.report


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The regression agent."""
    return [RegressionAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The fit as a tool."""
    function: Callable[[FitArguments], Awaitable[object]] = _tool
    description = "Fits a line or curve to columns of numbers (data), predicts, or tests for a trend (mann-kendall)."
    return [FleetTool("fit_numbers", description, FitArguments, function, effect="none")]
