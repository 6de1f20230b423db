"""The regression agent: where its numbers come from, which columns are meant, and what hostile input is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from pyagent.cli.agent_options import task_of
from pyagent.core.errors import NeedsAnswerError, PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import RunFinished
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents import regression
from pyagent.logic.agents.regression import FitArguments, RegressionAgent
from pyagent.logic.stats import table
from pyagent.logic.stats.report import Regression
from pyagent.testing import ScriptedBackend

_HOUSES = "size,age,price\n50,10,200\n70,5,290\n90,20,330\n60,,250\n110,1,470\n80,8,NA\n75,12,295\n"


def _run(task: Task, access: FileAccess | None = None) -> Regression:
    async def run() -> object:
        fleet, result = Fleet(ScriptedBackend([]), [RegressionAgent()]), None
        async with aclosing(fleet.run(task, agent="regression", file_access=access or FileAccess())) as events:
            async for event in events:
                result = event.output if isinstance(event, RunFinished) else result
        return result

    report = asyncio.run(run())
    assert isinstance(report, Regression)
    return report


def _file(folder: Path, name: str, text: str) -> tuple[str, ...]:
    (folder / name).write_bytes(text.encode())
    return (str(folder / name),)


def test_text_file_and_arguments_say_the_same(tmp_path: Path) -> None:
    """A series in a sentence, a column of a file, and a program's list are one fit."""
    typed = task_of(RegressionAgent(), ["Fit", "1,", "2,", "4,", "8.5", "--method", "exponential", "--at", "5"], [])
    arguments = {"method": "exponential", "at": ["5"]}
    listed = Task(arguments={**arguments, "data": {"y": [1, 2, 4, 8.5]}})
    filed = Task(files=_file(tmp_path, "a.csv", "y\n1\n2\n4\n8.5\n"), arguments=arguments)
    assert _run(typed) == _run(listed) == _run(filed)
    assert str(_run(typed)).startswith("y = 0.485071 e^(0.711335 row)\nexponential, 4 points; R²")


@pytest.mark.parametrize(
    ("text", "x", "points"),
    [
        ("fit 1, 2, 4 and no more", "row", [(1, 1), (2, 2), (3, 4)]),
        ("fit 1 2 4.5", "row", [(1, 1), (2, 2), (3, 4.5)]),
        ("fit x: 1, 2, 3; y: 2, 4, 7", "x", [(1, 2), (2, 4), (3, 7)]),
        ("the points (1, 2) (2; 4), (3,7) on a line", "x", [(1, 2), (2, 4), (3, 7)]),
        ("x,y\n1,2\n2,4\n3,7", "x", [(1, 2), (2, 4), (3, 7)]),
        ("a line to 95% of -1, -2e0, \N{MINUS SIGN}4", "row", [(1, -1), (2, -2), (3, -4)]),
    ],
)
def test_numbers_in_a_text(text: str, x: str, points: list[tuple[float, float]]) -> None:
    """One series, named series, pairs and rows under names; a degree or a share is none of them."""
    report = _run(Task(text=text))
    expected = _run(Task(arguments={"data": {"x": [a for a, _ in points], "y": [b for _, b in points]}}))
    assert report.fit is not None
    assert expected.fit is not None
    assert [each.estimate for each in report.fit.coefficients] == [each.estimate for each in expected.fit.coefficients]
    assert report.x == [x]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufeffa;b\n1;2\n2;4\n3;7\n"),
        ("a.tsv", "a\tb\n1\t2\n2\t4\n3\t7\n"),
        ("a.csv", 'a,"b"\n1,2\n\n2, 4\n3,7'),
        ("a.txt", "a b\n1 2\n2  4\n3 7\n"),
        ("a.json", '[{"a":1,"b":2},{"a":2,"b":4},{"b":7,"a":3}]'),
        ("a.json", '{"a":[1,2,3],"b":[2,4,7]}'),
        ("a.json", '[["a","b"],[1,2],[2,4],[3,7]]'),
    ],
)
def test_files_of_each_form(tmp_path: Path, name: str, text: str) -> None:
    """CSV with any of three separators, TSV, columns of words, and three forms of JSON are one table."""
    report = _run(Task(files=_file(tmp_path, name, text)))
    assert (report.x, report.y, report.fit and report.fit.num_points) == (["a"], "b", 3)
    assert report.fit is not None
    assert report.fit.equation == "b = -0.666667 + 2.5 a"


