"""What a request's body may say: every field honoured, ignored or refused by name."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_value
from support.server import HI, KEY, Model, fault, keys, post

from pyagent.core.chain import Chain
from pyagent.core.errors import (
    RequestError,
)
from pyagent.core.messages import (
    Origin,
)
from pyagent.infrastructure.server.openai.requests import IGNORED, REFUSED, read_chat, read_completion


def test_server_honours_every_field() -> None:
    """What a client asks for arrives at the backend under its core name."""
    backend = Model()
    body = {
        "model": "m",
        "messages": HI,
        "max_completion_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 11,
        "stop": "END",
        "logit_bias": {"5": -1},
        "logprobs": True,
        "top_logprobs": 2,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "timeout_seconds": 9,
        "private": True,
        "session": "s",
        "user": "ann",
        "agent": "planner",
        "run": "r1",
        "priority": -2,
        "request_class": "batch",
        "unsupported": "refuse",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
    }
    assert post(body, backend).status_code == 200
    asked = backend.requests[0]
    sampling = asked.sampling
    assert (asked.unsupported, asked.parallel_tool_calls, asked.reasoning_effort) == ("refuse", False, "low")
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 3)
    assert (sampling.min_p, sampling.seed, sampling.stop, sampling.logit_bias) == (0.1, 11, ("END",), {5: -1})
    assert (sampling.top_logprobs, sampling.ignore_eos, sampling.repetition_penalty) == (2, True, 1.1)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.1, 0.2)
    assert asked.response_format
    assert asked.response_format.json_schema
    assert asked.response_format.json_schema.schema == {"type": "object"}
    assert (asked.timeout_seconds, asked.private, asked.session) == (9, True, "s")
    assert asked.origin == Origin(client="ann", agent="planner", run="r1")
    assert (asked.priority, asked.request_class) == (-2, "batch")


def test_server_continues_the_final_message_in_vllms_words() -> None:
    """`continue_final_message` makes the last message the answer's beginning, which else is a message like any."""
    messages = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "So "}]}]
    for more in ({}, {"add_generation_prompt": False}):
        body = {"messages": messages, "continue_final_message": True} | more
        asked = read_chat(json.dumps(body).encode()).request
        assert ([message.text for message in asked.messages], asked.assistant_prefix) == (["hi"], "So ")
    for more in ({}, {"add_generation_prompt": True, "continue_final_message": False}):
        asked = read_chat(json.dumps({"messages": messages} | more).encode()).request
        assert (len(asked.messages), asked.assistant_prefix) == (2, "")


def test_server_tells_clients_apart_by_key_then_by_name() -> None:
    """With keys, a client is its key's place in the file and what it calls itself; keys are not passed on."""
    backend = Model()
    for headers, user in ((1, None), (2, "ann")):
        key = {"authorization": f"Bearer {KEY}{headers}"}
        body = {"messages": HI, "user": user}
        assert post(body, backend, api_keys=keys(f"{KEY}1", f"{KEY}2"), headers=key).status_code == 200
    assert [request.origin.client for request in backend.requests] == ["key 1", "key 2/ann"]


def test_server_asks_for_a_search_in_vllms_words() -> None:
    """`use_beam_search` takes its width from `beam_width`, else `best_of`, else `n`."""
    widths = []
    for more in ({"beam_width": 4}, {"best_of": 3}, {"beam_width": 0}, {}):
        body = {"messages": HI, "n": 2, "use_beam_search": True, "length_penalty": 0.5, "early_stopping": True} | more
        request = read_chat(json.dumps(body).encode()).request
        assert (request.n, request.best_of) == (2, None)
        assert request.beam is not None
        assert (request.beam.length_penalty, request.beam.early_stopping) == (0.5, True)
        widths.append(request.beam.width)
    assert widths == [4, 3, 0, 2]  # which no backend takes


