"""The LM Studio backend against a server that is true to the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from pyagent_lmstudio import make_backend
from pyagent_lmstudio.backend import LMStudioBackend

from pyagent.plugin import (
    Answer,
    BackendError,
    ChatRequest,
    ConfigError,
    DeadlineError,
    EmbedRequest,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonSchemaFormat,
    Link,
    Message,
    RequestError,
    ResponseFormat,
    SamplingParams,
    Settings,
    Tool,
    collect,
)
from pyagent.testing import Fault, LMStudioServer, lmstudio_server

HELLO = ChatRequest(messages=[Message("user", "hi")])


def run(server: LMStudioServer, work: Callable[[LMStudioBackend], Awaitable[object]], model: str = "") -> object:
    async def main() -> object:
        backend = LMStudioBackend(server.url, model=model, read_seconds=1.0)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def ask(server: LMStudioServer, request: ChatRequest = HELLO, model: str = "qwen3-4b") -> Answer:
    answer = run(server, lambda backend: collect(backend.chat(request)), model)
    assert isinstance(answer, Answer)
    return answer


def test_chat_loads_the_model_and_streams() -> None:
    """A model that is not loaded is loaded on its first request, and its answer comes piece by piece."""
    with lmstudio_server(answer="one two three", reasoning="let me see") as server:
        answer = ask(server)
        assert server.loaded == ["qwen3-4b"]
    assert answer.text == "one two three"
    assert "".join(delta.reasoning for delta in answer.deltas) == "let me see"
    assert len(answer.deltas) == 7
    assert answer.last.finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)


def test_sampling_is_spelt_out() -> None:
    """Every sampling parameter reaches LM Studio, so that the presets there do not apply."""
    sampling = SamplingParams(max_tokens=5, temperature=0, top_k=4, seed=1, stop=("END",), repetition_penalty=1.1)
    with lmstudio_server() as server:
        ask(server, ChatRequest(messages=[Message("developer", "be brief"), *HELLO.messages], sampling=sampling))
        sent = server.requests[0]
    fields = sent["predictionConfigStack"]["layers"][0]["config"]["fields"]  # type: ignore[index]
    values = {field["key"].removeprefix("llm.prediction."): field["value"] for field in fields}
    assert values["temperature"] == 0
    assert values["topKSampling"] == 4
    assert values["topPSampling"] == {"checked": True, "value": 1.0}
    assert values["minPSampling"] == {"checked": True, "value": 0.0}
    assert values["repeatPenalty"] == {"checked": True, "value": 1.1}
    assert values["maxPredictedTokens"] == {"checked": True, "value": 5}
    assert values["stopStrings"] == ["END"]
    assert [message["role"] for message in sent["history"]["messages"]] == ["system", "user"]  # type: ignore[index]


def test_schema_and_choice_are_structured_predictions() -> None:
    """A JSON schema constrains the answer; a choice is asked as a JSON string and handed on as plain text."""
    schema: dict[str, object] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))
    choice = ResponseFormat("choice", choice=["yes", "no"])
    with lmstudio_server(answer='{"n": 4}') as server:
        assert ask(server, ChatRequest(messages=HELLO.messages, response_format=wanted)).text == '{"n": 4}'
        assert "jsonSchema" in str(server.requests[0])
        ask(server, ChatRequest(messages=HELLO.messages, response_format=ResponseFormat("json_object")))
        server.answer = '"yes"'
        assert ask(server, ChatRequest(messages=HELLO.messages, response_format=choice)).text == "yes"
        server.answer = "perhaps"
        with pytest.raises(BackendError, match="none of the choices"):
            ask(server, ChatRequest(messages=HELLO.messages, response_format=choice))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("error", 2), "the model runner has unexpectedly stopped"),
        (Fault("end", 2), "without saying it was done"),
        (Fault("drop", 2), "closed the connection"),
        (Fault("stall", 2), "sent nothing for too long"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_failure_in_mid_answer_is_a_backend_error(fault: Fault, reason: str) -> None:
    """Whatever breaks a stream ends it with an error that another try or backend may help."""
    with lmstudio_server(fault=fault) as server, pytest.raises(BackendError, match=reason) as caught:
        ask(server)
    assert caught.value.retryable


def test_dead_socket_is_replaced() -> None:
    """After a connection broke, the next request opens a new one and is answered."""

    async def twice(backend: LMStudioBackend) -> str:
        with pytest.raises(BackendError):
            await collect(backend.chat(HELLO))
        server.fault = None
        return (await collect(backend.chat(HELLO))).text

    with lmstudio_server(fault=Fault("drop", 1)) as server:
        assert run(server, twice) == "Hello from the fake."


def test_one_client_serves_many_requests_at_once() -> None:
    """Answers under way at the same time share a connection and do not mix."""

    async def many(backend: LMStudioBackend) -> list[str]:
        return [answer.text for answer in await asyncio.gather(*(collect(backend.chat(HELLO)) for _ in range(8)))]

    with lmstudio_server(delay_seconds=0.005) as server:
        assert run(server, many) == ["Hello from the fake."] * 8


def test_closing_the_iterator_cancels_the_prediction() -> None:
    """A caller that stops reading stops the server's work, and the client stays good for the next request."""

    async def read_one(backend: LMStudioBackend) -> str:
        stream = backend.chat(HELLO)
        first = await anext(stream)
        await stream.aclose()
        for _ in range(100):
            if server.num_cancelled:
                break
            await asyncio.sleep(0.02)
        server.answer = "again"
        return first.content + (await collect(backend.chat(HELLO))).text

    with lmstudio_server(answer="word " * 200, delay_seconds=0.02) as server:
        assert run(server, read_one) == "wordagain"
        assert server.num_cancelled == 1


