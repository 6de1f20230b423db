"""Clients of other people hold a conversation with tools against the embedded engine; `make clients` runs them.

Each runs its own loop: it shows the model the tools, runs the calls, sends the results back. The model is scripted
(`support.tool_conversation`); its last prompt must have all of it as the model's own template writes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.clients import run_llm
from support.scripted_runner import Scripted, scripted_server
from support.server import KEY, keys
from support.tool_conversation import ABOUT, FINAL, PARALLEL, PARAMETERS, QUESTION, QWEN3, RESULTS, Toolbox

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

CALLS = [call for turn in PARALLEL for call in turn.calls]
THOUGHTS = [turn.thought for turn in PARALLEL]
TOOLS_FILE = """
def weather(city: str) -> str:
    "The weather in a city."
    return {"Rome": "sun, 25", "Oslo": "snow, 5"}[city]

def clock(city: str) -> str:
    "The time in a city."
    return "12:00"
"""


class Conversation:
    """A server, the tools, and what the model was shown."""

    def __init__(self, url: str, scripted: Scripted) -> None:
        self.url = url
        self.box = Toolbox()
        self._prompts = scripted.prompts
        self._prompts.clear()

    def check(self, num_times: int = 1) -> None:
        """The tools ran with the model's arguments; its last prompt is as its template writes the conversation."""
        assert self.box.ran == CALLS * num_times
        assert len(self._prompts) == len(PARALLEL) * num_times
        assert self._prompts[-1].partition(QUESTION)[2] == QWEN3.conversation(PARALLEL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Scripted]]:
    scripted = Scripted(lambda prompt: (smolagents_script if "final_answer" in prompt else QWEN3.script)(prompt))
    model = QWEN3.model(tmp_path_factory.mktemp("model"))
    with scripted_server(scripted, model, api_keys=keys(KEY)) as url:
        yield url, scripted


@pytest.fixture
def held(served: tuple[str, Scripted]) -> Conversation:
    return Conversation(*served)


def smolagents_script(prompt: str) -> str:
    """Likewise for smolagents, which forces calls, writes them and results into plain messages, and ends by a tool."""
    num_results = prompt[prompt.rfind(QUESTION) :].count("Observation:")
    if num_results < len(PARALLEL) - 1:
        return QWEN3.write(replace(PARALLEL[num_results], text=""))
    call = json.dumps({"name": "final_answer", "arguments": {"answer": FINAL}})
    return f"<think>\n{THOUGHTS[-1]}\n</think>\n\n<tool_call>\n{call}\n</tool_call><|im_end|>\n"


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_pydantic_ai(kind: str, held: Conversation) -> None:
    """pydantic-ai has the thoughts in thinking parts, and counts the tokens of all requests."""
    from pydantic_ai import Agent
    from pydantic_ai.models import openai
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{held.url}/v1", api_key=KEY)
    model = getattr(openai, kind)("default", provider=provider)
    result = Agent(model, tools=[held.box.weather, held.box.clock]).run_sync(QUESTION)
    assert result.output == FINAL
    parts = [part for message in result.all_messages() for part in message.parts]
    thoughts = [part for part in parts if part.part_kind == "thinking"]
    raw = [(part.provider_details or {}).get("raw_content", [part.content]) for part in thoughts]
    assert [text for texts in raw for text in texts] == THOUGHTS
    assert (result.usage.requests, result.usage.tool_calls) == (3, 3)
    assert result.usage.output_tokens > 100
    held.check()


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_agents(kind: str, held: Conversation) -> None:
    """openai-agents has the thoughts as reasoning items, whole and streamed."""
    import agents
    import openai

    agents.set_tracing_disabled(disabled=True)

    async def work() -> None:
        client = openai.AsyncOpenAI(base_url=f"{held.url}/v1", api_key=KEY)
        tools = [agents.function_tool(held.box.weather), agents.function_tool(held.box.clock)]
        agent = agents.Agent(
            name="guide", tools=[*tools], model=getattr(agents, kind)(model="default", openai_client=client)
        )
        whole = await agents.Runner.run(agent, QUESTION)
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        for run in (whole, streamed):
            assert run.final_output == FINAL
            kinds = [item.type for item in run.new_items]
            assert [kinds.count(f"{kind}_item") for kind in ("reasoning", "tool_call", "tool_call_output")] == [3, 3, 3]

    asyncio.run(work())
    held.check(2)


