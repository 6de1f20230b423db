"""Components, projections, clusters and similarity: what is known of them, and the agent that finds them."""

from __future__ import annotations

import asyncio
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import aclosing
from math import ceil, hypot, log
from pathlib import Path

import numpy as np
import pytest

from pyagent.core.errors import BackendError, PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.events import RunFinished
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import EmbedRequest, EmbedResult, Usage
from pyagent.logic.agents import dimensionality
from pyagent.logic.agents.dimensionality import DimensionalityAgent, ReductionArguments
from pyagent.logic.stats import matrix, reduction
from pyagent.logic.stats.matrix import first_centres, k_means, kept_error, lloyd, needed_dimensions, silhouette
from pyagent.logic.stats.reduction import Reduction
from pyagent.testing import ScriptedBackend

_FRUIT = "name,a,b,c\napples,9,1,0\npears,8,2,1\nplums,8,1,2\ncars,1,9,2\nbuses,1,8,NA\ntrains,2,7,3\n"


class _Embedder(ScriptedBackend):
    """Embeds a text as the counts of a few letters, or as what it is told."""

    def __init__(self, vectors: list[list[float]] | None = None) -> None:
        super().__init__([])
        self.vectors = vectors
        self.asked: list[list[str]] = []

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        self.asked.append(request.input)
        vectors = [[float(text.count(letter)) for letter in "abcx"] for text in request.input]
        return EmbedResult(vectors=vectors if self.vectors is None else self.vectors, usage=Usage(7, 0, 7))


def _run(task: Task, backend: ScriptedBackend | None = None, access: FileAccess | None = None) -> Reduction:
    async def run() -> object:
        fleet, result = Fleet(backend or ScriptedBackend([]), [DimensionalityAgent()]), None
        async with aclosing(fleet.run(task, agent="dimensionality", file_access=access or FileAccess())) as events:
            async for event in events:
                result = event.output if isinstance(event, RunFinished) else result
        return result

    found = asyncio.run(run())
    assert isinstance(found, Reduction)
    return found


def _data(columns: dict[str, Sequence[float]], **more: object) -> Task:
    return Task(arguments={"data": {name: list(values) for name, values in columns.items()}, **more})