def test_deadline_ends_the_wait() -> None:
    """The caller's deadline ends the answer though pieces still come."""
    with lmstudio_server(answer="word " * 400, delay_seconds=0.02) as server, pytest.raises(DeadlineError):
        ask(server, ChatRequest(messages=HELLO.messages, timeout_seconds=1.0))


def test_unknown_model_is_model_not_found() -> None:
    """A model LM Studio does not have, or another than the link's, is `model_not_found`."""
    with lmstudio_server() as server:
        with pytest.raises(RequestError, match="lms get") as caught:
            ask(server, model="nope")
        assert caught.value.code == "model_not_found"
        with pytest.raises(RequestError, match="serves 'qwen3-4b', not 'other'"):
            ask(server, ChatRequest(model="other", messages=HELLO.messages))


def test_bare_link_takes_a_loaded_model() -> None:
    """Without a model in link and request a loaded one answers, else the first downloaded; none says what to do."""
    with lmstudio_server(models=("a", "b"), loaded=["b"]) as server:
        assert ask(server, model="").last.model == "b"
        server.loaded.clear()
        assert ask(server, model="").last.model == "a"
        server.loaded.clear()
        server.models = ()
        with pytest.raises(BackendError, match="lms get MODEL"):
            ask(server, model="")


def test_what_it_cannot_do_is_refused() -> None:
    """What LM Studio has no way to do is refused before anything is sent, so that a chain goes on."""
    messages = HELLO.messages
    with lmstudio_server() as server:
        for request in (
            ChatRequest(prompt="raw text"),
            ChatRequest(messages=messages, tools=[Tool(FunctionDefinition("f"))]),
            ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:image/png;base64,aGk="))])]),
            ChatRequest(messages=messages, sampling=SamplingParams(seed=1)),
            ChatRequest(messages=messages, sampling=SamplingParams(logit_bias={1: 1.0})),
        ):
            with pytest.raises(BackendError, match="cannot do") as caught:
                ask(server, request)
            assert not caught.value.retryable
        with pytest.raises(RequestError, match="does not embed"):
            run(server, lambda backend: backend.embed(EmbedRequest(model="m", input=["x"])))
        assert server.requests == []


def test_models_and_health() -> None:
    """The list says what is loaded; health names a missing model and a server that is not running."""

    async def look(backend: LMStudioBackend) -> tuple[object, object]:
        return await backend.models(), await backend.health()

    with lmstudio_server(models=("a", "b"), loaded=["b"]) as server:
        models, health = run(server, look, "a")  # type: ignore[misc]
        _, missing = run(server, look, "c")  # type: ignore[misc]
        url = server.url
    assert [(model.id, model.is_loaded, model.context_length) for model in models] == [
        ("a", False, 32768),
        ("b", True, 32768),
    ]
    assert health.is_ready
    assert "lms get c" in missing.detail
    gone = asyncio.run(LMStudioBackend(url).health())
    assert not gone.is_ready
    assert (
        gone.detail == f"LM Studio is not reachable at {url.removeprefix('http://')}; start it with: lms server start"
    )


def test_link_names_model_and_server() -> None:
    """`lmstudio:MODEL` means this machine, `lmstudio:URL#MODEL` another; a broken URL is refused."""
    with lmstudio_server() as server:
        backend = make_backend(Link.parse(f"lmstudio:{server.url}#qwen3-4b"), Settings())

        async def main() -> str:
            answer = await collect(backend.chat(HELLO))
            await backend.close()
            await backend.close()
            return answer.text

        assert asyncio.run(main()) == "Hello from the fake."
    assert make_backend(Link.parse("lmstudio:qwen3-4b"), Settings()).name == "lmstudio:qwen3-4b"
    with pytest.raises(ConfigError, match="HOST:PORT"):
        make_backend(Link.parse("lmstudio:https://host"), Settings())