def test_columns_are_named_in_a_sentence_and_gaps_are_told(tmp_path: Path) -> None:
    """`price on size and age`; rows that lack one of these are left out by number."""
    files = _file(tmp_path, "houses.csv", _HOUSES)
    report = _run(Task(text="regress Price on size and age", files=files))
    assert (report.y, report.x, report.num_left_out, report.left_out) == ("price", ["size", "age"], 2, [4, 6])
    assert "left out, as a number is missing: 2 rows (4, 6)" in str(report)
    named = Task(files=files, arguments={"y": "PRICE", "x": ["size,age"], "at": ["age=3, size=100"]})
    assert _run(named).left_out == [4, 6]
    assert "at size = 100, age = 3: " in str(_run(named))


def test_words_name_the_method() -> None:
    """What a sentence says is done; an option goes before it."""
    assert _run(Task(text="fit a cubic to 1, 3, 4, 8, 9, 14, 19")).fit.degree == 3  # type: ignore[union-attr]
    assert _run(Task(text="is there a monotonic trend in 1, 3, 2, 5, 8, 9?")).trend.direction == "rising"  # type: ignore[union-attr]
    asked = Task(text="a power law of 1, 3, 4, 8", arguments={"method": "linear"})
    assert _run(asked).fit.model == "linear"  # type: ignore[union-attr]


def test_trend_is_told_in_words() -> None:
    """The verdict first, then the numbers behind it."""
    assert str(_run(Task(arguments={"method": "mann-kendall", "data": {"rain": [3, 5, 4, 8, 9, 11, 10]}}))) == (
        "rain is rising with row (Mann-Kendall, p 0.0107, exact)\n"
        "S 17, variance 44.3333, z 2.403, tau-b 0.8095; 7 points\n"
        "Sen's slope 1.5 for each unit of row, 95 % interval 0.5 to 2"
    )


def test_results_of_earlier_steps_are_data() -> None:
    """A step may hand over JSON columns, or text with numbers."""
    columns = _run(Task(results={"one": {"x": [1, 2, 3], "y": [2, 4, 7]}}, arguments={"method": "linear"}))
    assert columns.fit is not None
    assert columns.fit.equation == "y = -0.666667 + 2.5 x"
    assert _run(Task(results={"one": "They were 1, 2, 4 and 8."}, text="fit them")).fit is not None


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"data": {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 4]}}, "as y and x: the columns are a, b, c"),
        ({"data": {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2, 4]}, "y": "c"}, "say what explains c, by x"),
        ({"data": {"a": [1, 2, 3]}, "y": "b"}, "there is no column 'b'"),
        ({"data": {"a": [1, 2, 3], "b": [1, 2, 4]}, "y": "a", "x": ["a"]}, "a cannot explain itself"),
        ({"data": {"a": [1, 2, "x"], "b": [1, 2, 4]}}, "column a, row 3: expected a number"),
        ({"data": {"a": [1, 2, float("inf")]}}, "row 3: expected a number"),
        ({"data": {"a": [float("nan"), None]}}, "no row has a number"),
        ({"data": {"a": [1, 2, 3], "b": [1, 2]}}, "differ in length"),
        ({"data": {"a": [1, 2, 3], " a ": [1, 2, 3]}}, "names a column twice"),
        ({"data": {"a": []}}, "no numbers"),
        ({"data": {"a": [1, 2, 4]}, "at": ["1e5000"]}, "beyond"),
        ({"data": {"a": [1, 2, 4]}, "at": ["a=1"]}, "expected a place such as row=1"),
        ({"data": {"a": [1, 2, 4]}, "confidence": 1.0}, "confidence from 0.5"),
        ({"data": {"a": [1, 2, 4]}, "degree": 2, "method": "power"}, "degree is for a polynomial"),
        ({"data": {"a": [1, 2, 4, 5]}, "method": "mann-kendall", "at": ["3"]}, "takes y, one x"),
        (
            {"data": {"a": [1, 2, 4], "b": [1, 2, 5], "c": [1, 2, 6]}, "y": "c", "x": ["a", "b"], "method": "power"},
            "one predictor",
        ),
        ({"method": "nonsense"}, "method"),
        ({"y": "a"}, "there are no numbers"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], fault: str) -> None:
    """One sentence says what is wrong, and what is expected."""
    with pytest.raises(RequestError, match=fault):
        _run(Task(arguments=arguments))


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.csv", "x" * 5_000_000, "is not CSV: field larger|no numbers"),
        ("a.csv", "1," * 2_500_000, "the most is 10,000"),
        ("a.csv", ",".join(f"c{n}" for n in range(10_001)), "10,001 columns; the most is 10,000"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "row 2: 3 cells, and there are 2 columns"),
        ("a.csv", 'a,b\n"1,2', "is not CSV"),
        ("a.csv", "a,b\n1,\x002\n", "has no text"),
        ("a.csv", "a,a\n1,2\n", "names a column twice: 'a'"),
        ("a.csv", "a,b\n=1+1,2\n1,2\n3,4\n", "column a, row 1: expected a number"),
        ("a.csv", "\n\n  \n", "has no text"),
        ("a.json", "[" * 100_000, "nested|JSON"),
        ("a.json", '{"a": 1}', "expected a list of numbers"),
        ("a.json", '[{"a": [1]}]', "got a list or an object"),
        ("a.json", "[true, false, true]", "expected a number such as"),
        ("a.json", "[1, 2,", "not valid JSON"),
        ("a.json", "[1, 2, 3e999]", "row 3|JSON"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, name: str, text: str, fault: str) -> None:
    """Long lines, many columns, null bytes, formulas and deep nesting end in one sentence."""
    with pytest.raises(RequestError, match=fault):
        _run(Task(files=_file(tmp_path, name, text)))


