"""What stands inside messages and tools: every field honoured, or refused by name, in all of the APIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pydantic
import pytest
from support.server import HI, KEY, Model, fault, post, words

from pyagent.core.chain import Chain
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, FunctionCall, ImagePart, TextPart, ToolCall
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.server.anthropic.requests import read_messages
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.ollama.requests import read_chat as read_ollama
from pyagent.infrastructure.server.responses.requests import read_response
from pyagent.testing import serve

Read = Callable[[bytes], object]


def read_responses(body: bytes) -> object:
    return read_response(body).request([])


FUNCTION: Any = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
PARSED = ToolCall(id="c", function=FunctionCall("add", '{"total":1}'))


def said(message: Any, **more: Any) -> Any:
    return {"model": "m", "messages": [message], "max_tokens": 5} | more


def part(**fields: Any) -> Any:
    return said({"role": "user", "content": [fields]})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (said({"role": "user", "content": "x", "weight": 1}), "messages[0].weight"),
        (said({"role": "user", "content": "x", "tool_calls": []}), "messages[0].tool_calls"),
        (said({"role": "user"}), "messages[0].content"),
        (said({"role": "function", "name": "f", "content": "x"}), "messages[0].role"),
        (said({"role": "assistant", "content": None, "function_call": {"name": "f"}}), "messages[0].function_call"),
        (said({"role": "assistant", "content": "x", "audio": {"id": "a"}}), "messages[0].audio"),
        (part(type="text", text="x", bold=True), "messages[0].content[0].bold"),
        (part(type="image_url", image_url={"url": "data:,", "size": 1}), "messages[0].content[0].image_url.size"),
        (part(type="input_audio", input_audio={"data": ""}), "messages[0].content[0].type"),
        (part(type="file", file={"file_id": "f"}), "messages[0].content[0].type"),
        (part(type="refusal", refusal="no"), "messages[0].content[0].type"),
        (said({"role": "assistant", "tool_calls": [CALL | {"extra": 1}]}), "messages[0].tool_calls[0].extra"),
        (
            said(
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "mcp", "custom": {"name": "f", "input": ""}}]}
            ),
            "messages[0].tool_calls[0].type",
        ),
        (said(HI[0], tools=[{"type": "web_search"}]), "tools[0].type"),
        (said(HI[0], tools=[{"type": "function"}]), "tools[0].function"),
        (said(HI[0], tools=[{"function": FUNCTION | {"returns": 1}}]), "tools[0].function.returns"),
        (said(HI[0], tools=[{"function": FUNCTION}], tool_choice={"type": "allowed_tools"}), "tool_choice"),
        (said(HI[0], tools=[{"function": FUNCTION}], tool_choice={"type": "custom", "custom": {}}), "tool_choice"),
        (said(HI[0], response_format={"type": "json_object", "size": 1}), "response_format.size"),
        (
            said(HI[0], response_format={"type": "json_schema", "json_schema": {"name": "n", "shema": {}}}),
            "response_format.json_schema.shema",
        ),
    ],
)
def test_openai_fields_inside_are_refused_by_name(body: Any, param: str) -> None:
    """A field or a kind that is not read inside a message, a part, a call or a tool is a 400 with its place."""
    refused = fault(post(body | {"model": "m"}))
    assert refused["param"] == param
    assert param.rpartition(".")[2] in refused["message"] or param in refused["message"]


@pytest.mark.parametrize(
    ("read", "body", "param"),
    [
        (read_messages, part(type="text", text="x", bold=True), "messages[0].content[0].bold"),
        (read_messages, part(type="search_result"), "messages[0].content[0].type"),
        (read_messages, said(HI[0], tools=[{"name": "f", "defer_loading": True}]), "tools[0].defer_loading"),
        (read_messages, said(HI[0], tools=[{"name": "f", "allowed_callers": ["code"]}]), "tools[0].allowed_callers"),
        (read_messages, said(HI[0], tools=[{"name": "f", "kind": 1}]), "tools[0].kind"),
        (read_ollama, {"model": "m", "messages": [HI[0] | {"audio": "x"}]}, "messages[0].audio"),
        (read_ollama, {"model": "m", "tools": [{"function": FUNCTION | {"kind": 1}}]}, "tools[0].function.kind"),
        (read_responses, {"input": [{"role": "user", "content": "x", "mood": 1}]}, "input[0].mood"),
        (
            read_responses,
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
        ),
        (
            read_responses,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "b": 1}]}]},
            "input[0].content[0].b",
        ),
        (
            read_responses,
            {"input": "x", "tools": [{"type": "function", "name": "f", "output_schema": {}}]},
            "tools.output_schema",
        ),
    ],
)
def test_other_apis_refuse_fields_inside_by_name(read: Read, body: Any, param: str) -> None:
    """So do Anthropic's messages, Ollama's chats and the responses."""
    with pytest.raises(RequestError) as caught:
        read(json.dumps(body).encode())
    assert caught.value.param == param


def test_documented_fields_pass_and_arrive() -> None:
    """What OpenAI documents arrives at the backend; what changes no answer is dropped."""
    backend = Model()
    image: Any = {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}
    cached: Any = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    messages: Any = [
        {"role": "developer", "content": "be", "name": "ann"},
        {"role": "system", "content": [cached | {"prompt_cache_breakpoint": {"mode": "explicit"}}]},
        {"role": "user", "content": [cached, image]},
        {"role": "assistant", "refusal": "no", "content": None, "audio": None, "function_call": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}], "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    schema = {"name": "n", "schema": {}, "description": "of people"}
    tool = {"type": "function", "function": FUNCTION | {"description": None, "strict": False}}
    form = {"type": "json_schema", "json_schema": schema}
    assert post({"messages": messages, "tools": [tool], "response_format": form}, backend).status_code == 200
    asked = backend.requests[0]
    assert [message.text for message in asked.messages] == ["be", "hi", "hi", "no", "never", "3"]
    assert asked.messages[0].name == "ann"
    content = asked.messages[2].content
    assert isinstance(content, list)
    assert content[0] == TextPart("hi")
    assert isinstance(content[1], ImagePart)
    assert content[1].image_url.detail == "low"
    assert asked.response_format
    assert asked.response_format.json_schema
    assert asked.response_format.json_schema.description == "of people"
    assert asked.tools[0].function.strict is None


class Sum(pydantic.BaseModel):
    total: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the client's own `parsed`
def test_clients_send_back_what_they_were_given() -> None:
    """Answers go back as they came out of OpenAI's client, parsed ones and streamed ones included."""
    backend = Model(
        lambda _: [ChatDelta(reasoning="hm"), ChatDelta(tool_calls=as_deltas([PARSED]), finish_reason="tool_calls")]
    )
    form = Model(lambda _: words('{"total": 3}'))
    result: Any = {"role": "tool", "tool_call_id": "c", "content": "1"}
    with serve(create_app(backend)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        strict: Any = openai.pydantic_function_tool(Sum, name="add")
        parsed: Any = client.chat.completions.parse(model="m", messages=HI, tools=[strict]).choices[0].message
        with client.chat.completions.stream(model="m", messages=HI, tools=[strict]) as stream:
            streamed: Any = stream.get_final_completion().choices[0].message
        for message in (parsed, streamed, parsed.model_dump(), streamed.to_dict()):
            client.chat.completions.create(model="m", messages=[*HI, message, result])
            assert backend.requests[-1].messages[1].tool_calls == [PARSED]
    with serve(create_app(form)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        said: Any = client.chat.completions.parse(model="m", messages=HI, response_format=Sum).choices[0].message
        assert said.parsed == Sum(total=3)
        client.chat.completions.create(model="m", messages=[*HI, said, *HI])
        assert form.requests[-1].messages[1].text == '{"total": 3}'


def test_strict_tools_are_strict_in_every_api_that_knows_them() -> None:
    """`strict` arrives at the backend from OpenAI's two APIs and Anthropic's, and from Ollama's clients that say it."""
    backend = Model()
    with serve(create_app(backend)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            chat: Any = {"type": "function", "function": FUNCTION | {"strict": True}}
            client.chat.completions.create(model="m", messages=HI, tools=[chat])
            flat: Any = {"type": "function", "strict": True} | FUNCTION
            client.responses.create(model="m", input="hi", tools=[flat])
        with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
            schema: Any = {"name": "add", "input_schema": FUNCTION["parameters"], "strict": True}
            messages: Any = HI
            client.messages.create(model="m", messages=messages, max_tokens=5, tools=[schema])
        with ollama.Client(url) as client:
            client.chat("m", HI, tools=[{"type": "function", "function": FUNCTION}])
        body = {"model": "m", "messages": HI, "stream": False, "tools": [{"function": FUNCTION | {"strict": True}}]}
        assert httpx.post(f"{url}/api/chat", json=body).status_code == 200
    assert [request.tools[0].function.strict for request in backend.requests] == [True, True, True, None, True]


def test_wrong_arguments_of_a_strict_tool_go_on_to_the_next_link() -> None:
    """A whole answer whose strict call breaks the schema is not taken; of a tool that is not strict it is."""

    def calling(arguments: str) -> Callable[[ChatRequest], list[ChatDelta]]:
        call = ToolCall(id="c", function=FunctionCall("add", arguments))
        return lambda _: [ChatDelta(tool_calls=as_deltas([call]), finish_reason="tool_calls")]

    def arguments_of(*, strict: bool, texts: list[str]) -> str:
        links = [Model(calling(text)) for text in texts]
        for number, link in enumerate(links):
            link.name = f"link:{number}"
        tool = {"type": "function", "function": FUNCTION | {"strict": strict}}
        answer = post({"messages": HI, "tools": [tool]}, Chain(links)).json()
        return answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]

    for wrong in ('{"a": "x"}', "{", "[1]"):
        assert arguments_of(strict=True, texts=[wrong, '{"a": 1}']) == '{"a": 1}'
        assert arguments_of(strict=False, texts=[wrong, '{"a": 1}']) == wrong


TURN: Any = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
RESULT: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"}]}


def thought(text: str, *blocks: Any) -> Any:
    return {"role": "assistant", "content": [{"type": "thinking", "thinking": text, "signature": ""}, *blocks]}


def test_thoughts_sent_back_arrive_from_every_api() -> None:
    """What the assistant thought stands beside the message or the call that came of it, in no message of its own."""
    backend = Model()
    said: Any = {"type": "text", "text": "So."}
    chat: Any = [*HI, thought("a", TURN), RESULT, thought("b", said), *HI]
    function: Any = {"function": {"name": "add", "arguments": {}}}
    calling: Any = {"role": "assistant", "thinking": "a", "tool_calls": [function]}
    result: Any = {"role": "tool", "content": "3"}
    items: Any = [
        *HI,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "b"}]},
        {"role": "assistant", "content": "So."},
        *HI,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "to nothing"}]},
    ]
    with serve(create_app(backend)) as url:
        body = {"model": "m", "max_tokens": 5, "messages": chat}
        assert httpx.post(f"{url}/v1/messages", json=body).status_code == 200
        chat = [*HI, calling, result, {"role": "assistant", "content": "So.", "thinking": "b"}, *HI]
        assert httpx.post(f"{url}/api/chat", json={"model": "m", "stream": False, "messages": chat}).status_code == 200
        assert httpx.post(f"{url}/v1/responses", json={"model": "m", "input": items}).status_code == 200
    for request in backend.requests:
        assert [message.role for message in request.messages] == ["user", "assistant", "tool", "assistant", "user"]
        assert [message.reasoning_content for message in request.messages] == [None, "a", None, "b", None]
    assert len(backend.requests) == 3


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ({"keep": "all"}, ["a", "b"]),
        ({}, [None, "b"]),
        ({"keep": {"type": "thinking_turns", "value": 0}}, [None, None]),
    ],
)
def test_anthropic_clears_the_thinking_it_is_asked_to(keep: Any, left: list[str | None]) -> None:
    """`clear_thinking` keeps the thoughts of the newest turn, of so many, or of all."""
    edits = {"edits": [{"type": "clear_thinking_20251015"} | keep]}
    chat: Any = [*HI, thought("a", TURN), RESULT, thought("b", TURN), RESULT]
    backend = Model()
    body = {"model": "m", "max_tokens": 5, "messages": chat, "context_management": edits}
    with serve(create_app(backend)) as url:
        assert httpx.post(f"{url}/v1/messages", json=body).status_code == 200
    told = [message.reasoning_content for message in backend.requests[0].messages if message.role == "assistant"]
    assert told == left
