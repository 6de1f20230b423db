"""Claude Code, Codex and Vercel's `ai`, npm's, hold conversations with tools against the embedded engine.

The model is scripted (`support.scripted_runner`): it thinks, reads one file, then two at once, and tells their words.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.peers import NODE_MODULES, claude_code, codex, finished, node_module
from support.scripted_runner import Scripted, scripted_server
from support.server import KEY, keys
from support.tool_conversation import FINAL, PARALLEL, QUESTION, QWEN3

pytestmark = pytest.mark.peers

ASKED = "Which words are in the files?"
ANSWER = "heron, egret and stork"
WORDS = {"a": "heron", "b": "egret", "c": "stork"}
Call = Callable[[str], dict[str, object]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the files."""
    for name, word in WORDS.items():
        (tmp_path / f"{name}.txt").write_text(f"the word is {word}\n")
    return tmp_path


def reading(tool: str, call: Call) -> Scripted:
    """A model that reads the files with this tool; `call` gives the arguments for one."""

    def written(*names: str) -> str:
        calls = [json.dumps({"name": tool, "arguments": call(name)}) for name in names]
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in calls)

    answers = (
        f"<think>\nThe first one.\n</think>\n\n{written('a')}",
        f"<think>\nNow both.\n</think>\n\nTwo more.\n{written('b', 'c')}",
        f"<think>\nThat is all.\n</think>\n\n{ANSWER}",
    )

    def script(prompt: str) -> str:
        place = prompt.rfind(ASKED)
        return answers[min(prompt.count("<tool_response>", place), 2)] if place >= 0 else "A conversation"

    return Scripted(script)


def check_prompt(scripted: Scripted) -> None:
    """The last prompt has thoughts, calls and results in their order."""
    told = scripted.prompts[-1][scripted.prompts[-1].rfind(ASKED) :]
    parts = ["The first one.", "a.txt", WORDS["a"], "Now both.", "Two more.", "b.txt", "c.txt", WORDS["b"], WORDS["c"]]
    places = [told.find(part) for part in parts]
    assert places == sorted(places)
    assert -1 not in places


def claude(scripted: Scripted, home: Path, sessions: str = "auto", **environment: str) -> list[Any]:
    """What Claude Code tells of its conversation."""
    flags = ["--allowedTools", "Read", "--output-format", "stream-json", "--verbose"]
    with scripted_server(scripted, QWEN3.model(home), api_keys=keys(KEY), **{"engine.sessions": sessions}) as url:
        text = claude_code(url, home, ASKED, *flags, **environment)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("sessions", ["auto", "off"])
def test_claude_code_holds_a_conversation(home: Path, sessions: str) -> None:
    """With all its tools; it shows thoughts as thinking, and sends them back."""
    scripted = reading("Read", lambda name: {"file_path": str(home / f"{name}.txt")})
    told = claude(scripted, home, sessions)
    blocks = [block for event in told if event["type"] == "assistant" for block in event["message"]["content"]]
    assert [block["thinking"] for block in blocks if block["type"] == "thinking"] == [
        "The first one.",
        "Now both.",
        "That is all.",
    ]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [block for event in told if event["type"] == "user" for block in event["message"]["content"]]
    assert {result["tool_use_id"] for result in results} == {*ids}
    assert (len(ids), told[-1]["result"], told[-1]["is_error"]) == (3, ANSWER, False)
    assert told[-1]["usage"]["output_tokens"] > 100
    check_prompt(scripted)


def test_claude_code_runs_no_call_that_was_cut(home: Path) -> None:
    """It says that the answer was too long, where it would run half a call without its input."""
    scripted = reading("Read", lambda name: {"file_path": str(home / f"{name}.txt")})
    with pytest.raises(AssertionError, match="exceeded the 50 output token maximum"):
        claude(scripted, home, CLAUDE_CODE_MAX_OUTPUT_TOKENS="50")
    assert not any("<tool_response>" in prompt for prompt in scripted.prompts)


@pytest.mark.parametrize("sessions", ["auto", "off"])
def test_codex_holds_a_conversation(home: Path, sessions: str) -> None:
    """It runs the commands, shows the thoughts where told to, and sends them back."""
    scripted = reading("exec_command", lambda name: {"cmd": f"cat {name}.txt"})
    with scripted_server(scripted, QWEN3.model(home), api_keys=keys(KEY), **{"engine.sessions": sessions}) as url:
        done = codex(url, home, ASKED, "show_raw_agent_reasoning = true\n")
    for word in (*WORDS.values(), "The first one.", "Now both.", "Two more.", "That is all.", ANSWER):
        assert word in done.stdout + done.stderr
    check_prompt(scripted)


@pytest.mark.parametrize("provider", ["openai", "chat", "compatible", "anthropic"])
@pytest.mark.parametrize("mode", ["whole", "streamed"])
def test_ai_sdk_holds_a_conversation(tmp_path: Path, provider: str, mode: str) -> None:
    """Over each API it runs the tools and shows thoughts; over `chat` it knows none, and the engine keeps them."""
    node_module("ai")
    scripted = Scripted(QWEN3.script)
    with scripted_server(scripted, QWEN3.model(tmp_path), api_keys=keys(KEY)) as url:
        script = Path(__file__).parent / "ai_conversation.mjs"
        words: list[str | Path] = [shutil.which("node") or "node", script, url, NODE_MODULES.parent, provider, mode]
        text = finished([*words, QUESTION], tmp_path, PYAGENT_KEY=KEY).stdout
    told = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert told["text"] == FINAL
    assert [tuple(call) for call in told["ran"]] == [call for turn in PARALLEL for call in turn.calls]
    assert told["thoughts"] == ["" if provider == "chat" else turn.thought for turn in PARALLEL]
    assert told["reasons"] == ["tool-calls", "tool-calls", "stop"]
    assert told["ids"] == told["calls"]
    assert min(told["tokens"]) > 30
    assert scripted.prompts[-1].partition(QUESTION)[2] == QWEN3.conversation(PARALLEL)
