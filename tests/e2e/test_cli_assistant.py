"""The assistant by its ways in: `run --agent`, `agent`, `chat` and HTTP, over a model on loopback that calls tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.command_line import Terminal, plain, pyagent

from pyagent.core.messages import ChatRequest, FunctionCall, ToolCall
from pyagent.core.settings import Settings
from pyagent.fleet import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import Reply, ScriptedBackend, serve


def _reply(request: ChatRequest) -> Reply | str:
    told = [message.text for message in request.messages if message.role == "tool"]
    if told:
        return f"It is {told[-1].partition(' = ')[2]}."
    call = FunctionCall("calculator", json.dumps({"question": "6*7"}))
    return Reply(tool_calls=(ToolCall(id="c", function=call),))


@pytest.fixture(scope="module")
def caller() -> Iterator[str]:
    """The chain entry of a model that calls the calculator once."""
    with serve(create_app(ScriptedBackend(_reply))) as url:
        yield f"openai:{url}/v1"


def test_assistant_is_reached_from_the_command_line(environment: dict[str, str], caller: str) -> None:
    """`run --agent`, `agent` and `chat` show the calls and the answer."""
    done = pyagent("run", "6 times 7?", "--agent", "assistant", "--chain", caller, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert 'calls calculator {"question": "6*7"}' in done.stdout
    assert "It is 42." in done.stdout
    told = pyagent("agent", "assistant", "6 times 7?", "--json", "--chain", caller, env=environment)
    assert json.loads(told.stdout)["answer"] == "It is 42."
    chatted = pyagent("chat", "--chain", caller, env=environment, text="/agent assistant\n6 times 7?\n")
    assert "It is 42." in chatted.stdout


def test_unknown_agent_of_run_is_named(environment: dict[str, str], caller: str) -> None:
    """A misspelt agent is an error that names the nearest one."""
    done = pyagent("run", "x", "--agent", "asistant", "--chain", caller, env=environment)
    assert done.returncode == 1
    assert "did you mean 'assistant'" in done.stderr


def test_assistant_is_reached_over_http() -> None:
    """`agent:assistant` is a model: its calls come as reasoning; nothing unsafe is offered to a client."""
    backend = ScriptedBackend(_reply)
    app = create_app(backend, agents=AgentBackend(lambda: Fleet(Settings(), backend=backend)))
    body = {"model": "agent:assistant", "messages": [{"role": "user", "content": "6 times 7?"}]}
    with serve(app) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    offered = {each.function.name for each in backend.requests[0].tools}
    assert offered >= {"calculator", "read_file"}
    assert not offered & {"write_file", "edit_file", "undo_change", "ask_user"}
    message = answer["choices"][0]["message"]
    assert message["content"] == "It is 42."
    assert "calls calculator" in message["reasoning_content"]


def test_output_schema_is_given_as_json(environment: dict[str, str]) -> None:
    """`--output` takes a JSON schema, and the result has what follows it."""
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    with serve(create_app(ScriptedBackend(lambda _: '{"total": 42}'))) as url:
        arguments = ["--output", json.dumps(schema), "--tools", "calculator", "--json"]
        done = pyagent("agent", "assistant", "6 times 7?", *arguments, "--chain", f"openai:{url}/v1", env=environment)
    assert json.loads(done.stdout)["output"] == {"total": 42}, done.stderr


def _writing(request: ChatRequest) -> Reply | str:
    told = [message.text for message in request.messages if message.role == "tool"]
    call = FunctionCall("write_file", json.dumps({"path": "made.txt", "content": "evil \x9b31m"}))
    return f"Told: {told[-1]}" if told else Reply(tool_calls=(ToolCall(id="c", function=call),))


@pytest.fixture(scope="module")
def writer() -> Iterator[str]:
    """The chain entry of a model that writes a file once."""
    with serve(create_app(ScriptedBackend(_writing))) as url:
        yield f"openai:{url}/v1"


def test_file_is_written_when_a_person_allows_it(environment: dict[str, str], writer: str) -> None:
    """At a terminal the call is shown, its control characters written out; denied it is told, allowed it is done."""
    made = Path(environment["HOME"]) / "made.txt"
    for answer, is_made in (("deny", False), ("allow", True)):
        terminal = Terminal("run", "write", "--agent", "assistant", "--chain", writer, env=environment)
        terminal.read_until("[allow/always/deny]")
        assert "\\x9b31m" in terminal.shown
        assert "\x9b" not in terminal.shown
        terminal.type(f"{answer}\n")
        assert terminal.finish() == 0
        assert made.exists() == is_made
        assert ("denied this call" in plain(terminal.shown)) != is_made


def test_what_was_typed_before_allows_nothing(environment: dict[str, str], writer: str) -> None:
    """Lines in the terminal from before the question are dropped; where nobody sits there, the run ends with it."""
    terminal = Terminal("run", "write", "--agent", "assistant", "--chain", writer, env=environment)
    terminal.type("allow\n" * 3)
    terminal.read_until("[allow/always/deny]")
    terminal.type("deny\n")
    assert terminal.finish() == 0
    done = pyagent("run", "write", "--agent", "assistant", "--chain", writer, env=environment)
    assert done.returncode == 1
    assert "the run needs an answer: may assistant call write_file" in done.stderr
    assert not (Path(environment["HOME"]) / "made.txt").exists()
    approved = environment | {"PYAGENT_TOOLS__APPROVED": "write_file"}
    assert pyagent("run", "write", "--agent", "assistant", "--chain", writer, env=approved).returncode == 0
    assert (Path(environment["HOME"]) / "made.txt").exists()


def test_graph_is_run(environment: dict[str, str], caller: str, tmp_path: Path) -> None:
    """`run --graph` runs a file's steps; a file that is wrong is one line."""
    graph = tmp_path / "graph.toml"
    graph.write_text(
        '[[steps]]\nname = "sums"\nagent = "math"\nfor_each = ["1+1", "2+2"]\ntask = "{item}"\n'
        '[[steps]]\nname = "tell"\nagent = "assistant"\nafter = ["sums"]\ntask = "{task}"\n'
    )
    done = pyagent("run", "6 times 7?", "--graph", str(graph), "--chain", caller, env=environment)
    assert done.returncode == 0, done.stderr
    assert "1+1 = 2" in done.stdout
    assert "2+2 = 4" in done.stdout
    assert "It is 42." in done.stdout
    graph.write_text("steps = 1")
    wrong = pyagent("run", "x", "--graph", str(graph), env=environment)
    assert (wrong.returncode, "the graph is wrong" in wrong.stderr) == (1, True)