def test_ten_thousand_columns_are_read(tmp_path: Path) -> None:
    """As many columns as may be: two of them are fitted."""
    rows = [
        ",".join(f"c{n}" for n in range(10_000)),
        *(",".join(str(n * row) for n in range(10_000)) for row in (1, 2, 4)),
    ]
    report = _run(Task(files=_file(tmp_path, "wide.csv", "\n".join(rows)), arguments={"y": "c9999", "x": ["c1"]}))
    assert report.fit is not None
    assert report.fit.equation == "c9999 = 0 + 9999 c1"


def test_number_of_rows_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than the most are refused while they are read."""
    monkeypatch.setattr(table, "MAX_ROWS", 3)
    with pytest.raises(RequestError, match="more than 3 rows"):
        _run(Task(files=_file(tmp_path, "a.csv", "a\n1\n2\n3\n4\n")))


def test_text_without_numbers_is_declined() -> None:
    """A task that is none of its own goes on to the next agent."""
    with pytest.raises(RequestError, match="declines: there are no numbers"):
        _run(Task(text="fit a line"))


@pytest.mark.parametrize(
    "text", ["1 " + " " * 400_000 + "x", "(" * 300_000, "a" + " " * 400_000 + "1", "1," * 100_000 + "z"]
)
def test_no_text_is_slow_to_read(text: str) -> None:
    """Texts that would make a backtracking matcher slow are read, or refused, in moments."""
    with pytest.raises(PyAgentError, match=r"no numbers|same in each row"):
        _run(Task(text=text))


def test_plot_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    """A person's --plot writes SVG or PNG, again over a picture, and over nothing else."""
    for name in ("a.svg", "a.png", "a.svg"):
        report = _run(Task(arguments={"data": {"y": [1, 2, 4, 8]}, "plot": str(tmp_path / name)}))
        assert report.picture is not None
        assert str(report).endswith(f"picture: {report.picture}")
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a.html", "end in .svg or .png"),
        ("no/a.svg", "there is no folder"),
        ("notes.svg", "is no picture: name another"),
        ("link.svg", "is no plain file"),
        ("folder.svg", "is no plain file"),
        ("a\0.svg", "end in .svg or .png"),
        ("x" * 300 + ".svg", "cannot be written|too long"),
    ],
)
def test_plot_overwrites_nothing(tmp_path: Path, name: str, fault: str) -> None:
    """What stands there and is no picture stays; so does what a link leads to."""
    (tmp_path / "notes.svg").write_text("mine")
    (tmp_path / "link.svg").symlink_to(tmp_path / "notes.svg")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(RequestError, match=fault):
        _run(Task(arguments={"data": {"y": [1, 2, 4, 8]}, "plot": f"{tmp_path}/{name}"}))
    assert (tmp_path / "notes.svg").read_text() == "mine"


