"""What others say is shown at a terminal, and is not obeyed by it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncGenerator
from contextlib import redirect_stdout

import pytest

from pyagent.cli.chat import Loop
from pyagent.cli.output import write_json
from pyagent.cli.view import PlainView
from pyagent.core.fleet.events import AgentFailed, AgentFinished, AgentStarted, Totals

_CLEARS = "\x1b[2J\x9b1A\x07"


class Terminal(io.StringIO):
    """Output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "written"),
    [(Terminal(), "a\tline\nand\\x1b[2J\\x9b1A\\x07"), (io.StringIO(), f"a\tline\r\nand{_CLEARS}")],
)
def test_answer_is_not_obeyed_by_a_terminal(output: io.StringIO, written: str) -> None:
    """Escapes in an answer, also one split between pieces, are written out; a pipe gets the answer as it is."""

    async def pieces() -> AsyncGenerator[str, None]:
        for piece in ("a\tline\r\nand\x1b", _CLEARS[1:]):
            yield piece

    with Loop("an answer") as loop, redirect_stdout(output):
        loop.stream(pieces())
    assert output.getvalue() == written


def test_lines_of_a_run_have_no_escapes() -> None:
    """A line for a result or an error of an agent holds what it says, written out."""
    output = Terminal()
    with redirect_stdout(output):
        view = PlainView()
        for step in ("one", "two"):
            view.show(AgentStarted(run="r", step=step, agent="a", task="t"))
        view.show(AgentFinished(run="r", step="one", agent="a", output=f"done{_CLEARS}", totals=Totals()))
        view.show(
            AgentFailed(run="r", step="two", agent="a", error=f"failed{_CLEARS}", kind="AgentError", totals=Totals())
        )
    text = output.getvalue()
    assert "done\\x1b[2J" in text
    assert "failed\\x1b[2J" in text
    assert not set(_CLEARS) & {"\x9b", "\x07"} & set(text)


def test_names_of_files_that_are_no_utf8_are_written_as_json() -> None:
    """Whoever reads the line has the name's very bytes again; other values are written as they are beside UTF-8."""
    name = os.fsdecode(b"bad\xff")
    with redirect_stdout(io.StringIO()) as output:
        write_json(Totals(prompt_tokens=3))
        write_json({"copied": (name, "é"), "totals": Totals(prompt_tokens=3)})
    plain, written = map(json.loads, output.getvalue().splitlines())
    assert written == {"copied": [name, "é"], "totals": plain}
    assert os.fsencode(written["copied"][0]) == b"bad\xff"
