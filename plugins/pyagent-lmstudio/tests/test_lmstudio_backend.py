"""The LM Studio backend against a server that is true to the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from pyagent_lmstudio import make_backend
from pyagent_lmstudio.backend import LMStudioBackend

from pyagent.plugin import (
    Answer,
    Backend,
    BackendError,
    ChatRequest,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EmbedRequest,
    EmbedResult,
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonSchemaFormat,
    LinkSpec,
    Message,
    RequestError,
    ResponseFormat,
    SamplingParams,
    Settings,
    Tool,
    ToolCall,
    collect,
)
from pyagent.testing import Fault, LMStudioServer, lmstudio_server

HELLO = ChatRequest(messages=[Message("user", "hi")])


def run(
    server: LMStudioServer,
    work: Callable[[LMStudioBackend], Awaitable[object]],
    model: str = "",
    read_seconds: float = 30.0,
) -> object:
    async def main() -> object:
        backend = LMStudioBackend(server.url, model=model, connect_seconds=60.0, read_seconds=read_seconds)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def ask(
    server: LMStudioServer, request: ChatRequest = HELLO, model: str = "qwen3-4b", read_seconds: float = 30.0
) -> Answer:
    answer = run(server, lambda backend: collect(backend.chat(request)), model, read_seconds)
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
    assert answer.usage.timings is not None
    assert answer.usage.timings.total_seconds == pytest.approx(0.05 + 3 / 100)


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
        with pytest.raises(RequestError, match="none of the choices"):
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
        ask(server, read_seconds=1.0 if fault.kind == "stall" else 30.0)
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
        with pytest.raises(BackendError, match="cannot do logit_bias") as caught:
            ask(server, ChatRequest(messages=messages, sampling=SamplingParams(logit_bias={1: 1.0})))
        assert not caught.value.retryable
        with pytest.raises(RequestError, match="does not embed"):
            run(server, lambda backend: backend.embed(EmbedRequest(model="", input=["x"])))
        with pytest.raises(BackendError, match="knows no tasks of embedding models; leave out task"):
            run(server, lambda backend: backend.embed(EmbedRequest(model="", input=["x"], task="separation")))
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
        backend = make_backend(LinkSpec.parse(f"lmstudio:{server.url}#qwen3-4b"), Settings())

        async def main() -> str:
            answer = await collect(backend.chat(HELLO))
            await backend.close()
            await backend.close()
            return answer.text

        assert asyncio.run(main()) == "Hello from the fake."
    assert make_backend(LinkSpec.parse("lmstudio:qwen3-4b"), Settings()).name == "lmstudio:qwen3-4b"
    with pytest.raises(ConfigError, match="HOST:PORT"):
        make_backend(LinkSpec.parse("lmstudio:https://host"), Settings())


TOOL = Tool(FunctionDefinition("add", "adds", {"type": "object", "properties": {"a": {"type": "integer"}}}))


def test_tools_are_called_and_their_results_carried() -> None:
    """Tools, calls and results cross in LM Studio's shape: arguments are objects there and JSON text here."""
    call = ToolCall(id="c1", function=FunctionCall("add", '{"a": 1}'))
    past = [Message("user", "1+1"), Message("assistant", tool_calls=[call]), Message("tool", "2", tool_call_id="c1")]
    with lmstudio_server() as server:
        answer = ask(server, ChatRequest(messages=HELLO.messages, tools=[TOOL]))
        assert [found.function for found in answer.tool_calls] == [call.function]
        assert answer.last.finish_reason == "tool_calls"
        assert ask(server, ChatRequest(messages=past, tools=[TOOL])).text == "Hello from the fake."
        messages = server.requests[1]["history"]["messages"]  # type: ignore[index]
        assert messages[1]["content"][-1]["toolCallRequest"]["arguments"] == {"a": 1}  # type: ignore[index]
        assert messages[2]["content"] == [{"type": "toolCallResult", "content": "2", "toolCallId": "c1"}]  # type: ignore[index]
        broken = ToolCall(id="c", function=FunctionCall("add", "{"))
        with pytest.raises(RequestError, match="are not JSON"):
            ask(server, ChatRequest(messages=[Message("assistant", tool_calls=[broken])]))


def test_images_are_uploaded() -> None:
    """An image in a data URL is handed over and referred to; one elsewhere is refused, so that a chain can go on."""
    image = ImagePart(ImageUrl("data:image/png;base64,aGk="))
    with lmstudio_server() as server:
        ask(server, ChatRequest(messages=[Message("user", [image])]))
        assert server.files == ["image-0"]
        server.reads_images = False
        with pytest.raises(BackendError, match="cannot do images: qwen3-4b reads text only"):
            ask(server, ChatRequest(messages=[Message("user", [image])]))
        server.reads_images = True
        parts = server.requests[0]["history"]["messages"][0]["content"]  # type: ignore[index]
        assert parts[-1]["identifier"] == "file-1"  # type: ignore[index]
        with pytest.raises(BackendError, match="data URLs only"):
            ask(server, ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("http://x/y.png"))])]))


def test_plain_prompt_is_completed() -> None:
    """A prompt without messages is continued without a template."""
    with lmstudio_server(answer="a time") as server:
        assert ask(server, ChatRequest(prompt="Once upon")).text == "a time"
        assert "completeModeFormatting" in str(server.requests[0])


