"""How the four APIs tell calls that an answer was cut in, and calls whose pieces come together with text."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.server import HI, Model

from pyagent.core.chain import Chain
from pyagent.core.messages import ChatDelta, ToolCallDelta
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

WHOLE = ToolCallDelta(0, "c0", "add", '{"a": 1}')
WHOLE_TOO = ToolCallDelta(1, "c1", "add", '{"a": 2}')
FUNCTION: Any = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def cut(arguments: str) -> list[ChatDelta]:
    """An answer of a whole call and one that `max_tokens` cut off in, or before, its arguments."""
    begun = ToolCallDelta(1, "c1", "add", arguments)
    return [ChatDelta(tool_calls=[WHOLE]), ChatDelta(tool_calls=[begun]), ChatDelta(finish_reason="length")]


def told(path: str, deltas: list[ChatDelta], **body: Any) -> httpx.Response:
    chat: Any = {} if path == "/v1/responses" else {"messages": HI}
    chat |= {"max_tokens": 9} if path == "/v1/messages" else {}
    asked = {"model": "m", "stream": False} | chat | body
    with serve(create_app(Chain([Model(lambda _: deltas)]))) as url:
        response = httpx.post(f"{url}{path}", json=asked)
    assert response.status_code == 200, response.text
    return response


def events(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("arguments", ["", '{"a"'])
def test_openai_tells_cut_calls_as_they_are(arguments: str) -> None:
    """The arguments of a call that was cut are what came of them, none included, and the answer ends with `length`."""
    choice = told("/v1/chat/completions", cut(arguments)).json()["choices"][0]
    calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert (choice["finish_reason"], calls) == ("length", ['{"a": 1}', arguments])


@pytest.mark.parametrize("arguments", ["", '{"a"'])
def test_cut_calls_of_strict_tools_break_no_schema(arguments: str) -> None:
    """A strict tool's call that was cut is told as any other: no link can be blamed for `max_tokens`."""
    tools = [{"type": "function", "function": FUNCTION | {"strict": True}}]
    choice = told("/v1/chat/completions", cut(arguments), tools=tools).json()["choices"][0]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("length", 2)


@pytest.mark.parametrize("arguments", ["", '{"a"'])
def test_anthropic_and_ollama_leave_cut_calls_out(arguments: str) -> None:
    """Where arguments are objects a cut call is left out, whole and streamed, and the end says that there was more."""
    message = told("/v1/messages", cut(arguments)).json()
    assert [block["id"] for block in message["content"]] == ["c0"]
    assert message["stop_reason"] == "max_tokens"
    whole = told("/api/chat", cut(arguments)).json()
    *lines, last = [json.loads(line) for line in told("/api/chat", cut(arguments), stream=True).text.splitlines()]
    streamed = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [call["id"] for call in whole["message"]["tool_calls"]] == [call["id"] for call in streamed] == ["c0"]
    assert (whole["done_reason"], last["done_reason"]) == ("length", "length")


@pytest.mark.parametrize("arguments", ["", '{"a"'])
def test_responses_tell_cut_calls_as_incomplete(arguments: str) -> None:
    """A call that was cut is an incomplete item with what came of its arguments; the one before it is complete."""
    whole = told("/v1/responses", cut(arguments), input="hi").json()
    streamed = events(told("/v1/responses", cut(arguments), input="hi", stream=True).text)
    for body in (whole, streamed[-1]["response"]):
        items = [(item["arguments"], item["status"]) for item in body["output"]]
        assert items == [('{"a": 1}', "completed"), (arguments, "incomplete")]
        assert body["status"] == "incomplete"


MIXED = [
    ChatDelta(tool_calls=[ToolCallDelta(0, "c0", "add", '{"a": ')]),
    ChatDelta(content=" and ", tool_calls=[ToolCallDelta(0, arguments="1}"), ToolCallDelta(1, "c1", "add", '{"a": 2')]),
    ChatDelta(content=".", tool_calls=[ToolCallDelta(1, arguments="}")], finish_reason="tool_calls"),
]


