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
        assert client.show("llama3.2").capabilities == ["completion", "tools"]
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
