"""The OpenAI-compatible client: what it asks, and how it reads answers, byte for byte."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import msgspec
import pytest
from support.wire import DONE, USAGE, WHOLE, Piece, answered, ask, chat, event, head, serving, token

from pyagent.core.backends import collect
from pyagent.core.errors import (
    BackendError,
    InvalidOutputError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import (
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FunctionDefinition,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingParams,
    Tool,
)
from pyagent.infrastructure.backends.openai import (
    OpenAIBackend,
)
from pyagent.infrastructure.backends.openai_requests import encode_request
from pyagent.infrastructure.server.openai.requests import read_chat


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
        parallel_tool_calls=False,
        reasoning_effort="low",
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
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }


def test_openai_is_told_limits_by_their_newer_name() -> None:
    """A chat's limit goes to OpenAI itself as `max_completion_tokens`, the only name its reasoning models take."""
    limit = SamplingParams(max_tokens=9)
    for request, is_openai, name in (
        (chat(sampling=limit), True, "max_completion_tokens"),
        (chat(sampling=limit), False, "max_tokens"),
        (ChatRequest(prompt="x", sampling=limit), True, "max_tokens"),
    ):
        body = json.loads(encode_request(request, "m", is_openai=is_openai)[1])
        assert {key: value for key, value in body.items() if key.startswith("max")} == {name: 9}


def test_openai_backend_asks_again_without_what_a_server_refuses() -> None:
    """A reasoning model behind a gateway is asked without a temperature and with the newer limit, from then on."""

    def play(body: dict[str, Any]) -> tuple[Piece, ...]:
        refused = next((name for name in ("max_tokens", "temperature", "top_k") if name in body), None)
        if refused is None:
            return WHOLE
        text = f"Unsupported parameter: '{refused}' is not supported with this model."
        return answered({"error": {"message": text, "param": None, "code": None}}, "400 Bad")

    async def main() -> None:
        async with serving(play=play) as wire:
            backend = OpenAIBackend(wire.url, model="o9")
            request = chat(sampling=SamplingParams(max_tokens=9, temperature=0.2, top_k=5))
            first = await collect(backend.chat(request))
            num_asked = len(wire.requests)
            second = await collect(backend.chat(request))
            await backend.close()
            assert first.text == second.text == "Hello"
            assert first.usage.ignored == ("temperature", "top_k")
            assert first.usage.prompt_tokens == 5
            assert (num_asked, len(wire.requests)) == (4, 5), "what was learnt is remembered"
            assert wire.requests[-1][2]["max_completion_tokens"] == 9

    asyncio.run(main())


def test_openai_backend_tells_defaults_that_a_client_spelt_out() -> None:
    """Hints given as our defaults go out, as servers have others; one that refuses a hint is asked without it."""
    fields = {"top_k": 0, "top_p": 1.0, "repeat_last_n": -1, "min_p": 0.0, "min_tokens": 0}
    said = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    request = read_chat(said).request
    body = ask(WHOLE, request)[1].requests[0][2]
    assert {name: body[name] for name in fields if name in body} == {
        name: fields[name] for name in ("top_k", "top_p", "repeat_last_n", "min_p")
    }
    text = {"error": {"message": "Unknown parameter: 'top_k'.", "param": "top_k", "code": "unknown_parameter"}}
    for unsupported in ("emulate", "refuse"):
        answer, wire = ask(
            (),
            msgspec.structs.replace(request, unsupported=unsupported),
            play=lambda said: answered(text, "400 Bad") if "top_k" in said else WHOLE,
        )
        assert (answer.text, answer.usage.ignored) == ("Hello", ("top_k",))
        assert "top_k" not in wire.requests[-1][2]


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Unknown parameter: 'top_k'.", "param": "top_k", "code": "unknown_parameter"}},
        {"error": {"message": "Unrecognized request argument supplied: top_k", "param": None, "code": None}},
        {"error": {"message": "property 'top_k' is unsupported, did you mean 'top_p'?", "type": "invalid"}},
        {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"]}]}},
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs are not permitted"}]},
    ],
)
def test_openai_backend_knows_refused_fields_in_many_words(body: dict[str, Any]) -> None:
    """A server's refusal of one field is no fault of the request: asked not to leave it out, the next link is next."""
    status = "422 Unprocessable" if "detail" in str(body) else "400 Bad"
    request = chat(sampling=SamplingParams(top_k=5), unsupported="refuse")
    with pytest.raises(UnsupportedError) as caught:
        ask(answered(body, status), request)
    assert caught.value.fields == ("top_k",)
    answer, _ = ask(
        (),
        chat(sampling=SamplingParams(top_k=5)),
        play=lambda said: answered(body, status) if "top_k" in said else WHOLE,
    )
    assert (answer.text, answer.usage.ignored) == ("Hello", ("top_k",))


