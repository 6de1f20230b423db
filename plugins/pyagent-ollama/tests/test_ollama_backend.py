"""The Ollama backend against a server that is true to the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyagent_ollama import make_backend
from pyagent_ollama.backend import OllamaBackend
from pyagent_ollama.context import PromptSize
from pyagent_ollama.options import LinkOptions, url_of
from pyagent_ollama.wire import Chunk, decode_chunk

from pyagent.plugin import (
    Answer,
    BackendError,
    ChatRequest,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EmbedRequest,
    EmbedResult,
    FunctionCall,
    FunctionDefinition,
    Health,
    ImagePart,
    ImageUrl,
    JsonSchemaFormat,
    LinkSpec,
    Message,
    PyAgentError,
    ReasoningEffort,
    RequestError,
    ResponseFormat,
    SamplingParams,
    Settings,
    TextPart,
    Tool,
    ToolCall,
    UnsupportedError,
    collect,
)
from pyagent.testing import Fault, OllamaServer, ollama_server

HELLO = ChatRequest(messages=[Message("user", "hi")])


def ask(
    server: OllamaServer, request: ChatRequest = HELLO, model: str = "llama3.2", read_seconds: float = 30.0
) -> Answer:
    async def main() -> Answer:
        backend = OllamaBackend(server.url, model=model, connect_seconds=60.0, read_seconds=read_seconds)
        try:
            return await collect(backend.chat(request))
        finally:
            await backend.close()

    return asyncio.run(main())


def run(server: OllamaServer, work: Callable[[OllamaBackend], Awaitable[object]], **options: object) -> object:
    async def main() -> object:
        backend = OllamaBackend(server.url, **options)  # type: ignore[arg-type]
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(main())


def test_chat_streams_the_answer() -> None:
    """The pieces of an answer arrive one by one, the last with the reason it ended and the tokens counted."""
    with ollama_server(answer="one two three", thinking="let me see") as server:
        answer = ask(server)
    assert answer.text == "one two three"
    assert "".join(delta.reasoning for delta in answer.deltas) == "let me see"
    assert len(answer.deltas) == 7
    assert answer.last.finish_reason == "stop"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.timings is not None
    timings = answer.usage.timings
    assert timings.total_seconds == 0.25
    assert timings.queue_seconds + timings.prefill_seconds == pytest.approx(timings.first_token_seconds)
    assert timings.first_token_seconds + 2 * timings.inter_token_seconds <= timings.total_seconds
    assert {delta.backend for delta in answer.deltas} == {"ollama"}


def test_options_are_spelt_out() -> None:
    """Every sampling parameter reaches Ollama under its name there, so that its own defaults do not apply."""
    sampling = SamplingParams(max_tokens=2, temperature=0, top_k=5, seed=7, stop=("END",), repetition_penalty=1.1)
    with ollama_server() as server:
        answer = ask(server, ChatRequest(messages=[Message("developer", "be brief")], sampling=sampling))
        body = server.requests[0]
    assert body["options"] == {
        "temperature": 0,
        "top_p": 1.0,
        "top_k": 5,
        "min_p": 0.0,
        "repeat_penalty": 1.1,
        "repeat_last_n": -1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "num_predict": 2,
        "num_ctx": 4096,
        "seed": 7,
        "stop": ["END"],
    }
    assert body["messages"] == [{"role": "system", "content": "be brief"}]
    assert answer.last.finish_reason == "length"


def test_json_schema_goes_to_format() -> None:
    """A JSON schema constrains the answer through Ollama's `format`."""
    schema: dict[str, object] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))
    with ollama_server(answer='{"n": 4}') as server:
        assert ask(server, ChatRequest(messages=HELLO.messages, response_format=wanted)).text == '{"n": 4}'
        ask(server, ChatRequest(messages=HELLO.messages, response_format=ResponseFormat("json_object")))
        assert [request["format"] for request in server.requests] == [schema, "json"]


def test_choice_is_given_without_quotes() -> None:
    """A choice is asked as a JSON string and handed on as plain text; anything else is a failure."""
    request = ChatRequest(messages=HELLO.messages, response_format=ResponseFormat("choice", choice=["yes", "no"]))
    with ollama_server(answer='"yes"') as server:
        assert ask(server, request).text == "yes"
        server.answer = "perhaps"
        with pytest.raises(RequestError, match="none of the choices"):
            ask(server, request)


