"""Custom tools, whose input is free text: offered, called, streamed and given back in OpenAI's own shape."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calling_model import scripted
from support.server import serving

from pyagent.assembly import make_chain, make_host
from pyagent.core.chain.chain import Chain
from pyagent.core.config import load_settings
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.custom_tools import InputReader, as_arguments, input_of
from pyagent.testing import openai_server, serve

SHELL: Any = {"type": "custom", "custom": {"name": "shell", "description": "runs it"}}
TIME: Any = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
ASK: Any = [{"role": "user", "content": "List the files."}]
INPUT = 'ls "é"\n\\ 🎉'
CALL = f'<tool_call>\n{{"name": "shell", "arguments": {as_arguments(INPUT)}}}\n</tool_call>'


SUM = """start: digit (SP op SP digit)~1..2 "\\n" // a sum
?op: "+" -> plus
  | /"/
digit: DIGIT
SP: " "
%import common.DIGIT"""


def coded(pattern: str, syntax: str = "regex") -> Any:
    grammar = {"definition": pattern, "syntax": syntax}
    return {"type": "custom", "custom": {"name": "code", "format": {"type": "grammar", "grammar": grammar}}}


@contextmanager
def client_of(model: Path, *texts: str) -> Iterator[openai.OpenAI]:
    backend = asyncio.run(scripted(model, *texts))
    try:
        with (
            serve(create_app(Chain([backend]))) as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        ):
            yield client
    finally:
        asyncio.run(backend.close())


def test_custom_tool_is_called_with_text(model: Path) -> None:
    """Whole and streamed the input is the text itself; its result goes back, and functions keep their own shape."""
    with client_of(model, CALL, CALL, "Two files.") as client:
        kwargs: Any = {"model": "tiny", "tools": [SHELL, TIME], "temperature": 0}
        whole: Any = client.chat.completions.create(messages=ASK, **kwargs)
        (call,) = whole.choices[0].message.tool_calls
        assert (call.type, call.custom.name, call.custom.input) == ("custom", "shell", INPUT)
        stream: Any = client.chat.completions.create(messages=ASK, stream=True, **kwargs)
        pieces = [piece for chunk in stream for piece in chunk.choices[0].delta.tool_calls or []]
        assert (pieces[0].type, pieces[0].custom["name"]) == ("custom", "shell")
        assert "".join(piece.custom["input"] for piece in pieces) == INPUT
        assert len(pieces) > 3
        past: Any = [*ASK, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "a b"}]
        assert client.chat.completions.create(messages=past, **kwargs).choices[0].message.content == "Two files."


def test_responses_have_custom_tools(model: Path) -> None:
    """A custom call is an item of its own, whose input streams as text; its output goes back as an item."""
    with client_of(model, CALL, CALL, "Two files.") as client:
        kwargs: Any = {"model": "tiny", "tools": [{"type": "custom", "name": "shell"}], "temperature": 0}
        whole: Any = client.responses.create(input="List.", **kwargs)
        call = whole.output[-1]
        assert (call.type, call.name, call.input) == ("custom_tool_call", "shell", INPUT)
        with client.responses.stream(input="List.", **kwargs) as stream:
            events: list[Any] = list(stream)
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == INPUT
        assert len(deltas) > 3
        assert next(event.input for event in events if event.type == "response.custom_tool_call_input.done") == INPUT
        result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "a b"}
        past: Any = [{"role": "user", "content": "List."}, call.to_dict(), result]
        assert client.responses.create(input=past, **kwargs).output_text == "Two files."


def test_input_of_a_custom_tool_matches_its_regex(model: Path) -> None:
    """Forced by name, a model that talks nonsense writes input that matches, quotes and line breaks included."""
    pattern = '[a-z"\\n]{3,6}[$]|x\\$'
    choice: Any = {"type": "custom", "custom": {"name": "code"}}
    with client_of(model, *["~"] * 3) as client:
        for seed in range(3):
            answer: Any = client.chat.completions.create(
                model="tiny",
                messages=ASK,
                tools=[coded(pattern)],
                tool_choice=choice,
                seed=seed,
                max_tokens=200,
                extra_body={"chat_template_kwargs": {"enable_thinking": False}},
            )
            (call,) = answer.choices[0].message.tool_calls
            assert re.fullmatch(pattern, call.custom.input), call.custom.input


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (coded('start: "(" start ")" | "x"', "lark"), "tools[0].custom.format.grammar.definition"),
        (coded('start: "x"\n%ignore " "', "lark"), "tools[0].custom.format.grammar.definition"),
        (coded("a" * 70_000), "tools[0].custom.format.grammar.definition"),
        (coded("start: A" + "(" * 70_000, "lark"), "tools[0].custom.format.grammar.definition"),
        (coded("(?=a)b"), "tools"),
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "custom", "custom": {"name": "x", "format": {"type": "grammar"}}}, "tools[0].custom.format.grammar"),
    ],
)
def test_custom_tool_that_cannot_be_held_is_refused(model: Path, tool: Any, param: str) -> None:
    """A grammar that JSON cannot hold, or none where one is said, is a 400 that names the field."""
    with client_of(model) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=ASK, tools=[tool])
    assert caught.value.param == param


def test_custom_tools_in_responses_have_grammars(model: Path) -> None:
    """Lark and regexes hold the input; a grammar that leads back to itself is refused by name."""
    regex: Any = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}
    lark: Any = {"type": "grammar", "syntax": "lark", "definition": SUM}
    loop: Any = lark | {"definition": 'start: "(" start ")" | "x"'}
    with client_of(model, "~", "~") as client:
        kwargs: Any = {"model": "tiny", "input": "go", "tool_choice": {"type": "custom", "name": "code"}}
        with pytest.raises(openai.BadRequestError, match="'start' leads back to itself"):
            client.responses.create(tools=[{"type": "custom", "name": "code", "format": loop}], **kwargs)
        for form, pattern in ((regex, "[ab]{3}"), (lark, r'[0-9] [+"] [0-9]( [+"] [0-9])?\n')):
            answer: Any = client.responses.create(tools=[{"type": "custom", "name": "code", "format": form}], **kwargs)
            assert re.fullmatch(pattern, answer.output[-1].input)


def pieces_of(arguments: str, size: int) -> str:
    """What a reader makes of arguments that come in pieces of a size."""
    reader = InputReader()
    told = [reader.push(arguments[at : at + size]) for at in range(0, len(arguments), size)]
    return "".join(told) + reader.finish()


@settings(max_examples=30, deadline=None)
@given(st.text(), st.integers(1, 7), st.booleans())
def test_input_is_read_from_any_pieces(text: str, size: int, is_ascii: bool) -> None:
    """However the arguments are cut, the pieces of the input add up to it."""
    arguments = json.dumps({"input": text}) if is_ascii else as_arguments(text)
    assert pieces_of(arguments, size) == input_of(arguments) == text


ODD = [
    ('{"input": "ab', "ab"),
    ('{"input": "ab\\', "ab"),
    ('{"input": "\\ud83dx"}', "\N{REPLACEMENT CHARACTER}x"),
    ('{"input": "\\ude00"}', "?"),
    ('{"other": 1}', '{"other": 1}'),
    ('{"why": "so", "input": "a\\u00e9"}', "aé"),
    ('{"input": 7}', '{"input": 7}'),
    ('{"inputs": "a"}', '{"inputs": "a"}'),
    ("rm -r x", "rm -r x"),
    ('"rm"', '"rm"'),
    ('{"inp', '{"inp'),
    (" " * 2000 + '{"input": "a"}', "a"),
    ("", ""),
]


@pytest.mark.parametrize(("arguments", "expected"), ODD)
def test_odd_arguments_are_told_as_far_as_they_go(arguments: str, expected: str) -> None:
    """A cut call gives what came of its input; half of a character is none; other arguments stay as they are."""
    assert input_of(arguments) == expected
    assert {pieces_of(arguments, size) for size in range(1, min(len(arguments), 40) + 1)} <= {expected}


@pytest.mark.parametrize(("arguments", "expected"), [ODD[5], ODD[6], ODD[4]])
def test_streamed_call_of_another_servers_model_keeps_its_input(arguments: str, expected: str) -> None:
    """Arguments that do not begin with the input, or have none, are told in a stream, too."""

    async def main(url: str) -> tuple[str, str]:
        own_settings = load_settings(overrides={"chain": [f"openai:{url}"]}).settings
        backend = make_chain(own_settings, make_host(own_settings))
        async with serving(backend) as own:
            client = openai.AsyncOpenAI(base_url=f"{own}/v1", api_key="none", max_retries=0)
            asked: Any = {"model": "fake-1", "messages": [{"role": "user", "content": "go"}], "tools": [SHELL]}
            parts: list[Any] = [part async for part in await client.chat.completions.create(stream=True, **asked)]
            tool: Any = {"type": "custom", "name": "shell"}
            stream = await client.responses.create(model="fake-1", input="go", tools=[tool], stream=True)
            events: list[Any] = [event async for event in stream]
            await client.close()
        await backend.close()
        calls = [call for part in parts for choice in part.choices for call in choice.delta.tool_calls or ()]
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        streamed = "".join(call.custom["input"] for call in calls)
        return streamed, "".join(deltas)

    with openai_server(arguments=json.loads(arguments)) as server:
        assert asyncio.run(main(server.url)) == (expected, expected)
