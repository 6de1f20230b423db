"""The OpenAI-compatible client against a loopback server that sends exactly the bytes a test gives it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.assembly import make_host, make_link
from pyagent.core.backends import Answer, Backend, Link, collect
from pyagent.core.chain import LinkSettings
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    PyAgentError,
    RequestError,
)
from pyagent.core.messages import (
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FunctionDefinition,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
    Tool,
)
from pyagent.core.settings import Backends, Settings
from pyagent.infrastructure.backends.openai import (
    GITHUB,
    OpenAIBackend,
    make_backend,
    make_github,
    pyagent_register_backends,
)
from pyagent.infrastructure.backends.openai_wire import retry_after_seconds
from pyagent.infrastructure.backends.sse import MAX_EVENT_BYTES, EventTooLargeError, SseDecoder

Piece = bytes | float


class WireServer:
    """Plays one script for every request: bytes go out as they are, numbers are seconds of silence; hangs up."""

    def __init__(self, *script: Piece) -> None:
        self.script = script
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.num_left_early = 0
        self.left = asyncio.Event()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (h.partition(":") for h in rest if h)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((line, headers, json.loads(body) if body else None))
            for piece in self.script:
                if isinstance(piece, bytes):
                    writer.write(piece)
                    await writer.drain()
                elif await self._is_gone(reader, piece):
                    self.num_left_early += 1
                    self.left.set()
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _is_gone(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(reader.read(1), seconds) == b""
        except TimeoutError:
            return False


@asynccontextmanager
async def serving(*script: Piece) -> AsyncIterator[WireServer]:
    wire = WireServer(*script)
    server = await asyncio.start_server(wire.handle, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield wire
    finally:
        server.close()
        await server.wait_closed()


def head(status: str = "200 OK", kind: str = "text/event-stream", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", "connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def token(text: str, finish: str | None = None) -> bytes:
    return event(model="served", choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
)
DONE = b"data: [DONE]\n\n"
WHOLE: tuple[Piece, ...] = (head(), token("Hel"), token("lo"), token("", "stop"), USAGE, DONE)


def ask(script: tuple[Piece, ...], request: ChatRequest | None = None, **options: Any) -> tuple[Answer, WireServer]:
    async def main() -> tuple[Answer, WireServer]:
        async with serving(*script) as wire:
            backend = OpenAIBackend(wire.url, **({"model": "m"} | options))
            try:
                return await collect(backend.chat(request or chat())), wire
            finally:
                await backend.close()

    return asyncio.run(main())


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(messages=[Message("user", "hi")], **fields)


def test_openai_backend_streams_an_answer() -> None:
    """Content, finish, usage with cached tokens, model and backend all arrive."""
    answer, wire = ask(WHOLE)
    assert answer.text == "Hello"
    assert (answer.last.finish_reason, answer.last.model) == ("stop", "served")
    assert (answer.usage.total_tokens, answer.usage.prompt_tokens_details.cached_tokens) == (7, 4)
    assert all(delta.backend == f"openai:{wire.url}#m" for delta in answer.deltas)
    assert wire.requests[0][0] == "POST /v1/chat/completions HTTP/1.1"


def test_openai_backend_sends_what_was_asked_and_no_more() -> None:
    """Sampling, tools and formats go out under OpenAI's names; what was left at its default does not."""
    plain, wire = ask(WHOLE)
    assert wire.requests[0][2] == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 1.0,
    }
    assert plain.text
    request = chat(
        sampling=SamplingParams(
            max_tokens=9, temperature=0, top_k=4, seed=1, stop=("x",), logit_bias={5: -1.0}, top_logprobs=2
        ),
        tools=[Tool(FunctionDefinition("f", "does f", {"type": "object"}))],
        tool_choice="required",
        response_format=ResponseFormat("json_schema", JsonSchemaFormat(schema={"type": "object"})),
    )
    body = ask(WHOLE, request)[1].requests[0][2]
    for name in ("messages", "model", "stream", "stream_options"):
        del body[name]
    function = {"name": "f", "description": "does f", "parameters": {"type": "object"}}
    assert body == {
        "temperature": 0,
        "max_tokens": 9,
        "top_k": 4,
        "seed": 1,
        "stop": ["x"],
        "logit_bias": {"5": -1.0},
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }


