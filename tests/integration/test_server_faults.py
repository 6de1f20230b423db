"""The server under errors, oversized bodies, clients that leave, and many at once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from support.server import HI, Model, fault, post, run, words
from support.waiting import until

from pyagent.core.errors import (
    AgentError,
    BackendError,
    CapacityError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    ModelError,
    RequestError,
)
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    FinishReason,
)
from pyagent.infrastructure.server.errors import http_error


def test_server_unknown_model_and_path() -> None:
    """A model nobody has is a 404 that names the nearest; so is a wrong path, and a wrong method is a 405."""
    backend = Model(models=["smollm2:135m"])
    missing = post({"model": "smolm2:135m", "messages": HI}, backend)
    assert missing.status_code == 404
    assert fault(missing)["code"] == "model_not_found"
    assert "did you mean 'smollm2:135m'" in fault(missing)["message"]
    assert post({"model": "test:m", "messages": HI}, backend).status_code == 200
    assert post({"model": "default", "messages": HI}, backend).status_code == 200
    assert [request.model for request in backend.requests] == ["test:m", ""]
    lost = post({}, path="/v1/chats")
    assert (lost.status_code, fault(lost)["code"]) == (404, "not_found")
    wrong = post({}, path="/v1/models")
    assert (wrong.status_code, fault(wrong)["code"]) == (405, "wrong_method")


def test_server_bounds_the_body() -> None:
    """A body over the limit is a 413, whether its length is announced or not; a wrong content type is a 415."""
    big = {"messages": [{"role": "user", "content": "x" * 2000}]}
    announced = post(big, max_body_bytes=1000)
    assert (announced.status_code, fault(announced)["code"]) == (413, "body_too_large")

    async def chunked(url: str, _client: openai.AsyncOpenAI) -> int:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        async with httpx.AsyncClient(verify=False) as http:
            headers = {"content-type": "application/json"}
            return (await http.post(f"{url}/v1/completions", content=pieces(), headers=headers)).status_code

    assert run(chunked, max_body_bytes=1000) == 413
    form = post(b"a=b", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (form.status_code, fault(form)["code"]) == (415, "wrong_content_type")


@pytest.mark.parametrize(
    ("headers", "code", "says"),
    [
        ({"content-encoding": "gzip"}, "wrong_content_encoding", "send the body uncompressed"),
        ({"content-encoding": "br, gzip"}, "wrong_content_encoding", "got br, gzip"),
        (
            {"content-type": "application/json; charset=utf-16"},
            "wrong_charset",
            "send JSON in UTF-8, got charset=utf-16",
        ),
        ({"content-type": 'application/json; charset="latin1"'}, "wrong_charset", "got charset=latin1"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/pyagent/cache/explain"])
def test_server_names_the_encoding_it_does_not_read(headers: dict[str, str], code: str, says: str, path: str) -> None:
    """A compressed body and one in another charset are 415 with what to send, not read as what they are not."""
    refused = post({"messages": HI}, path=path, headers=headers)
    assert refused.status_code == 415
    assert says in refused.text
    assert path == "/api/chat" or fault(refused)["code"] == code


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=UTF-8"},
        {"content-type": 'application/json;charset="utf-8"'},
        {"content-encoding": "identity"},
    ],
)
def test_server_reads_json_in_utf8_however_it_is_declared(headers: dict[str, str]) -> None:
    """What clients declare of plain JSON in UTF-8 is taken."""
    assert post({"messages": HI}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (RequestError("no", param="p"), 400, None),
        (RequestError("no", code="model_not_found"), 404, None),
        (ContextOverflowError("long", num_tokens=2, limit=1), 400, None),
        (CapacityError("full", retry_after_seconds=2.4), 429, "2"),
        (CapacityError("full", retry_after_seconds=0.1), 429, "1"),
        (CapacityError("full"), 503, None),
        (DeadlineError("late"), 504, None),
        (BackendError("down", backend="b"), 502, None),
        (AgentError("no", agent="a"), 502, None),
        (ModelError("bad", model="m"), 500, None),
        (ConfigError("bad"), 500, None),
        (ZeroDivisionError("secret detail"), 500, None),
    ],
)
def test_server_every_error_has_its_status(error: Exception, status: int, retry_after: str | None) -> None:
    """Each error of the tree has one status; before the first token a stream has it too; a bug's text stays inside."""
    for is_streamed in (False, True):
        response = post({"messages": HI, "stream": is_streamed}, Model(lambda _request: [error]))
        assert response.status_code == status
        assert response.headers.get("retry-after") == retry_after
        assert ("secret" in response.text) is False
        assert fault(response)["message"]
    assert http_error(error).status == status


