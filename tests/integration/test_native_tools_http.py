"""Tools and reasoning of the embedded engine's models through the four APIs, with the clients people use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from support.calling_model import scripted

from pyagent.core.chain.chain import Chain
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
ASK: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
CALLING = (
    '<think>\nrain?\n</think>\n\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


@contextmanager
def served(model: Path, *texts: str) -> Iterator[str]:
    """The URL of a server whose model says these texts in turn."""
    backend = asyncio.run(scripted(model, *texts))
    try:
        with serve(create_app(Chain([backend]))) as url:
            yield url
    finally:
        asyncio.run(backend.close())


def test_openai_client_holds_a_conversation_with_tools(model: Path) -> None:
    """Whole and streamed the call is the same; its result goes back, and the prompt goes on from what was computed."""
    with served(model, CALLING, "Sunny.", CALLING) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        kwargs: Any = {"model": "tiny", "tools": TOOLS, "temperature": 0}
        whole: Any = client.chat.completions.create(messages=ASK, **kwargs)
        choice = whole.choices[0]
        said: Any = choice.message
        assert (choice.finish_reason, said.content, said.reasoning_content) == ("tool_calls", "I look.", "rain?")
        assert 0 < whole.usage.completion_tokens_details.reasoning_tokens < whole.usage.completion_tokens
        (call,) = said.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
        result = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
        last: Any = client.chat.completions.create(messages=[*ASK, said, result], **kwargs)
        assert last.choices[0].message.content == "Sunny."
        assert last.usage.cache["log_tokens"] > 100
        with client.chat.completions.stream(messages=ASK, **kwargs) as stream:
            events = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final: Any = stream.get_final_completion().choices[0].message
        assert len(events) > 2
        assert final.tool_calls[0].function.arguments == call.function.arguments


def test_openai_chunks_have_the_name_first(model: Path) -> None:
    """The first piece of a call has index, id, type and name; later ones only more of the arguments."""
    body = {"model": "tiny", "messages": ASK, "tools": TOOLS, "temperature": 0, "stream": True}
    with served(model, CALLING) as url:
        lines = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
    first, *others = pieces
    assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "weather")
    assert first["id"]
    assert all({*piece} == {"index", "function"} and {*piece["function"]} == {"arguments"} for piece in others)
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"city": "Rome"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_responses_stream_the_arguments(model: Path) -> None:
    """Reasoning, message and call are items of their own; the call's arguments come in deltas, then whole."""
    tool: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    with served(model, CALLING) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        events = list(client.responses.create(model="tiny", input=ASK, tools=[tool], temperature=0, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert len(deltas) > 2
    assert json.loads("".join(deltas)) == json.loads(done) == {"city": "Rome"}
    last: Any = events[-1]
    assert [item.type for item in last.response.output] == ["reasoning", "message", "function_call"]
    assert last.response.usage.output_tokens_details.reasoning_tokens > 0


def test_anthropic_client_gets_tool_use(model: Path) -> None:
    """Streamed eagerly, the input comes as pieces of JSON; thinking comes where it is asked for."""
    tool: Any = {"name": "weather", "input_schema": PARAMETERS, "eager_input_streaming": True}
    with served(model, CALLING, CALLING) as url, anthropic.Anthropic(base_url=url, api_key="x") as client:
        kwargs: Any = {"model": "tiny", "messages": ASK, "tools": [tool], "max_tokens": 2000}
        whole = client.messages.create(**kwargs)
        with client.messages.stream(**kwargs) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
    for message in (whole, final):
        assert [block.type for block in message.content] == ["text", "tool_use"]
        block: Any = message.content[1]
        assert (block.name, block.input, message.stop_reason) == ("weather", {"city": "Rome"}, "tool_use")
    assert len([piece for piece in pieces if piece]) > 2


def test_ollama_client_gets_whole_calls(model: Path) -> None:
    """As its protocol has them: a call in one line, with its arguments as an object; thinking apart."""
    with served(model, CALLING, CALLING) as url, ollama.Client(url) as client:
        options = {"temperature": 0}
        whole = client.chat("tiny", ASK, tools=TOOLS, options=options)
        lines = list(client.chat("tiny", ASK, tools=TOOLS, options=options, stream=True))
    assert (whole.message.content, whole.message.thinking) == ("I look.", "rain?")
    calls = [call for line in lines for call in line.message.tool_calls or ()]
    for call in (*(whole.message.tool_calls or ()), *calls):
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Rome"})
    assert len(calls) == 1


def test_forced_call_over_http_validates(model: Path) -> None:
    """With `required`, random weights call the tool with arguments of its schema, streamed too."""
    with served(model, "nothing", "nothing") as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        kwargs: Any = {"model": "tiny", "messages": ASK, "tools": TOOLS, "temperature": 0, "tool_choice": "required"}
        kwargs["extra_body"] = {"chat_template_kwargs": {"enable_thinking": False}}
        kwargs["parallel_tool_calls"] = False
        whole: Any = client.chat.completions.create(**kwargs).choices[0].message.tool_calls
        with client.chat.completions.stream(**kwargs) as stream:
            streamed: Any = stream.get_final_completion().choices[0].message.tool_calls
    for (call,) in (whole, streamed):
        value = json.loads(call.function.arguments)
        assert set(value) == {"city"}
        assert len(value["city"]) <= 8


@pytest.mark.parametrize("field", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_template_variables_of_ours_cannot_be_set(model: Path, field: str) -> None:
    """`chat_template_kwargs` brings other variables only: the conversation is what the request says."""
    body = {"model": "tiny", "messages": ASK, "chat_template_kwargs": {field: []}}
    with served(model) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("depth", [700, 100_000])
def test_past_calls_nested_too_deep_are_refused(model: Path, depth: int) -> None:
    """Arguments of a past call that no stack can walk are the caller's fault, and the server answers on."""
    function = {"name": "weather", "arguments": f'{{"a": {"[" * depth}{"]" * depth}}}'}
    call = {"id": "a", "type": "function", "function": function}
    past = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "x"}]
    with served(model, "well") as url:
        answers = [
            httpx.post(f"{url}/v1/chat/completions", json={"model": "tiny", "messages": messages}, timeout=60)
            for messages in ([*ASK, *past], ASK)
        ]
    assert [answer.status_code for answer in answers] == [400, 200], answers[0].text[:300]
    assert "nested too deep" in answers[0].json()["error"]["message"]