def test_graph_is_shown(environment: dict[str, str], tmp_path: Path) -> None:
    """`run --graph --show` writes the graph as a tree or for Mermaid and runs nothing; without a graph it says so."""
    graph = tmp_path / "graph.toml"
    graph.write_text(
        '[[steps]]\nname = "find"\nagent = "assistant"\ntask = "{task}"\nretries = { max = 2 }\n'
        '[[steps]]\nname = "fix"\nafter = ["find"]\nwhen = "find != \\"no\\""\n'
        'repeat = { max = 3, until = "exists write" }\n[[steps.steps]]\nname = "write"\ntask = "write"\n'
    )
    tree = pyagent("run", "look", "--graph", str(graph), "--show", "tree", env=environment)
    assert tree.stdout.splitlines() == [
        "find  assistant · look · 2 retries",
        'fix   group of 1 · after find · when find != "no" · repeat until exists write, at most 3 rounds',
        "    write  the agent that the router finds · write",
    ]
    chart = pyagent("run", "look", "--graph", str(graph), "--show", "mermaid", env=environment).stdout
    assert chart.startswith('flowchart TD\n    s0["find · assistant · 2 retries"]\n    subgraph s1["fix ·')
    assert '    s0 -->|"find != &quot;no&quot;"| s1\n' in chart
    assert json.loads(pyagent("runs", "list", "--json", env=environment).stdout) == []
    wrong = pyagent("run", "look", "--show", "tree", env=environment)
    assert (wrong.returncode, "--graph FILE names one" in wrong.stderr) == (2, True)
