"""Anthropic's API, by Anthropic's own client: over the embedded engine, and over scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import pytest
from support.server import HI, KEY, Model, keys, words

from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError, CapacityError, RequestError
from pyagent.core.messages import ChatDelta, FunctionCall, ImagePart, PromptTokensDetails, ToolCall, Usage
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.server.anthropic.requests import IGNORED, REFUSED, MessagesBody, read_messages
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

TOOL: Any = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "cache_control": {"type": "ephemeral"},
}


GREEDY: Any = {"extra_body": {"temperature": 0}}


def client_of(url: str, key: str = KEY) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@contextmanager
def asked(backend: Any, **options: Any) -> Iterator[anthropic.Anthropic]:
    """A client of a server over `backend`."""
    with serve(create_app(backend, **options)) as url, client_of(url) as client:
        yield client


# -- the client over the embedded engine ------------------------------------------------------------------------------


def test_anthropic_client_whole_and_streamed(url: str) -> None:
    """Whole and streamed answers are the same message, with a system text, usage and a reason to end."""
    asked: Any = {"model": "tiny", "messages": HI, "max_tokens": 6, "system": "You are the user."}
    asked |= GREEDY
    with client_of(url) as client:
        whole = client.messages.create(**asked)
        assert (whole.type, whole.role, whole.model, whole.stop_reason) == (
            "message",
            "assistant",
            "tiny",
            "max_tokens",
        )
        assert whole.content[0].type == "text"
        assert whole.usage.output_tokens == 6
        with client.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert final.content[0].type == "text"
        assert final.content[0].text == whole.content[0].text
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert final.usage.cache_read_input_tokens
        total = final.usage.cache_read_input_tokens + final.usage.input_tokens
        assert total == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        assert final.stop_reason == "max_tokens"


def test_anthropic_prefill(url: str) -> None:
    """An answer that the client began goes on from there, whole and streamed; the beginning is counted, not told."""
    asked: Any = {"model": "tiny", "messages": HI, "max_tokens": 6} | GREEDY
    begun: Any = asked | {"messages": [*HI, {"role": "assistant", "content": "The user is"}]}
    with client_of(url) as client:
        plain, whole = client.messages.create(**asked), client.messages.create(**begun)
        assert text_of(whole) != text_of(plain)
        assert whole.usage.output_tokens == 6
        with client.messages.stream(**begun) as stream:
            assert stream.get_final_text() == text_of(whole)
        counted = client.messages.count_tokens(model="tiny", messages=begun["messages"]).input_tokens
        assert counted == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        assert counted > plain.usage.input_tokens + (plain.usage.cache_read_input_tokens or 0)
        empty: Any = asked | {"messages": [*HI, {"role": "assistant", "content": []}]}
        assert text_of(client.messages.create(**empty)) == text_of(plain)


def test_anthropic_prefill_needs_a_link_that_can() -> None:
    """Where nobody can go on from a beginning, that is a 400 which says so."""
    for backend in (Model(), Chain([Model()])):
        with asked(backend) as client, pytest.raises(anthropic.BadRequestError, match="cannot go on from an answer's"):
            client.messages.create(model="m", max_tokens=5, messages=[*HI, {"role": "assistant", "content": "So"}])


def test_anthropic_async_client_and_count(url: str) -> None:
    """The asynchronous client streams; tokens counted before are those that the answer's usage tells."""

    async def work() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
            messages: Any = HI
            async with client.messages.stream(model="tiny", messages=messages, max_tokens=4) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                usage = (await stream.get_final_message()).usage
            assert text
            counted = await client.messages.count_tokens(model="tiny", messages=messages)
            assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
            assert [model.id async for model in client.models.list()] == ["tiny"]

    asyncio.run(work())


