"""Ollama's API, by Ollama's own client: over the embedded engine, and over scripts for what a tiny model cannot do."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from support.server import HI, KEY, Model, keys, words

from pyagent.core.errors import BackendError, CapacityError, ModelError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FunctionCall,
    ImagePart,
    ModelInfo,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
)
from pyagent.core.tool_call_deltas import as_deltas
from pyagent.infrastructure.models.store import ModelStore
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()
GREEDY = {"temperature": 0, "num_predict": 6}


def asked(backend: Any, **options: Any) -> Any:
    """A client of a server over `backend`."""
    return serve(create_app(backend, **options))


# -- the client over the embedded engine --------------------------------------------------------------------------


def test_ollama_client_chats_and_streams(url: str) -> None:
    """Whole and streamed answers are the same text, with counts, durations and a reason to end."""
    with ollama.Client(url) as client:
        whole = client.chat("tiny", HI, options=GREEDY)
        assert (whole.model, whole.done, whole.done_reason, whole.message.role) == ("tiny", True, "length", "assistant")
        assert whole.eval_count == 6
        assert whole.prompt_eval_count
        assert whole.prompt_eval_count > 3
        assert whole.total_duration
        assert whole.total_duration >= (whole.eval_duration or 0) > 1000, "nanoseconds"
        pieces = list(client.chat("tiny:latest", HI, options=GREEDY, stream=True))
        assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
        assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("length", 6)
        stopped = client.chat("tiny", HI, options=GREEDY | {"stop": [(whole.message.content or "")[2]]})
        assert (stopped.message.content, stopped.done_reason) == ((whole.message.content or "")[:2], "stop")


def test_ollama_client_has_an_answer_gone_on_with(url: str) -> None:
    """A last message of the assistant is the answer's beginning, as in Ollama; it needs a link that can go on."""
    begun = [*HI, {"role": "assistant", "content": "The user is"}]
    with ollama.Client(url) as client:
        said = client.chat("tiny", begun, options=GREEDY)
        body = {"model": "tiny", "messages": begun, "continue_final_message": True, "max_tokens": 6, "temperature": 0}
        same = httpx.post(f"{url}/v1/chat/completions", json=body).json()
        assert same["choices"][0]["message"]["content"] == said.message.content
        assert said.eval_count == 6
    with (
        serve(create_app(Model())) as plain,
        ollama.Client(plain) as client,
        pytest.raises(ollama.ResponseError, match="cannot go on from an answer's beginning") as caught,
    ):
        client.chat("m", begun)
    assert caught.value.status_code == 400


def test_ollama_async_client_works(url: str) -> None:
    """The asynchronous client does the same."""

    async def work() -> None:
        async with ollama.AsyncClient(url) as client:
            whole = await client.chat("tiny", HI, options=GREEDY)
            stream = await client.chat("tiny", HI, options=GREEDY, stream=True)
            assert "".join([piece.message.content or "" async for piece in stream]) == whole.message.content
            assert (await client.list()).models[0].model == "tiny"

    asyncio.run(work())


def test_ollama_generate_goes_on_from_its_context(url: str) -> None:
    """`generate` renders a chat, `raw` does not, and its context makes the next prompt a turn of the same chat."""
    with ollama.Client(url) as client:
        first = client.generate("tiny", "Who is at it?", system="You are the user.", options=GREEDY)
        assert first.response
        said = [
            {"role": "system", "content": "You are the user."},
            {"role": "user", "content": "Who is at it?"},
            {"role": "assistant", "content": first.response},
            {"role": "user", "content": "And on?"},
        ]
        assert first.context
        second = client.generate("tiny", "And on?", context=first.context, options=GREEDY)
        assert second.response == client.chat("tiny", said, options=GREEDY).message.content
        raw = client.generate("tiny", "the user is", raw=True, options=GREEDY, stream=True)
        pieces = list(raw)
        assert pieces[0].response
        assert pieces[-1].prompt_eval_count
        assert pieces[-1].prompt_eval_count < 8, "without a template"
        assert pieces[-1].context is None