def blocks_of(text: str) -> list[tuple[str, str]]:
    """The streamed blocks: the call's id, or else the kind, and what its deltas add up to."""
    blocks: list[tuple[str, str]] = []
    for event in events(text):
        if event["type"] == "content_block_start":
            blocks.append((event["content_block"].get("id", event["content_block"]["type"]), ""))
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + delta.get("partial_json", delta.get("text", "")))
    return blocks


@pytest.mark.parametrize("is_eager", [False, True])
def test_anthropic_blocks_hold_a_call_whose_last_piece_comes_with_text(is_eager: bool) -> None:
    """A piece that ends a call goes to the call's block, before the text of the same delta; a new call comes after."""
    tools = [{"name": "add", "input_schema": {"type": "object"}, "eager_input_streaming": is_eager}]
    for script in (MIXED, [ChatDelta(content="First: "), *MIXED]):
        expected = [("c0", '{"a": 1}'), ("text", " and "), ("c1", '{"a": 2}'), ("text", ".")]
        before = [("text", "First: ")] if script is not MIXED else []
        assert blocks_of(told("/v1/messages", script, stream=True, tools=tools).text) == [*before, *expected]


def test_anthropic_blocks_stand_in_their_order() -> None:
    """Whole and streamed, thinking, text and calls are blocks as they came, thinking between calls too."""
    thought = [ChatDelta(reasoning="Hm, "), ChatDelta(reasoning="so.")]
    script = [*thought, *MIXED[:2], *thought, ChatDelta(content="!"), ChatDelta(finish_reason="tool_calls")]
    script[3] = ChatDelta(content=" and ", tool_calls=[ToolCallDelta(0, arguments="1}"), WHOLE_TOO])
    asked: Any = {"thinking": {"type": "adaptive"}}
    whole = told("/v1/messages", script, **asked).json()["content"]
    kinds = [block["type"] for block in whole]
    assert kinds == ["thinking", "tool_use", "text", "tool_use", "thinking", "text"]
    assert [block["thinking"] for block in whole if block["type"] == "thinking"] == ["Hm, so."] * 2
    streamed = blocks_of(told("/v1/messages", script, stream=True, **asked).text)
    assert [name for name, _ in streamed] == ["thinking", "c0", "text", "c1", "thinking", "text"]


@pytest.mark.parametrize("arguments", ["", '{"a"'])
def test_anthropic_streams_no_block_of_a_cut_call(arguments: str) -> None:
    """Clients run a block without a whole input as a call without any: there is none, and the end says why."""
    text = told("/v1/messages", cut(arguments), stream=True).text
    assert blocks_of(text) == [("c0", '{"a": 1}')]
    assert events(text)[-2]["delta"]["stop_reason"] == "max_tokens"
    eager = [{"name": "add", "input_schema": {"type": "object"}, "eager_input_streaming": True}]
    pieces = blocks_of(told("/v1/messages", cut(arguments), stream=True, tools=eager).text)
    assert pieces == [("c0", '{"a": 1}'), *([("c1", arguments)] if arguments else [])]


def test_anthropic_pings_while_a_call_is_written() -> None:
    """A call is one delta when it is whole; until then pings say that the answer goes on."""
    pieces = [ToolCallDelta(0, "c0", "add"), ToolCallDelta(0, arguments='{"a"'), ToolCallDelta(0, arguments=": 1}")]
    script = [*(ChatDelta(tool_calls=[piece]) for piece in pieces), ChatDelta(finish_reason="tool_calls")]
    kinds = [event["type"] for event in events(told("/v1/messages", script, stream=True).text)]
    block = ("content_block_start", "content_block_delta", "content_block_stop")
    assert kinds == ["message_start", "ping", "ping", "ping", *block, "message_delta", "message_stop"]


def test_responses_items_hold_a_call_whose_last_piece_comes_with_text() -> None:
    """A piece that ends a call goes to the call's item, before the text of the same delta; a new call comes after."""
    whole = told("/v1/responses", MIXED, input="hi").json()
    streamed = events(told("/v1/responses", MIXED, input="hi", stream=True).text)[-1]["response"]
    for body in (whole, streamed):
        items = [item.get("arguments") or item["content"][0]["text"] for item in body["output"]]
        assert items == ['{"a": 1}', " and ", '{"a": 2}', "."]