def _blobs(num_rows: int = 60) -> np.ndarray:
    chance = np.random.RandomState(0)
    return np.concatenate([chance.normal(centre, 0.3, (num_rows // 3, 2)) for centre in ((0, 0), (5, 0), (0, 5))])


def test_components_of_a_line_by_hand() -> None:
    """Points on y = 2x vary in one direction, (1, 2)/sqrt(5), by 5 times x's variance."""
    found = _run(_data({"x": [1, 2, 3, 4], "y": [2, 4, 6, 8]}))
    first, second = found.components
    assert first.variance == pytest.approx(5 * np.var([1, 2, 3, 4], ddof=1))
    assert first.loadings == pytest.approx({"x": 1 / hypot(1, 2), "y": 2 / hypot(1, 2)})
    assert (first.ratio, second.ratio, second.cumulative) == pytest.approx((1, 0, 1))
    assert [row[0] for row in found.coordinates] == pytest.approx(
        [each * hypot(1, 2) for each in (-1.5, -0.5, 0.5, 1.5)]
    )


def test_as_many_components_as_hold_the_variance() -> None:
    """`variance` keeps the fewest components that reach it; `standardize` weighs columns alike."""
    rows = np.random.RandomState(1).normal(size=(50, 3)) * [100, 10, 1]
    columns = {name: rows[:, at].tolist() for at, name in enumerate("abc")}
    assert len(_run(_data(columns, variance=0.5)).components) == 1
    assert len(_run(_data(columns, variance=0.995)).components) == 2
    assert len(_run(_data(columns, variance=1)).components) == 3
    assert _run(_data(columns, standardize=True)).components[0].ratio < 0.6


def test_groups_that_are_apart_are_found_and_counted() -> None:
    """Three groups have the greatest silhouette, and their own rows; equal seeds give equal results."""
    rows = _blobs()
    task = _data({"x": rows[:, 0].tolist(), "y": rows[:, 1].tolist()}, method="k-means")
    found = _run(task)
    assert [cluster.size for cluster in found.clusters] == [20, 20, 20]
    assert all(len(set(found.assigned[start : start + 20])) == 1 for start in (0, 20, 40))
    assert found.silhouette == max(found.silhouettes.values()) == found.silhouettes["3"]
    assert _run(task) == found
    assert "the number has the greatest mean silhouette (2: " in str(found)


def test_silhouette_by_hand() -> None:
    """Two pairs at distance 1 and 10 apart: worked by its definition; a cluster of one counts 0."""
    rows = np.array([[0.0], [1.0], [10.0], [11.0]])
    scores = [(10.5 - 1) / 10.5, (9.5 - 1) / 9.5]
    assert silhouette(rows, np.array([0, 0, 1, 1]), 0) == pytest.approx(sum(scores) / 2)
    assert silhouette(rows[:3], np.array([0, 0, 1]), 0) == pytest.approx((9 / 10 + 8 / 9) / 3)
    assert silhouette(rows, np.zeros(4, dtype=int), 0) is None


def test_clusters_without_rows_are_filled() -> None:
    """A centre that no row is nearest to takes the farthest row, so that there are as many groups as asked for."""
    rows = np.array([[0.0], [1.0], [2.0], [10.0]])
    found = lloyd(rows, np.array([[0.0], [100.0], [200.0]]))
    assert sorted(np.bincount(found.labels, minlength=3).tolist()) == [1, 1, 2]
    with pytest.raises(RequestError, match="fewer than 3 different rows"):
        first_centres(np.array([[1.0], [1.0], [2.0]]), 3, np.random.RandomState(0))


@pytest.mark.parametrize("seed", range(8))
def test_heaviest_column_of_a_component_counts_up(seed: int) -> None:
    """Of a direction and its opposite the one is told whose largest loading is positive."""
    rows = np.random.RandomState(seed).normal(size=(20, 4))
    found = matrix.principal_components(rows, 4)
    assert all(direction[np.argmax(np.abs(direction))] > 0 for direction in found.directions)
    assert np.allclose(found.coordinates, (rows - rows.mean(axis=0)) @ found.directions.T)


def test_steps_end_where_nothing_moves() -> None:
    """Each row is in the cluster of the nearest centre, and each centre is its rows' mean, nearly."""
    rows = np.random.RandomState(4).uniform(size=(300, 2))
    found = lloyd(rows, rows[:5])
    apart = ((rows[:, None] - found.centres) ** 2).sum(axis=2)
    assert (found.labels == apart.argmin(axis=1)).all()
    means = np.array([rows[found.labels == nth].mean(axis=0) for nth in range(5)])
    assert np.abs(means - found.centres).max() < 0.01
    assert found.inertia == pytest.approx(apart.min(axis=1).sum())


def test_best_of_ten_starts_is_kept() -> None:
    """Inertia never grows with more clusters, on rows with no groups."""
    rows = np.random.RandomState(2).uniform(size=(80, 3))
    inertias = [k_means(rows, number, 0).inertia for number in range(1, 8)]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[0] == pytest.approx(((rows - rows.mean(axis=0)) ** 2).sum())


def test_projection_tells_its_bound_and_what_it_did() -> None:
    """The bound of Johnson and Lindenstrauss holds where it is followed, and is told where it says nothing."""
    assert needed_dimensions(1_000, 0.1) == ceil(4 * log(1_000) / (0.01 / 2 - 0.001 / 3)) == 5_921
    assert kept_error(1_000, 5_921) == pytest.approx(0.1, abs=1e-4)
    assert kept_error(1_000, 20) is None
    rows = np.random.RandomState(3).normal(size=(20, 3_000))
    columns = {f"c{at}": rows[:, at].tolist() for at in range(3_000)}
    found = _run(_data(columns, method="random-projection", error=0.2))
    assert found.distortion is not None
    assert 0.8 <= found.distortion[0] <= found.distortion[1] <= 1.2
    assert "an error of 0.2 needs 692" in str(found)
    with pytest.raises(RequestError, match=r"20 rows need .* and there are 3,000: name components"):
        _run(_data(columns, method="random-projection", error=0.05))


def test_similarities_by_hand() -> None:
    """Cosine of a right angle is 0, of a half one sqrt(1/2); the nearest pair is told first."""
    found = _run(_data({"x": [1, 1, 0], "y": [0, 1, 2]}, method="similarity"))
    assert found.similarities[0] == pytest.approx([1, 0.5**0.5, 0])
    assert [pair.rows for pair in found.pairs] == [(1, 2), (2, 3), (1, 3)]
    away = _run(_data({"x": [0, 3], "y": [0, 4]}, method="similarity", metric="euclidean"))
    assert away.pairs[0].similarity == pytest.approx(1 / 6)
    turned = _run(_data({"x": [1, 3], "y": [2, 2], "z": [3, 1]}, method="similarity", metric="correlation"))
    assert turned.pairs[0].similarity == pytest.approx(-1)


def test_file_has_names_gaps_and_columns(tmp_path: Path) -> None:
    """The first column without numbers names the rows; a row with a gap is left out and counted."""
    (tmp_path / "fruit.csv").write_text(_FRUIT)
    files = (str(tmp_path / "fruit.csv"),)
    found = _run(Task(text="cluster these", files=files, arguments={"clusters": 2}))
    assert (found.names, found.num_left_out) == (["apples", "pears", "plums", "cars", "trains"], 1)
    assert [cluster.names for cluster in found.clusters] == [
        {"apples": 1, "pears": 1, "plums": 1},
        {"cars": 1, "trains": 1},
    ]
    assert "  0  3 rows: apples, pears, plums" in str(found)
    named = _run(Task(text="pca", files=files, arguments={"columns": ["a,b"]}))
    assert (named.num_left_out, named.names[4]) == (0, "buses")
    labelled = _run(Task(text="pca", files=files, arguments={"columns": ["b"], "label": "a"}))
    assert labelled.names == ["9", "8", "8", "1", "1", "2"]


def test_column_with_a_cell_that_is_no_number_is_told(tmp_path: Path) -> None:
    """One wrong cell does not lose a column in silence; a column of words alone has nothing to tell."""
    (tmp_path / "t.csv").write_text("name,a,b,c\np,1,2,3\nq,2,inf,5\nr,4,1,1\n")
    found = _run(Task(text="pca", files=(str(tmp_path / "t.csv"),)))
    assert (found.num_columns, found.names) == (2, ["p", "q", "r"])
    assert "(passed over, as a cell is no number: b)" in str(found)
    named = _run(Task(text="pca", files=(str(tmp_path / "t.csv"),), arguments={"columns": ["a", "c"]}))
    assert named.notes == []


def test_texts_are_embedded_and_counted(tmp_path: Path) -> None:
    """Lines, a column or texts given are embedded in batches; their vectors are what is reduced."""
    backend = _Embedder()
    (tmp_path / "lines.txt").write_text("\n".join(["aaa", "aab", "xxx", "", "xxc"] * 20))
    found = _run(Task(files=(str(tmp_path / "lines.txt"),), arguments={"embed": True, "clusters": 2}), backend)
    assert [len(texts) for texts in backend.asked] == [64, 16]
    assert [cluster.names for cluster in found.clusters] == [{"aaa": 20, "aab": 20}, {"xxx": 20, "xxc": 20}]
    given = _run(Task(arguments={"texts": ["ab", "ba", "x"], "method": "similarity"}), _Embedder())
    assert (given.pairs[0].first, given.pairs[0].similarity) == ("ab", pytest.approx(1))
    (tmp_path / "t.csv").write_text("id,said\n1,aa\n2,xx\n3,xa\n")
    column = Task(files=(str(tmp_path / "t.csv"),), arguments={"embed": True, "columns": ["said"]})
    assert _run(column, _Embedder()).names == ["aa", "xx", "xa"]
    both = Task(files=(str(tmp_path / "t.csv"),), arguments={"embed": True, "columns": ["id, said"]})
    assert _run(both, _Embedder()).names == ["1 aa", "2 xx", "3 xa"]


def test_texts_without_an_embedder_are_refused() -> None:
    """A backend that does not embed says so; one that gives nonsense is not believed."""
    task = Task(arguments={"texts": ["a", "b"]})
    with pytest.raises(RequestError, match="cannot embed"):
        _run(task)
    for vectors in ([[1.0]], [[1.0], [1.0, 2.0]], [[], []]):
        with pytest.raises(BackendError, match="vectors"):
            _run(task, _Embedder(vectors))
    with pytest.raises(PyAgentError, match="no number"):
        _run(task, _Embedder([[1.0], [float("nan")]]))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"data": {"x": [1]}}, "at least 2 rows"),
        ({"data": {"x": [1, 1, 1]}}, "nothing varies"),
        ({"data": {"x": [1, 1, 1], "y": [1, 2, 3]}, "standardize": True}, "x is the same in each row"),
        ({"data": {"x": [1, 2, 3]}, "components": 2}, "components from 1 to 1"),
        ({"data": {"x": [1, 2, 3]}, "clusters": 4}, "clusters from 1 to 3"),
        ({"data": {"x": [1, 2]}, "method": "k-means"}, "at least 3 rows"),
        ({"data": {"x": [1, 1, 1]}, "method": "k-means"}, "2 of them different"),
        ({"data": {"x": [1, 2]}, "clusters": 2, "method": "pca"}, "clusters is for k-means"),
        ({"data": {"x": [1, 2]}, "variance": 0}, "variance above 0"),
        ({"data": {"x": [1, 2]}, "variance": 0.5, "components": 1}, "not both"),
        ({"data": {"x": [1, 2]}, "error": 0}, "error from 0 to 1"),
        ({"data": {"x": [1, 2]}, "seed": -1}, "seed from 0"),
        ({"data": {"x": [1, 0], "y": [1, 0]}, "method": "similarity"}, "row 2 is 0 in each column"),
        ({"data": {"x": [1, 2], "y": [1, 0]}, "method": "similarity", "metric": "correlation"}, "row 1 is the same"),
        ({"data": {"x": [1, 2, 3]}, "columns": ["z"]}, "no column 'z'"),
        ({"data": {"x": ["a", "b"]}}, "no column has numbers"),
        ({"data": {"x": [1, float("nan")], "y": [None, 2]}}, "no row has a number"),
        ({"data": {"x": [1, 2]}, "method": "random-projection"}, "name components"),
        ({"data": {"x": [1, 2, 3]}, "clusters": 0}, "clusters from 1 to 3, got 0"),
        ({"data": {"x": [1, 2, 3]}, "components": 0}, "components from 1 to 1, got 0"),
        ({"data": {"x": [1, 2]}, "components": 0, "method": "random-projection"}, "name components"),
        ({"data": {"x": [1, 2, 3]}, "components": 1, "method": "k-means"}, "components is for pca and random"),
        ({"data": {"x": [1, 2, 3]}, "clusters": 2, "variance": 0.5}, "variance is for pca, not for k-means"),
        ({"data": {"x": [1, 2, 3]}, "metric": "euclidean"}, "metric is for similarity, not for pca"),
        ({"data": {"x": [1, 2, 3]}, "error": 0.2}, "error is for random-projection, not for pca"),
        ({"texts": ["a", "b"], "label": "x"}, "label names a table's rows"),
        ({"data": {"x": [1, 2]}, "method": "random-projection", "components": 10**9}, "1 to 10,000"),
        ({"texts": ["one"]}, "expected 2 to 2,000"),
        ({"texts": ["one", "x" * 9_000]}, "the most is 8,000"),
        ({"method": "pca"}, "there are no rows of numbers"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], fault: str) -> None:
    """One sentence says what is wrong, and what is expected."""
    with pytest.raises(RequestError, match=fault):
        _run(Task(arguments=arguments))


def test_size_of_a_projection_is_bounded_before_it_is_made() -> None:
    """Ten thousand components of many rows or of many columns would take gigabytes."""
    for columns in ({"x": list(range(5_001))}, {f"c{place}": [0, 1, 2] for place in range(5_001)}):
        with pytest.raises(RequestError, match="5,001 rows or columns times 10,000 components"):
            _run(_data(columns, method="random-projection", components=10_000))


def test_distances_are_compared_some_pairs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fits at a time, the ratios are the same."""
    rows = np.random.default_rng(5).normal(size=(50, 7))
    projected = matrix.random_projection(rows, 3, 0)
    whole = matrix.distortion(rows, projected, 1)
    monkeypatch.setattr(matrix, "_CHUNK_CELLS", 1_000)
    assert matrix.distortion(rows, projected, 1) == whole
    assert 0 <= whole[0] < 1 < whole[1]


def test_number_of_compared_rows_is_bounded() -> None:
    """Beyond 2,000 rows pairs are refused, and silhouettes are of a sample that is told."""
    many = list(range(2_500))
    with pytest.raises(RequestError, match="at most 2,000 rows"):
        _run(_data({"x": many}, method="similarity"))
    found = _run(_data({"x": many, "y": many}, clusters=2))
    assert (len(found.assigned), found.notes) == (1_000, ["silhouettes are of 2,000 rows, by seed"])


def test_work_of_clusters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows have two starts, which is told; more are refused before the first."""
    monkeypatch.setattr(reduction, "_MAX_WORK", 250)
    rows = {"x": [1, 2, 3, 11, 12, 13], "y": [1, 2, 3, 11, 12, 13]}
    assert _run(_data(rows, clusters=3)).notes == ["with so many rows, the better of 2 starts"]
    assert _run(_data(rows, clusters=2)).notes == []
    monkeypatch.setattr(reduction, "_MAX_WORK", 200)
    with pytest.raises(RequestError, match="are 240, and the most is 200: take a part"):
        _run(_data({"x": list(range(24)), "y": list(range(24))}, clusters=5))


def test_numbers_at_the_ends_of_the_range_are_told_or_computed() -> None:
    """Columns from 1e-100 to 1e100 are computed with; squares beyond a float are an error, no infinity."""
    columns = {"x": [1e99, -1e99, 5e98], "y": [1e-99, 2e-99, 0]}
    for more in ({"clusters": 2}, {"standardize": True}, {"method": "similarity"}):
        assert "inf" not in str(_run(_data(columns, **more)))
    with pytest.raises(RequestError, match="too far apart to compute with"):
        _run(Task(arguments={"texts": ["a", "b", "c"], "clusters": 2}), _Embedder([[1e300], [-1e300], [0.0]]))


def test_without_numpy_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra's name and the package, before anything is read."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    matrix.numpy.cache_clear()
    try:
        with pytest.raises(
            RequestError, match="needs numpy \\(extra `stats`\\), which is not installed: pip install numpy"
        ):
            _run(_data({"x": [1, 2, 3]}))
    finally:
        matrix.numpy.cache_clear()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"clusters": 2},
        {"method": "similarity"},
        {"method": "random-projection", "components": 2},
        {"components": 1},
    ],
)
def test_pictures_are_well_formed(tmp_path: Path, more: dict[str, object]) -> None:
    """Each method has a picture whose names, whatever they are, are text."""
    (tmp_path / "a.csv").write_text('name,x,y\n<script>,1,2\n"&""<!--",3,1\n\u202e]]>,2,5\nd,7,7\n')
    plot = tmp_path / "a.svg"
    found = _run(Task(files=(str(tmp_path / "a.csv"),), arguments={**more, "plot": str(plot)}))
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(plot.read_text()).iter()}
    assert tags <= {"svg", "title", "rect", "polyline", "circle", "text"}
    assert found.picture is not None


