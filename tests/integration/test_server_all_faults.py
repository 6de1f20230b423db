"""A request with several faults is answered with all of them, in each API's own shape."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from pyagent.core.errors import FieldFault, RequestError
from pyagent.core.field_errors import check_all, together

HELLO = [{"role": "user", "content": "hi"}]


def refused(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    return answer.json()


def params(told: dict[str, Any]) -> list[str]:
    """The fields of the details, each of whose messages is in the message of all."""
    details = told["error"]["details"]
    assert all(one["message"] in told["error"]["message"] for one in details)
    return [one["param"] for one in details]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "/v1/chat/completions",
            {"temperature": "hot", "tempreature": 1, "n": None, "stream_options": {"x": 1}},
            ["temperature", "tempreature", "stream_options.x", "messages"],
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "usr", "content": "a"}, {"role": "user", "content": 3}, *HELLO], "top_k": 1.5},
            ["messages[0].role", "messages[1].content", "top_k"],
        ),
        (
            "/v1/chat/completions",
            {"messages": [], "temperature": 9, "top_p": 0, "min_tokens": -1, "n": 0, "timeout_seconds": -1},
            ["messages", "min_tokens", "temperature", "top_p", "timeout_seconds", "n"],
        ),
        ("/v1/chat/completions", {"messages": HELLO, "audio": {}, "functions": [{}]}, ["audio", "functions"]),
        (
            "/v1/completions",
            {"prompt": "", "temperature": 3, "stop_token_ids": [-1], "truncate_prompt_tokens": 0},
            ["prompt", "temperature", "stop_token_ids", "truncate_prompt_tokens"],
        ),
        (
            "/v1/chat/completions",
            {"messages": [], "audio": {}, "top_p": 3, "stream_options": {}, "add_special_tokens": True},
            ["audio", "messages", "top_p", "stream_options", "add_special_tokens"],
        ),
        (
            "/v1/responses",
            {
                "input": [{"type": "message", "role": "x", "content": ""}, {"type": "audio"}],
                "temperature": 9,
                "top_p": 0,
                "tool_choice": "sometimes",
                "text": {"format": {"type": "json_schema"}},
                "background": True,
                "stream_options": {},
                "user": "u" * 300,
            },
            [
                *("background", "user", "stream_options", "temperature", "top_p", "tool_choice"),
                *("text.format.schema", "input[0].role", "input[1].type"),
            ],
        ),
        (
            "/v1/messages",
            {
                "model": "",
                "messages": [],
                "max_tokens": 0,
                "temperature": 9,
                "speed": "fast",
                "thinking": {"type": "enabled", "budget_tokens": 0},
                "tools": [{"name": "a"}, {"name": "b", "type": "bash_20250124"}, {"name": "c", "type": "x"}],
                "tool_choice": {"type": "tool", "name": "z"},
                "context_management": {"edits": [{"type": "compact"}]},
                "metadata": {"user_id": "u" * 300},
            },
            [
                *("speed", "max_tokens", "temperature", "thinking.budget_tokens", "metadata.user_id", "messages"),
                *("context_management.edits[0].type", "tools[1].type", "tools[2].type", "model"),
            ],
        ),
        (
            "/v1/messages/count_tokens",
            {"model": "", "messages": [], "tool_choice": {"type": "any"}},
            ["messages", "tool_choice", "model"],
        ),
        (
            "/v1/responses",
            {"temperature": "x", "max_output_tokens": "y"},
            ["temperature", "max_output_tokens", "input"],
        ),
    ],
)
def test_all_faults_are_told_at_once(path: str, body: dict[str, Any], expected: list[str], url: str) -> None:
    """`error.details` has each fault with its field, `param` is one of them, and the message has them all."""
    told = refused(url, path, body)
    assert sorted(params(told)) == sorted(expected)
    if not path.startswith("/v1/messages"):  # Anthropic's errors name no field
        assert told["error"]["param"] == params(told)[0]


def test_other_apis_tell_all_faults_in_their_shapes(url: str) -> None:
    """Anthropic's error and Ollama's line have the details beside their texts."""
    told = refused(url, "/v1/messages", {"max_tokens": "x", "messages": HELLO, "temperature": "y"})
    assert told["type"] == "error"
    assert params(told) == ["max_tokens", "temperature", "model"]
    told = refused(url, "/api/chat", {"model": 3, "messages": HELLO, "stream": "y"})
    assert [one["param"] for one in told["details"]] == ["model", "stream"]
    assert "model must be" in told["error"]
    assert "stream must be" in told["error"]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "/api/chat",
            {
                "model": "",
                "messages": [{"role": "user", "content": "hi", "images": ["?"]}],
                "format": "xml",
                "keep_alive": "soon",
                "top_logprobs": 3,
                "options": {"temperature": -1, "num_predict": -7, "tfs_z": 0.5, "repeat_penalty": -1},
            },
            [
                *("images", "top_logprobs", "options.tfs_z", "options.num_predict", "options.temperature"),
                *("options.repeat_penalty", "format", "model", "keep_alive"),
            ],
        ),
        (
            "/api/generate",
            {"model": "tiny", "raw": True, "system": "a", "images": ["b"], "prompt": "x", "suffix": "y", "format": "z"},
            ["suffix", "system", "images", "format"],
        ),
    ],
)
def test_ollama_tells_all_faults_of_values(path: str, body: dict[str, Any], expected: list[str], url: str) -> None:
    """Values out of their ranges, fields that exclude each other and refused ones are told at once there, too."""
    told = refused(url, path, body)
    assert sorted(one["param"] for one in told["details"]) == sorted(expected)
    assert all(one["message"] in told["error"] for one in told["details"])


def test_one_fault_is_told_as_before(url: str) -> None:
    """A single fault has no details."""
    told = refused(url, "/v1/chat/completions", {"messages": HELLO, "temperature": 3})
    assert "details" not in told["error"]
    assert told["error"]["param"] == "temperature"


def test_openai_clients_have_all_faults(url: str) -> None:
    """Their exception has the message with all faults, the first field, and the details in its body."""
    with (
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(BadRequestError) as caught,
    ):
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=9, top_p=-1)  # type: ignore[arg-type]
    assert caught.value.param == "temperature"
    assert "top_p must be" in caught.value.message
    assert [one["param"] for one in caught.value.body["details"]] == ["temperature", "top_p"]  # type: ignore[index]


def test_faults_without_number_are_told_in_part(url: str) -> None:
    """Of thousands of faults some are told; the answer stays small."""
    body = {"messages": [{"role": "x" * 500, "content": index} for index in range(5000)], "top_p": "a"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert len(answer.content) < 20_000
    assert len(json.loads(answer.content)["error"]["details"]) == 16


def test_entries_far_behind_are_told_only_where_they_are_at_fault_first(url: str) -> None:
    """Of a long list the first few thousand entries are looked at one by one, beside the fault that decoding found."""
    body = {"messages": [*HELLO * 3000, 3, 4], "top_p": "a"}
    assert params(refused(url, "/v1/chat/completions", body)) == ["messages[3000]", "top_p"]


def test_several_errors_become_one() -> None:
    """The first one's field and code stand for all; faults within faults stay apart."""

    def fail(name: str) -> None:
        raise RequestError(f"{name} is wrong", param=name, code=name)

    with pytest.raises(RequestError, match="a is wrong; b is wrong") as caught:
        check_all([lambda: fail("a"), lambda: None, lambda: fail("b")])
    assert (caught.value.param, caught.value.code) == ("a", "a")
    more = together([caught.value, RequestError("c is wrong")])
    assert [fault.param for fault in more.faults] == ["a", "b", None]
    assert more.faults[2] == FieldFault("c is wrong", None, "invalid_request")
