"""The dimensionality agent: principal components, projections, clusters and similarity of numbers or of texts.

Texts are embedded by the chain's first backend that embeds; nothing else asks a model. Needs numpy (extra `stats`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

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
from pyagent.logic.stats import matrix
from pyagent.logic.stats.maps import reduction_picture
from pyagent.logic.stats.matrix import Metric
from pyagent.logic.stats.picture import Picture
from pyagent.logic.stats.reduction import MAX_ROWS_TOLD, Method, Reduction, Rows, Wish, reduce
from pyagent.logic.stats.table import Table, read_data, read_file, read_text, told

MAX_TEXTS = 2_000
_MAX_TEXT_CHARACTERS = 8_000
_BATCH = 64
_MAX_NAME_CHARACTERS = 40
_MAX_SCORED = 4_000
_TABLES = (".csv", ".tsv", ".json", ".txt", ".dat")
_METHODS: tuple[tuple[Method, str], ...] = (
    ("k-means", r"k[\s-]?means|clusters?|clustering|group"),
    ("random-projection", r"random projections?|johnson"),
    ("similarity", r"similarity|similarities|how (?:alike|similar)"),
    ("pca", r"pca|principal components?|explained variance|dimension\w*"),
)
_ASKED = re.compile(
    r"\b(?:pca|principal components?|k[\s-]?means|cluster(?:s|ing)?|random projection|johnson[\s-]lindenstrauss|"
    r"similarity matrix|explained variance|dimension(?:ality)? reduction)\b|\breduce\b.{0,40}\bdimensions?\b",
    re.IGNORECASE | re.DOTALL,
)


_METHODS_OF: dict[str, tuple[Method, ...]] = {
    "clusters": ("k-means",),
    "variance": ("pca",),
    "components": ("pca", "random-projection"),
    "error": ("random-projection",),
    "metric": ("similarity",),
}
_UNSAID: dict[str, object] = {"error": 0.1, "metric": "cosine"}
"""What these options are where they are not given; others are None."""


class ReductionArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to reduce rows of numbers: of `columns` of a table, or of `data`; or of texts, which are embedded.

    `components` are dimensions to keep, or as many as hold a share of the `variance`; `clusters` are chosen by
    silhouette unless given. `error` is what a random projection may change squared distances by. `label` is the column
    of names.
    """

    method: Method | None = None
    columns: list[str] = []
    label: str | None = None
    components: int | None = None
    variance: float | None = None
    clusters: int | None = None
    error: float = 0.1
    metric: Metric = "cosine"
    standardize: bool = False
    seed: int = 0
    texts: list[str] = []
    data: dict[str, list[int | float | str | None]] = {}

    def check(self) -> None:
        """Raise `RequestError` for numbers that make no sense."""
        if not 0 < self.error < 1:
            raise RequestError(f"expected error from 0 to 1, got {self.error}", param="error")
        if self.variance is not None and not 0 < self.variance <= 1:
            raise RequestError(f"expected variance above 0, up to 1, got {self.variance}", param="variance")
        if not 0 <= self.seed < 2**32:
            raise RequestError(f"expected seed from 0 to {2**32 - 1}, got {self.seed}", param="seed")
        if self.variance is not None and self.components is not None:
            raise RequestError("name components or variance, not both", param="variance")

    def wish(self, text: str) -> Wish:
        """Return how to reduce: as the arguments say, else as the text does, else by PCA.

        Raises `RequestError` for an option of another method.
        """
        implied: Method = "pca" if self.clusters is None else "k-means"
        named = _named(text) if self.clusters is None and self.variance is None else None
        method = self.method or named or implied
        for name, methods in _METHODS_OF.items():
            if getattr(self, name) != _UNSAID.get(name) and method not in methods:
                raise RequestError(f"{name} is for {' and '.join(methods)}, not for {method}", param=name)
        return Wish(
            method=method,
            components=self.components,
            variance=self.variance,
            clusters=self.clusters,
            error=self.error,
            metric=self.metric,
            standardize=self.standardize,
            seed=self.seed,
        )


