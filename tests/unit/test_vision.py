"""What pieces of text and rectangles are read as: rows, code, tables, charts, diagrams, without OCR."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatDelta, ChatRequest, ImagePart, ImageUrl, Message, TextPart
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.logic.agents import vision
from pyagent.logic.agents.vision import VisionAgent, VisionArguments, kind_in, markdown_table, mermaid
from pyagent.logic.sandbox.pool import Work, WorkerPool
from pyagent.logic.vision.chart import chart_of, number_in
from pyagent.logic.vision.code import code_of
from pyagent.logic.vision.diagram import diagram_of
from pyagent.logic.vision.rows import rows_of, text_of_rows
from pyagent.logic.vision.seen import Box, Diagram, Edge, PageSeen, Table, TextBox
from pyagent.logic.vision.table import table_of
from pyagent.testing import ScriptedBackend

WIDTH, PITCH = 10.0, 24.0


def piece(text: str, left: float, top: float, width: float | None = None, height: float = 20.0) -> TextBox:
    wide = len(text) * WIDTH if width is None else width
    return TextBox(text, 0.99, Box(left, top, left + wide, top + height))


def typed(source: str, jitter: float = 0.0) -> list[TextBox]:
    """The lines of a source as an OCR gives them: without what they begin with, in no order."""
    return [
        piece(
            line.strip(), 40 + (len(line) - len(line.lstrip())) * WIDTH + jitter * (number % 3 - 1), 30 + number * PITCH
        )
        for number, line in enumerate(source.splitlines())
        if line.strip()
    ][::-1]


SOURCE = "class A:\n    def f(self):\n        if x:\n            return 1\n\n        return 2\n\n\nprint(A())"


@pytest.mark.parametrize("jitter", [0.0, 4.0])
def test_code_keeps_its_indentation_and_blank_lines(jitter: float) -> None:
    """Also where the OCR's boxes begin some pixels beside the letters."""
    assert code_of(typed(SOURCE, jitter)) == SOURCE


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.sampled_from([2, 4]))
def test_code_of_any_depth_is_as_it_was(depths: list[int], level: int) -> None:
    """Any lines that begin at multiples of two or four characters come back, where one begins at the first level."""
    depths = [0, 1, *depths]
    source = "\n".join(" " * (level * depth) + "statement()" for depth in depths)
    assert code_of(typed(source)) == source


def test_code_has_no_line_numbers_and_no_wide_signs() -> None:
    """Numbers that rise beside the lines are the editor's; signs of Chinese print are code's."""
    lines = ["def f（x）：", "return x", "f(1)"]
    pieces = [piece(str(9 + number), 5, 30 + number * PITCH) for number in range(3)]
    pieces += [piece(line, 60 + 40 * (number == 1), 30 + number * PITCH) for number, line in enumerate(lines)]
    assert code_of(pieces) == "def f(x):\n    return x\nf(1)"
    assert code_of([piece("12", 0, 0), piece("x", 40, 30)]) == "12\n    x"
    assert code_of([]) == ""


def test_rows_are_read_from_left_to_right() -> None:
    """Pieces whose middles are near each other are one row, whatever their order."""
    pieces = [piece("b", 100, 3), piece("c", 0, 40), piece("a", 0, 0)]
    assert text_of_rows(rows_of(pieces)) == "a b\nc"


def test_a_table_has_cells_where_nothing_stands() -> None:
    """Columns are where texts overlap from above; titles over the whole are none of it."""
    pieces = [piece("Sales of the whole year by city", 0, 0)]
    pieces += [piece("City", 0, 40), piece("Q1", 150, 40), piece("Q2", 250, 40)]
    pieces += [piece("Ulm", 0, 70), piece("7", 160, 70), piece("Bonn", 0, 100), piece("12", 250, 100)]
    assert table_of(pieces).rows == [["City", "Q1", "Q2"], ["Ulm", "7", ""], ["Bonn", "", "12"]]
    with pytest.raises(RequestError, match="no table is seen"):
        table_of([piece("one", 0, 0), piece("line", 0, 40)])
    assert markdown_table(Table([["a|b", "c"], ["1", "2"]])) == "| a\\|b | c |\n|---|---|\n| 1 | 2 |"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,200", 1200.0), ("-3.5", -3.5), ("−4", -4.0), ("15 %", 15.0), ("2k", 2000.0), ("$1.5M", 1.5e6), (".5", 0.5),
     ("Mon", None), ("3 of 4", None), ("", None), ("1e5x", None)],
)  # fmt: skip
def test_numbers_of_an_axis(text: str, value: float | None) -> None:
    """Thousands, signs, per cent and letters for powers; words are no numbers."""
    assert number_in(text) == value


