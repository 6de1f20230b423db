"""The HTTP server on a loopback socket, asked by the official `openai` client and by clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.chain import Chain
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
    Attempt,
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FunctionCall,
    Health,
    ModelInfo,
    Origin,
    PromptTokensDetails,
    TokenLogprob,
    ToolCall,
    Usage,
)
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.guards import is_loopback, read_keys
from pyagent.infrastructure.server.replies import http_error
from pyagent.infrastructure.server.serving import address, bind
from pyagent.infrastructure.server.wire import IGNORED, REFUSED, read_chat, read_completion

Script = Callable[[ChatRequest], Sequence[ChatDelta | float | Exception]]
KEY = "sk-0123456789abcdef"


def words(*texts: str, **last: Any) -> list[ChatDelta]:
    usage = Usage(3, len(texts), 3 + len(texts), PromptTokensDetails(2))
    return [*(ChatDelta(content=text) for text in texts), ChatDelta(finish_reason="stop", usage=usage, **last)]


class Model:
    """A backend that plays a script for each request and counts the answers under way."""

    def __init__(self, script: Script | None = None, models: Sequence[str] = ("m",)) -> None:
        self.name = "test:m"
        self.script = script or (lambda _request: words("Hel", "lo"))
        self.model_ids = models
        self.requests: list[ChatRequest] = []
        self.num_running = 0
        self.num_aborted = 0
        self.is_ready = True

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=model, backend=self.name, context_length=2048) for model in self.model_ids]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        self.num_running += 1
        is_whole = False
        try:
            for step in self.script(request):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
            is_whole = True
        finally:
            self.num_running -= 1
            self.num_aborted += not is_whole

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        raise RequestError("no")

    async def health(self) -> Health:
        return Health(is_ready=self.is_ready, detail="as told", models=list(self.model_ids))

    async def close(self) -> None:
        return None


class _Server(uvicorn.Server):
    def capture_signals(self):  # type: ignore[no-untyped-def]
        from contextlib import nullcontext

        return nullcontext()


@asynccontextmanager
async def serving(backend: Any, **options: Any) -> AsyncIterator[str]:
    listening = bind("127.0.0.1", 0)
    server = _Server(uvicorn.Config(create_app(backend, **options), lifespan="off", log_config=None))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield address(listening)
    finally:
        server.should_exit = True
        await task
        listening.close()


def run(work: Callable[[str, openai.AsyncOpenAI], Any], backend: Any = None, **options: Any) -> Any:
    """Run `work(url, client)` against a server over `backend`."""

    async def main() -> Any:
        async with (
            serving(backend or Model(), **options) as url,
            httpx.AsyncClient(verify=False, timeout=30, limits=httpx.Limits(max_connections=None)) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http) as client,
        ):
            return await work(url, client)

    return asyncio.run(main())


HI: Any = [{"role": "user", "content": "hi"}]


def post(body: Any, backend: Any = None, *, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
    """One plain request; `body` is bytes as they are, or something to send as JSON."""

    async def work(url: str, _client: openai.AsyncOpenAI) -> httpx.Response:
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with httpx.AsyncClient(verify=False) as http:
            return await http.post(url + path, content=content, headers=headers)

    serve_options = {name: options.pop(name) for name in ("api_keys", "max_body_bytes", "agents") if name in options}
    return run(work, backend, **serve_options)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for it, two seconds at most."""
    async with asyncio.timeout(2):
        while not is_so():  # noqa: ASYNC110 - the backend under test has no event to wait for
            await asyncio.sleep(0.005)


def fault(response: httpx.Response) -> dict[str, Any]:
    return response.json()["error"]


# -- what the official client sees ------------------------------------------------------------------------------------


def test_server_openai_client_whole_answer() -> None:
    """The official client reads a whole answer with usage, cached tokens and finish reason."""

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="m", messages=HI)
        assert answer.choices[0].message.content == "Hello"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 5)
        assert answer.usage.prompt_tokens_details
        assert answer.usage.prompt_tokens_details.cached_tokens == 2
        assert answer.object == "chat.completion"

    run(work)