def test_tools_and_their_results_are_carried() -> None:
    """Tools, calls and results cross in Ollama's shape: arguments are objects there and JSON text here."""
    call = ToolCall(id="c1", function=FunctionCall("add", '{"a": 1}'))
    messages = [
        Message("user", "1+1"),
        Message("assistant", tool_calls=[call]),
        Message("tool", "2", tool_call_id="c1"),
    ]
    tools = [Tool(FunctionDefinition("add", "adds", {"type": "object"}))]
    asked = [{"id": "x", "function": {"name": "add", "arguments": {"a": 2}}}]
    with ollama_server(answer="", tool_calls=asked) as server:
        answer = ask(server, ChatRequest(messages=messages, tools=tools))
        sent = server.requests[0]["messages"]
        assert server.requests[0]["tools"][0]["function"]["name"] == "add"  # type: ignore[index]
    assert answer.last.finish_reason == "tool_calls"
    assert [json.loads(c.function.arguments) for c in answer.tool_calls] == [{"a": 2}]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}  # type: ignore[index]
    assert sent[2] == {"role": "tool", "content": "2", "tool_name": "add", "tool_call_id": "c1"}  # type: ignore[index]


def test_images_travel_as_base64() -> None:
    """An image in a data URL is sent as base64; an image elsewhere is refused, so that a chain can go on."""
    data = "data:image/png;base64,aGk="
    with ollama_server() as server:
        ask(server, ChatRequest(messages=[Message("user", [TextPart("see"), ImagePart(ImageUrl(data))])]))
        assert server.requests[0]["messages"] == [{"role": "user", "content": "see", "images": ["aGk="]}]
        with pytest.raises(BackendError, match="data URLs only"):
            ask(server, ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("http://x/y.png"))])]))
        with pytest.raises(RequestError, match="base64 is broken"):
            ask(server, ChatRequest(messages=[Message("user", [ImagePart(ImageUrl("data:image/png;base64,a"))])]))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("error", 2), "failed in mid-answer: the model runner"),
        (Fault("error", 0), "answered 500: the model runner"),
        (Fault("end", 2), "without saying it was done"),
        (Fault("drop", 2), "closed the connection in mid-answer"),
        (Fault("stall", 2), "sent nothing for too long"),
    ],
    ids=lambda value: value.kind + str(value.at) if isinstance(value, Fault) else "",
)
def test_failure_in_mid_answer_is_a_backend_error(fault: Fault, reason: str) -> None:
    """Whatever breaks a stream ends it with an error that another try or backend may help."""
    with ollama_server(fault=fault) as server, pytest.raises(BackendError, match=reason) as caught:
        ask(server, read_seconds=1.0 if fault.kind == "stall" else 30.0)
    assert caught.value.retryable


def test_unknown_model_says_how_to_get_it() -> None:
    """A model that Ollama does not have is a `model_not_found` naming `ollama pull`."""
    with ollama_server() as server, pytest.raises(RequestError, match="ollama pull") as caught:
        ask(server, model="nope")
    assert caught.value.code == "model_not_found"


def test_other_model_than_the_links_is_passed_by() -> None:
    """A request for another model than the link's is `model_not_found`; the same one with its tag is served."""
    with ollama_server() as server:
        with pytest.raises(RequestError, match=r"serves 'llama3\.2', not 'qwen3'"):
            ask(server, ChatRequest(model="qwen3", messages=HELLO.messages))
        assert ask(server, ChatRequest(model="llama3.2:latest", messages=HELLO.messages)).text


def test_bare_link_passes_by_models_that_cannot_what_is_asked() -> None:
    """Chat goes to the first model that chats, embeddings to the first that embeds, whichever was pulled last."""

    async def embed(backend: OllamaBackend) -> str:
        return (await backend.embed(EmbedRequest(model="", input=["one"]))).model

    models, embedding = ("nomic-embed-text:latest", "llama3.2:latest"), ("nomic-embed-text:latest",)
    with ollama_server(models=models, embedding_models=embedding, capabilities=("completion",)) as server:
        assert ask(server, model="").last.model == "llama3.2:latest"
        assert run(server, embed) == "nomic-embed-text:latest"
        server.models = embedding
        with pytest.raises(BackendError, match="has no model that chats; try: ollama pull"):
            ask(server, model="")
        server.models, server.embedding_models = models[1:], ()
        with pytest.raises(RequestError, match="has no embedding model; try: ollama pull nomic-embed-text") as caught:
            run(server, embed)
    assert caught.value.code == "model_not_found"


def test_first_listed_model_serves_a_bare_link() -> None:
    """Without a model in link and request the first of the list answers; an empty list says what to do."""
    with ollama_server(models=("a:1b", "b:latest")) as server:
        assert ask(server, model="").last.model == "a:1b"
        server.models = ()
        with pytest.raises(BackendError, match="ollama pull"):
            ask(server, model="")