def test_openai_backend_plain_prompt_uses_completions() -> None:
    """A request with a prompt and no messages goes to /completions, whose chunks hold `text`."""
    script = (head(), event(choices=[{"index": 0, "text": "42", "finish_reason": "length"}]), DONE)
    answer, wire = ask(script, ChatRequest(prompt="6*7="))
    assert (answer.text, answer.last.finish_reason) == ("42", "length")
    assert wire.requests[0][0].startswith("POST /v1/completions ")
    assert wire.requests[0][2]["prompt"] == "6*7="


def test_openai_backend_gathers_tool_calls() -> None:
    """Tool calls that come in pieces by index come out whole, in order, with the last delta."""

    def part(index: int, **call: Any) -> bytes:
        return event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": index, **call}]}}])

    script = (
        head(),
        part(0, id="a", function={"name": "add", "arguments": '{"x"'}),
        part(1, id="b", function={"name": "mul", "arguments": "{}"}),
        part(0, function={"arguments": ": 1}"}),
        token("", "tool_calls"),
        DONE,
    )
    calls = ask(script)[0].last.tool_calls
    assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
        ("a", "add", '{"x": 1}'),
        ("b", "mul", "{}"),
    ]


def test_openai_backend_reads_reasoning_and_logprobs() -> None:
    """Reasoning under either name, and log probabilities with their rivals, are kept."""
    rival = {"token": "b", "logprob": -2.0}
    logprobs = {"content": [{"token": "a", "logprob": -0.1, "top_logprobs": [rival]}]}
    script = (
        head(),
        event(choices=[{"delta": {"reasoning_content": "hm"}}]),
        event(choices=[{"delta": {"reasoning": "m"}}]),
        event(choices=[{"delta": {"content": "a"}, "logprobs": logprobs}]),
        token("", "stop"),
    )
    deltas = ask(script)[0].deltas
    assert "".join(delta.reasoning for delta in deltas) == "hmm"
    assert next(entry for delta in deltas for entry in delta.logprobs).top_logprobs == [("b", -2.0)]


@pytest.mark.parametrize("said", ['{"choice": "yes"}', '"yes"', "yes", " yes\n", "'yes'."])
def test_openai_backend_choice_is_checked_and_unquoted(said: str) -> None:
    """A choice goes out as a schema and comes back as one of the texts, however the server quotes it."""
    request = chat(response_format=ResponseFormat("choice", choice=["yes", "no"]))
    answer, wire = ask((head(), token(said), token("", "stop"), DONE), request)
    assert answer.text == "yes"
    schema = wire.requests[0][2]["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"choice": {"type": "string", "enum": ["yes", "no"]}}
    with pytest.raises(BackendError, match="none of the choices"):
        ask((head(), token("maybe"), token("", "stop"), DONE), request)


def test_openai_backend_key_is_sent_and_shown_nowhere() -> None:
    """The key goes into the header alone: not into the name, nor into any error."""
    _, wire = ask(WHOLE, api_key="sk-secret")
    assert wire.requests[0][1]["authorization"] == "Bearer sk-secret"
    assert "authorization" not in ask(WHOLE)[1].requests[0][1]
    with pytest.raises(BackendError) as caught:
        ask((head("401 Unauthorized", "application/json"), b'{"error": {"message": "bad key"}}'), api_key="sk-secret")
    assert "sk-secret" not in repr(caught.value) + str(caught.value)
    assert "backends.api_keys" in str(caught.value)
    assert not caught.value.retryable


def test_openai_backend_without_a_model_asks_the_server() -> None:
    """With no model named, the first that the server lists is used; a server without one says what to do."""

    async def main(*models: str) -> str:
        listing = json.dumps({"data": [{"id": model, "max_model_len": 4096} for model in models]}).encode()
        async with serving(head(kind="application/json"), listing) as wire:
            backend = OpenAIBackend(wire.url)
            found = await backend.models()
            assert [(model.id, model.context_length) for model in found] == [(model, 4096) for model in models]
            health = await backend.health()
            assert health.is_ready
            try:
                return await backend._pick_model(chat())
            finally:
                await backend.close()

    assert asyncio.run(main("first", "second")) == "first"
    with pytest.raises(BackendError, match="lists no model"):
        asyncio.run(main())


def test_openai_backend_fixed_model_refuses_another() -> None:
    """A link that names its model does not answer for another one, so a chain passes it by."""
    with pytest.raises(RequestError, match="serves 'm', not 'other'") as caught:
        ask(WHOLE, chat(model="other"))
    assert caught.value.code == "model_not_found"
    assert ask(WHOLE, chat(model="m"))[0].text == "Hello"


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
    ],
)
def test_openai_backend_survives_what_servers_do_wrong(script: tuple[Piece, ...], says: str) -> None:
    """Malformed events, drops, wrong types and silence each end in one error that names the backend."""
    with pytest.raises(BackendError, match=says) as caught:
        ask(script, read_seconds=0.2)
    assert caught.value.backend.startswith("openai:http://127.0.0.1")


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
            await asyncio.wait_for(wire.left.wait(), 2)
            await backend.close()

    asyncio.run(main())


