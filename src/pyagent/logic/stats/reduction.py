"""What a reduction of rows of numbers came to, as programs and people read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.stats import matrix
from pyagent.logic.stats.matrix import Metric, numpy
from pyagent.logic.stats.table import told

Method = Literal["pca", "random-projection", "k-means", "similarity"]
MAX_ROWS_TOLD = 1_000
MAX_MATRIX = 100
_MAX_CLUSTERS = 100
_MOST_TRIED = 10
_NUM_PAIRS = 10
_NUM_LOADINGS = 5
_NUM_EXAMPLES = 4
_SHOWN = 12
_MAX_PROJECTED = 50_000_000
"""Most cells of a projection, and of what it is made by: 400 MB each."""
_MAX_WORK = 100_000_000
"""Most cells times clusters of k-means: about a minute."""


class Component(msgspec.Struct, frozen=True):
    """A direction: its variance, its share of all, the share so far, and the columns that weigh most in it."""

    variance: float
    ratio: float
    cumulative: float
    loadings: dict[str, float]


class Cluster(msgspec.Struct, frozen=True):
    """A group of rows, its centre in the columns, and the names that most of its rows have, with how many have it."""

    size: int
    centre: list[float]
    names: dict[str, int]


class Pair(msgspec.Struct, frozen=True):
    """Two rows by name and number, the first being 1, and how alike they are."""

    first: str
    second: str
    rows: tuple[int, int]
    similarity: float


class Reduction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reduction of `num_rows` rows in `num_columns` dimensions. What is of each row is told of the first 1,000, and
    of the first 100 dimensions.

    `silhouettes` has the mean silhouette by number of clusters tried; `distortion` the least and the greatest ratio of
    squared distances after a projection; the `similarities` matrix is told of up to 100 rows.
    """

    method: Method
    num_rows: int
    num_columns: int
    names: list[str] = []
    coordinates: list[list[float]] = []
    components: list[Component] = []
    clusters: list[Cluster] = []
    assigned: list[int] = []
    inertia: float | None = None
    silhouette: float | None = None
    silhouettes: dict[str, float] = {}
    distortion: tuple[float, float] | None = None
    pairs: list[Pair] = []
    similarities: list[list[float]] = []
    notes: list[str] = []
    num_left_out: int = 0
    picture: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.method} of {self.num_rows:,} rows in {self.num_columns:,} dimensions"]
        lines += _component_lines(self.components)
        lines += _cluster_lines(self)
        lines += [
            f"{pair.similarity:.4f}  {pair.first} ~ {pair.second}"
            + ("" if pair.first.startswith("row ") else f" (rows {pair.rows[0]} and {pair.rows[1]})")
            for pair in self.pairs
        ]
        if self.distortion is not None:
            low, high = self.distortion
            lines.append(f"squared distances are {low:.3f} to {high:.3f} times as they were")
        lines += [f"({note})" for note in self.notes]
        lines += [f"left out, as a number is missing: {self.num_left_out:,} rows"] if self.num_left_out else []
        return "\n".join([*lines, *([f"picture: {self.picture}"] if self.picture else [])])


def _component_lines(components: Sequence[Component]) -> list[str]:
    return [
        f"{nth:>3}  {each.ratio * 100:6.2f} % of variance, {each.cumulative * 100:6.2f} % so far: "
        + ", ".join(f"{value:+.3f} {name}" for name, value in each.loadings.items())
        for nth, each in enumerate(components[:_SHOWN], 1)
    ]


def _cluster_lines(found: Reduction) -> list[str]:
    if not found.clusters:
        return []
    width = "" if found.silhouette is None else f", silhouette {found.silhouette:.4f}"
    lines = [f"{len(found.clusters)} clusters, inertia {found.inertia:.6g}{width}"]
    if found.silhouettes:
        tried = ", ".join(f"{number}: {value:.4f}" for number, value in found.silhouettes.items())
        lines.append(f"the number has the greatest mean silhouette ({tried})")
    for nth, each in enumerate(found.clusters[:_SHOWN]):
        some = ", ".join(name if count == 1 else f"{count:,} {name}" for name, count in each.names.items())
        more = ", ..." if each.size > sum(each.names.values()) else ""
        lines.append(f"{nth:>3}  {each.size:,} rows: {some}{more}")
    return lines


