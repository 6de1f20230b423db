"""Claude Code and Codex, programs of npm's, against the server: a question, and a file read by their own tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.peers import claude_code, codex
from support.server import KEY, Model, keys, words

from pyagent.core.messages import ChatDelta, ChatRequest, FunctionCall, ToolCall, Usage
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

pytestmark = pytest.mark.peers

NOTE = "the word is heron"
QUESTION = "What does note.txt say?"


def reading(tool: str, arguments: dict[str, object]) -> Callable[[ChatRequest], list[ChatDelta]]:
    """A model that calls `tool` to read the note and then tells its word; without that tool it says so."""

    def script(request: ChatRequest) -> list[ChatDelta]:
        last = request.messages[-1]
        if last.role == "tool":
            return words("It says: ", "heron" if NOTE in last.text else last.text)
        if tool not in {offered.function.name for offered in request.tools}:
            return words("no ", tool)
        call = ToolCall(id="call_1", function=FunctionCall(tool, json.dumps(arguments)))
        return [ChatDelta(tool_calls=as_deltas([call])), ChatDelta(finish_reason="tool_calls", usage=Usage(9, 2, 11))]

    return script


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the note."""
    (tmp_path / "note.txt").write_text(f"{NOTE}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("tools", "answer"), [(["Read", "--allowedTools", "Read"], "It says: heron"), ([""], "no Read")]
)
def test_claude_code_asks_and_reads_a_file(home: Path, tools: list[str], answer: str) -> None:
    """Claude Code streams an answer, runs the call it is sent, and shows what is made of the result."""
    model = Model(reading("Read", {"file_path": str(home / "note.txt")}))
    with serve(create_app(model, api_keys=keys(KEY))) as url:
        told = claude_code(url, home, QUESTION, "--tools", *tools)
    assert told.strip() == answer


def test_codex_runs_a_command(home: Path) -> None:
    """Codex, told not to search the web, runs the command it is sent over /v1/responses and shows the answer."""
    model = Model(reading("exec_command", {"cmd": "cat note.txt"}))
    with serve(create_app(model, api_keys=keys(KEY))) as url:
        done = codex(url, home, QUESTION)
    assert done.stdout.strip().endswith("It says: heron")
