"""What the bodies of Ollama's API may say: every field and option honoured, passed over or refused by name."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.server import HI

from pyagent.core.errors import RequestError
from pyagent.core.messages import Message
from pyagent.infrastructure.server.ollama.context import read_context, write_context
from pyagent.infrastructure.server.ollama.requests import (
    IGNORED_OPTIONS,
    REFUSED_OPTIONS,
    Options,
    read_chat,
    read_generate,
)


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"model": ""}, "model", "model is empty"),
        ({"think": "hard"}, "think", "'hard'"),
        ({"format": "yaml"}, "format", "'json' or a JSON schema"),
        ({"keep_alive": "soon"}, "keep_alive", "such as '10m'"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        (
            {"options": {"temperature": 3}},
            "options.temperature",
            r"^options.temperature must be between 0 and 2, got 3",
        ),
        ({"options": {"num_predict": 2**40}}, "options.num_predict", "^options.num_predict must be between"),
        ({"options": {"repeat_penalty": -1}}, "options.repeat_penalty", "^options.repeat_penalty must be between"),
        ({"options": {"stop": [""]}}, "options.stop", "^options.stop takes up to 16 texts"),
        ({"options": {"mirostat": 3}}, "options.mirostat", "between 0 and 2"),
        ({"options": {"typical_p": 1.5}}, "options.typical_p", "between 0 and 1"),
        ({"options": {"num_predict": 0}}, "options.num_predict", "at least 1"),
        ({"options": {"repeat_penalty": 1.1, "repeat_last_n": -2}}, "options.repeat_last_n", "between -1 and"),
        ({"options": {"temprature": 1}}, "options.temprature", "unknown field"),
        ({"stram": True}, "stram", "did you mean 'stream'"),
        ({"messages": [{"role": "user", "content": "x", "images": ["YWJj"]}]}, "images", "PNG"),
    ],
)
def test_ollama_bad_field_is_named(change: dict[str, Any], param: str, says: str) -> None:
    """Each bad value is refused with the name of its field and what would be right."""
    with pytest.raises(RequestError, match=says) as caught:
        read_chat(json.dumps({"model": "m", "messages": HI} | change).encode())
    assert caught.value.param == param


def test_ollama_result_without_a_call_is_told() -> None:
    """As Ollama does, a result is told to the model also where the call it answers was not sent back."""
    said: Any = [*HI, {"role": "assistant", "content": ""}, {"role": "tool", "content": "3", "tool_name": "f"}]
    request = read_chat(json.dumps({"model": "m", "messages": said}).encode()).request
    assert request
    assert request.messages[-1] == Message("tool", "3", "f")


@pytest.mark.parametrize("change", [{"raw": True, "system": "x"}, {"context": [1, 2]}, {"template": "{{ x }}"}])
def test_ollama_generate_refuses_by_name(change: dict[str, Any]) -> None:
    """`raw` with a system text, a context of somebody else's, and a template are refused."""
    with pytest.raises(RequestError) as caught:
        read_generate(json.dumps({"model": "m", "prompt": "x"} | change).encode())
    assert caught.value.param in change


def test_ollama_options_are_honoured_or_known() -> None:
    """Options reach the sampling; Ollama's defaults hold where nothing is said; each option has one fate."""
    options = {"temperature": 0.1, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 5, "num_predict": 9, "stop": ["x"]}
    options |= {"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "num_thread": 2}
    request = read_chat(json.dumps({"model": "m", "messages": HI, "options": options}).encode()).request
    assert request
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.1, 7, 0.5, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.stop, sampling.repetition_penalty) == (5, 9, ("x",), 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.2, 0.3)
    plain = read_chat(json.dumps({"model": "m", "messages": HI, "keep_alive": "1h30m"}).encode())
    assert plain.request
    assert (plain.request.sampling.temperature, plain.request.sampling.max_tokens) == (0.8, None)
    assert not plain.is_unloaded
    assert not set(IGNORED_OPTIONS) & set(REFUSED_OPTIONS)
    assert {*IGNORED_OPTIONS, *REFUSED_OPTIONS} < set(Options.__struct_fields__)


def test_ollama_client_options_are_all_known() -> None:
    """Every option that Ollama's client has is one we know."""
    assert set(ollama.Options.model_fields) <= set(Options.__struct_fields__)


@given(st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), st.text())))
def test_ollama_context_round_trips(messages: list[Message]) -> None:
    """A context is the conversation it was made from, in numbers that fit 32 bits; a changed one is refused."""
    numbers = write_context(messages)
    assert read_context(numbers) == messages
    assert all(0 <= number < 2**24 for number in numbers)
    with pytest.raises(RequestError, match="not one that this server gave"):
        read_context([*numbers[:-1], numbers[-1] ^ 0xFF0000])
