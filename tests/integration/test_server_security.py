"""What a hostile client cannot do: hold places, send too much, reach private addresses, read keys in logs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from support.server import HI, KEY, Model, fault, keys, listening_at, post, words
from support.waiting import until
from support.watching import logged

from pyagent.core.chain import Chain
from pyagent.core.errors import ConfigError
from pyagent.core.messages import ChatDelta
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.settings import Server
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.header_timeout import MAX_HEAD_BYTES, bounded

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def served(settings: Server, work: Any, backend: Model | None = None) -> None:
    """Run `work(url)` against a server on the connections that `pyagent serve` uses."""
    app = create_app(backend or Model(), settings=settings)
    async with listening_at(app, http=bounded(settings.request_seconds, settings.max_connections)) as url:
        await work(url)


async def sent(url: str, *pieces: bytes) -> tuple[bytes, float]:
    """What comes back for pieces sent one by one, and after how many seconds the connection was closed."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    started = time.monotonic()
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    try:
        told = await asyncio.wait_for(reader.read(), 60)
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
            assert seconds > 0.3
        told, _ = await sent(url, HEAD + b"content-length: 100\r\n\r\n{")
        assert b"408 Request Timeout" in told
        assert b"request_timeout" in told
        body = b'{"messages": [{"role": "user", "content": "hi"}]}'
        whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        told, seconds = await sent(url, whole + HEAD)
        assert told.count(b"200 OK") == 1, "the second request's head never ends"
        assert seconds > 0.3

    asyncio.run(served(Server(request_seconds=0.4), work))


def test_an_answered_connection_is_kept_for_the_next_request() -> None:
    """A client that pauses longer than a head may take still finds its connection open."""

    async def work(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert b"200 OK" in head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            await asyncio.sleep(0.3)
        writer.write(b"GET /hea")
        assert await asyncio.wait_for(reader.read(), 60) == b"", "a head that does not end is not kept"
        writer.close()

    asyncio.run(served(Server(request_seconds=0.1), work))


def test_a_long_answer_is_not_cut() -> None:
    """The time for a request to arrive is no limit of its answer's."""

    async def work(url: str) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(f"{url}/v1/chat/completions", json={"messages": HI})
            assert answer.status_code == 200

    asyncio.run(served(Server(request_seconds=0.2), work, Model(lambda _: [0.8, *words("late")])))


def test_heads_are_bounded() -> None:
    """Headers without end are refused at a bound."""

    async def work(url: str) -> None:
        for pieces in (
            (HEAD, b"x: " + b"y" * (2 * MAX_HEAD_BYTES)),
            (HEAD + b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",),
        ):
            told, _ = await sent(url, *pieces)
            assert told == b"reset" or b"400 Bad Request" in told

    asyncio.run(served(Server(), work))


def test_length_beside_chunks_is_refused() -> None:
    """A request with both, which two servers may read as two requests, is refused and its connection closed."""

    async def work(url: str) -> None:
        both = HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        told, _ = await sent(url, both)
        assert b"400 Bad Request" in told
        assert told.count(b"HTTP/1.1") == 1

    asyncio.run(served(Server(), work))


@pytest.mark.parametrize("more", [b"", b"expect: 100-continue\r\n"])
def test_body_too_long_is_refused_by_its_length(more: bytes) -> None:
    """A length above the bound is 413 at once: nobody sends, or waits for, what is not taken."""

    async def work(url: str) -> None:
        told, _ = await sent(url, HEAD + more + b"content-length: 99999999999999\r\n\r\n")
        assert b"413 " in told.splitlines()[0]
        assert b"100 Continue" not in told

    asyncio.run(served(Server(request_seconds=3600), work))


def test_idle_connections_keep_nobody_out() -> None:
    """Above `max_connections` the one that is idle longest goes; those being answered stay, and when all are: 503."""

    async def work(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        assert await asyncio.wait_for(idle[0][0].read(), 60) == b"", "the first went for the others"
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            asked = [asyncio.create_task(http.post("/v1/chat/completions", json={"messages": HI})) for _ in range(4)]
            while model.num_running < 4:  # noqa: ASYNC110 - the backend under test has no event to wait for
                await asyncio.sleep(0.005)
            told, _ = await sent(url, HEAD)
            assert b"503" in told.splitlines()[0]
            assert b"overloaded" in told
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 4
            assert (await http.get("/ready")).status_code == 200
        for _, writer in idle:
            writer.close()

    model = Model(lambda _: [1.0, *words("late")])
    asyncio.run(served(Server(max_connections=4), work, model))


def test_client_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer whose client does not read ends after a time, and with it what makes it."""
    monkeypatch.setattr("pyagent.infrastructure.server.header_timeout._UNREAD_SECONDS", 0.2)

    async def work(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}'
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: model.num_aborted > 0)
        writer.close()

    model = Model(lambda _: (ChatDelta(content="x" * 100_000) for _ in range(10_000)))  # type: ignore[arg-type,return-value]
    asyncio.run(served(Server(), work, model))


@pytest.mark.parametrize("path", ["/pyagent/response_cache/clear", "/pyagent/engine/wake", "/api/chat", "/v1/messages"])
@pytest.mark.parametrize("said", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_simple_request_of_a_page_is_refused(path: str, said: dict[str, str]) -> None:
    """What a browser sends for a page without asking first does nothing, whatever the path."""
    refused = post(b"{}", path=path, headers={"content-type": "text/plain"} | said)
    assert refused.status_code == 415


def test_pages_of_allowed_origins_may_ask() -> None:
    """`allowed_origins` opens the server for pages, without a key for the browser's own question; `*` needs keys."""

    async def work(url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as http:
            for origin, is_let_in in (("http://localhost:3000", True), ("http://evil.example", False)):
                headers = {"origin": origin, "access-control-request-method": "POST"}
                asked = await http.options("/v1/chat/completions", headers=headers)
                answer = await http.post("/v1/chat/completions", json={"messages": HI}, headers={"origin": origin})
                assert (asked.headers.get("access-control-allow-origin") == origin) is is_let_in
                assert (answer.headers.get("access-control-allow-origin") == origin) is is_let_in

    asyncio.run(served(Server(allowed_origins=["http://localhost:3000"]), work))
    with pytest.raises(ConfigError, match="every page of the web"):
        create_app(Model(), settings=Server(allowed_origins=["*"]))
    assert create_app(Model(), settings=Server(allowed_origins=["*"]), api_keys=keys(KEY))


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
        "http://[64:ff9b::7f00:1]/a.png",
        "http://[64:ff9b:1::7f00:1]/a.png",
        "http://[::7f00:1]/a.png",
        "http://192.0.0.192/a.png",
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
                post(body, failing, path=path, headers=headers, api_keys=keys(KEY))
                post(b"{", Model(lambda _: words()), path=path, headers=headers, api_keys=keys(KEY))
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
    answer = post({"messages": HI, "response_format": schema}, backend)  # years would not end in the client's time
    assert (answer.status_code, fault(answer)["code"]) == (400, "json_validate_failed")
    assert "does not match" in fault(answer)["message"]