@pytest.mark.parametrize("is_responses", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_langchain(is_responses: bool, is_streamed: bool, held: Conversation) -> None:
    """langchain-openai has the thoughts of responses with a summary; over completions the engine remembers them."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    tools = {"weather": tool(held.box.weather), "clock": tool(held.box.clock)}
    options: Any = {"use_responses_api": True, "reasoning": {"summary": "auto"}} if is_responses else {}
    chat = ChatOpenAI(model="default", base_url=f"{held.url}/v1", api_key=KEY, stream_usage=True, **options)  # type: ignore[arg-type]
    model, messages, thoughts = chat.bind_tools([*tools.values()]), [("user", QUESTION)], []
    while True:
        if is_streamed:
            first, *others = model.stream(messages)
            answer: Any = sum(others, first)
        else:
            answer = model.invoke(messages)
        assert answer.usage_metadata["output_tokens"] > 30
        thoughts += [block["reasoning"] for block in answer.content_blocks if block["type"] == "reasoning"]
        messages.append(answer)
        if not answer.tool_calls:
            break
        messages += [tools[call["name"]].invoke(call) for call in answer.tool_calls]
    assert str(answer.text) == FINAL
    assert thoughts == (THOUGHTS if is_responses else [])
    held.check()


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_litellm(provider: str, is_streamed: bool, held: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm has the thoughts as `reasoning_content` and sends them back; to Ollama's API 1.83 sends no calls back."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched
    import litellm

    tools = [
        {"type": "function", "function": {"name": name, "description": about, "parameters": PARAMETERS}}
        for name, about in ABOUT.items()
    ]
    options: Any = {"api_base": f"{held.url}/v1" if provider == "openai" else held.url, "api_key": KEY, "tools": tools}
    if provider == "anthropic":
        options |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "allowed_openai_params": ["thinking"]}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    thoughts: list[str] = []
    while True:
        answer: Any = litellm.completion(f"{provider}/default", messages=messages, stream=is_streamed, **options)
        choice = (litellm.stream_chunk_builder([*answer]) if is_streamed else answer).choices[0]
        assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
        thoughts.append(choice.message.reasoning_content)
        messages.append(choice.message)
        if not choice.message.tool_calls:
            break
        for call in choice.message.tool_calls:
            result = held.box.run(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert (choice.message.content, thoughts) == (FINAL, THOUGHTS)
    held.check()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_smolagents(is_streamed: bool, held: Conversation) -> None:
    """smolagents forces a call at each step, and ends with its own `final_answer`."""
    import smolagents

    box = held.box

    @smolagents.tool
    def weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: the city
        """
        return box.weather(city)

    @smolagents.tool
    def clock(city: str) -> str:
        """The time in a city.

        Args:
            city: the city
        """
        return box.clock(city)

    model = smolagents.OpenAIModel(model_id="default", api_base=f"{held.url}/v1", api_key=KEY)
    agent = smolagents.ToolCallingAgent(
        tools=[weather, clock], model=model, max_steps=4, stream_outputs=is_streamed, verbosity_level=0
    )
    assert agent.run(QUESTION) == FINAL
    assert sorted(box.ran) == sorted(CALLS)  # it runs two at once


@pytest.mark.parametrize("more", [[], ["--no-stream"]])
def test_llm(more: list[str], held: Conversation, tmp_path: Path) -> None:
    """llm runs functions of a file and shows each call with its result."""
    (tmp_path / "tools.py").write_text(TOOLS_FILE)
    words = ["--functions", str(tmp_path / "tools.py"), "--tools-debug", QUESTION, *more]
    done = run_llm(held.url, "default", tmp_path, *words, settings="  supports_tools: true\n")
    assert done.stdout.strip().endswith(FINAL)
    for name, city in CALLS:
        assert f"Tool call: {name}({{'city': '{city}'}})\n  {RESULTS[name, city]}" in done.stderr
    held.box.ran = CALLS  # in its own process
    held.check()