def test_server_refuses_several_answers_where_nobody_gives_them() -> None:
    """A chain whose links answer once says so, instead of answering once."""
    refused = fault(post({"messages": HI, "n": 3}, Chain([Model()])))
    assert (refused["param"], refused["message"][:40]) == ("n", "no link of the chain gives several answe")


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "must be a number or null, got a string"),
        ({"max_tokens": 0}, "max_tokens", "between 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "^max_completion_tokens must be between 1"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "disagree"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages", "empty"),
        ({"messages": "hi"}, "messages", "must be an array, got a string"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type", "smell"),
        ({"priority": 2**40}, "priority", "lower goes first"),
        ({"user": {"a": 1}}, "user", "must be a string or null, got an object"),
        ({"n": 0}, "n", "at least 1"),
        ({"continue_final_message": True}, "continue_final_message", "last message of the assistant"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt", "exclude"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "needs continue_final_message"),
        ({"n": "two"}, "n", "must be an integer or null, got a string"),
        ({"beam_width": 2}, "beam_width", "needs use_beam_search: true"),
        ({"audio": {"voice": "x"}}, "audio", "no audio"),
        ({"modalities": ["audio"]}, "modalities", "text is all"),
        ({"functions": [{"name": "f"}]}, "functions", "use `tools`"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "is one of none, minimal, low.* max; got 'huge'"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "must be a boolean or null, got a string"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"return_entropy": True}, "return_entropy", "ask for logprobs too"),
        ({"logprobs": True, "top_logprobs": 50}, "top_logprobs", "between 0 and 20"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 1000}}, "logit_bias", "between -100"),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "maybe"}, "tool_choice", "none, auto, required"),
        (
            {"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "'g', which is not in tools",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs its json_schema"),
        ({"response_format": {"type": "choice"}}, "response_format.choice", "needs its choice"),
        ({"timeout_seconds": -1}, "timeout_seconds", "above 0"),
        ({"seed": 2**70}, "seed", "between -9223372036854775808 and 18446744073709551615, got 11805916207174113034"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", r"^messages\[0\].content is required$"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
        ({"messages": [7]}, r"messages[0]", "must be an object, got an integer"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name", "is required"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "must be a number, got a string"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias", "takes token ids from 0 on as names, got '999"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "takes token ids from 0 on, got -1"),
        ({"stop_token_ids": list(range(300))}, "stop_token_ids", "up to 256 token ids, got 300"),
        ({"model": ""}, "model", "model is empty; name one of GET /v1/models, or 'default'"),
        ({"session": "x" * 257}, "session", "at most 256 characters, got 257"),
        ({"user": "x" * 257}, "user", "at most 256 characters, got 257"),
        ({"metadata": ["x"]}, "metadata", "must be an object or null, got an array"),
        ({"metadata": {"a": 1}}, "metadata", "must be a string, got an integer"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16 pairs, got 17"),
        ({"metadata": {"a" * 65: ""}}, "metadata", "at most 64 characters, got 65"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "at most 512 characters, got 513"),
    ],
)
def test_server_bad_field_is_named(change: dict[str, Any], param: str, says: str) -> None:
    """Each bad value is refused with the name of its field and what would be right."""
    with pytest.raises(RequestError, match=says) as caught:
        read_chat(json.dumps({"model": "m", "messages": HI} | change).encode())
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty; send a JSON object"),
        (b" \n", "the body is empty; send a JSON object"),
        (b"[]", "the body must be an object, got an array"),
        (b'{"messages": [', "it ends too early"),
        (b'{"messages": nope}', r"invalid character \(byte"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', r"a string is not UTF-8"),
        (rb'{"messages": [{"role": "user", "content": "\ud83d"}]}', "half of a surrogate pair"),
        (rb'{"messages": [{"role": "user", "content": "\ude00"}]}', "half of a surrogate pair"),
        (b'{"messages": ' + b"[" * 100_000, "nested too deeply|must be an object"),
    ],
)
def test_server_body_that_is_no_json_is_told_why(body: bytes, says: str) -> None:
    """What is wrong with the text itself is said in words of ours, none of the decoder's."""
    with pytest.raises(RequestError, match=says) as caught:
        read_chat(body)
    assert not re.search("Expected `|Object |truncated|codec", str(caught.value))


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/embeddings"]
)
def test_server_takes_no_empty_name_for_a_model(path: str) -> None:
    """A variable that was not set is not the chain: `model: ""` is refused in every API; `default` is the chain."""
    asked = {"messages": HI, "input": "hi", "max_tokens": 5}
    kept = {"/v1/embeddings": {"input"}, "/v1/responses": {"input"}, "/api/chat": {"messages"}}
    body = {name: asked[name] for name in asked if name in kept.get(path, {"messages", "max_tokens"})}
    refused = post(body | {"model": ""}, path=path)
    assert refused.status_code == 400
    assert "model is empty" in refused.text