class Rows(msgspec.Struct, frozen=True):
    """The rows as an array, the columns' names (of embeddings there are none), and the rows' names.

    `passed_over` names columns that have numbers, and something else too.
    """

    values: object
    columns: list[str]
    names: list[str]
    num_left_out: int = 0
    passed_over: list[str] = []


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How to reduce."""

    method: Method
    components: int | None = None
    variance: float | None = None
    clusters: int | None = None
    error: float = 0.1
    metric: Metric = "cosine"
    standardize: bool = False
    seed: int = 0


def reduce(rows: Rows, wish: Wish) -> Reduction:
    """Return what the method makes of the rows; raises `RequestError` with the reason where it cannot."""
    np = numpy()
    values = np.asarray(rows.values, dtype=float)
    if len(values) < 2 or not values.shape[1]:
        raise RequestError(f"a reduction needs at least 2 rows, and there are {len(values)}", param="data")
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        try:
            if wish.standardize:
                values = matrix.standardized(values, rows.columns)
            done = {"pca": _pca, "random-projection": _project, "k-means": _cluster, "similarity": _compare}
            found = done[wish.method](values, rows, wish)
        except (FloatingPointError, np.linalg.LinAlgError) as error:
            text = "the numbers are too far apart to compute with: standardize, or give the columns in other units"
            raise RequestError(text, param="data") from error
    return msgspec.structs.replace(
        found,
        num_rows=len(values),
        num_columns=values.shape[1],
        names=rows.names[:MAX_ROWS_TOLD],
        num_left_out=rows.num_left_out,
        notes=[*found.notes, *_passed_over(rows.passed_over)],
    )


def _passed_over(columns: Sequence[str]) -> list[str]:
    return [f"passed over, as a cell is no number: {told(columns)}"] if columns else []


def _empty(wish: Wish) -> Reduction:
    return Reduction(method=wish.method, num_rows=0, num_columns=0)


def _pca(values: object, rows: Rows, wish: Wish) -> Reduction:
    array = numpy().asarray(values)
    most = min(array.shape)
    if wish.components is not None and not 1 <= wish.components <= most:
        raise RequestError(f"expected components from 1 to {most}, got {wish.components}", param="components")
    found = matrix.principal_components(array, wish.components or most)
    cumulative = found.ratios.cumsum()
    number = wish.components or min(2, most)
    if wish.variance is not None:
        number = min(int((cumulative < wish.variance - 1e-12).sum()) + 1, most)
    components = [
        Component(float(variance), float(ratio), float(so_far), _loadings(direction, rows.columns))
        for variance, ratio, so_far, direction in zip(
            found.variances[:number], found.ratios, cumulative, found.directions, strict=False
        )
    ]
    told = found.coordinates[:MAX_ROWS_TOLD, : min(number, MAX_MATRIX)].tolist()
    return msgspec.structs.replace(_empty(wish), components=components, coordinates=told)


def _loadings(direction: object, columns: Sequence[str]) -> dict[str, float]:
    """Return the columns that weigh most in a direction; those of embeddings mean nothing alone."""
    weights: list[float] = numpy().asarray(direction).tolist()
    if not columns:
        return {}
    order = sorted(range(len(weights)), key=lambda at: -abs(weights[at]))[:_NUM_LOADINGS]
    return {columns[at]: weights[at] for at in order}


def _project(values: object, rows: Rows, wish: Wish) -> Reduction:
    array = numpy().asarray(values)
    num_rows, num_columns = array.shape
    needed = matrix.needed_dimensions(num_rows, wish.error)
    number = needed if wish.components is None else wish.components
    if not 1 <= number <= 10_000 or (wish.components is None and number >= num_columns):
        text = f"{num_rows:,} rows need {needed:,} dimensions to keep squared distances within {wish.error:g}"
        raise RequestError(f"{text}, and there are {num_columns:,}: name components (1 to 10,000)", param="components")
    if number * max(num_rows, num_columns) > _MAX_PROJECTED:
        text = f"{max(num_rows, num_columns):,} rows or columns times {number:,} components are more than"
        raise RequestError(f"{text} {_MAX_PROJECTED:,}: name fewer components", param="components")
    projected = matrix.random_projection(array, number, wish.seed)
    kept = matrix.kept_error(num_rows, number)
    bound = f"promises {kept:.3f}" if kept is not None else "promises nothing"
    note = (
        f"with {number:,} dimensions the bound of Johnson and Lindenstrauss {bound}; an error of {wish.error:g} "
        f"needs {needed:,}"
    )
    return msgspec.structs.replace(
        _empty(wish),
        coordinates=projected[:MAX_ROWS_TOLD, :MAX_MATRIX].tolist(),
        distortion=matrix.distortion(array, projected, wish.seed),
        notes=[note],
    )


def _cluster(values: object, rows: Rows, wish: Wish) -> Reduction:
    np = numpy()
    array = np.asarray(values)
    most = min(_MAX_CLUSTERS, len(array))
    if wish.clusters is not None and not 1 <= wish.clusters <= most:
        raise RequestError(f"expected clusters from 1 to {most}, got {wish.clusters}", param="clusters")
    tried: dict[int, tuple[matrix.Clusters, float | None]] = {}
    different = len(np.unique(array, axis=0)) if len(array) <= matrix.MAX_COMPARED else len(array)
    numbers = [wish.clusters] if wish.clusters else range(2, min(_MOST_TRIED, len(array) - 1, different) + 1)
    num_starts, notes = _starts(array.size * sum(numbers))
    for number in numbers:
        found = matrix.k_means(array, number, wish.seed, num_starts)
        tried[number] = (found, matrix.silhouette(array, found.labels, wish.seed))
    if not tried:
        raise RequestError("choosing a number of clusters needs at least 3 rows, 2 of them different", param="clusters")
    number = max(tried, key=lambda each: _or_least(tried[each][1]))
    found, score = tried[number]
    order = np.argsort(-np.bincount(found.labels, minlength=number), kind="stable")  # the largest is cluster 0
    labels = np.argsort(order)[found.labels]
    clusters = [
        Cluster(
            int((labels == nth).sum()), found.centres[at][:MAX_MATRIX].tolist(), _common_names(labels, nth, rows.names)
        )
        for nth, at in enumerate(order)
    ]
    notes += [f"silhouettes are of {matrix.MAX_COMPARED:,} rows, by seed"] if len(array) > matrix.MAX_COMPARED else []
    return msgspec.structs.replace(
        _empty(wish),
        clusters=clusters,
        assigned=labels[:MAX_ROWS_TOLD].tolist(),
        inertia=found.inertia,
        silhouette=score,
        silhouettes={str(each): value for each, (_, value) in tried.items() if value is not None and len(tried) > 1},
        notes=notes,
    )


def _or_least(silhouette: float | None) -> float:
    """Return a silhouette, which is -1 at least; less than any where there is none."""
    return -2.0 if silhouette is None else silhouette


def _starts(work: int) -> tuple[int, list[str]]:
    """Return how many starts so many cells times clusters leave time for, and what there is to say of it."""
    if work > _MAX_WORK:
        text = f"cells times clusters are {work:,}, and the most is {_MAX_WORK:,}"
        raise RequestError(f"{text}: take a part of the rows, or name one number of clusters", param="clusters")
    return (matrix.NUM_STARTS, []) if work <= _MAX_WORK // 10 else (2, ["with so many rows, the better of 2 starts"])


def _common_names(labels: object, nth: int, names: Sequence[str]) -> dict[str, int]:
    places: list[int] = numpy().flatnonzero(numpy().asarray(labels) == nth).tolist()
    return dict(Counter(names[at] for at in places).most_common(_NUM_EXAMPLES))


def _compare(values: object, rows: Rows, wish: Wish) -> Reduction:
    np = numpy()
    array = np.asarray(values)
    if len(array) > matrix.MAX_COMPARED:
        text = f"similarity looks at each pair of at most {matrix.MAX_COMPARED:,} rows, and there are {len(array):,}"
        raise RequestError(text, param="data")
    found = matrix.similarities(array, wish.metric, rows.names)
    first, second = np.triu_indices(len(array), 1)
    order = np.argsort(-found[first, second], kind="stable")[:_NUM_PAIRS]
    ends: list[list[int]] = np.stack([first, second], axis=1)[order].tolist()
    pairs = [
        Pair(rows.names[one], rows.names[other], (one + 1, other + 1), float(found[one, other])) for one, other in ends
    ]
    told: list[list[float]] = found.tolist() if len(array) <= MAX_MATRIX else []
    return msgspec.structs.replace(_empty(wish), pairs=pairs, similarities=told)
