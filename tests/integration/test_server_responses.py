"""OpenAI's responses and embeddings, by OpenAI's own client: over the embedded engine, and over scripts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pydantic
import pytest
from support.server import HI, KEY, Model, keys, words

from pyagent.core.errors import BackendError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    EmbedRequest,
    EmbedResult,
    FunctionCall,
    ImagePart,
    PromptTokensDetails,
    TokenLogprob,
    ToolCall,
    Usage,
)
from pyagent.core.settings import Server
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.responses.kept import KeptResponses
from pyagent.infrastructure.server.responses.requests import IGNORED, REFUSED, ResponsesBody, read_response
from pyagent.testing import serve

TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": True}


def client_of(url: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@contextmanager
def asked(backend: Any, **options: Any) -> Iterator[openai.OpenAI]:
    """A client of a server over `backend`."""
    with serve(create_app(backend, **options)) as url, client_of(url) as client:
        yield client


# -- the client over the embedded engine ------------------------------------------------------------------------------


def test_responses_client_whole_and_streamed(url: str) -> None:
    """Whole and streamed answers are the same response, events numbered in order."""
    said: Any = {"model": "tiny", "input": "Hello", "instructions": "You are the user.", "temperature": 0}
    with client_of(url) as client:
        whole = client.responses.create(max_output_tokens=6, **said)
        assert (whole.status, whole.object, whole.model) == ("incomplete", "response", "tiny")
        assert whole.incomplete_details
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.usage
        assert (whole.usage.output_tokens, whole.usage.total_tokens) == (6, 6 + whole.usage.input_tokens)
        events = list(client.responses.create(max_output_tokens=6, stream=True, **said))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    last = events[-1]
    assert last.type == "response.incomplete"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == last.response.output_text == whole.output_text


def test_responses_async_client_goes_on(url: str) -> None:
    """A response goes on from an earlier one as if the whole conversation had been sent."""

    async def work() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            say: Any = {"model": "tiny", "temperature": 0, "max_output_tokens": 5}
            first = await client.responses.create(input="Who is at it?", **say)
            second = await client.responses.create(input="And on?", previous_response_id=first.id, **say)
            turns: Any = [
                {"role": "user", "content": "Who is at it?"},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And on?"},
            ]
            whole = await client.responses.create(input=turns, store=False, **say)
            assert second.output_text == whole.output_text
            assert second.usage
            assert second.usage.input_tokens_details.cached_tokens > 0
            assert (await client.responses.retrieve(second.id)).output_text == second.output_text
            listed = await client.responses.input_items.list(second.id)
            assert [item.to_dict()["content"] for item in listed.data] == [[{"type": "input_text", "text": "And on?"}]]
            with pytest.raises(openai.NotFoundError, match="is not kept"):
                await client.responses.retrieve(whole.id)
            await client.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError, match="is not kept"):
                await client.responses.create(input="x", previous_response_id=first.id, **say)

    asyncio.run(work())


def test_responses_parse_structured_output(url: str) -> None:
    """The client's own `parse` gets an object of a pydantic class, even from a model of random weights."""

    class Verdict(pydantic.BaseModel):
        ok: bool

    with client_of(url) as client:
        say: Any = {"model": "tiny", "temperature": 0, "max_output_tokens": 60}
        answer = client.responses.parse(input="Hello", text_format=Verdict, **say)
        assert isinstance(answer.output_parsed, Verdict)


def test_embeddings_are_refused_by_the_engine(url: str) -> None:
    """What cannot embed says so."""
    with client_of(url) as client, pytest.raises(openai.BadRequestError, match="cannot embed"):
        client.embeddings.create(model="tiny", input="text")


# -- the client over scripts ------------------------------------------------------------------------------------------