def test_server_quotes_no_megabytes_and_guesses_no_names_for_them() -> None:
    """A name of megabytes is told in some letters, and compared with none."""
    for body in ({"model": "m" * 3_000_000}, {"x" * 3_000_000: 1}, {"reasoning_effort": "x" * 3_000_000}):
        refused = post({"messages": HI} | body, Chain([Model()]))
        assert refused.status_code in {400, 404}
        assert len(refused.content) < 10_000


def test_server_bad_field_is_a_400() -> None:
    """A refused field is a 400 in OpenAI's shape, and the backend hears nothing of it."""
    backend = Model()
    response = post({"model": "m", "messages": HI, "temperature": -1}, backend)
    assert response.status_code == 400
    assert (fault(response)["param"], fault(response)["type"]) == ("temperature", "invalid_request_error")
    assert "between 0 and 2, got -1" in fault(response)["message"]
    assert backend.requests == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages": }', b"[" * 100_000])
def test_server_malformed_json_is_a_clear_400(body: bytes) -> None:
    """What is not a JSON object is refused as such, and the server goes on."""
    response = post(body)
    assert response.status_code == 400
    assert fault(response)["message"]


def test_server_completion_prompts() -> None:
    """A prompt that is empty, or neither text nor token ids, is refused by name."""
    for prompt in ("", [], ["a", ""], [1, "a"], [[1, True]], [[]]):
        with pytest.raises(RequestError) as caught:
            read_completion(json.dumps({"prompt": prompt}).encode())
        assert caught.value.param == "prompt"
    assert read_completion(b'{"prompt": ["one"]}').request.prompt == "one"
    with pytest.raises(RequestError, match="suffix"):
        read_completion(b'{"prompt": "x", "suffix": "y"}')


def test_server_harmless_fields_are_ignored() -> None:
    """Fields that change no answer pass, and refused ones pass when they hold the value that means nothing."""
    body: dict[str, Any] = {"model": "m", "messages": HI} | dict.fromkeys(IGNORED, "x") | {"metadata": {"a": "b"}}
    body |= {name: values[0] for name, (values, _) in REFUSED.items() if values and name not in {"best_of", "suffix"}}
    assert read_chat(json.dumps(body).encode()).request.messages[0].text == "hi"
    nulls = dict.fromkeys(("temperature", "stop", "n", "tools", "tool_choice", "response_format", "logit_bias", "seed"))
    assert read_chat(json.dumps({"messages": HI} | nulls).encode()).request.sampling.temperature == 1.0


field_name = st.sampled_from(
    ["model", "messages", "temperature", "stop", "logit_bias", "tools", "tool_choice", "n", "seed", "response_format"]
)


@given(st.dictionaries(field_name | st.text(max_size=5), json_value, max_size=5), st.binary(max_size=30))
def test_server_any_body_is_understood_or_refused(change: dict[str, Any], junk: bytes) -> None:
    """No body, JSON or not, makes reading it fail in any way but `RequestError`."""
    for body in (json.dumps({"messages": HI} | change).encode(), junk):
        for read in (read_chat, read_completion):
            with suppress(RequestError):
                read(body)
