"""Clients of other people, unmodified, each end to end against the server; `make clients` installs and runs them.

OpenAI's, Anthropic's and Ollama's own clients are held to in every run of the tests (`test_server*.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from support.clients import run_llm
from support.native import native_server
from support.server import HI, KEY, Model, keys, words

from pyagent.core.messages import ChatDelta, ChatRequest, FunctionCall, ToolCall, Usage
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def tiny_url(tiny_model_path: Path) -> Iterator[str]:
    """A server over the embedded engine; its model talks nonsense."""
    with native_server(tiny_model_path, api_keys=keys(KEY)) as url:
        yield url


@pytest.fixture
def url() -> Iterator[str]:
    """A server over a model that calls `add` and then says what it gave."""
    with serve(create_app(Model(adding), api_keys=keys(KEY))) as served:
        yield served


class Sum(pydantic.BaseModel):
    total: int


def adding(request: ChatRequest) -> list[ChatDelta]:
    last = request.messages[-1]
    if request.response_format is not None:
        return words('{"total": ', "3}")
    if last.role == "tool":
        return words("It is ", f"{last.text}.")
    if any(tool.function.name == "add" for tool in request.tools):
        call = ToolCall(id="call_1", function=FunctionCall("add", '{"a": 1, "b": 2}'))
        return [ChatDelta(tool_calls=as_deltas([call])), ChatDelta(finish_reason="tool_calls", usage=Usage(9, 2, 11))]
    return words("Hel", "lo")


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize("model", ["openai", "ollama_chat", "anthropic"])
def test_litellm(model: str, tiny_url: str, url: str) -> None:
    """litellm speaks to all three APIs: whole, streamed, with tools."""
    import litellm

    def asked(base: str, name: str, **more: Any) -> Any:
        api_base = f"{base}/v1" if model.startswith("openai") else base
        say: dict[str, Any] = {"messages": HI, "max_tokens": 8} | more
        return litellm.completion(f"{model}/{name}", api_base=api_base, api_key=KEY, **say)

    whole = asked(tiny_url, "tiny", temperature=0)
    assert whole.usage.completion_tokens == 8
    chunks = asked(tiny_url, "tiny", temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    called = asked(url, "m", tools=[TOOL])
    (call,) = called.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})


def test_llm(tiny_url: str, tmp_path: Path) -> None:
    """llm talks to a model named in its file of OpenAI-compatible models."""
    for more in ([], ["--no-stream"]):
        done = run_llm(tiny_url, "tiny", tmp_path, "Hello", "-o", "max_tokens", "8", "-o", "temperature", "0", *more)
        assert done.stdout.strip()


@pytest.mark.parametrize("is_responses", [False, True])
def test_langchain(is_responses: bool, tiny_url: str, url: str) -> None:
    """langchain-openai chats, streams, calls tools and parses, over completions and over responses."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def model_at(base: str, model: str) -> Any:
        options: Any = {"model": model, "base_url": f"{base}/v1", "api_key": KEY, "use_responses_api": is_responses}
        return ChatOpenAI(temperature=0, **options)

    tiny = model_at(tiny_url, "tiny")
    whole = tiny.invoke("Hello", max_tokens=8)
    assert any(str(chunk.text) for chunk in tiny.stream("Hello", max_tokens=8))
    assert whole.usage_metadata["output_tokens"] == 8
    model = model_at(url, "m")
    called = model.bind_tools([add]).invoke("1+2?")
    assert called.tool_calls[0]["args"] == {"a": 1, "b": 2}
    result = add.invoke(called.tool_calls[0])
    assert "It is 3." in str(model.bind_tools([add]).invoke([("user", "1+2?"), called, result]).content)
    assert model.with_structured_output(Sum, method="json_schema").invoke("1+2?") == Sum(total=3)


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_pydantic_ai(kind: str, url: str) -> None:
    """pydantic-ai runs an agent with a tool, and one with a typed output."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models import openai
    from pydantic_ai.providers.openai import OpenAIProvider

    model = getattr(openai, kind)("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    agent = Agent(model)

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert agent.run_sync("1+2?").output == "It is 3."
    assert Agent(model, output_type=NativeOutput(Sum)).run_sync("1+2?").output == Sum(total=3)


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_agents(kind: str, url: str) -> None:
    """openai-agents runs an agent with a tool, whole and streamed."""
    import asyncio

    import agents
    import openai

    agents.set_tracing_disabled(disabled=True)

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async def work() -> None:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
        model = getattr(agents, kind)(model="m", openai_client=client)
        agent = agents.Agent(name="adder", instructions="Add.", tools=[add], model=model)
        assert (await agents.Runner.run(agent, "1+2?")).final_output == "It is 3."
        streamed = agents.Runner.run_streamed(agent, "1+2?")
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "It is 3."

    asyncio.run(work())


def test_schemathesis_finds_no_server_error() -> None:
    """Thousands of requests made from the description of the API end in no 5xx."""
    checks = ["--checks", "not_a_server_error", "--phases", "coverage,fuzzing", "--max-time", "30"]
    with serve(create_app(Model())) as served:
        program = str(Path(sys.executable).with_name("schemathesis"))
        done = subprocess.run(
            [program, "run", f"{served}/openapi.json", *checks],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout[-3000:]