def test_responses_tools() -> None:
    """Calls are items, whole and streamed; they and their outputs go back as messages the backend knows."""
    call = ToolCall(id="c1", function=FunctionCall("add", '{"a": 1}'))
    calls = [call, ToolCall(id="c2", function=call.function)]
    script = [ChatDelta(reasoning="hm"), ChatDelta(content="I add."), ChatDelta(tool_calls=as_deltas(calls))]
    backend = Model(lambda _: [*script, ChatDelta(finish_reason="tool_calls", usage=Usage(9, 2, 11))])
    with asked(backend) as client:
        say: Any = {"model": "m", "tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}}
        whole = client.responses.create(input="1+1", **say)
        with client.responses.stream(input="1+1", **say) as stream:
            assert [event.type for event in stream].count("response.function_call_arguments.done") == 2
            final = stream.get_final_response()
        for response in (whole, final):
            kinds = [item.type for item in response.output]
            assert kinds == ["reasoning", "message", "function_call", "function_call"]
            assert response.status == "completed"
            item = response.output[2]
            assert item.type == "function_call"
            assert (item.call_id, item.name, item.arguments) == ("c1", "add", '{"a": 1}')
        told: Any = [{"type": "function_call_output", "call_id": "c1", "output": "2"}]
        client.responses.create(model="m", input=told, previous_response_id=whole.id)
        sent_back: Any = [{"role": "user", "content": "1+1"}, *[item.to_dict() for item in final.output], *told]
        client.responses.create(model="m", input=sent_back)
    assert backend.requests[0].tool_choice == {"type": "function", "function": {"name": "add"}}
    for request in backend.requests[-2:]:
        user, said, result = request.messages
        assert (user.text, said.text, said.tool_calls) == ("1+1", "I add.", calls)
        assert (result.role, result.tool_call_id, result.text) == ("tool", "c1", "2")


def test_responses_tools_in_namespaces() -> None:
    """Functions of a namespace are functions to the model; its calls come with the namespace, and go back with it."""
    call = ToolCall(id="c1", function=FunctionCall("crm__find", "{}"))
    backend = Model(lambda _: [ChatDelta(tool_calls=as_deltas([call])), ChatDelta(finish_reason="tool_calls")])
    crm = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [TOOL | {"name": "find"}]}
    with asked(backend) as client:
        say: Any = {"model": "m", "tools": [crm, TOOL]}
        whole = client.responses.create(input="who?", **say)
        with client.responses.stream(input="who?", **say) as stream:
            final = stream.get_final_response()
        for (item,) in (whole.output, final.output):
            assert item.type == "function_call"
            assert (item.namespace, item.name) == ("crm", "find")
        assert whole.tools[0].to_dict()["tools"][0]["name"] == "find"  # type: ignore[index]
        told: Any = [{"type": "function_call_output", "call_id": "c1", "output": "Ann"}]
        client.responses.create(model="m", input=told, previous_response_id=whole.id)
        with pytest.raises(openai.BadRequestError, match="'crm__find'"):
            client.responses.create(input="x", model="m", tools=[crm, TOOL | {"name": "crm__find"}])  # type: ignore[list-item]
    offered = [tool.function for tool in backend.requests[0].tools]
    assert [(function.name, function.description) for function in offered] == [("crm__find", "Customers."), ("add", "")]
    assert backend.requests[-1].messages[1].tool_calls == [call]