def bars(heights: list[int], colour: tuple[int, int, int] = (60, 110, 200)) -> np.ndarray:
    image = np.full((400, 600, 3), 255, np.uint8)
    for number, height in enumerate(heights):
        image[350 - height : 350, 100 + 100 * number : 150 + 100 * number] = colour
    return image


def test_bars_are_scaled_by_the_axis() -> None:
    """Values are where tops are between the axis's numbers, one of which may be misread; labels stand below."""
    heights = [50, 300, 125]
    axis = [piece(str(value), 20, 350 - 3 * value - 10) for value in range(0, 100, 20)] + [piece("10O", 20, 40)]
    labels = [piece(name, 105 + 100 * number, 360) for number, name in enumerate(["Mon", "Tue", "Wed"])]
    chart = chart_of(bars(heights), axis + labels)
    assert chart.is_scaled
    assert [(bar.label, bar.value) for bar in chart.bars] == [("Mon", 16.7), ("Tue", 100.0), ("Wed", 41.7)]
    wrong = [*axis[:3], piece("6", 20, 350 - 180 - 10), *axis[4:]]
    assert [round(bar.value) for bar in chart_of(bars(heights), wrong + labels).bars] == [17, 100, 42]


def test_bars_without_an_axis_are_in_pixels() -> None:
    """Nothing is made up: lengths in pixels, and it says so."""
    chart = chart_of(bars([50, 300]), [])
    assert (chart.is_scaled, [(bar.label, bar.value) for bar in chart.bars]) == (False, [("", 50.0), ("", 300.0)])
    with pytest.raises(RequestError, match="no bar chart is seen"):
        chart_of(np.full((200, 200, 3), 255, np.uint8), [])


def drawn(*, head: bool) -> tuple[np.ndarray, list[TextBox]]:
    image = np.full((300, 500, 3), 255, np.uint8)
    for left in (20, 320):
        image[100:160, left : left + 150] = 0
        image[102:158, left + 2 : left + 148] = 255
    image[129:131, 170:319] = 0
    for step in range(14 if head else 0):
        image[130 - step // 2 : 130 + step // 2 + 1, 318 - step] = 0
    return image, [piece("from", 60, 120), piece("to", 380, 120), piece("calls", 220, 90)]


def test_a_diagram_has_nodes_and_directed_edges() -> None:
    """The end with the arrowhead is where it leads; without one there is no direction; texts beside lines are none."""
    assert diagram_of(*drawn(head=True)) == Diagram(["from", "to"], [Edge(0, 1, is_directed=True)])
    assert diagram_of(*drawn(head=False)) == Diagram(["from", "to"], [Edge(0, 1, is_directed=False)])
    image, texts = drawn(head=True)
    assert diagram_of(255 - image, texts).edges == [Edge(0, 1, is_directed=True)]
    with pytest.raises(RequestError, match="no diagram is seen"):
        diagram_of(np.full((200, 200, 3), 255, np.uint8), texts)


def test_mermaid_has_no_text_that_ends_a_node() -> None:
    """What stands in a box is a text, whatever it holds."""
    shown = mermaid(Diagram(['a"] --> evil["', "b#\n<i>"], [Edge(0, 1, is_directed=False)]))
    assert shown.splitlines()[1:] == [
        '    n0["a#quot;] --#gt; evil[#quot;"]',
        '    n1["b#35; #lt;i#gt;"]',
        "    n0 --- n1",
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("read this", "text"), ("the code in this screenshot", "code"), ("turn the table into csv", "table"),
     ("what does the bar chart say", "chart"), ("this diagram as mermaid", "diagram"), ("", "text")],
)  # fmt: skip
def test_words_name_what_is_wanted(text: str, kind: str) -> None:
    """Without words it is text."""
    assert kind_in(text) == kind


