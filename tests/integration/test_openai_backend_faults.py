"""The OpenAI-compatible client against servers that refuse, fail, stall or hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from support.wire import WHOLE, Piece, answered, ask, chat, event, head, serving, token

from pyagent.core.backends import collect
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    PyAgentError,
    RequestError,
)
from pyagent.infrastructure.backends.openai import (
    OpenAIBackend,
)
from pyagent.infrastructure.backends.openai_errors import retry_after_seconds


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "fields"),
    [
        ("400 Bad", [], {"error": {"message": "no", "param": "top_p"}}, RequestError, {"param": "top_p"}),
        ("400 Bad", [], {"error": {"message": "l", "code": "context_length_exceeded"}}, ContextOverflowError, {}),
        ("404 No", [], {"error": {"message": "gone"}}, RequestError, {"code": "model_not_found"}),
        ("404 No", [], {"detail": "Not Found"}, RequestError, {"code": "model_not_found"}),
        ("401 No", [], {"error": "who?"}, BackendError, {"status": 401, "retryable": False}),
        ("429 Slow", ["retry-after: 7"], {}, CapacityError, {"retry_after_seconds": 7.0}),
        ("429 Slow", [], {}, CapacityError, {"retry_after_seconds": None}),
        ("503 Busy", ["retry-after: 2"], {}, CapacityError, {"retry_after_seconds": 2.0}),
        ("503 Busy", [], {}, BackendError, {"status": 503, "retryable": True}),
        ("500 Oh", [], {"message": "oh"}, BackendError, {"status": 500, "retryable": True}),
        ("302 Found", ["location: http://elsewhere/"], {}, BackendError, {"status": 302, "retryable": False}),
    ],
)
def test_openai_backend_maps_each_status_once(
    status: str, headers: list[str], body: object, kind: type[PyAgentError], fields: dict[str, object]
) -> None:
    """Each HTTP status becomes the error whose reader can act on it, with the server's own words."""
    with pytest.raises(kind) as caught:
        ask((head(status, "application/json", *headers), json.dumps(body).encode()))
    assert type(caught.value) is kind
    assert {name: getattr(caught.value, name) for name in fields} == fields


def _pings(seconds: float, count: int) -> list[Piece]:
    return [piece for _ in range(count) for piece in (seconds, b": keep-alive\n\n")]


def called(arguments: str, **fields: object) -> bytes:
    call = {"index": 0, "function": {"name": "f", "arguments": arguments}, **fields}
    return event(choices=[{"delta": {"tool_calls": [call]}}])


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ((head(), b"data: {nonsense\n\n"), "not a chat chunk"),
        ((head(), b'data: {"choices": 7}\n\n'), "not a chat chunk"),
        ((head(), b"data: \xff\xfe\n\n"), "not a chat chunk"),
        ((head(), b"data: " + b"[" * 100_000 + b"\n\n"), "not a chat chunk"),
        ((head(), event(error={"message": "out of memory"})), "broke off: out of memory"),
        ((head(), token("Hel")), "closed the connection in mid-answer"),
        ((head(), b"HTTP garbage"), "closed the connection in mid-answer"),
        ((head("200 OK", "text/event-stream", "content-length: 999"), token("x")), "closed the connection"),
        ((head(kind="text/html"), b"<html>"), "text/html, not a stream"),
        ((b"\x00\x01\x02 not http\r\n\r\n",), "closed the connection|illegal"),
        ((b"",), "closed the connection"),
        ((head("500 Oh", "text/html"), b"<h1>oops</h1>" + b"x" * 200_000), "oops"),
        ((head(), 0.5, token("late")), "sent nothing for too long"),
        ((head(), *_pings(0.02, 40)), "sent nothing for too long"),
        ((head(), token("Hel"), *_pings(0.02, 40)), "sent nothing for too long"),
        ((head(), token("Hel"), token("lo", "error"), b"data: [DONE]\n\n"), "broke off: finish_reason 'error'"),
        ((head(), called('{"ci'), token("", "tool_calls")), "no JSON object"),
        ((head(), called('{"city":1}', id="a"), called('{"city":1}', id="a"), token("", "stop")), "no JSON object"),
        ((head(), called("[1]"), token("", "tool_calls")), "no JSON object"),
    ],
)
def test_openai_backend_survives_what_servers_do_wrong(script: tuple[Piece, ...], says: str) -> None:
    """Malformed events, drops, wrong types and silence each end in one error that names the backend."""
    with pytest.raises(BackendError, match=says) as caught:
        ask(script, read_seconds=0.2)
    assert caught.value.backend.startswith("openai:http://127.0.0.1")


@pytest.mark.parametrize(
    ("kind", "says"),
    [("text/event-stream", "a line is longer than 16 MiB"), ("application/json", "an answer is larger than")],
)
def test_openai_backend_bounds_what_it_buffers(kind: str, says: str) -> None:
    """A line, or an answer that is not streamed, that never ends is refused before it fills the memory."""
    with pytest.raises(BackendError, match=says):
        ask((head(kind=kind), *[b"x" * 2**20] * 18))