def test_anthropic_structured_output(url: str) -> None:
    """`output_config.format` binds what even a model of random weights writes."""
    properties = {"ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["ok"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    messages: Any = HI
    with client_of(url) as client:
        answer = client.messages.create(model="tiny", messages=messages, max_tokens=60, output_config=form, **GREEDY)
        assert answer.content[0].type == "text"
        assert isinstance(json.loads(answer.content[0].text)["ok"], bool)


# -- the client over scripts ------------------------------------------------------------------------------------------


def test_anthropic_tools() -> None:
    """Calls come as blocks, whole and streamed; they and their results go back as messages the backend knows."""
    call = ToolCall(id="toolu_1", function=FunctionCall("add", '{"a":1}'))
    usage = Usage(10, 2, 12, PromptTokensDetails(4))
    script = [
        ChatDelta(content="I add."),
        ChatDelta(tool_calls=as_deltas([call])),
        ChatDelta(finish_reason="tool_calls", usage=usage),
    ]
    backend = Model(lambda _: script)
    kwargs: Any = {"model": "m", "max_tokens": 9, "tools": [TOOL], "tool_choice": {"type": "any"}}
    with asked(backend) as client:
        whole = client.messages.create(messages=HI, **kwargs)
        with client.messages.stream(messages=HI, **kwargs) as stream:
            final = stream.get_final_message()
        for message in (whole, final):
            assert [block.type for block in message.content] == ["text", "tool_use"]
            block = message.content[1]
            assert block.type == "tool_use"
            assert (block.id, block.name, block.input) == ("toolu_1", "add", {"a": 1})
            assert message.stop_reason == "tool_use"
            assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (6, 4)
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2", "is_error": True}
        more = [{"role": "assistant", "content": whole.content}]
        more += [{"role": "user", "content": [result, {"type": "text", "text": "so?"}]}]
        client.messages.create(messages=[*HI, *more], **(kwargs | {"tool_choice": {"type": "tool", "name": "add"}}))
    first, last = backend.requests[0], backend.requests[-1]
    assert (first.tool_choice, first.tools[0].function.parameters) == ("required", TOOL["input_schema"])
    assert last.tool_choice == {"type": "function", "function": {"name": "add"}}
    _, said, told, text = last.messages
    assert said.tool_calls == [call]
    assert (told.role, told.tool_call_id, told.content, text.content) == ("tool", "toolu_1", "Error: 2", "so?")


def test_anthropic_thinking_and_images() -> None:
    """Reasoning is told as thinking when it is wanted; images arrive as URLs; thinking sent back is left out."""
    backend = Model(lambda _: [ChatDelta(reasoning="hm"), *words("yes")])
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    messages: Any = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "?"}]}]
    with asked(backend) as client:
        plain = client.messages.create(model="m", messages=messages, max_tokens=5)
        assert [block.type for block in plain.content] == ["text"]
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        with client.messages.stream(model="m", messages=messages, max_tokens=5, thinking=thinking) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        whole = client.messages.create(model="m", messages=messages, max_tokens=5, thinking=thinking)
        assert whole.content[0].type == "thinking"
        assert whole.content[0].thinking == "hm"
        again: Any = [*messages, {"role": "assistant", "content": whole.content}, *messages]
        client.messages.create(model="m", messages=again, max_tokens=5, thinking={"type": "disabled"})
    assert [request.reasoning_effort for request in backend.requests] == [None, None, None, "none"]
    content = backend.requests[0].messages[0].content
    assert isinstance(content, list)
    assert isinstance(content[0], ImagePart)
    assert content[0].image_url.url == "data:image/png;base64,AAAA"
    assert [message.text for message in backend.requests[-1].messages] == ["?", "yes", "?"]


def test_anthropic_errors_are_its_own() -> None:
    """Each failure is the client's own kind of error; after the first token it is an event of the stream."""
    messages: Any = HI
    with asked(Model()) as client:
        with pytest.raises(anthropic.NotFoundError, match="there is no model 'x'"):
            client.messages.create(model="x", messages=messages, max_tokens=5)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens must be between 1") as caught:
            client.messages.create(model="m", messages=messages, max_tokens=0)
        assert caught.value.request_id
        with pytest.raises(anthropic.BadRequestError, match="cannot count tokens"):
            client.messages.count_tokens(model="m", messages=messages)
    with asked(Model(lambda _: [CapacityError("full", retry_after_seconds=2)])) as client:
        with pytest.raises(anthropic.RateLimitError, match="full") as limited:
            client.messages.create(model="m", messages=messages, max_tokens=5)
        assert limited.value.response.headers["retry-after"] == "2"
    broken = Model(lambda _: [ChatDelta(content="Hel"), BackendError("gpu on fire", backend="gpu")])
    with (
        asked(broken) as client,
        pytest.raises(anthropic.APIStatusError, match="gpu on fire"),
        client.messages.stream(model="m", messages=messages, max_tokens=5) as stream,
    ):
        stream.get_final_message()