def test_openai_backend_reads_a_whole_answer_of_a_server_that_streams_nothing() -> None:
    """Servers that ignore `stream` are understood, calls and usage included."""
    calls = [{"id": "a", "function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g", "arguments": "{}"}}]
    message = {"role": "assistant", "content": "Hello", "tool_calls": calls}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    whole = {"model": "served", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    answer, _ = ask(answered(whole | {"usage": usage}))
    assert (answer.text, answer.usage.total_tokens) == ("Hello", 7)
    assert [call.function.name for call in answer.tool_calls] == ["f", "g"]
    for kind in ("application/octet-stream", "text/plain; charset=utf-8"):
        assert ask((head(kind=kind), *WHOLE[1:]))[0].text == "Hello"


def test_openai_backend_joins_a_character_cut_between_chunks() -> None:
    """Half a character (a UTF-16 surrogate) at a chunk's end and the other at the next one's beginning are one."""

    def raw(text: str, finish: str = "null") -> bytes:
        return b'data: {"choices":[{"delta":{"content":"%s"},"finish_reason":%s}]}\n\n' % (
            text.encode(),
            finish.encode(),
        )

    answer, _ = ask((head(), raw("hi \\ud83d"), raw("\\ude00!"), raw("", '"stop"'), DONE))
    assert answer.text == "hi \U0001f600!"
    lone, _ = ask((head(), raw("x\\ud83d"), raw("y", '"stop"'), DONE))
    assert lone.text == "x\ufffdy"


def test_openai_backend_plain_prompt_uses_completions() -> None:
    """A request with a prompt and no messages goes to /completions, whose chunks hold `text`."""
    script = (head(), event(choices=[{"index": 0, "text": "42", "finish_reason": "length"}]), DONE)
    answer, wire = ask(script, ChatRequest(prompt="6*7="))
    assert (answer.text, answer.last.finish_reason) == ("42", "length")
    assert wire.requests[0][0].startswith("POST /v1/completions ")
    assert wire.requests[0][2]["prompt"] == "6*7="


def test_openai_backend_streams_tool_calls() -> None:
    """A call's pieces are passed on as they come; one that another is mixed into waits until that one is whole."""

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
    answer = ask(script)[0]
    assert [(c.id, c.function.name, c.function.arguments) for c in answer.tool_calls] == [
        ("a", "add", '{"x": 1}'),
        ("b", "mul", "{}"),
    ]
    assert [[(p.index, p.arguments) for p in delta.tool_calls] for delta in answer.deltas if delta.tool_calls] == [
        [(0, '{"x"')],
        [(0, ": 1}"), (1, "{}")],
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
    schema = wire.requests[-1][2]["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"choice": {"type": "string", "enum": ["yes", "no"]}}
    with pytest.raises(InvalidOutputError, match="none of the choices"):
        ask((head(), token("maybe"), token("", "stop"), DONE), request)


def test_openai_backend_reads_compressed_and_chopped_streams() -> None:
    """Compressed answers, comments, CR LF line ends and events cut inside a character are read all the same."""
    text = b": hello\r\n\r\n" + token("héllo 😀").replace(b"\n", b"\r\n") + token("", "stop") + DONE
    whole = head("200 OK", "text/event-stream", "content-encoding: gzip") + gzip.compress(text)
    assert ask((whole,))[0].text == "héllo 😀"
    raw = event(choices=[{"delta": {"content": "😀"}}]).decode("unicode_escape").encode("utf-16", "surrogatepass")
    utf8 = raw.decode("utf-16").encode()
    cut = utf8.index("😀".encode()) + 2
    assert ask((head(), utf8[:cut], 0.02, utf8[cut:], token("", "stop")))[0].text == "😀"


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


def test_openai_backend_names_a_task() -> None:
    """Jina's field reaches the server, and no field where none is asked for."""

    async def sent(task: str) -> Any:
        async with serving(*answered({"data": [{"index": 0, "embedding": [1.0]}]})) as wire:
            backend = OpenAIBackend(wire.url, model="m")
            await backend.embed(EmbedRequest(model="", input=["a"], task=task))
            await backend.close()
            return wire.requests[0][2]

    assert asyncio.run(sent("separation"))["task"] == "separation"
    assert "task" not in asyncio.run(sent(""))


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
    answer = ask(script)[0]
    assert [(c.id, c.function.name, c.function.arguments) for c in answer.tool_calls] == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]
    assert answer.last.finish_reason == "tool_calls"
    (nameless,) = ask((head(), call(function={"name": "f"}), token("", "tool_calls")))[0].tool_calls
    assert nameless.id.startswith("call_")


def test_openai_backend_reads_the_logprobs_of_completions() -> None:
    """/completions gives log probabilities in lists of its own."""
    said = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {"b": -0.5, "c": -1.0}]}
    script = (head(), event(choices=[{"text": "ab", "logprobs": said, "finish_reason": "stop"}]), DONE)
    answer, wire = ask(script, ChatRequest(prompt="x", sampling=SamplingParams(top_logprobs=2)))
    assert wire.requests[0][2]["logprobs"] == 2
    assert [(entry.token, entry.logprob) for entry in answer.deltas[0].logprobs] == [("a", 0.0), ("b", -0.5)]
    assert answer.deltas[0].logprobs[1].top_logprobs == [("b", -0.5), ("c", -1.0)]
