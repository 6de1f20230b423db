"""What a hostile client cannot do: hold places, send too much, reach private addresses, read keys in logs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
import uvicorn
from support.server import HI, KEY, Model, fault, post, words
from support.watching import logged

from pyagent.core.chain import Chain
from pyagent.core.messages import ChatDelta
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.settings import Server
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.connections import MAX_HEAD_BYTES, bounded
from pyagent.infrastructure.server.serving import address, bind

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def served(settings: Server, work: Any, backend: Model | None = None) -> None:
    """Run `work(url)` against a server on the connections that `pyagent serve` uses."""
    listening = bind("127.0.0.1", 0)
    app = create_app(backend or Model(), settings=settings)
    config = uvicorn.Config(
        app,
        http=bounded(settings.request_seconds),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await work(address(listening))
    finally:
        server.should_exit = True
        await task
        listening.close()


async def sent(url: str, *pieces: bytes) -> tuple[bytes, float]:
    """What comes back for pieces sent one by one, and after how many seconds the connection was closed."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    started = time.monotonic()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    try:
        told = await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        told = b"reset"
    writer.close()
    return told, time.monotonic() - started


def test_slow_clients_are_cut() -> None:
    """A head or a body that does not come ends its connection in time; a request that does is answered."""

    async def work(url: str) -> None:
        for pieces in ((), (b"POST /v1",), (HEAD,)):
            told, seconds = await sent(url, *pieces)
            assert told == b""
            assert 0.3 < seconds < 5
        told, _ = await sent(url, HEAD + b"content-length: 100\r\n\r\n{")
        assert b"408 Request Timeout" in told
        assert b"request_timeout" in told
        body = b'{"messages": [{"role": "user", "content": "hi"}]}'
        whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        told, seconds = await sent(url, whole + HEAD)
        assert told.count(b"200 OK") == 1, "the second request's head never ends"
        assert seconds > 0.3

    asyncio.run(served(Server(request_seconds=0.4), work))


def test_a_long_answer_is_not_cut() -> None:
    """The time for a request to arrive is no limit of its answer's."""

    async def work(url: str) -> None:
        async with httpx.AsyncClient(timeout=20) as http:
            answer = await http.post(f"{url}/v1/chat/completions", json={"messages": HI})
            assert answer.status_code == 200

    asyncio.run(served(Server(request_seconds=0.2), work, Model(lambda _: [0.8, *words("late")])))


def test_heads_are_bounded() -> None:
    """Headers without end are refused at a bound."""

    async def work(url: str) -> None:
        told, _ = await sent(url, HEAD + b"x: " + b"y" * (2 * MAX_HEAD_BYTES))
        assert told == b"reset" or b"400 Bad Request" in told

    asyncio.run(served(Server(), work))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "http://localhost:8000/a.png",
        "http://[::1]/a.png",
        "http://10.0.0.8/a.png",
        "http://192.168.1.1/a.png",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/a.png",
        "http://[::ffff:10.0.0.1]/a.png",
        "http://0x7f000001/a.png",
        "http://2130706433/a.png",
        "http://127.1/a.png",
        "http://0.0.0.0/a.png",
        "http://printer.local/a.png",
        "http://db.internal/a.png",
        "http://100.64.0.1/a.png",
        "http://no-such-host.invalid/a.png",
        "file:///etc/passwd",
        "ftp://example.com/a.png",
        "http://[bad/a.png",
        "",
    ],
)
def test_private_images_are_refused(url: str) -> None:
    """No form of a private address gets to a backend, unless the settings say so."""
    backend = Model()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    refused = post({"messages": messages}, backend)
    assert (refused.status_code, fault(refused)["code"]) == (400, "image_refused")
    assert backend.requests == []


def test_data_and_public_images_pass() -> None:
    """Data and public addresses get through; private ones where they are allowed."""
    for url, more in (
        ("data:image/png;base64,AAAA", {}),
        ("https://8.8.8.8/a.png", {}),
        ("http://127.0.0.1/a.png", {"private_images": True}),
    ):
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        assert post({"messages": messages}, Model(), **more).status_code == 200


def test_no_key_is_in_any_log() -> None:
    """Whatever goes wrong at the most talkative level, no key stands in a log."""
    failing = Model(lambda _: [ChatDelta(content="x"), ZeroDivisionError(f"Authorization: Bearer {KEY}")])
    with logged() as log:
        for headers in (
            {"authorization": f"Bearer {KEY}"},
            {"x-api-key": KEY},
            {"authorization": f"Basic {KEY}"},
            {"authorization": KEY},
        ):
            for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/nothing"):
                body = {"model": "m", "messages": HI, "max_tokens": 3}
                post(body, failing, path=path, headers=headers, api_keys=[KEY.encode()])
                post(b"{", Model(lambda _: words()), path=path, headers=headers, api_keys=[KEY.encode()])
    assert "ZeroDivisionError" in log.getvalue()
    assert KEY not in log.getvalue()


def test_browsers_get_no_permission() -> None:
    """A page of another origin is not let in: no CORS header, and its question before is refused."""

    async def work(url: str) -> None:
        async with httpx.AsyncClient() as http:
            headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
            asked = await http.options(f"{url}/v1/chat/completions", headers=headers)
            assert asked.status_code == 405
            answer = await http.post(f"{url}/v1/chat/completions", json={"messages": HI}, headers=headers)
            assert not any(name.startswith("access-control") for name in (*asked.headers, *answer.headers))

    asyncio.run(served(Server(), work))


def test_a_hostile_pattern_holds_nobody_up() -> None:
    """A schema whose pattern would take Python's `re` for years is decided at once, and the server goes on."""
    backend = Chain([Model(lambda _: words('"' + "a" * 60 + '!"'))], retry_policy=RetryPolicy(num_retries=0))
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "^(a+)+$"}}}
    begun = time.perf_counter()
    answer = post({"messages": HI, "response_format": schema}, backend)
    assert time.perf_counter() - begun < 30
    assert (answer.status_code, "does not match" in fault(answer)["message"]) == (502, True)