def test_openai_backend_reads_compressed_and_chopped_streams() -> None:
    """Compressed answers, comments, CR LF line ends and events cut inside a character are read all the same."""
    text = b": hello\r\n\r\n" + token("héllo 😀").replace(b"\n", b"\r\n") + token("", "stop") + DONE
    whole = head("200 OK", "text/event-stream", "content-encoding: gzip") + gzip.compress(text)
    assert ask((whole,))[0].text == "héllo 😀"
    raw = event(choices=[{"delta": {"content": "😀"}}]).decode("unicode_escape").encode("utf-16", "surrogatepass")
    utf8 = raw.decode("utf-16").encode()
    cut = utf8.index("😀".encode()) + 2
    assert ask((head(), utf8[:cut], 0.02, utf8[cut:], token("", "stop")))[0].text == "😀"


def test_openai_backend_works_in_one_event_loop_after_another() -> None:
    """One backend object serves consecutive event loops, as programs that call asyncio.run twice need."""

    async def once(backend_of: Callable[[str], OpenAIBackend]) -> OpenAIBackend:
        async with serving(*WHOLE) as wire:
            backend = backend_of(wire.url)
            backend._url = wire.url
            assert (await collect(backend.chat(chat()))).text == "Hello"
            return backend

    first = asyncio.run(once(lambda url: OpenAIBackend(url, model="m")))
    second: Awaitable[OpenAIBackend] = once(lambda _url: first)
    asyncio.run(second)  # type: ignore[arg-type]
    asyncio.run(first.close())


def test_openai_backend_is_made_from_a_chain_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """`openai:URL#model` with the key that the settings name for that host."""
    monkeypatch.setenv("BOX_KEY", "k")
    settings = Settings(backends=Backends(api_keys={"gpu-box:8000": "env:BOX_KEY"}))
    backend = make_backend(Link.parse("openai:http://gpu-box:8000/v1/#qwen"), settings)
    assert isinstance(backend, Backend)
    assert backend.name == "openai:http://gpu-box:8000/v1#qwen"
    assert backend._api_key == "k"  # type: ignore[attr-defined]
    assert pyagent_register_backends() == {"openai": make_backend, "github": make_github}
    assert make_backend(Link.parse("openai:http://other/v1"), settings)._api_key is None  # type: ignore[attr-defined]


def test_openai_backend_sends_a_links_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of a link's table go with every request, their secrets read where they are; the key stays beside them."""
    monkeypatch.setenv("GATE", "let-me-in")

    async def main() -> list[dict[str, str]]:
        async with serving(*answered({"data": [{"id": "m"}]})) as wire:
            entry = LinkSettings(use=f"openai:{wire.url}", key="env:GATE", headers={"x-a": "b", "x-gate": "env:GATE"})
            backend = make_link(entry, Settings(), make_host(Settings()))
            await backend.models()
            with suppress(BackendError):
                await collect(backend.chat(ChatRequest(messages=[Message("user", "hi")])))
            await backend.close()
            return [headers for _, headers, _ in wire.requests]

    sent = asyncio.run(main())
    assert len(sent) > 1
    for one in sent:
        assert (one["x-a"], one["x-gate"], one["authorization"]) == ("b", "let-me-in", "Bearer let-me-in")


def test_header_without_its_value_is_told_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable that is not set, or a file of two lines, is an error that shows no value."""
    (tmp_path / "secret").write_text("very\nsecret")
    for place in ("env:NOT_SET", f"file:{tmp_path / 'secret'}"):
        link = Link("openai", "http://h/v1", {"x-gate": place})
        with pytest.raises(ConfigError, match=r"the header x-gate of openai:http://h/v1 is to be") as caught:
            make_backend(link, Settings())
        assert "very" not in str(caught.value)


def test_headers_of_a_link_that_sends_none_are_refused() -> None:
    """Ollama's link would pass over headers, so it says that it takes none."""
    entry = LinkSettings(use="ollama:http://127.0.0.1:9#m", headers={"x-a": "b"})
    with pytest.raises(ConfigError, match="sends no headers of yours"):
        make_link(entry, Settings(), make_host(Settings()))