def test_server_openai_client_streams() -> None:
    """The official client streams: role first, pieces as they come, usage in a last chunk of its own when asked for."""

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        plain = [chunk async for chunk in await client.chat.completions.create(model="m", messages=HI, stream=True)]
        assert [chunk.choices[0].delta.content for chunk in plain] == ["Hel", "lo", None]
        assert plain[0].choices[0].delta.role == "assistant"
        assert plain[-1].choices[0].finish_reason == "stop"
        assert len({chunk.id for chunk in plain}) == 1
        assert all(chunk.usage is None for chunk in plain)
        counted = await client.chat.completions.create(
            model="m", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        last = [chunk async for chunk in counted][-1]
        assert last.choices == []
        assert last.usage
        assert last.usage.completion_tokens == 2

    run(work)


def test_server_openai_client_completions_and_models() -> None:
    """The older endpoint and the list of models work with the official client."""

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="m", prompt="6*7=", max_tokens=5)
        assert answer.choices[0].text == "Hello"
        pieces = await client.completions.create(model="m", prompt="6*7=", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in pieces]) == "Hello"
        assert [model.id async for model in client.models.list()] == ["m"]
        assert (await client.models.retrieve("m")).id == "m"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("n")

    backend = Model()
    run(work, backend)
    assert backend.requests[0].prompt == "6*7="
    assert [request.sampling.max_tokens for request in backend.requests] == [5, 16]


def test_server_openai_client_tools_reasoning_and_logprobs() -> None:
    """Tool calls, reasoning and log probabilities come out where clients look for them, whole and streamed."""
    call = ToolCall(id="c1", function=FunctionCall("add", '{"x":1}'))
    entry = TokenLogprob("é", -0.5, [("e", -1.5)])

    def script(_request: ChatRequest) -> list[ChatDelta]:
        return [
            ChatDelta(reasoning="hm"),
            ChatDelta(content="é", logprobs=[entry]),
            ChatDelta(tool_calls=[call], finish_reason="tool_calls"),
        ]

    async def work(_url: str, client: openai.AsyncOpenAI) -> None:
        tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
        asked: Any = {"model": "m", "messages": HI, "tools": tools, "tool_choice": "auto", "logprobs": True}
        choice = (await client.chat.completions.create(**asked, top_logprobs=1)).choices[0]
        assert choice.message.tool_calls
        assert choice.message.tool_calls[0].function.arguments == '{"x":1}'
        assert choice.message.reasoning_content == "hm"
        assert choice.logprobs
        assert choice.logprobs.content
        assert choice.logprobs.content[0].bytes == [0xC3, 0xA9]
        assert choice.logprobs.content[0].top_logprobs[0].token == "e"
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
        deltas = [chunk.choices[0].delta for chunk in chunks]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert [(call.index, call.id, call.function and call.function.name) for call in calls] == [(0, "c1", "add")]
        assert chunks[1].choices[0].logprobs
        older = await client.completions.create(model="m", prompt="x", logprobs=1)
        assert older.choices[0].logprobs
        assert older.choices[0].logprobs.tokens == ["é"]

    run(work, Model(script))


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
    }
    assert post(body, backend).status_code == 200
    asked = backend.requests[0]
    sampling = asked.sampling
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


def test_server_tells_clients_apart_by_key_then_by_name() -> None:
    """With keys, a client is its key's place in the file and what it calls itself; keys are not passed on."""
    backend = Model()
    for headers, user in ((1, None), (2, "ann")):
        key = {"authorization": f"Bearer {KEY}{headers}"}
        body = {"messages": HI, "user": user}
        assert post(body, backend, api_keys=[f"{KEY}1".encode(), f"{KEY}2".encode()], headers=key).status_code == 200
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