def test_what_ollama_cannot_do_is_refused() -> None:
    """What Ollama has no way to do is refused before anything is sent, so that a chain goes on."""
    with ollama_server() as server:
        for request in (
            ChatRequest(messages=HELLO.messages, sampling=SamplingParams(ignore_eos=True)),
            ChatRequest(messages=HELLO.messages, sampling=SamplingParams(logit_bias={1: 2.0})),
            ChatRequest(messages=HELLO.messages, best_of=2),
        ):
            with pytest.raises(BackendError, match="cannot do") as caught:
                ask(server, request)
            assert not caught.value.retryable
        assert server.requests == []


def test_closing_the_iterator_closes_the_connection() -> None:
    """A caller that stops reading frees the server at once."""

    async def read_one(backend: OllamaBackend) -> str:
        stream = backend.chat(HELLO)
        first = await anext(stream)
        await stream.aclose()
        for _ in range(100):
            if server.num_left:
                break
            await asyncio.sleep(0.02)
        return first.content

    with ollama_server(answer="word " * 200, delay_seconds=0.02) as server:
        assert run(server, read_one, model="llama3.2").strip() == "word"  # type: ignore[union-attr]
        assert server.num_left == 1


def test_deadline_ends_the_wait() -> None:
    """The caller's deadline ends the answer though pieces still come."""
    with ollama_server(answer="word " * 200, delay_seconds=0.02) as server, pytest.raises(DeadlineError):
        ask(server, ChatRequest(messages=HELLO.messages, timeout_seconds=0.2))


def test_models_and_health() -> None:
    """The list carries size and quantisation; health names a missing model and a server that is not running."""

    async def look(backend: OllamaBackend) -> tuple[object, object]:
        return await backend.models(), await backend.health()

    with ollama_server() as server:
        models, health = run(server, look, model="llama3.2")  # type: ignore[misc]
        _, missing = run(server, look, model="qwen3")  # type: ignore[misc]
        url = server.url
    assert [(m.id, m.quantization, m.size_bytes) for m in models] == [("llama3.2:latest", "Q4_K_M", 2019393189)]
    assert health.is_ready
    assert "ollama pull qwen3" in missing.detail
    gone = asyncio.run(OllamaBackend(url).health())
    assert not gone.is_ready
    assert gone.detail == f"Ollama is not reachable at {url}; start it with: ollama serve"


def test_link_names_model_and_server() -> None:
    """`ollama:MODEL` means the local server, `ollama:URL#MODEL` another; a broken URL is refused."""
    with ollama_server() as server:
        backend = make_backend(LinkSpec.parse(f"ollama:{server.url}#llama3.2"), Settings())
        assert backend.name == f"ollama:{server.url}#llama3.2"

        async def main() -> str:
            answer = await collect(backend.chat(HELLO))
            await backend.close()
            await backend.close()
            return answer.text

        assert asyncio.run(main()) == "Hello from the fake."
    assert make_backend(LinkSpec.parse("ollama:llama3.2:3b"), Settings()).name == "ollama:llama3.2:3b"
    with pytest.raises(ConfigError, match="ollama:URL#MODEL"):
        make_backend(LinkSpec.parse("ollama:http://:99999"), Settings())


def embed(server: OllamaServer, texts: list[str], model: str = "llama3.2") -> EmbedResult:
    result = run(server, lambda backend: backend.embed(EmbedRequest(model="", input=texts)), model=model)
    assert isinstance(result, EmbedResult)
    return result


def test_embeddings_are_refused_rather_than_cut() -> None:
    """A vector comes for each text; a text that is too long and a model that does not embed are refused by name."""
    with ollama_server(context_length=4) as server:
        result = embed(server, ["one two", "three"])
        assert (len(result.vectors), result.usage.prompt_tokens) == (2, 3)
        assert embed(server, []).vectors == []
        asked = EmbedRequest(model="", input=["one"], task="retrieval.query")
        with pytest.raises(BackendError, match="knows no tasks of embedding models; leave out task"):
            run(server, lambda backend: backend.embed(asked))
        with pytest.raises(ContextOverflowError):
            embed(server, ["one two three four five"])
        server.capabilities = ("completion",)
        with pytest.raises(RequestError, match=r"does not embed with 'llama3\.2'"):
            embed(server, ["one"])


def test_plain_prompt_is_continued_raw() -> None:
    """A prompt without messages goes to /api/generate without a template."""
    with ollama_server(answer="a time") as server:
        assert ask(server, ChatRequest(prompt="Once upon")).text == "a time"
        assert (server.requests[0]["prompt"], server.requests[0]["raw"]) == ("Once upon", True)