@pytest.mark.parametrize(
    "target", ["", "gpu-box:8000", "ftp://x/v1", "http://", "http://u:p@host/v1", "http://[", "http://h:x/"]
)
def test_openai_backend_refuses_a_bad_url(target: str) -> None:
    """What is not an http(s) URL, or holds a password, is refused with an example."""
    with pytest.raises(ConfigError, match="openai:"):
        make_backend(Link("openai", target), Settings())


def answered(body: object, status: str = "200 OK") -> tuple[Piece, ...]:
    return (head(status, "application/json"), json.dumps(body).encode())


def embed(script: tuple[Piece, ...], texts: list[str]) -> EmbedResult:
    async def main() -> EmbedResult:
        async with serving(*script) as wire:
            backend = OpenAIBackend(wire.url, model="m")
            try:
                return await backend.embed(EmbedRequest(model="", input=texts))
            finally:
                await backend.close()

    return asyncio.run(main())


def test_openai_backend_embeds_in_order() -> None:
    """Vectors come in the order of the texts, whatever order the server gives them in; one missing is an error."""
    rows = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    result = embed(answered({"data": rows, "usage": {"prompt_tokens": 4, "total_tokens": 4}}), ["a", "b"])
    assert (result.vectors, result.usage.prompt_tokens) == ([[1.0], [2.0]], 4)
    assert embed((), []).vectors == []
    with pytest.raises(BackendError, match="1 vectors for 2 texts"):
        embed(answered({"data": rows[1:]}), ["a", "b"])
    with pytest.raises(BackendError, match="gave no vectors"):
        embed(answered({"data": 7}), ["a"])
    with pytest.raises(RequestError, match="does not embed with 'm'"):
        embed(answered({"error": "no"}, "501 Not Implemented"), ["a"])


def test_openai_backend_asks_for_several_answers() -> None:
    """`n` answers come by index, each with its end; fewer than asked for is an error, not a silence."""

    def piece(index: int, text: str, finish: str | None = None) -> bytes:
        return event(choices=[{"index": index, "delta": {"content": text}, "finish_reason": finish}])

    script = (head(), piece(0, "a"), piece(1, "b"), piece(1, "", "stop"), piece(0, "", "length"), USAGE, DONE)
    answer, wire = ask(script, chat(n=2))
    assert wire.requests[0][2]["n"] == 2
    ends = [(delta.index, delta.finish_reason, bool(delta.usage)) for delta in answer.deltas if delta.finish_reason]
    assert ends == [(0, "length", False), (1, "stop", True)]
    with pytest.raises(BackendError, match=r"gave 1 answers, 2 were asked for \(n\)"):
        ask(WHOLE, chat(n=2))
    with pytest.raises(BackendError, match="cannot do best_of"):
        ask(WHOLE, chat(best_of=2))
    with pytest.raises(BackendError, match="gave 1 answers") as caught:  # as litellm's proxy does
        ask((head(), piece(0, "a"), piece(1, "", "stop"), DONE), chat(n=2))
    assert not caught.value.retryable
    with pytest.raises(BackendError, match="mid-answer"):
        ask((head(), piece(0, "a"), piece(1, "", "stop")), chat(n=2))


def test_openai_backend_tells_calls_apart_that_share_an_index() -> None:
    """Servers that give every call the index 0, no id, or the reason `stop` are understood all the same."""

    def call(**fields: Any) -> bytes:
        return event(choices=[{"delta": {"tool_calls": [{"index": 0, **fields}]}}])

    script = (
        head(),
        call(id="a", function={"name": "f", "arguments": "{}"}),
        call(id="b", function={"name": "g", "arguments": ""}),
        token("", "stop"),
    )
    last = ask(script)[0].last
    assert [(c.id, c.function.name, c.function.arguments) for c in last.tool_calls] == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]
    assert last.finish_reason == "tool_calls"
    (nameless,) = ask((head(), call(function={"name": "f"}), token("", "tool_calls")))[0].last.tool_calls
    assert nameless.id.startswith("call_")