def test_server_error_in_mid_stream_is_an_event() -> None:
    """Once text went out a failure is told as an error event, which the official client raises."""
    broken = Model(lambda _request: [ChatDelta(content="Hel"), BackendError("gpu on fire", backend="gpu")])
    lines = post({"messages": HI, "stream": True}, broken).text.strip().split("\n\n")
    told = json.loads(lines[1].removeprefix("data: "))["error"]
    assert (told["message"], told["backend"]) == ("gpu on fire", "gpu")
    assert lines[-1] == "data: [DONE]"

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="gpu on fire"):
            async for _ in stream:
                pass

    run(work, broken)


@pytest.mark.parametrize("reason", ["error", "abort"])
@pytest.mark.parametrize(
    ("path", "failed"),
    [
        ("/v1/chat/completions", '"code":"backend"'),
        ("/v1/messages", "event: error"),
        ("/v1/responses", "event: response.failed"),
        ("/api/chat", '{"error":'),
    ],
)
def test_server_answer_that_ends_in_an_error_is_no_answer(path: str, failed: str, reason: FinishReason) -> None:
    """A backend's `finish_reason: error` is a 502, or the API's error event in a stream, not `stop`."""
    broken = Model(lambda _request: [ChatDelta(content="Hel"), ChatDelta(finish_reason=reason)])
    asked = {"model": "m"} | ({"input": "hi"} if path == "/v1/responses" else {"messages": HI})
    asked |= {"max_tokens": 9} if path == "/v1/messages" else {}
    whole = post({**asked, "stream": False}, broken, path=path)
    assert whole.status_code == 502
    assert f"finish_reason {reason!r}" in whole.text
    streamed = post({**asked, "stream": True}, broken, path=path)
    assert (streamed.status_code, failed in streamed.text) == (200, True), streamed.text


def test_server_empty_answers_are_errors() -> None:
    """A backend that says nothing at all is an error, not an empty stream."""
    assert post({"messages": HI, "stream": True}, Model(lambda _request: [])).status_code == 502
    assert post({"messages": HI}, Model(lambda _request: [])).status_code == 502


@pytest.mark.parametrize("is_streamed", [True, False])
def test_server_client_that_leaves_aborts_its_request(is_streamed: bool) -> None:
    """When the connection goes, the backend's stream is closed at once, streamed or not, before the first token too."""
    backend = Model(lambda _request: [0.02, ChatDelta(content="a"), 60.0, *words("late")])

    async def work(url: str, _client: openai.AsyncOpenAI) -> None:
        host, port = url.removeprefix("http://").split(":")
        for wait in (0.0, 0.1):
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps({"messages": HI, "stream": is_streamed}).encode()
            head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            if is_streamed and wait:
                assert b"200 OK" in await reader.readline()
            await until(lambda: backend.num_running > 0)
            await asyncio.sleep(wait)
            writer.close()
            await until(lambda: backend.num_running == 0)

    run(work, backend)
    assert backend.num_aborted == 2


def test_server_200_concurrent_requests_all_answer() -> None:
    """Two hundred requests at once, half of them streamed, all get their own answer."""

    def script(request: ChatRequest) -> list[ChatDelta | float]:
        text = request.messages[0].text
        return [random.random() / 50, *words(f"<{text}", f"{text}>")]

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        async def one(index: int) -> str:
            messages: Any = [{"role": "user", "content": str(index)}]
            if index % 2:
                return (await client.chat.completions.create(model="m", messages=messages)).choices[
                    0
                ].message.content or ""
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        answers = await asyncio.gather(*(one(index) for index in range(200)))
        assert answers == [f"<{index}{index}>" for index in range(200)]

    backend = Model(script)
    run(work, backend)
    assert backend.num_running == 0


def test_server_killing_clients_at_random_leaks_nothing() -> None:
    """Clients cut off at random moments leave no answer running, and others are served as before."""
    chooser = random.Random(7)
    backend = Model(
        lambda _request: [piece for _ in range(40) for piece in (0.02, ChatDelta(content="x"))] + words(".")
    )

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        async def one(index: int) -> int:
            asked = client.chat.completions.create(model="m", messages=HI, stream=bool(index % 2))
            try:
                async with asyncio.timeout(chooser.random() if index % 3 else None):
                    answer: Any = await asked
                    if index % 2:
                        async for _ in answer:
                            pass
            except TimeoutError:
                return 0
            return 1

        done = await asyncio.gather(*(one(index) for index in range(60)))
        assert sum(done) >= 20
        await until(lambda: backend.num_running == 0)

    run(work, backend)
    assert backend.num_running == 0
    assert backend.num_aborted > 0
