"""Programs of others against our fakes: LM Studio's JavaScript client, and the real Copilot CLI."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from pyagent_copilot.backend import CopilotBackend
from support.peers import NODE_MODULES, node_module

from pyagent.core.backends import collect
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, FunctionDefinition, Message, Tool
from pyagent.testing import lmstudio_server, openai_server

pytestmark = pytest.mark.peers

HELLO = ChatRequest(messages=[Message("system", "be brief"), Message("user", "hi")])


def test_lmstudio_javascript_client_finds_no_fault() -> None:
    """LM Studio's client for JavaScript lists, loads, streams, counts and unloads at the fake, without a warning."""
    node_module("@lmstudio/sdk")
    script = Path(__file__).parent / "lmstudio_client.mjs"
    with lmstudio_server() as server:
        words = [shutil.which("node") or "node", str(script), server.url, str(NODE_MODULES.parent)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["pieces"] == ["Hello", " from", " the", " fake."]
    assert (said["reason"], said["tokens"], said["loaded"]) == ("eosFound", 2, 0)
    assert "No model found" in said["missing"]
    assert "warning" not in done.stdout + done.stderr


@pytest.fixture
def copilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The real program, with a provider of our own instead of GitHub's."""
    module = node_module("@github/copilot")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COPILOT_OFFLINE", "true")
    monkeypatch.setenv("COPILOT_MODEL", "fake-1")
    monkeypatch.setenv("COPILOT_PROVIDER_API_KEY", "sk-of-the-provider")
    return str(module.parents[1] / ".bin" / "copilot")


def test_copilot_cli_answers(copilot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real Copilot CLI takes our flags, streams, and offers its model no tools."""
    with openai_server(answer="one two three", delay_seconds=0.02) as server:
        monkeypatch.setenv("COPILOT_PROVIDER_BASE_URL", server.url)
        answer = asyncio.run(collect(CopilotBackend(program=copilot).chat(HELLO)))
        assert (answer.text, answer.last.model) == ("one two three", "fake-1")
        assert len(answer.deltas) == 4
        assert not server.requests[0].get("tools")
        assert "be brief\n\nhi" in str(server.requests[0]["messages"][-1]["content"])  # type: ignore[index]


def test_copilot_cli_calls_our_tools_in_words(copilot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools of the request reach a model behind the CLI in words, and its call comes back as a call."""
    said = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    with openai_server(answer=said) as server:
        monkeypatch.setenv("COPILOT_PROVIDER_BASE_URL", server.url)
        request = ChatRequest(messages=HELLO.messages, tools=[Tool(FunctionDefinition("add"))])
        answer = asyncio.run(collect(CopilotBackend(program=copilot).chat(request)))
    assert [call.function.name for call in answer.tool_calls] == ["add"]


def test_copilot_cli_tells_an_unknown_model(copilot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that the provider lacks is `model_not_found`, so that a chain goes on."""
    with openai_server() as server:
        monkeypatch.setenv("COPILOT_PROVIDER_BASE_URL", server.url)
        with pytest.raises(RequestError) as caught:
            asyncio.run(collect(CopilotBackend(program=copilot, model="nope").chat(HELLO)))
    assert caught.value.code == "model_not_found"