def _named(text: str) -> Method | None:
    """Return the method that a text names."""
    words = text[:_MAX_SCORED]
    return next((each for each, forms in _METHODS if re.search(rf"\b(?:{forms})\b", words, re.IGNORECASE)), None)


class MapArguments(ReductionArguments, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to reduce, `embed` for lines of a text or file that are texts, and `plot`, the picture to write."""

    embed: bool = False
    plot: str | None = None

    def check(self) -> None:
        """Raise `RequestError` for numbers that make no sense, and a label of what has none."""
        super().check()
        if self.label is not None and (self.embed or self.texts):
            raise RequestError("label names a table's rows; texts are told by their own beginnings", param="label")


class DimensionalityAgent:
    """Reduces rows of numbers, or of embedded texts."""

    name = "dimensionality"
    description = (
        "Finds principal components, clusters (k-means), projections and similarities of rows of a table or of texts, "
        "and draws them."
    )
    typical_tasks = typical_tasks_of("dimensionality")
    arguments = MapArguments

    def score(self, task: Task) -> float | None:
        """Asks for components, clusters or similarities of a table."""
        has_table = any(name.lower().endswith(_TABLES) for name in task.files)
        if has_table and _ASKED.search(task.text[:_MAX_SCORED]):
            return Score(0.9, "it asks to reduce a table")
        return 0.0 if task.files and not has_table else None

    async def run(self, context: Context, task: Task) -> Reduction:
        """Return what the method makes of the files', the arguments', an earlier step's or the text's rows."""
        arguments = task.arguments_as(MapArguments)
        arguments.check()
        wish = arguments.wish(task.text)
        target = checked_target(arguments.plot)
        matrix.numpy()
        if arguments.embed or arguments.texts:
            rows = await _embedded(context, await _texts(task, arguments))
        else:
            table = await _table(task, arguments)
            rows = await asyncio.to_thread(_rows, table, arguments)
        context.progress(f"{len(rows.names):,} rows, {wish.method}")
        found = await asyncio.to_thread(reduce, rows, wish)
        picture = await save_picture(context, task, target, lambda: _picture(found, rows, wish))
        return msgspec.structs.replace(found, picture=picture)


async def _table(task: Task, arguments: ReductionArguments) -> Table:
    if len(task.files) + len(task.results) + bool(arguments.data) > 1:
        raise RequestError("the numbers come from one file, one step or `data`, not from several", param="files")
    if arguments.data:
        return await asyncio.to_thread(read_data, arguments.data)
    for document in await read_documents(task.files):
        return await asyncio.to_thread(read_file, document.path, document.text)
    text = next((text_of(result) for result in task.results.values()), task.text)
    is_json = text.lstrip()[:1] in {"[", "{"}
    table = await (asyncio.to_thread(read_file, "result.json", text) if is_json else asyncio.to_thread(read_text, text))
    if table is None:
        if not task.arguments:
            raise Decline("there are no rows of numbers: give a file")
        raise RequestError("there are no rows of numbers: give a file, data or texts", param="files")
    return table


def _rows(table: Table, arguments: ReductionArguments) -> Rows:
    label, numeric = None if arguments.label is None else table.named(arguments.label, "label"), table.numeric
    names = _columns(table, arguments) or [name for name in numeric if name != label]
    label = label or next((name for name in table.names if name not in {*names, *numeric}), None)
    if not names:
        raise RequestError(f"no column has numbers; the columns are {told(table.names)}", param="columns")
    columns, left_out = table.numbers(names)
    without = frozenset(left_out)
    kept = [row for row in range(1, table.num_rows + 1) if row not in without]
    if not kept:
        raise RequestError(f"no row has a number in each of {told(names)}", param="data")
    named = [f"row {row}" if label is None else _short(table.columns[label][row - 1]) for row in kept]
    np = matrix.numpy()
    passed_over = [] if arguments.columns else table.partly_numeric(exclude={*names, arguments.label})
    return Rows(np.array([column.values for column in columns]).T, names, named, len(left_out), passed_over)


def _columns(table: Table, arguments: ReductionArguments) -> list[str]:
    """Return the columns that are named, each by itself or several between commas."""
    return [table.named(name, "columns") for each in arguments.columns for name in _split(each, table)]


def _split(name: str, table: Table) -> list[str]:
    return [name] if name in table.columns else [part for part in name.split(",") if part.strip()]


def _short(text: str) -> str:
    return " ".join(printable(text[:200]).split())[:_MAX_NAME_CHARACTERS]


async def _texts(task: Task, arguments: MapArguments) -> list[str]:
    """Return the texts to embed: those given, a column of a table, or lines."""
    found = list(arguments.texts)
    for document in await read_documents(task.files):
        if arguments.columns:
            table = await asyncio.to_thread(read_file, document.path, document.text)
            columns = [table.columns[name] for name in _columns(table, arguments)]
            found += [" ".join(cells) for cells in zip(*columns, strict=True)]
        else:
            found += document.text.splitlines()
    if not found:
        found = [text_of(result) for result in task.results.values()] or task.text.splitlines()
    texts = [text.strip() for text in found if text.strip()]
    if not 2 <= len(texts) <= MAX_TEXTS:
        raise RequestError(f"there are {len(texts):,} texts; expected 2 to {MAX_TEXTS:,}", param="texts")
    longest = max(len(text) for text in texts)
    if longest > _MAX_TEXT_CHARACTERS:
        text = f"a text has {longest:,} characters; the most is {_MAX_TEXT_CHARACTERS:,}"
        raise RequestError(text, param="texts")
    return texts


async def _embedded(context: Context, texts: Sequence[str]) -> Rows:
    context.progress(f"{len(texts):,} texts to embed")
    vectors: list[list[float]] = []
    for start in range(0, len(texts), _BATCH):
        vectors += await context.embed(texts[start : start + _BATCH])
    if len({len(vector) for vector in vectors}) != 1:
        raise RequestError("the backend gave vectors of different lengths", param="texts")
    return Rows(vectors, [], [_short(text) for text in texts])


def _picture(found: Reduction, rows: Rows, wish: Wish) -> Picture:
    """Return the picture; clusters, and what has one column only, are shown along principal components."""
    if found.method == "similarity":
        return reduction_picture(found, [], ("", ""))
    places, labels = found.coordinates, ("first dimension", "second dimension")
    if found.components:
        shares = [f"component {nth} ({each.ratio * 100:.1f} %)" for nth, each in enumerate(found.components[:2], 1)]
        labels = (shares[0], shares[-1])
    if found.clusters:
        components = reduce(rows, msgspec.structs.replace(wish, method="pca", components=None, variance=None))
        places, labels = components.coordinates, ("component 1", "component 2")
    if len(places[0]) < 2:
        places, labels = [[*each, 0.0] for each in places], (labels[0], "")
    return reduction_picture(found, places[:MAX_ROWS_TOLD], labels)


async def _tool(arguments: ReductionArguments) -> Reduction:
    arguments.check()
    if arguments.texts or not arguments.data:
        raise RequestError("the tool takes numbers, as columns of data", param="data")
    wish, table = arguments.wish(""), await asyncio.to_thread(read_data, arguments.data)
    rows = await asyncio.to_thread(_rows, table, arguments)
    return await asyncio.to_thread(reduce, rows, wish)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The dimensionality agent."""
    return [DimensionalityAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The reduction as a tool."""
    function: Callable[[ReductionArguments], Awaitable[object]] = _tool
    description = "Finds principal components, clusters (k-means) or similar rows of columns of numbers (data)."
    return [FleetTool("reduce_dimensions", description, ReductionArguments, function, effect="none")]