LONG = ChatRequest(messages=[Message("user", "word " * 6000)], sampling=SamplingParams(max_tokens=50))


def test_context_is_set_from_the_prompt() -> None:
    """A long prompt gets a context that holds it; a short one after it does not load the model anew."""
    with ollama_server(answer="ok") as server:

        async def both(backend: OllamaBackend) -> None:
            for request in (LONG, HELLO, LONG):
                assert (await collect(backend.chat(request))).text == "ok"

        run(server, both, model="llama3.2")
        assert [request["options"]["num_ctx"] for request in server.requests] == [16384] * 3  # type: ignore[index]
        assert server.num_loads == 1
        ask(server)  # another backend keeps what is loaded too
        assert server.num_loads == 1


@pytest.mark.parametrize("obeys_truncate", [True, False])
def test_prompt_that_does_not_fit_is_never_cut_in_silence(*, obeys_truncate: bool) -> None:
    """A prompt longer than the model's context is a `ContextOverflowError` with numbers, before a word is shown."""
    with ollama_server(context_length=4096, obeys_truncate=obeys_truncate, answer="ok") as server:
        with pytest.raises(ContextOverflowError, match="shorten the prompt") as caught:
            ask(server, LONG)
        assert caught.value.limit == 4096
        assert caught.value.num_tokens > 4096
        assert server.requests == []  # it is known before anything is sent
        dense = ChatRequest(messages=[Message("user", "1 " * 5000)])  # many tokens, no words: known afterwards
        with pytest.raises(ContextOverflowError):
            ask(server, dense)
        assert len(server.requests) == 1


def test_context_has_room_for_dense_text() -> None:
    """Text with a token every two bytes fits the context that it is given."""
    dense = ChatRequest(messages=[Message("user", "1 " * 9000)], sampling=SamplingParams(max_tokens=5))
    with ollama_server(answer="ok", obeys_truncate=False) as server:
        assert ask(server, dense).text == "ok"
        assert server.requests[0]["options"]["num_ctx"] == 16384  # type: ignore[index]


def test_link_options_reach_ollama() -> None:
    """What a link says after its `?` is sent with each request; an unknown option is refused with those there are."""
    with ollama_server(answer="ok", thinking="hm") as server:
        backend = make_backend(
            LinkSpec.parse(f"ollama:{server.url}#llama3.2?keep_alive=10m&num_ctx=2048&think=low"), Settings()
        )

        async def main() -> None:
            await collect(backend.chat(HELLO))
            await backend.close()

        asyncio.run(main())
        (body,) = server.requests
        assert (body["keep_alive"], body["think"], body["options"]["num_ctx"]) == ("10m", "low", 2048)  # type: ignore[index]


@pytest.mark.parametrize(
    ("effort", "think"), [("none", False), ("minimal", "low"), ("medium", "medium"), ("xhigh", "max")]
)
def test_effort_reaches_models_that_think(effort: ReasoningEffort, think: bool | str) -> None:
    """How much to reason goes to models that do, in Ollama's words; others refuse it by name, and need not be told."""
    wish = msgspec.structs.replace(HELLO, reasoning_effort=effort)
    with ollama_server(answer="ok") as server:
        assert ask(server, wish).text == "ok"
        assert server.requests[0]["think"] == think
    with ollama_server(answer="{}") as server, contextlib.ExitStack() as stack:
        if effort != "none":  # a grammar would hold for the thoughts, so a form and an effort go to another link
            stack.enter_context(pytest.raises(UnsupportedError, match="reasoning_effort"))
        ask(server, msgspec.structs.replace(wish, response_format=ResponseFormat("json_object")))
    with ollama_server(answer="ok", capabilities=("completion",)) as server:
        if effort == "none":
            assert ask(server, wish).text == "ok"
            assert "think" not in server.requests[0]
        else:
            with pytest.raises(UnsupportedError, match="reasoning_effort"):
                ask(server, wish)


@pytest.mark.parametrize(
    "query", ["ttl=5", "keep_alive=soon", "num_ctx=-1", "think=hard", "pull=maybe", "keep_alive", "num_ctx=\u0665"]
)
def test_wrong_link_options_are_refused(query: str) -> None:
    """Each wrong option is named with what is expected."""
    with pytest.raises(ConfigError, match="ollama: "):
        make_backend(LinkSpec.parse(f"ollama:m?{query}"), Settings())