def test_embeddings_come_from_an_embedding_model() -> None:
    """A loaded embedding model, or the first downloaded one, embeds each text."""
    with lmstudio_server(embedding_models=("nomic",)) as server:
        result = run(server, lambda backend: backend.embed(EmbedRequest(model="", input=["one two", "three"])))
        assert isinstance(result, EmbedResult)
        assert (result.vectors, result.model, result.usage.prompt_tokens) == ([[7.0, 1.0], [5.0, 1.0]], "nomic", 3)
        assert server.loaded == ["nomic"]


def test_prompt_that_fills_the_context_is_an_overflow() -> None:
    """A prompt that leaves no room for an answer is a `ContextOverflowError`, and is never shortened in the middle."""
    with lmstudio_server(context_length=3) as server:
        with pytest.raises(ContextOverflowError, match="fills the model's context"):
            ask(server, ChatRequest(messages=[Message("user", "one two three four")]))
        assert "stopAtLimit" in str(server.requests[0])


def test_handle_of_a_loaded_model_is_used_again() -> None:
    """One call tells that LM Studio is there and its models' handles; a model that is gone is loaded again."""

    async def work(backend: LMStudioBackend) -> None:
        for is_loaded in (False, True, True, False):
            if not is_loaded:
                server.loaded.clear()
            server.endpoints.clear()
            await collect(backend.chat(HELLO))
            loading = [] if is_loaded else ["getOrLoad"]
            assert server.endpoints == ["listLoaded", *loading, "predict"]

    with lmstudio_server() as server:
        run(server, work, "qwen3-4b")


def test_link_options_decide_on_loading() -> None:
    """`ttl` and `context` go with the loading, `unload` undoes it at the end, `jit=no` leaves loading to the user."""
    with lmstudio_server(models=("a", "b"), loaded=["b"]) as server:
        for query, loaded in (("ttl=60&context=2048", ["b", "a"]), ("", ["b", "a"])):
            backend = make_backend(LinkSpec.parse(f"lmstudio:{server.url}#a?{query}".rstrip("?")), Settings())

            async def main(backend: Backend = backend) -> None:
                await collect(backend.chat(HELLO))
                await backend.close()

            asyncio.run(main())
            assert server.loaded == loaded
        assert len(server.loads) == 1
        assert server.loads[0]["loadTtlMs"] == 60_000
        assert "2048" in str(server.loads[0]["loadConfigStack"])
        server.loaded[:] = ["b"]
        backend = make_backend(LinkSpec.parse(f"lmstudio:{server.url}#a?unload=yes"), Settings())
        asyncio.run(main(backend))
        assert server.loaded == ["b"]
        backend = make_backend(LinkSpec.parse(f"lmstudio:{server.url}#a?jit=no"), Settings())
        with pytest.raises(BackendError, match="lms load a"):
            asyncio.run(main(backend))
        asyncio.run(backend.close())


def test_models_used_longest_ago_go_first() -> None:
    """With `keep=2` a third model unloads the one asked longest ago, never one that answers, nor the user's own."""
    with lmstudio_server(models=("a", "b", "c", "mine"), loaded=["mine"]) as server:
        backend = make_backend(LinkSpec.parse(f"lmstudio:{server.url}?keep=2"), Settings())

        async def ask_for(model: str) -> None:
            await collect(backend.chat(msgspec.structs.replace(HELLO, model=model)))

        async def main() -> None:
            for model in ("a", "b", "a", "mine", "c"):
                await ask_for(model)
            assert server.loaded == ["mine", "a", "c"]
            running = backend.chat(msgspec.structs.replace(HELLO, model="a"))
            await anext(running)
            await ask_for("b")
            assert server.loaded == ["mine", "a", "b"]
            await ask_for("c")
            assert server.loaded == ["mine", "a", "c"]
            await running.aclose()  # type: ignore[attr-defined]
            await backend.close()

        asyncio.run(main())


@pytest.mark.parametrize("query", ["keep=0", "keep_alive=5", "context=many", "jit=maybe", "unload", "ttl=\u0665"])
def test_wrong_link_options_are_refused(query: str) -> None:
    """Each wrong option is named with what is expected."""
    with pytest.raises(ConfigError, match="lmstudio: "):
        make_backend(LinkSpec.parse(f"lmstudio:m?{query}"), Settings())


def test_slow_loading_is_waited_for_while_it_moves() -> None:
    """Loading may take longer than the limit as long as it makes progress; no memory is told with LM Studio's words."""
    with lmstudio_server(load_seconds=2.0) as server:
        assert ask(server, read_seconds=1.8).text  # a sign of progress comes each 0.5 s
        server.loaded.clear()
        server.load_seconds, server.load_error = 0.0, "insufficient system resources"
        with pytest.raises(BackendError, match="Failed to load model: insufficient system resources"):
            ask(server)


def test_version_mismatch_is_told() -> None:
    """A server that refuses the client says why, in a sentence, and health tells it too."""
    with lmstudio_server(auth_error="client version 1 is not supported") as server:
        with pytest.raises(BackendError, match="client version 1 is not supported"):
            ask(server)
        health = run(server, lambda backend: backend.health())
        assert "not supported" in health.detail  # type: ignore[attr-defined]


def test_socket_that_slept_is_replaced() -> None:
    """A socket that is open but dead is noticed within the connect limit, and the request is answered by a new one."""

    async def main() -> str:
        backend = LMStudioBackend(server.url, connect_seconds=4.0, read_seconds=30.0)
        await collect(backend.chat(HELLO))
        server.sleep()
        try:
            return (await collect(backend.chat(HELLO))).text
        finally:
            await backend.close()

    with lmstudio_server() as server:
        assert asyncio.run(main()) == "Hello from the fake."