def test_server_says_who_answered_and_why_others_did_not() -> None:
    """An answer through a chain names its backend, and the links that were passed by."""
    down = Model(lambda _request: [BackendError("connection refused", backend="x")])
    down.name = "down:1"
    chain = Chain([down, Model()], retry_policy=RetryPolicy(num_retries=0))
    whole = post({"messages": HI}, chain).json()
    assert whole["backend"] == "test:m"
    assert whole["attempts"] == [{"backend": "down:1", "reason": "connection refused"}]
    streamed = post({"messages": HI, "stream": True}, chain).text.split("\n\n")
    assert json.loads(streamed[0].removeprefix("data: "))["attempts"][0]["backend"] == "down:1"
    assert "attempts" not in streamed[1]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "Expected `float | null`, got `str`"),
        ({"max_tokens": 0}, "max_tokens", "between 1"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "disagree"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages", "empty"),
        ({"messages": "hi"}, "messages", "Expected `array`"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type", "smell"),
        ({"priority": 2**40}, "priority", "lower goes first"),
        ({"user": {"a": 1}}, "user", "Expected `str | null`"),
        ({"n": 0}, "n", "at least 1"),
        ({"n": "two"}, "n", "Expected `int | null`"),
        ({"beam_width": 2}, "beam_width", "needs use_beam_search: true"),
        ({"audio": {"voice": "x"}}, "audio", "no audio"),
        ({"modalities": ["audio"]}, "modalities", "text is all"),
        ({"functions": [{"name": "f"}]}, "functions", "use `tools`"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
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
        ({"seed": 2**70}, "seed", "seed|range|int"),
    ],
)
def test_server_bad_field_is_named(change: dict[str, Any], param: str, says: str) -> None:
    """Each bad value is refused with the name of its field and what would be right."""
    with pytest.raises(RequestError, match=says) as caught:
        read_chat(json.dumps({"model": "m", "messages": HI} | change).encode())
    assert caught.value.param == param


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
    """A prompt is one text: empty, several, or token ids are refused by name."""
    for prompt in ("", [], ["a", "b"], [1, 2], [[1, 2]]):
        with pytest.raises(RequestError) as caught:
            read_completion(json.dumps({"prompt": prompt}).encode())
        assert caught.value.param == "prompt"
    assert read_completion(b'{"prompt": ["one"]}').request.prompt == "one"
    with pytest.raises(RequestError, match="echo=true is not supported"):
        read_completion(b'{"prompt": "x", "echo": true}')


def test_server_harmless_fields_are_ignored() -> None:
    """Fields that change no answer pass, and refused ones pass when they hold the value that means nothing."""
    body: dict[str, Any] = {"model": "m", "messages": HI} | dict.fromkeys(IGNORED, "x")
    body |= {
        name: values[0] for name, (values, _) in REFUSED.items() if values and name not in {"best_of", "echo", "suffix"}
    }
    assert read_chat(json.dumps(body).encode()).request.messages[0].text == "hi"
    nulls = dict.fromkeys(("temperature", "stop", "n", "tools", "tool_choice", "response_format", "logit_bias", "seed"))
    assert read_chat(json.dumps({"messages": HI} | nulls).encode()).request.sampling.temperature == 1.0


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
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


def test_server_empty_answers_are_errors() -> None:
    """A backend that says nothing at all is an error, not an empty stream."""
    assert post({"messages": HI, "stream": True}, Model(lambda _request: [])).status_code == 502
    assert post({"messages": HI}, Model(lambda _request: [])).status_code == 502


# -- clients that leave, and many of them -----------------------------------------------------------------------------


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


# -- who may ask ------------------------------------------------------------------------------------------------------


def test_server_keys_are_needed_when_set(caplog: pytest.LogCaptureFixture) -> None:
    """With keys every /v1 path wants one of them; health stays open; no key is logged."""
    keys = [b"another-key-of-16", KEY.encode()]
    caplog.set_level("DEBUG")
    refused = post({"messages": HI}, api_keys=keys)
    assert (refused.status_code, fault(refused)["code"]) == (401, "invalid_api_key")
    assert post({"messages": HI}, api_keys=keys, headers={"authorization": f"Bearer {KEY}x"}).status_code == 401
    assert post({"messages": HI}, api_keys=keys, headers={"authorization": f"Basic {KEY}"}).status_code == 401

    async def work(url: str, client: openai.AsyncOpenAI) -> None:
        assert (await client.chat.completions.create(model="m", messages=HI)).choices
        async with httpx.AsyncClient(verify=False) as http:
            assert (await http.get(f"{url}/health", headers={"host": "gpu-box"})).status_code == 200

    run(work, api_keys=keys)
    assert KEY not in caplog.text


def test_server_without_keys_answers_for_this_machine_only() -> None:
    """A request whose Host is another name is refused: a page in a browser may have sent it."""
    evil = post({"messages": HI}, headers={"host": "evil.example:8321"})
    assert (evil.status_code, fault(evil)["code"]) == (403, "wrong_host")
    for host in ("localhost:8321", "127.0.0.1", "[::1]:8321", "LOCALHOST"):
        assert post({"messages": HI}, headers={"host": host}).status_code == 200
    assert [is_loopback(host) for host in ("127.9.9.9", "::1", "0.0.0.0", "example.com")] == [True, True, False, False]


def test_server_beyond_loopback_needs_keys(tmp_path: Path) -> None:
    """Listening for others without keys is refused; an empty, short or missing key file too."""
    file = tmp_path / "keys"
    assert read_keys(None, "127.0.0.1") == []
    with pytest.raises(ConfigError, match=r"needs API keys; set server\.api_keys_file"):
        read_keys(None, "0.0.0.0")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_keys(file, "0.0.0.0")
    file.write_text("# none yet\n\n")
    with pytest.raises(ConfigError, match="holds no API key"):
        read_keys(file, "127.0.0.1")
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="shorter than 16"):
        read_keys(file, "127.0.0.1")
    file.write_text(f"# laptop\n{KEY}\r\n")
    assert read_keys(file, "0.0.0.0") == [KEY.encode()]