def test_clients_of_a_server_write_no_picture(tmp_path: Path) -> None:
    """Nor do they read beside their folder."""
    (tmp_path / "fruit.csv").write_text(_FRUIT)
    inside = tmp_path / "inside"
    inside.mkdir()
    access = FileAccess.below(inside)
    with pytest.raises(RequestError, match="there is no file"):
        _run(Task(text="pca", files=("../fruit.csv",)), access=access)
    with pytest.raises(RequestError, match="on this machine only"):
        _run(_data({"x": [1, 2, 3]}, plot="a.svg"), access=access)


@pytest.mark.parametrize(
    ("text", "files", "is_own"),
    [
        ("Cluster the rows of it", ("a.csv",), True),
        ("pca", ("a.json",), True),
        ("Reduce it to two dimensions", ("a.tsv",), True),
        ("Explain PCA to me", (), False),
        ("Review the cluster code", ("cluster.py",), False),
        ("Summarize it", ("a.csv",), False),
    ],
)
def test_reductions_are_its_task(text: str, files: tuple[str, ...], is_own: bool) -> None:
    """It asks for components or clusters, and there is a table."""
    assert ((DimensionalityAgent().score(Task(text=text, files=files)) or 0.0) > 0.5) is is_own


def test_tool_reduces_for_models() -> None:
    """The tool takes columns of numbers alone."""
    (tool,) = dimensionality.pyagent_register_tools()
    found = asyncio.run(tool.function(ReductionArguments(data={"x": [1, 2, 9], "y": [1, 2, 9]}, clusters=2)))  # type: ignore[arg-type]
    assert isinstance(found, Reduction)
    assert [cluster.size for cluster in found.clusters] == [2, 1]
    for arguments in (ReductionArguments(), ReductionArguments(texts=["a", "b"])):
        with pytest.raises(RequestError, match="takes numbers"):
            asyncio.run(tool.function(arguments))  # type: ignore[arg-type]