def test_anthropic_keys_come_in_their_own_header() -> None:
    """`x-api-key` is a key as good as a bearer's, and compared as one."""
    messages: Any = HI
    with serve(create_app(Model(), api_keys=keys(KEY))) as url:
        with client_of(url) as client:
            assert client.messages.create(model="m", messages=messages, max_tokens=5).content
        with client_of(url, "sk-wrong-wrong-wrong") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(model="m", messages=messages, max_tokens=5)
        refused = httpx.post(f"{url}/v1/messages", json={})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


# -- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"messages": []}, "messages", "empty"),
        ({"messages": [*HI, {"role": "assistant", "content": "So "}]}, "messages[1]", "white space"),
        ({"messages": [{"role": "assistant", "content": "So"}]}, "messages", "only the answer's beginning"),
        (
            {"messages": [*HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}]},
            "messages[1]",
            "text only",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "content": "So"}], "thinking": {"type": "adaptive"}},
            "thinking",
            "no room for thinking",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0].type",
            "document",
        ),
        ({"max_tokens": None}, "max_tokens", "must be an integer, got null"),
        ({"messages": [*HI, {"role": "x", "content": "x"}]}, "messages[1].role", "one of user, assistant, system; got"),
        ({"temperature": 3}, "temperature", "between 0 and 2"),
        ({"stop_sequences": [""]}, "stop_sequences", "stop_sequences takes up to 16 texts, none of them empty"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "client runs itself"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "needs tools"),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}},
            None,
            "must be a boolean or null, got a string",
        ),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "'huge'"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0].type",
            "only the messages",
        ),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "nothing is called"),
        ({"container": "c"}, "container", "nothing is run"),
        ({"stop_sequence": ["x"]}, "stop_sequence", "did you mean 'stop_sequences'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
            "messages[0]",
            "cannot hold tool_use",
        ),
    ],
)
def test_anthropic_bad_field_is_named(change: dict[str, Any], param: str | None, says: str) -> None:
    """Each bad value is refused with the name of its field and what would be right."""
    with pytest.raises(RequestError, match=says) as caught:
        read_messages(json.dumps({"model": "m", "max_tokens": 5, "messages": HI} | change).encode())
    assert param in {caught.value.param, None}


def test_anthropic_fields_have_one_fate() -> None:
    """Fields that are ignored or refused are fields of the body; values that mean nothing pass."""
    assert {*IGNORED, *REFUSED} < set(MessagesBody.__struct_fields__)
    body = {"model": "m", "max_tokens": 5, "messages": HI, "metadata": {"user_id": "me"}, "speed": "standard"}
    body |= dict.fromkeys(IGNORED, "auto") | {"stop_sequences": ["x"], "top_k": 3, "top_p": 0.5}
    body |= {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}
    body |= {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    body |= {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    asked = read_messages(json.dumps(body).encode()).request
    assert (asked.sampling.stop, asked.sampling.top_k, asked.sampling.top_p) == (("x",), 3, 0.5)
    assert (asked.origin.client, asked.parallel_tool_calls) == ("me", False)


def test_anthropic_examples_are_told_in_the_description() -> None:
    """A tool's `input_examples` reach models that know descriptions only."""
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "input_examples": [{"a": 1}]}
    body = {"model": "m", "max_tokens": 5, "messages": HI, "tools": [tool]}
    (read,) = read_messages(json.dumps(body).encode()).request.tools
    assert read.function.description == 'Adds.\nExample of its input: {"a":1}'