def test_server_port_in_use_is_one_sentence() -> None:
    """A taken port, or an address of another machine, says what to do."""
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use; .*--port"):
        bind("127.0.0.1", port)
    taken.close()
    with pytest.raises(ConfigError, match="not an address of this machine"):
        bind("no.such.host.invalid", 0)


def test_server_request_ids() -> None:
    """A sensible id of the client's is kept, any other is replaced; errors have one too."""
    assert post({"messages": HI}, headers={"x-request-id": "trace-1"}).headers["x-request-id"] == "trace-1"
    assert len(post({"messages": HI}, headers={"x-request-id": "a b\tc"}).headers["x-request-id"]) == 32
    assert post(b"{").headers["x-request-id"]


# -- looking at it ----------------------------------------------------------------------------------------------------


def test_server_health_tells_the_truth() -> None:
    """Health and readiness follow the backend, by status and in words; the front page says what this is."""
    backend = Model()

    async def work(url: str, _client: openai.AsyncOpenAI) -> None:
        async with httpx.AsyncClient(base_url=url, verify=False) as http:
            well = await http.get("/health")
            assert (well.status_code, well.json()["status"], well.json()["models"]) == (200, "ok", ["m"])
            backend.is_ready = False
            ill = await http.get("/health")
            assert (ill.status_code, ill.json()["status"], ill.json()["detail"]) == (503, "unavailable", "as told")
            assert (await http.get("/ready")).status_code == 503
            home = await http.get("/")
            assert "PyAgent 1.2.3" in home.text
            assert "access-control-allow-origin" not in home.headers

    run(work, backend, version="1.2.3")


def test_server_agents_are_models() -> None:
    """Models called agent:NAME go to the agents; all are listed."""
    agents = Model(lambda _request: words("42"), models=["agent:math"])
    answer = post({"model": "agent:math", "messages": HI}, agents=agents).json()
    assert answer["choices"][0]["message"]["content"] == "42"
    assert agents.requests[0].model == "agent:math"

    async def work(_url: str, client: openai.AsyncOpenAI) -> list[str]:
        return [model.id async for model in client.models.list()]

    assert run(work, agents=agents) == ["m", "agent:math"]


def test_server_attempts_keep_their_shape() -> None:
    """Attempts are plain objects on the wire."""
    said = words("x")
    said[0] = ChatDelta(content="x", attempts=[Attempt("b", "r")], backend="c")
    assert post({"messages": HI}, Model(lambda _request: said)).json()["attempts"] == [{"backend": "b", "reason": "r"}]
