"""Requests that hold too much are refused before anything is computed with them, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from support.server import HI, Model, fault, post

from pyagent.core.messages import ChatRequest
from pyagent.core.settings import Server
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.server import bounds, service
from pyagent.infrastructure.server.service import Service


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tools(count: int, **function: Any) -> dict[str, Any]:
    listed = [{"type": "function", "function": {"name": f"t{number}"} | function} for number in range(count)]
    return {"tools": listed}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (tools(bounds.MAX_TOOLS + 1), "context_length_exceeded"),
        ({"messages": HI * (bounds.MAX_MESSAGES + 1)}, "context_length_exceeded"),
        ({"messages": HI * 150_000}, "context_length_exceeded"),
        ({"prediction": [1] * 1_000_001}, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "\n" * 2_000_001}]}, "context_length_exceeded"),
        ({"response_format": {"type": "choice", "choice": list(map(str, range(100_000)))}}, "invalid_request"),
        (form(nested(150)), "invalid_request"),
        (form({"enum": [str(number) for number in range(30_000)]}), "invalid_request"),
        (tools(1, parameters=nested(150)), "invalid_request"),
    ],
)
def test_request_of_too_much_is_refused_unasked(more: dict[str, Any], code: str) -> None:
    """Too many tools, messages, values, choices, and schemas too deep or wide, are 400 before anybody is asked."""
    backend = Model()
    refused = post({"messages": HI} | more, backend)
    assert (refused.status_code, fault(refused)["code"]) == (400, code)
    assert backend.requests == []


def test_request_of_much_is_taken() -> None:
    """What clients do send passes: hundreds of tools, nested schemas, a thousand choices, long texts full of JSON."""
    pasted = json.dumps({str(number): [number] for number in range(10_000)})
    for more in (
        tools(500, parameters=nested(20)),
        form(nested(30)),
        {"response_format": {"type": "choice", "choice": list(map(str, range(1000)))}},
        {"messages": [{"role": "user", "content": pasted}] * 10},
    ):
        assert post({"messages": HI} | more).status_code == 200


@pytest.mark.parametrize(
    ("path", "more"), [("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 3}), ("/v1/responses", None)]
)
def test_one_huge_word_is_told_as_too_long(tiny_model_path: Path, path: str, more: dict[str, Any] | None) -> None:
    """Ten megabytes without a space are 400 by their length in each API, not tokenised."""
    word = "aB3/" * 2_500_000
    body: dict[str, Any] = {"model": "default", "input": word}
    if more is not None:
        body = {"model": "default", "messages": [{"role": "user", "content": word}]} | more
    refused = post(body, NativeBackend.of("tiny", lambda: tiny_model_path), path=path)
    assert refused.status_code == 400
    assert "more than" in refused.text
    assert path == "/v1/messages" or fault(refused)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("num_bytes", "is_aside"), [(1_000, False), (200_000, True)])
def test_long_body_is_read_beside_the_event_loop(num_bytes: int, is_aside: bool) -> None:
    """A long body is decoded in a thread, where it holds up nobody, and is the one that was sent; a short one not."""
    sent = [b"x" * (num_bytes // 4)] * 4
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "headers": [(b"content-type", b"application/json")]}

    async def main() -> tuple[bytes, threading.Thread]:
        left = list(sent)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

        service = Service(Model(), None, None, Server())
        return await service.read(Request(scope, receive), lambda body: (body, threading.current_thread()))

    body, thread = asyncio.run(main())
    assert (body, thread is not threading.current_thread()) == (b"".join(sent), is_aside)


def test_fields_are_counted_across_slices() -> None:
    """A field whose `":` lies on the border of two counted slices counts once."""
    for start in range(bounds._SLICE_BYTES - 3, bounds._SLICE_BYTES + 2):
        assert bounds._count(b"x" * start + b'":' + b"x" * 9, b'":') == 1


def test_long_request_is_checked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas of a long body are walked in the thread that read it; those of a short one where it is quicker."""
    threads: list[str] = []

    def noted(request: ChatRequest) -> None:
        threads.append(threading.current_thread().name)
        bounds.check_request(request)

    monkeypatch.setattr(service, "check_request", noted)
    for count in (1, 5000):
        parameters = {"properties": {f"p{number}": {"type": "string"} for number in range(count)}}
        assert post({"messages": HI} | tools(1, parameters=parameters)).status_code == 200
    assert [name.startswith("pyagent-read") for name in threads] == [False, True]


@pytest.mark.parametrize("path", ["/pyagent/cache/explain", "/pyagent/cache/pin"])
def test_own_routes_take_a_prompt_and_no_more(path: str) -> None:
    """What the event loop itself reads is short: a body of 3 MB is a 413 there."""
    refused = post({"messages": [{"role": "user", "content": "x" * 3_000_000}], "name": "x"}, path=path)
    assert (refused.status_code, fault(refused)["code"]) == (413, "body_too_large")


def test_millions_of_token_ids_are_refused_by_their_number(tiny_model_path: Path) -> None:
    """A prompt of more ids than the model has room for is told as too long, before each is looked at."""
    backend = NativeBackend.of("tiny", lambda: tiny_model_path)
    refused = post({"prompt": [-1] * 900_000}, backend, path="/v1/completions")
    assert (refused.status_code, fault(refused)["code"]) == (400, "context_length_exceeded")
