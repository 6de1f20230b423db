"""What `pyagent run` writes where there is no terminal."""

from __future__ import annotations

import pytest

from pyagent.cli.view import PlainView
from pyagent.core.fleet.events import Progress, ToolResultFlagged


def test_equal_progress_lines_of_parallel_parts_are_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten parts that report the same are one line; another report is another line."""
    view = PlainView()
    for text in (*["an answer was cut after 72 tokens"] * 10, "2 parts in parallel"):
        view.show(Progress(run="r-1", step="summarize/part", agent="summarize", text=text))
    written = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert written == ["summarize an answer was cut after 72 tokens", "summarize 2 parts in parallel"]


def test_a_flagged_result_of_a_tool_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What the trust guard found in a tool's result is told, and what was done about it."""
    view = PlainView()
    view.show(
        ToolResultFlagged(
            run="r-1", step="read", agent="reader", tool="page", injection=0.9, kinds=["override"], quotes=["obey"]
        )
    )
    assert " ".join(capsys.readouterr().out.split()) == (
        "reader the result of page reads like instructions to a model (override): the model is warned"
    )