def test_openai_backend_reads_the_logprobs_of_completions() -> None:
    """/completions gives log probabilities in lists of its own."""
    said = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {"b": -0.5, "c": -1.0}]}
    script = (head(), event(choices=[{"text": "ab", "logprobs": said, "finish_reason": "stop"}]), DONE)
    answer, wire = ask(script, ChatRequest(prompt="x", sampling=SamplingParams(top_logprobs=2)))
    assert wire.requests[0][2]["logprobs"] == 2
    assert [(entry.token, entry.logprob) for entry in answer.deltas[0].logprobs] == [("a", 0.0), ("b", -0.5)]
    assert answer.deltas[0].logprobs[1].top_logprobs == [("b", -0.5), ("c", -1.0)]


@pytest.mark.parametrize(
    ("error", "numbers"),
    [
        (
            {"type": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512, "message": "too long"},
            (900, 512),
        ),
        ({"message": "This model's maximum context length is 4096 tokens. However, you requested 5000"}, (0, 4096)),
        ({"message": "litellm.ContextWindowExceededError: x"}, (0, 0)),
    ],
)
def test_openai_backend_knows_a_prompt_that_is_too_long(error: dict[str, object], numbers: tuple[int, int]) -> None:
    """What llama.cpp, vLLM and litellm say of a prompt that is too long is one error, with their numbers."""
    with pytest.raises(ContextOverflowError) as caught:
        ask(answered({"error": error}, "400 Bad Request"))
    assert (caught.value.num_tokens, caught.value.limit) == numbers


def test_github_models_is_a_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """`github:MODEL` needs no URL; without a token it says in one sentence what to set."""
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    backend = make_github(Link.parse("github:openai/gpt-4.1"), Settings())
    assert backend.name == "github:openai/gpt-4.1"
    health = asyncio.run(backend.health())
    assert health.detail.endswith("needs a token; set GITHUB_TOKEN in the environment")
    with pytest.raises(BackendError, match="GITHUB_TOKEN"):
        asyncio.run(collect(backend.chat(chat())))
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_x")
    assert make_github(Link.parse("github"), Settings())._api_key == "ghp_x"  # type: ignore[attr-defined]

    async def listed() -> list[tuple[str, int | None]]:
        body = [{"id": "openai/gpt-4.1", "limits": {"max_input_tokens": 8000}}]
        async with serving(*answered(body)) as wire:
            preset = replace(GITHUB, url=wire.url, models_url=f"{wire.url}/catalog")
            box = OpenAIBackend(wire.url, api_key="k", preset=preset)
            models = await box.models()
            await box.close()
            assert wire.requests[0][0].startswith("GET /v1/catalog ")
            return [(model.id, model.context_length) for model in models]

    assert asyncio.run(listed()) == [("openai/gpt-4.1", 8000)]


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


def test_openai_backend_logs_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """With everything logged, the key is in no line."""
    with caplog.at_level("DEBUG"):
        ask(WHOLE, api_key="sk-secret")
        with pytest.raises(BackendError):
            ask((head("500 Oh"), b"sk-"), api_key="sk-secret")
    assert "sk-secret" not in caplog.text


def test_retry_after_reads_both_forms() -> None:
    """Seconds, a date, or nothing useful."""
    assert retry_after_seconds("1.5") == 1.5
    assert retry_after_seconds("-3") == 0
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert [retry_after_seconds(text) for text in (None, "", "soon", "nan" * 0)] == [None] * 4


line_end = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    st.lists(
        st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n")), min_size=1, max_size=3),
        max_size=5,
    ),
    line_end,
    st.data(),
)
def test_sse_decoder_reads_any_cut_alike(events: list[list[str]], end: bytes, data: st.DataObject) -> None:
    """However the bytes are cut, and whatever ends the lines, the same events come out."""
    text = b": comment" + end + end
    for lines in events:
        text += b"event: x" + end + b"".join(b"data: " + line.encode() + end for line in lines) + end
    text += end
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    decoder, found = SseDecoder(), list[bytes]()
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += decoder.feed(text[start:stop])
    found += decoder.feed(b": end\n")
    assert found == ["\n".join(lines).encode() for lines in events]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_sse_decoder_takes_any_bytes(chunks: list[bytes]) -> None:
    """No bytes make it fail."""
    decoder = SseDecoder()
    for chunk in chunks:
        decoder.feed(chunk)


def test_sse_decoder_bounds_an_event() -> None:
    """An event without an end is refused before it fills the memory."""
    decoder = SseDecoder()
    for _ in range(MAX_EVENT_BYTES // 2**20):
        assert decoder.feed(b"x" * 2**20) == []
    with pytest.raises(EventTooLargeError):
        decoder.feed(b"x")