class _Parent:
    """Has another agent draw."""

    name = "parent"
    description = "Spawns."

    def __init__(self, plot: Path) -> None:
        self.plot = plot

    async def run(self, context: Context, task: Task) -> object:
        arguments = {"data": {"y": [1, 2, 4, 8]}, "plot": str(self.plot)}
        return await context.spawn("regression", Task(arguments=arguments))


def test_agents_ask_before_a_picture_is_written(tmp_path: Path) -> None:
    """What another agent wants drawn is a person's to allow; nobody answers here."""
    fleet = Fleet(ScriptedBackend([]), [RegressionAgent(), _Parent(tmp_path / "a.svg")])
    with pytest.raises(NeedsAnswerError, match="write a picture to"):
        asyncio.run(fleet.run_agent("parent", "go"))
    assert list(tmp_path.iterdir()) == []


def test_home_of_nobody_is_no_place_for_a_picture() -> None:
    """A path that cannot be read as one is told, before anything is computed."""
    with pytest.raises(RequestError, match="is no path"):
        _run(Task(arguments={"data": {"y": [1, 2, 4, 8]}, "plot": "~nobody-of-that-name/a.svg"}))


def test_clients_of_a_server_read_below_its_folder_and_write_nothing(tmp_path: Path) -> None:
    """Files beside the folder are not there, and a picture is written nowhere, not even within."""
    inside = tmp_path / "inside"
    inside.mkdir()
    _file(tmp_path, "secret.csv", "a\n1\n2\n4\n")
    _file(inside, "own.csv", "a\n1\n2\n4\n")
    access = FileAccess.below(inside)
    assert _run(Task(files=("own.csv",)), access).y == "a"
    with pytest.raises(RequestError, match="there is no file"):
        _run(Task(files=("../secret.csv",)), access)
    for plot in ("own.svg", "../out.svg", str(tmp_path / "out.svg")):
        with pytest.raises(RequestError, match="on this machine only"):
            _run(Task(files=("own.csv",), arguments={"plot": plot}), access)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "own.csv", "secret.csv"]


@pytest.mark.parametrize(
    ("text", "files", "is_own"),
    [
        ("Fit a line to 1, 2, 4, 8", (), True),
        ("Is there a Mann-Kendall trend in it?", ("rain.csv",), True),
        ("How does price depend on size?", ("houses.csv",), True),
        ("regression of 3 4 5.5", (), True),
        ("Does this shoe fit a narrow foot?", (), False),
        ("Explain what linear regression is.", (), False),
        ("What is 1 + 2 + 3?", (), False),
        ("Write a regression test for the parser.", ("parser.py",), False),
    ],
)
def test_fits_are_its_task(text: str, files: tuple[str, ...], is_own: bool) -> None:
    """It asks to fit, and there are numbers: both."""
    assert ((RegressionAgent().score(Task(text=text, files=files)) or 0.0) > 0.5) is is_own


def test_tool_fits_for_models_and_writes_nothing() -> None:
    """The tool takes columns, no file and no picture."""
    (tool,) = regression.pyagent_register_tools()
    report = asyncio.run(tool.function(FitArguments(data={"x": [1, 2, 3], "y": [2, 4, 7]})))  # type: ignore[arg-type]
    assert isinstance(report, Regression)
    assert "plot" not in tool.definition().function.parameters["properties"]  # type: ignore[operator]
    with pytest.raises(RequestError, match="no columns"):
        asyncio.run(tool.function(FitArguments()))  # type: ignore[arg-type]