def test_ollama_format_makes_json(url: str) -> None:
    """A JSON schema as `format` binds what even a model of random weights writes."""
    properties = {"ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["ok"], "additionalProperties": False}
    with ollama.Client(url) as client:
        answer = client.chat("tiny", HI, format=schema, options=GREEDY | {"num_predict": 60})
        assert isinstance(json.loads(answer.message.content or "")["ok"], bool)


def test_ollama_loads_lists_and_unloads(url: str) -> None:
    """A request without a prompt loads the model, `ps` shows it, and keep_alive 0 unloads it until it is asked."""
    with ollama.Client(url) as client:
        assert client.chat("tiny").done_reason == "load"
        (running,) = client.ps().models
        assert (running.model, running.context_length) == ("tiny", 512)
        assert running.size
        shown = client.show("tiny")
        assert (shown.modelinfo or {})["llama.context_length"] == 512
        assert shown.capabilities == ["completion", "tools"], "told to the model in words"
        assert shown.details
        assert (shown.details.family, shown.details.format) == ("llama", ""), "`tiny` says nothing of its file"
        assert client.generate("tiny", keep_alive=0).done_reason == "unload"
        assert client.ps().models == []
        answer = client.chat("tiny", HI, options=GREEDY, keep_alive=0)
        assert answer.message.content, "it is loaded again"
        assert client.list().models[0].details


def test_ollama_unloads_also_when_the_client_leaves(url: str) -> None:
    """`keep_alive: 0` holds for an answer that nobody reads to its end."""
    with ollama.Client(url) as client:
        stream = client.chat("tiny", HI, options=GREEDY | {"num_predict": 400}, keep_alive=0, stream=True)
        next(iter(stream))
        assert client.ps().models
        stream.close()  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while client.ps().models:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_ollama_refusals_over_the_engine(url: str) -> None:
    """What is not there or cannot be is an error of the client's own kind, with its status."""
    with ollama.Client(url) as client:
        for work, status, says in (
            (lambda: client.chat("tinny", HI), 404, "model 'tinny' not found; did you mean 'tiny'"),
            (lambda: client.embed("tiny", "text"), 400, "cannot embed"),
            (lambda: client.chat("tiny", [{"role": "user", "content": "!?" * 999}]), 400, "512"),
            (lambda: client.generate("tiny", "x", suffix="y"), 400, "suffix"),
            (lambda: client.pull("nothing"), 400, "cannot be pulled"),
        ):
            with pytest.raises(ollama.ResponseError, match=says) as caught:
                work()
            assert caught.value.status_code == status
        client.chat("tiny", HI, options=GREEDY | {"num_ctx": 9999, "num_gpu": 0})


def test_ollama_version_and_greeting(url: str) -> None:
    """Clients that look for Ollama find it; a browser gets the page."""
    with httpx.Client(base_url=url) as http:
        assert http.head("/").status_code == 200
        assert http.get("/").text == "Ollama is running"
        assert "<h1>PyAgent" in http.get("/", headers={"accept": "text/html,*/*"}).text
        assert http.get("/api/version").json()["version"].count(".") == 2
        assert http.head("/api/tags").status_code == 200
        lost = http.post("/api/create", json={})
        assert (lost.status_code, lost.json()) == (404, {"error": "no such path: POST /api/create"})


def test_ollama_bodies_need_no_content_type_but_from_browsers() -> None:
    """As curl and some clients send it; a page in a browser, which names its origin, must declare JSON."""
    body = json.dumps({"model": "m", "messages": HI, "stream": False}).encode()
    with asked(Model()) as served:
        for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
            assert httpx.post(f"{served}/api/chat", content=body, headers=headers).status_code == 200
            evil = httpx.post(f"{served}/api/chat", content=body, headers=headers | {"origin": "null"})
            assert (evil.status_code, "application/json" in evil.json()["error"]) == (415, True)


# -- the client over scripts ------------------------------------------------------------------------------------------


def test_ollama_tools_have_objects_as_arguments() -> None:
    """Calls come whole with objects as arguments; results find the call they answer by name."""
    call = ToolCall(id="c1", function=FunctionCall("add", '{"a": 1, "b": 2}'))
    backend = Model(
        lambda _: [ChatDelta(tool_calls=as_deltas([call])), ChatDelta(finish_reason="tool_calls", usage=Usage(1, 2))]
    )

    def add(a: int, b: int) -> int:
        """Add.

        Args:
          a: one
          b: other
        """
        return a + b

    with asked(backend) as served, ollama.Client(served) as client:
        whole = client.chat("m", HI, tools=[add])
        streamed = list(client.chat("m", HI, tools=[add], stream=True))
        for message in (whole.message, streamed[0].message):
            assert message.tool_calls
            assert message.tool_calls[0].function.name == "add"
            assert message.tool_calls[0].function.arguments == {"a": 1, "b": 2}
        assert streamed[-1].done_reason == "stop"
        client.chat("m", [*HI, whole.message, {"role": "tool", "tool_name": "add", "content": "3"}])
    assert backend.requests[0].tools[0].function.parameters["required"] == ["a", "b"]
    said, result = backend.requests[-1].messages[1:]
    assert said.tool_calls
    assert json.loads(said.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
    assert (result.role, result.tool_call_id, result.content) == ("tool", said.tool_calls[0].id, "3")


def test_ollama_thinking_images_and_logprobs() -> None:
    """Reasoning comes as `thinking` unless it is not wanted; images arrive as data URLs, logprobs as entries."""
    odds = TokenLogprob("yes", -0.5, [("yes", -0.5), ("no", -1.0)])
    backend = Model(lambda _: [ChatDelta(reasoning="hm"), *words("yes", logprobs=[odds])])
    with asked(backend) as served, ollama.Client(served) as client:
        message = {"role": "user", "content": "see?", "images": [PNG]}
        answer = client.chat("m", [message], logprobs=True, top_logprobs=2)
        assert answer.message.thinking == "hm"
        assert answer.logprobs
        assert [entry.token for entry in answer.logprobs[0].top_logprobs or ()] == ["yes", "no"]
        assert client.chat("m", HI, think=False).message.thinking is None
        pieces = list(client.generate("m", "x", images=[PNG], stream=True))
        assert pieces[0].thinking == "hm"
    for request in (backend.requests[0], backend.requests[-1]):
        content = request.messages[0].content
        assert isinstance(content, list)
        assert isinstance(content[1], ImagePart)
        assert content[1].image_url.url == f"data:image/png;base64,{PNG}"
    assert backend.requests[0].sampling.top_logprobs == 2


def test_ollama_durations_are_the_backends_or_measured() -> None:
    """A backend that tells no whole time does not make its answer look instant; names of speakers arrive."""
    usage = Usage(3, 2, 5, timings=Timings(first_token_seconds=0.5))
    backend = Model(lambda _: [ChatDelta(content="a"), 0.05, ChatDelta(finish_reason="stop", usage=usage)])
    with asked(backend) as served:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi", "name": "ann"}], "stream": False}
        said = httpx.post(f"{served}/api/chat", json=body).json()
    assert 40_000_000 < said["eval_duration"] <= said["total_duration"]
    assert backend.requests[0].messages[0].name == "ann"


def test_ollama_errors_have_its_shape() -> None:
    """Before the first token an error has its status; after it, it is a line, and no line says `done`."""
    broken = Model(lambda _: [ChatDelta(content="Hel"), BackendError("gpu on fire", backend="gpu")])
    with asked(broken) as served, ollama.Client(served) as client:
        with pytest.raises(ollama.ResponseError, match="gpu on fire"):
            list(client.chat("m", HI, stream=True))
        lines = httpx.post(f"{served}/api/chat", json={"model": "m", "messages": HI}).text.splitlines()
        assert [json.loads(line).get("done") for line in lines] == [False, None]
        assert json.loads(lines[-1]) == {"error": "gpu on fire"}
    full = Model(lambda _: [CapacityError("full", retry_after_seconds=3)])
    with asked(full) as served:
        refused = httpx.post(f"{served}/api/chat", json={"model": "m", "messages": HI})
        assert (refused.status_code, refused.headers["retry-after"], refused.json()) == (429, "3", {"error": "full"})
    with asked(full, api_keys=keys(KEY)) as served:
        assert httpx.get(f"{served}/api/tags").json() == {"error": "a valid API key is needed: " + _KEY_WORDS}
        with ollama.Client(served, headers={"authorization": f"Bearer {KEY}"}) as client:
            assert client.list().models


_KEY_WORDS = "Authorization: Bearer KEY, or x-api-key: KEY"


def test_ollama_embeds() -> None:
    """Vectors come in order, shortened to unit length when asked; both forms of the call work."""

    class Embedding(Model):
        async def embed(self, request: EmbedRequest) -> EmbedResult:
            return EmbedResult(vectors=[[3.0, 4.0, float(len(text))] for text in request.input], usage=Usage(7, 0, 7))

    with asked(Embedding()) as served, ollama.Client(served) as client:
        many = client.embed("m", ["a", "bcd"])
        assert many.embeddings == [[3.0, 4.0, 1.0], [3.0, 4.0, 3.0]]
        assert many.prompt_eval_count == 7
        assert client.embed("m", "a", dimensions=2).embeddings == [[0.6, 0.8]]
        assert client.embeddings("m", "ab").embedding == [3.0, 4.0, 2.0]
        assert client.embeddings("m", "").embedding == []
        with pytest.raises(ollama.ResponseError, match="dimensions is from 1 to the 3"):
            client.embed("m", "a", dimensions=4)
        with pytest.raises(ollama.ResponseError, match="nothing to embed"):
            client.embed("m", [])


@dataclass(frozen=True)
class Source:
    """Where a model comes from that costs nothing to fetch."""

    requirements: tuple[str, ...] = ("tiny-weights",)
    sha256: str = "ab" * 32
    size_bytes: int = 20
    licence: str = "MIT"
    about: str = "tiny"
    error: str = ""

    def fetch(self, folder: Path, progress: Any) -> Path:
        progress(10, 20)
        if self.error:
            raise ModelError(self.error, model="x")
        progress(20, 20)
        (folder / "m.gguf").write_bytes(b"x" * 20)
        return folder / "m.gguf"


def test_ollama_pull_tells_its_progress(tmp_path: Path) -> None:
    """Pulling goes through the store, told as it goes on; a name it does not know and a fetch that fails are errors."""
    catalog: Any = {"tiny:1": Source(), "tiny:2": Source(error="the disk is full")}
    store = ModelStore(tmp_path, catalog)
    with asked(Model(models=["tiny:1"]), store=store) as served, ollama.Client(served) as client:
        news = list(client.pull("tiny:1", stream=True))
        assert [news[0].status, news[-2].status] == ["pulling manifest", "writing manifest"]
        assert [(entry.completed, entry.total) for entry in news if entry.total] == [(10, 20), (20, 20)]
        assert (news[-1].status, store.find("tiny:1") is None) == ("success", False)
        assert client.pull("tiny:1").status == "success"
        with pytest.raises(ollama.ResponseError, match="did you mean 'tiny:1'") as caught:
            client.pull("tiny:11", stream=False)
        assert caught.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="disk is full"):
            list(client.pull("tiny:2", stream=True))
        with pytest.raises(ollama.ResponseError, match="disk is full"):
            client.pull("tiny:2")
        with pytest.raises(ollama.ResponseError, match="cannot be pulled"):
            client.pull("/etc/passwd")
        assert client.list().models[0].size == 20


def test_ollama_models_without_a_list_are_asked_for() -> None:
    """A backend that cannot say what it has is asked for the model by the name given."""

    class Silent(Model):
        async def models(self) -> list[ModelInfo]:
            return []

    backend = Silent(lambda request: words(request.model))
    with asked(backend) as served, ollama.Client(served) as client:
        assert client.chat("llama3.2", HI).message.content == "llama3.2"
    assert isinstance(backend.requests[0], ChatRequest)


def test_details_say_size_and_quantization(tiny_model_path: Path) -> None:
    """A model of a file says how many parameters it has, and of which type, in Ollama's words."""
    with serve(create_app(Model(models=(str(tiny_model_path),)))) as url:
        details = httpx.get(f"{url}/api/tags").json()["models"][0]["details"]
    assert (details["parameter_size"], details["quantization_level"]) == ("0.10M", "F32")
