"""The fake Ollama is true to the wire: the real `ollama` client cannot tell."""

from __future__ import annotations

import httpx
import ollama
import pytest

from pyagent.testing import Fault, ollama_server

HI = [{"role": "user", "content": "hi"}]


def test_client_lists_shows_and_chats() -> None:
    """The client lists models, shows one, chats whole and streamed."""
    with ollama_server(answer="one two", thinking="hm") as server, ollama.Client(server.url) as client:
        assert [model.model for model in client.list().models] == ["llama3.2:latest"]
        assert client.show("llama3.2").capabilities == [*server.capabilities]
        assert client.chat("llama3.2", HI).message.content == "one two"
        chunks = list(client.chat("llama3.2", HI, stream=True))
        assert [chunk.message.content for chunk in chunks] == ["", "one", " two", ""]
        assert chunks[0].message.thinking == "hm"
        assert (chunks[-1].done_reason, chunks[-1].eval_count) == ("stop", 2)
        assert httpx.get(server.url).text == "Ollama is running"
        assert httpx.get(f"{server.url}/api/version").json().keys() == {"version"}


def test_client_sees_tool_calls_and_loads() -> None:
    """Tool calls come whole with arguments as objects; a request without messages loads the model."""
    calls = [{"function": {"name": "add", "arguments": {"a": 1}}}]
    with ollama_server(answer="", tool_calls=calls) as server, ollama.Client(server.url) as client:
        chunks = list(client.chat("llama3.2", HI, stream=True))
        assert chunks[0].message.tool_calls is not None
        assert chunks[0].message.tool_calls[0].function.arguments == {"a": 1}
        assert client.chat("llama3.2").done_reason == "load"


@pytest.mark.parametrize("at", [0, 1])
def test_client_raises_the_servers_errors(at: int) -> None:
    """An error before the first piece comes with a status, a later one as a line of the stream."""
    with ollama_server(fault=Fault("error", at, "out of memory")) as server, ollama.Client(server.url) as client:
        with pytest.raises(ollama.ResponseError, match="out of memory") as caught:
            list(client.chat("llama3.2", HI, stream=True))
        assert (caught.value.status_code == 500) == (at == 0)
        with pytest.raises(ollama.ResponseError, match="model 'nope' not found"):
            client.chat("nope", HI)
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.show("nope")


def test_stream_ends_or_breaks_without_done() -> None:
    """`end` closes the stream as if all were well; `drop` breaks the connection."""
    with ollama_server(fault=Fault("end", 2)) as server, ollama.Client(server.url) as client:
        assert not any(chunk.done for chunk in client.chat("llama3.2", HI, stream=True))
        server.fault = Fault("drop", 2)
        with pytest.raises(httpx.RemoteProtocolError):
            list(client.chat("llama3.2", HI, stream=True))


def test_malformed_requests_are_refused() -> None:
    """A body that is no JSON, or names no model, is a 400 with Ollama's error shape."""
    with ollama_server() as server:
        for body in (b"{", b"{}"):
            response = httpx.post(f"{server.url}/api/chat", content=body)
            assert response.status_code == 400
            assert response.json().keys() == {"error"}


def test_client_generates_embeds_and_pulls() -> None:
    """The client continues a prompt, embeds, sees what is loaded, and follows a download."""
    with ollama_server(answer="one two") as server, ollama.Client(server.url) as client:
        assert client.generate("llama3.2", "Once", raw=True).response == "one two"
        assert "".join(chunk.response for chunk in client.generate("llama3.2", "Once", stream=True)) == "one two"
        assert len(client.embed("llama3.2", ["a", "b"]).embeddings) == 2
        assert [model.context_length for model in client.ps().models] == [4096]
        assert client.generate("llama3.2", keep_alive=0).done_reason == "unload"
        assert client.ps().models == []
        steps = [(step.status, step.completed) for step in client.pull("new", stream=True)]
        assert steps[-1] == ("success", None)
        assert "new:latest" in [model.model for model in client.list().models]


def test_prompts_are_cut_as_by_the_real_one() -> None:
    """A prompt longer than num_ctx is cut to half of it with status 200, or refused under `truncate: false`."""
    long = [{"role": "user", "content": "word " * 5000}]
    with ollama_server() as server, ollama.Client(server.url) as client:
        assert client.chat("llama3.2", long).prompt_eval_count == 2048
        assert client.chat("llama3.2", long, options={"num_ctx": 8192}).prompt_eval_count > 5000
        body = {"model": "llama3.2", "messages": long, "truncate": False}
        refusal = httpx.post(f"{server.url}/api/chat", json=body)
        assert (refusal.status_code, refusal.json().keys()) == (400, {"error"})


def test_keys_schemas_and_logprobs() -> None:
    """A wrong key is 401; a schema is followed; log probabilities come where asked for."""
    with ollama_server(api_key="k") as server:
        with ollama.Client(server.url) as client, pytest.raises(ollama.ResponseError) as caught:
            client.list()
        assert caught.value.status_code == 401
        with ollama.Client(server.url, headers={"authorization": "Bearer k"}) as client:
            assert client.chat("llama3.2", HI, format={"enum": ["x"]}).message.content == '"x"'
            chunks = list(client.chat("llama3.2", HI, stream=True, logprobs=True, top_logprobs=1))
        assert chunks[0].logprobs