def workers(module: str = "pyagent.logic.vision.worker", seconds: float = 60.0) -> WorkerPool[list[PageSeen]]:
    work: Work[list[PageSeen]] = Work("vision", module, list[PageSeen], "less", "the extra", seconds, 8 << 30)
    return WorkerPool(work, max_workers=1)


def asked(task: Task) -> object:
    return asyncio.run(Fleet(ScriptedBackend([]), [VisionAgent(workers())]).run_agent("vision", task))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(text="what is this?"), "nothing to look at"),
        (Task(files=("missing.png",)), "there is no file or folder 'missing.png'"),
        (Task(arguments={"images": ["http://example.org/a.png"]}), "an image is a data URL in base64"),
        (Task(arguments={"images": ["data:image/png;base64,%%%"]}), "is not base64"),
        (Task(arguments={"images": ["data:,"] * 21}), "expected at most 20 images, got 21"),
        (Task(arguments={"max_pages": 0}), "expected max_pages from 1 to 50, got 0"),
        (Task(arguments={"read": "poem"}), "read"),
    ],
)
def test_wrong_tasks_are_refused_before_a_worker_begins(task: Task, message: str) -> None:
    """Each names what was expected."""
    with pytest.raises(RequestError, match=message):
        asked(task)


def test_folders_and_large_files_are_refused(tmp_path: Path) -> None:
    """A file is bounded before it is read."""
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(50_000_001)
    with pytest.raises(RequestError, match="50,000,001 bytes; the most is 50,000,000"):
        asked(Task(files=(str(large),)))
    with pytest.raises(RequestError, match="is a folder; name files"):
        asked(Task(files=(str(tmp_path),)))


def test_without_the_extra_one_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are looked for before a process is begun for them."""
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    url = "data:image/png;base64," + base64.b64encode(b"x").decode()
    with pytest.raises(RequestError, match="pip install rapidocr onnxruntime pypdfium2"):
        asked(Task(arguments={"images": [url]}))


def test_images_of_a_message_reach_the_agent_over_http() -> None:
    """They are its arguments; an agent that takes none says so."""
    parts = [TextPart("read the table"), ImagePart(ImageUrl("data:image/png;base64,eA=="))]

    async def answer(model: str) -> list[ChatDelta]:
        agents = AgentBackend(lambda: Fleet(ScriptedBackend([]), [Told(), Plain()]))
        request = ChatRequest(model=model, messages=[Message("user", parts)])
        async with aclosing(agents.chat(request)) as deltas:
            return [delta async for delta in deltas]

    told = asyncio.run(answer("agent:told"))
    assert told[-1].content == "read the table: data:image/png;base64,eA=="
    with pytest.raises(RequestError, match="agent:plain takes no images"):
        asyncio.run(answer("agent:plain"))


class Told:
    """Says what it was given."""

    name = "told"
    description = "says what it was given"
    arguments = VisionArguments

    async def run(self, context: Context, task: Task) -> str:
        return f"{task.text}: {task.arguments_as(VisionArguments).images[0]}"


class Plain:
    """Takes no images."""

    name = "plain"
    description = "takes text"

    async def run(self, context: Context, task: Task) -> str:
        return task.text


def test_images_find_the_agent() -> None:
    """Files that are images are its own; a PDF only when it is scanned."""
    agent = VisionAgent(workers())
    assert agent.score(Task(text="what does it say?", files=("a.PNG", "b.jpg"))) > 0.9
    assert agent.score(Task(text="ocr this scanned letter", files=("a.pdf",))) > 0.8
    assert agent.score(Task(text="summarize", files=("a.pdf",))) == 0.0
    assert agent.score(Task(text="2+2")) is None


def test_importing_the_agent_imports_no_library_of_images() -> None:
    """They are imported in the worker only."""
    code = "import sys, pyagent.logic.agents.vision; print({'cv2', 'numpy', 'PIL', 'rapidocr'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
