"""Answers that another link takes over in mid-stream, in the APIs' own streams."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from support.server import HI, KEY, Model, words

from pyagent.core.messages import ChatDelta, Resumption
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.ollama.context import read_context
from pyagent.testing import serve


@pytest.mark.parametrize("kind", ["restart", "continue"])
def test_a_takeover_is_told_and_void_text_is_dropped(kind: Any) -> None:
    """Each stream says that another link goes on; after a restart what is kept has only the new text."""
    resumed = Resumption(kind, "gpu", "on fire")
    backend = Model(lambda _: [ChatDelta(content="Old"), ChatDelta(content="Ne", resumed=resumed), *words("w")])
    text = "New" if kind == "restart" else "OldNew"
    messages: Any = HI
    with serve(create_app(backend)) as url:
        with ollama.Client(url) as client:
            last = list(client.generate("m", "x", stream=True))[-1]
            assert read_context(last.context or [])[-1].text == text
        with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
            with client.messages.stream(model="m", messages=messages, max_tokens=5) as stream:
                blocks = stream.get_final_message().content
            assert [block.text for block in blocks if block.type == "text"][-1] == text
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            events = list(client.responses.create(model="m", input="x", stream=True))
            last_event = events[-1]
            assert last_event.type == "response.completed"
            assert last_event.response.output_text == text
            assert client.responses.retrieve(last_event.response.id).output_text == text
            with client.responses.stream(model="m", input="x") as streamed:
                assert streamed.get_final_response().output_text == text
    told = [event for event in events if "resumed" in event.to_dict()]
    assert [json.loads(event.to_json())["resumed"]["kind"] for event in told] == [kind]


def test_a_takeover_is_told_in_whole_answers() -> None:
    """Whole, an answer says that it was begun anew elsewhere, in a field that the clients hand through or pass over."""
    resumed = Resumption("restart", "gpu", "on fire")
    backend = Model(lambda _: [ChatDelta(content="Old"), ChatDelta(resumed=resumed), *words("New")])
    messages: Any = HI
    with serve(create_app(backend)) as url:
        with ollama.Client(url) as client:
            assert client.chat("m", HI).message.content == "New"
            assert client.generate("m", "x").response == "New"
        with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
            said: Any = client.messages.create(model="m", messages=messages, max_tokens=5).to_dict()
            assert (said["content"][0]["text"], said["resumed"]["backend"]) == ("New", "gpu")
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            answer: Any = client.responses.create(model="m", input="x")
            assert (answer.output_text, answer.to_dict()["resumed"]["kind"]) == ("New", "restart")
            chat: Any = client.chat.completions.create(model="m", messages=messages).to_dict()
            assert chat["resumed"]["reason"] == "on fire"
        for path, body in (("chat", {"messages": HI}), ("generate", {"prompt": "x"})):
            whole = httpx.post(f"{url}/api/{path}", json={"model": "m", "stream": False} | body).json()
            assert whole["resumed"] == {"kind": "restart", "backend": "gpu", "reason": "on fire"}