def test_thinking_is_off_under_a_form() -> None:
    """Ollama's grammar would hold for the thoughts too, so a thinking model is told not to think."""
    request = ChatRequest(messages=HELLO.messages, response_format=ResponseFormat("json_object"))
    with ollama_server(answer="{}") as server:
        ask(server, request)
        assert server.requests[0]["think"] is False
        server.capabilities = ("completion",)
        ask(server, request)
        assert "think" not in server.requests[1]


def test_missing_model_is_pulled_when_the_link_says_so() -> None:
    """`pull=yes` fetches a missing model before its first answer; progress is told; a failed download says why."""

    async def progress(backend: OllamaBackend) -> list[tuple[int, int]]:
        return [(step.completed, step.total) async for step in backend.pull("other") if step.total]

    with ollama_server(answer="ok") as server:
        assert run(server, progress) == [(0, 100), (50, 100), (100, 100)]
        health = run(server, lambda backend: backend.health(), model="new", options=LinkOptions(pulls=True))
        assert health.detail == "new is fetched on first use"  # type: ignore[attr-defined]
        answer = run(server, lambda backend: collect(backend.chat(HELLO)), model="new", options=LinkOptions(pulls=True))
        assert answer.text == "ok"  # type: ignore[attr-defined]
        server.fault = Fault("error", 1, "file does not exist")
        with pytest.raises(BackendError, match="cannot fetch the model: file does not exist"):
            run(server, progress)


def test_what_a_model_lacks_is_emulated() -> None:
    """A model without tools gets them in words; images for a model without eyes are refused by name."""
    said = 'Well. <tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    tools = [Tool(FunctionDefinition("add", "adds", {"type": "object"}))]
    image = ImagePart(ImageUrl("data:image/png;base64,aGk="))
    with ollama_server(answer=said, capabilities=("completion",)) as server:
        answer = ask(server, ChatRequest(messages=HELLO.messages, tools=tools))
        assert answer.tool_calls[0].function == FunctionCall("add", '{"a": 2}')
        assert "tools" not in server.requests[0]
        with pytest.raises(BackendError, match="cannot do images"):
            ask(server, ChatRequest(messages=[Message("user", [image])]))
        with pytest.raises(BackendError, match="cannot do tools"):
            ask(server, ChatRequest(messages=HELLO.messages, tools=tools, unsupported="refuse"))


def test_logprobs_come_or_are_refused() -> None:
    """Log probabilities are passed on; a version of Ollama that ignores the wish is found out."""
    request = ChatRequest(messages=HELLO.messages, sampling=SamplingParams(top_logprobs=1))
    with ollama_server(answer="ok") as server:
        assert ask(server, request).deltas[0].logprobs[0].top_logprobs == [("x", -2.0)]
        server.has_logprobs = False
        with pytest.raises(BackendError, match=r"cannot do top_logprobs .* 0\.12\.11"):
            ask(server, request)


def test_key_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """OLLAMA_HOST and OLLAMA_API_KEY are honoured; without the key the error says what to set."""

    async def look() -> Health:
        backend = make_backend(LinkSpec.parse("ollama"), Settings())
        try:
            return await backend.health()
        finally:
            await backend.close()

    with ollama_server(answer="ok", api_key="sk-secret") as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
        for key, is_right in (("", False), ("sk-secret", True)):
            monkeypatch.setenv("OLLAMA_API_KEY", key)
            with caplog.at_level("DEBUG"):
                health = asyncio.run(look())
            assert health.is_ready is is_right
            assert is_right or "set OLLAMA_API_KEY" in health.detail
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize(
    "host",
    ["", "box", "box:1234", "http://box", "https://box", "https://box/ollama/", ":5", "0.0.0.0:5", "[::1]:7"],
)
def test_ollama_host_is_read_as_by_its_own_client(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is the `ollama` client's reading; only 0.0.0.0 is this machine here."""
    from ollama._client import _parse_host

    expected = _parse_host(host).replace("0.0.0.0", "127.0.0.1")
    assert url_of(host) == expected


@given(st.text(max_size=60), st.sampled_from(["", "x" * 300, "{}" * 50]))
def test_bounds_of_a_prompt_enclose_it(text: str, extra: str) -> None:
    """The lower bound is never above the upper one, whatever the text."""
    size = PromptSize.of(ChatRequest(messages=[Message("user", text)]), extra)
    assert 0 <= size.least <= size.most
    assert size.about <= size.most


@given(st.binary(max_size=200) | st.from_regex(rb'\{"(message|done|error)": .{0,40}\}', fullmatch=True))
def test_any_line_is_a_chunk_or_an_error(line: bytes) -> None:
    """No line from a server, however broken, raises anything but PyAgent's own errors."""
    with contextlib.suppress(PyAgentError):
        assert isinstance(decode_chunk(line, "ollama"), Chunk)