def test_openai_backend_nobody_listening() -> None:
    """A refused connection says that it was refused and asks the right question; health says so without raising."""

    async def main() -> None:
        async with serving() as wire:
            url = wire.url
        backend = OpenAIBackend(url, model="m")
        with pytest.raises(BackendError, match=r"cannot connect .*is the server running"):
            await collect(backend.chat(chat()))
        health = await backend.health()
        assert not health.is_ready
        assert "cannot connect" in health.detail
        await backend.close()
        await backend.close()

    asyncio.run(main())


def test_openai_backend_keeps_to_the_deadline() -> None:
    """A server that trickles for ever is left when the caller's time is up."""
    script = (head(), *[piece for _ in range(100) for piece in (token("x"), 0.05)])
    with pytest.raises(DeadlineError):
        ask(script, chat(timeout_seconds=0.2))


def test_openai_backend_closing_the_iterator_closes_the_connection() -> None:
    """A caller that leaves is seen by the server at once."""

    async def main() -> None:
        async with serving(head(), token("a"), 30.0) as wire:
            backend = OpenAIBackend(wire.url, model="m")
            stream = backend.chat(chat())
            assert (await anext(stream)).content == "a"
            await stream.aclose()
            await asyncio.wait_for(wire.left.wait(), 20)
            await backend.close()

    asyncio.run(main())


def test_openai_backend_works_in_one_event_loop_after_another() -> None:
    """One backend object serves consecutive event loops, as programs that call asyncio.run twice need."""

    async def once(backend_of: Callable[[str], OpenAIBackend]) -> OpenAIBackend:
        async with serving(*WHOLE) as wire:
            backend = backend_of(wire.url)
            backend.url = wire.url
            assert (await collect(backend.chat(chat()))).text == "Hello"
            return backend

    first = asyncio.run(once(lambda url: OpenAIBackend(url, model="m")))
    second: Awaitable[OpenAIBackend] = once(lambda _url: first)
    asyncio.run(second)  # type: ignore[arg-type]
    asyncio.run(first.close())


LONG = "This model's maximum context length is 4096 tokens. However,"


@pytest.mark.parametrize(
    ("error", "numbers"),
    [
        (
            {"type": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512, "message": "too long"},
            (900, 512),
        ),
        ({"message": f"{LONG} you requested 5000"}, (0, 4096)),
        ({"message": f"{LONG} your prompt contains at least 4097 input tokens, which exceeds"}, (4097, 4096)),
        ({"message": f"{LONG} your messages resulted in 5012 tokens. Please"}, (5012, 4096)),
        ({"message": f"{LONG} you requested 5000 tokens (4200 in the messages, 800 in"}, (4200, 4096)),
        ({"message": "litellm.ContextWindowExceededError: x"}, (0, 0)),
    ],
)
def test_openai_backend_knows_a_prompt_that_is_too_long(error: dict[str, object], numbers: tuple[int, int]) -> None:
    """What llama.cpp, vLLM and litellm say of a prompt that is too long is one error, with their numbers."""
    with pytest.raises(ContextOverflowError) as caught:
        ask(answered({"error": error}, "400 Bad Request"))
    assert (caught.value.num_tokens, caught.value.limit) == numbers


def test_openai_backend_survives_a_connection_closed_while_idle() -> None:
    """A pooled connection that the server closed meanwhile is not used again."""

    async def main() -> None:
        whole = b"".join(piece for piece in WHOLE if isinstance(piece, bytes))
        kept = whole.replace(b"connection: close", b"content-length: %d" % (len(whole) - len(head()) - 0))
        async with serving(kept) as wire:
            backend = OpenAIBackend(wire.url, model="m")
            for _ in range(3):
                assert (await collect(backend.chat(chat()))).text == "Hello"
                await asyncio.sleep(0.02)
            await backend.close()

    asyncio.run(main())


def test_openai_backend_takes_calls_without_ids_for_two() -> None:
    """Two calls under one index and without ids are told apart where the first is whole and a name follows."""
    answer, _ = ask((head(), called('{"city":"Paris"}'), called('{"city":"Rome"}'), token("", "tool_calls")))
    first, second = answer.tool_calls
    assert (first.function.arguments, second.function.arguments) == ('{"city":"Paris"}', '{"city":"Rome"}')


def test_retry_after_reads_both_forms() -> None:
    """Seconds, a date, or nothing useful."""
    assert retry_after_seconds("1.5") == 1.5
    assert retry_after_seconds("-3") == 0
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after_seconds("Wed, 21 Oct 2099 07:28:00 GMT") == retry_after_seconds("1e9") == 86400, "a day at most"
    assert [retry_after_seconds(text) for text in (None, "", "soon", "nan" * 0)] == [None] * 4
