"""The fake OpenAI server is true to the wire: the real `openai` client cannot tell."""

from __future__ import annotations

import openai
import pytest

from pyagent.testing import Fault, openai_server

HI: list = [{"role": "user", "content": "hi"}]
TOOL: dict = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


def client(url: str, key: str = "k") -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def test_client_lists_chats_and_embeds() -> None:
    """The client lists models, chats whole and streamed, completes and embeds."""
    with openai_server(answer="one two", reasoning="hm") as server, client(server.url) as ai:
        assert [model.id for model in ai.models.list()] == ["fake-1"]
        assert ai.chat.completions.create(model="fake-1", messages=HI, n=2).choices[1].message.content == "one two"
        chunks = list(ai.chat.completions.create(model="fake-1", messages=HI, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one two"
        assert chunks[-1].usage
        assert ai.completions.create(model="fake-1", prompt="x").choices[0].text == "one two"
        assert len(ai.embeddings.create(model="fake-1", input=["a", "b"], encoding_format="float").data) == 2


def test_client_sees_tool_calls_and_schemas() -> None:
    """Tool calls come in deltas that the client joins; a schema asked for is followed."""
    with openai_server() as server, client(server.url) as ai:
        with ai.chat.completions.stream(model="fake-1", messages=HI, tools=[TOOL]) as stream:
            (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
        form: dict = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [3]}}}
        said = ai.chat.completions.create(model="fake-1", messages=HI, response_format=form)
        assert said.choices[0].message.content == "3"


def test_client_raises_the_servers_errors() -> None:
    """Wrong keys, unknown models, refusals and broken streams are the client's own errors for them."""
    with openai_server(api_key="right") as server:
        with client(server.url, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with client(server.url, "right") as ai:
            with pytest.raises(openai.NotFoundError):
                ai.chat.completions.create(model="nope", messages=HI)
            server.fault = Fault("error", 1, "out of memory")
            with pytest.raises(openai.APIError, match="out of memory"):
                list(ai.chat.completions.create(model="fake-1", messages=HI, stream=True))
            server.status, server.retry_after = 429, "3"
            with pytest.raises(openai.RateLimitError) as caught:
                ai.chat.completions.create(model="fake-1", messages=HI)
            assert caught.value.response.headers["retry-after"] == "3"
