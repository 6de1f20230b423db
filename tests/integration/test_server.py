"""The server's answers, by OpenAI's own client and by hand: whole, streamed, with tools, from agents."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from support.server import HI, Model, post, run, words

from pyagent import __version__
from pyagent.core.chain import Chain
from pyagent.core.errors import (
    BackendError,
)
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    FailedAttempt,
    FunctionCall,
    TokenLogprob,
    ToolCall,
)
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.tool_call_deltas import as_deltas


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
            ChatDelta(tool_calls=as_deltas([call]), finish_reason="tool_calls"),
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


def test_server_says_who_answered_and_why_others_did_not() -> None:
    """An answer through a chain names its backend, and the links that were passed by."""
    down = Model(lambda _request: [BackendError("connection refused", backend="x")])
    down.name = "down:1"
    chain = Chain([down, Model()], retry_policy=RetryPolicy(num_retries=0))
    whole = post({"messages": HI}, chain).json()
    assert whole["backend"] == "test:m"
    assert whole["attempts"] == [{"backend": "down:1", "reason": "connection refused", "kind": "backend"}]
    streamed = post({"messages": HI, "stream": True}, chain).text.split("\n\n")
    assert json.loads(streamed[0].removeprefix("data: "))["attempts"][0]["backend"] == "down:1"
    assert "attempts" not in streamed[1]


def test_server_request_ids() -> None:
    """A sensible id of the client's is kept, any other is replaced; errors have one too."""
    assert post({"messages": HI}, headers={"x-request-id": "trace-1"}).headers["x-request-id"] == "trace-1"
    assert len(post({"messages": HI}, headers={"x-request-id": "a b\tc"}).headers["x-request-id"]) == 32
    assert post(b"{").headers["x-request-id"]


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
            home = await http.get("/", headers={"accept": "text/html"})
            assert f"PyAgent {__version__}" in home.text
            assert "access-control-allow-origin" not in home.headers

    run(work, backend)


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
    said[0] = ChatDelta(content="x", attempts=[FailedAttempt("b", "r")], backend="c")
    assert post({"messages": HI}, Model(lambda _request: said)).json()["attempts"] == [{"backend": "b", "reason": "r"}]