def test_responses_images_and_logprobs() -> None:
    """Images arrive as parts; log probabilities come with the text when they are included."""
    odds = TokenLogprob("yes", -0.5, [("yes", -0.5), ("no", -1.0)])
    backend = Model(lambda _: [ChatDelta(content="yes", logprobs=[odds]), *words()])
    parts = [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    with asked(backend) as client:
        include: Any = ["message.output_text.logprobs"]
        said: Any = [{"role": "user", "content": parts}]
        answer = client.responses.create(model="m", input=said, include=include, top_logprobs=2)
        message = answer.output[0]
        assert message.type == "message"
        text = message.content[0]
        assert text.type == "output_text"
        assert text.logprobs
        assert [entry.token for entry in text.logprobs[0].top_logprobs] == ["yes", "no"]
    content = backend.requests[0].messages[0].content
    assert isinstance(content, list)
    assert isinstance(content[1], ImagePart)
    assert backend.requests[0].sampling.top_logprobs == 2


def test_responses_failures() -> None:
    """A failure before the first token has its status; after it, the last event says so, and nothing is kept."""
    broken = Model(lambda _: [ChatDelta(content="Hel"), BackendError("gpu on fire", backend="gpu")])
    with asked(broken) as client:
        events = list(client.responses.create(model="m", input="x", stream=True))
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.error
        assert last.response.error.message == "gpu on fire"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(last.response.id)
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            client.responses.create(model="x", input="x")


def test_responses_belong_to_their_key() -> None:
    """A response is there for the API key that asked for it, and for no other."""
    other = "sk-another-key-of-16"
    app = create_app(Model(), api_keys=keys(KEY, other))
    with serve(app) as url, client_of(url) as mine, client_of(url, other) as theirs:
        kept = mine.responses.create(model="m", input="x")
        assert mine.responses.retrieve(kept.id).output_text == "Hello"
        for work in (theirs.responses.retrieve, theirs.responses.delete):
            with pytest.raises(openai.NotFoundError, match="another key's"):
                work(kept.id)
        same_id = {"x-request-id": kept.id.removeprefix("resp_")}
        assert theirs.responses.create(model="m", input="y", extra_headers=same_id).id == kept.id
        assert [item.to_dict()["content"] for item in mine.responses.input_items.list(kept.id)] == [
            [{"type": "input_text", "text": "x"}]
        ]
        theirs.responses.delete(kept.id)
        reference: Any = {"type": "item_reference", "id": kept.output[0].id}
        assert mine.responses.create(model="m", input=[reference, *HI]).output_text == "Hello"
        with pytest.raises(openai.NotFoundError, match="another key's"):
            theirs.responses.create(model="m", input=[reference, *HI])


def test_responses_items_are_referred_to() -> None:
    """A reference is the item as it was told, once; one to nothing that is kept is named."""
    backend = Model()
    with asked(backend) as client:
        first = client.responses.create(model="m", input="hi")
        reference: Any = {"type": "item_reference", "id": first.output[0].id}
        second = client.responses.create(model="m", input=[*HI, reference, *HI])
        assert [message.text for message in backend.requests[-1].messages] == ["hi", "Hello", "hi"]
        client.responses.create(model="m", input="on", previous_response_id=second.id)
        assert [message.text for message in backend.requests[-1].messages] == ["hi", "Hello", "hi", "Hello", "on"]
        with pytest.raises(openai.BadRequestError, match=r"input\[2\].id is in the input already"):
            client.responses.create(model="m", input=[*HI, reference, reference])
        for unknown in (f"{reference['id']}1", "msg", "", "msg_x_0", "é_\n_", ["msg"], None, 1):
            with pytest.raises(openai.NotFoundError) as caught:
                client.responses.create(model="m", input=[{"type": "item_reference", "id": unknown}])  # type: ignore[list-item]
            assert caught.value.param == "input[0].id"


def test_responses_private_items_stay_private() -> None:
    """A request that refers to an item of a private response is private, and so is what goes on from it."""
    backend = Model()
    with asked(backend) as client:
        first = client.responses.create(model="m", input="x", extra_body={"private": True})
        reference: Any = {"type": "item_reference", "id": first.output[0].id}
        second = client.responses.create(model="m", input=[*HI, reference])
        client.responses.create(model="m", input="on", previous_response_id=second.id)
    assert [request.private for request in backend.requests] == [True] * 3


def test_responses_tell_reasoning_as_a_summary_where_one_is_asked_for() -> None:
    """Whole and streamed the summary is the reasoning, in its own events; sealed it goes back unread."""
    backend = Model(lambda _: [ChatDelta(reasoning="Hm, "), ChatDelta(reasoning="so."), *words("Hel", "lo")])
    say: Any = {"model": "m", "input": "x", "reasoning": {"summary": "auto"}, "store": False}
    say["include"] = ["reasoning.encrypted_content"]
    with asked(backend) as client:
        whole = client.responses.create(**say)
        with client.responses.stream(**say) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
        sealed: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "pyagent:Hm, so."}
        foreign: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
        for item, thought in ((whole.output[0], "Hm, so."), (sealed, "Hm, so."), (foreign, None)):
            client.responses.create(model="m", input=[*HI, item, {"role": "assistant", "content": "a"}, *HI])
            assert backend.requests[-1].messages[1].reasoning_content == thought
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind in kinds if kind.startswith("reasoning")] == [
        "reasoning_summary_part.added",
        *["reasoning_summary_text.delta"] * 2,
        *("reasoning_summary_text.done", "reasoning_summary_part.done"),
    ]
    for response in (whole, streamed):
        item: Any = response.output[0]
        assert [(part.type, part.text) for part in item.summary] == [("summary_text", "Hm, so.")]
        assert (item.content, item.encrypted_content) == (None, "pyagent:Hm, so.")
        assert response.reasoning
        assert response.reasoning.summary == "auto"


