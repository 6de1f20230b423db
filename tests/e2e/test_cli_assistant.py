"""The assistant by its ways in: `run --agent`, `agent`, `chat` and HTTP, over a model on loopback that calls tools."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from support.command_line import pyagent

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
    """`agent:assistant` is a model: its calls come as reasoning, its answer as content."""
    backend = ScriptedBackend(_reply)
    app = create_app(backend, agents=AgentBackend(lambda: Fleet(Settings(), backend=backend)))
    body = {"model": "agent:assistant", "messages": [{"role": "user", "content": "6 times 7?"}]}
    with serve(app) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
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