def test_kept_responses_are_bounded() -> None:
    """The oldest go first when there are too many bytes, and all go by age; removing gives bytes back."""
    kept = KeptResponses(max_bytes=1000, seconds=60)
    for number in range(20):
        kept.keep("me", {"id": str(number), "output": []}, [], [{"content": "x" * 80}])
    with pytest.raises(RequestError):
        kept.find("0", "me")
    assert kept.find("19", "me").input_items == [{"content": "x" * 80}]
    kept.remove("19", "me")
    with pytest.raises(RequestError):
        kept.find("19", "me")
    brief = KeptResponses(max_bytes=1000, seconds=0.01)
    brief.keep("me", {"id": "a", "output": []}, [], [])
    time.sleep(0.02)
    with pytest.raises(RequestError):
        brief.find("a", "me")
    with asked(Model(), settings=Server(kept_responses_bytes=1)) as client:
        answer = client.responses.create(model="m", input="x")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(answer.id)


def test_embeddings_client() -> None:
    """Vectors come in order, as floats and as the base64 that the client asks for itself."""

    class Embedding(Model):
        async def embed(self, request: EmbedRequest) -> EmbedResult:
            usage = Usage(7, 0, 7, PromptTokensDetails())
            return EmbedResult(vectors=[[3.0, 4.0, float(len(text))] for text in request.input], usage=usage)

    with asked(Embedding()) as client:
        made = client.embeddings.create(model="m", input=["a", "bcd"])
        assert [entry.embedding for entry in made.data] == [[3.0, 4.0, 1.0], [3.0, 4.0, 3.0]]
        assert made.usage.prompt_tokens == 7
        plain = client.embeddings.create(model="m", input="a", dimensions=2, encoding_format="float")
        assert plain.data[0].embedding == [0.6, 0.8]
        with pytest.raises(openai.BadRequestError, match="token ids are not supported"):
            client.embeddings.create(model="m", input=[[1, 2]])
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="x", input="a")


# -- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"input": []}, "input", "empty"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "robot"),
        ({"input": [{"type": ["x"]}]}, "input[0].type", "there are message"),
        ({"tools": [TOOL, {"type": "web_search", "external_web_access": False}]}, "tools[1].type", "'web_search'"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "b"}]}]}, "tools[0].tools[0].type", "'b'"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "a function of tools"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "'huge'"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "say in the prompt"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "needs its schema"),
        ({"include": ["file_search_call.results"]}, "include", "logprobs, reasoning.encrypted_content"),
        ({"background": True}, "background", "while the client waits"),
        ({"truncation": "auto"}, "truncation", "never cut"),
        ({"conversation": "c"}, "conversation", "previous_response_id"),
        ({"max_tokens": 5}, "max_tokens", "unknown field"),
        ({"temperature": 9}, "temperature", "between 0 and 2"),
    ],
)
def test_responses_bad_field_is_named(change: dict[str, Any], param: str, says: str) -> None:
    """Each bad value is refused with the name of its field and what would be right."""
    with pytest.raises(RequestError, match=says) as caught:
        read_response(json.dumps({"model": "m", "input": "x"} | change).encode()).request([])
    assert caught.value.param == param


def test_responses_fields_have_one_fate() -> None:
    """Fields that are ignored or refused are fields of the body; values that mean nothing pass."""
    assert {*IGNORED, *REFUSED} < set(ResponsesBody.__struct_fields__)
    body: dict[str, Any] = {"input": "x", "reasoning": {"effort": None, "summary": "auto"}, "truncation": "disabled"}
    body |= {name: "x" for name in IGNORED if name != "metadata"} | {"metadata": {"a": "b"}, "user": "me"}
    body |= {"parallel_tool_calls": False}
    asked = read_response(json.dumps(body).encode()).request([])
    assert (asked.origin.client, asked.model, asked.messages[0].text) == ("me", "", "x")
    assert (asked.parallel_tool_calls, asked.reasoning_effort) == (False, None)
    body |= {"parallel_tool_calls": True, "reasoning": {"effort": "minimal"}}
    asked = read_response(json.dumps(body).encode()).request([])
    assert (asked.parallel_tool_calls, asked.reasoning_effort) == (True, "minimal")
