"""Chat templates that requests bring: only where the settings trust them, each for its own request alone."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native import engine_of, native_server, options, running

from pyagent.core.errors import RequestError, UnsupportedError
from pyagent.core.messages import ChatRequest, Message, SamplingParams
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.request_templates import RequestTemplate

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}{{ eos_token and '' }}"
TRUSTING = replace(options(), trusts_request_templates=True)
HI: Any = [{"role": "user", "content": "hi"}]


def asked(template: str, text: str = "hi", **more: Any) -> ChatRequest:
    sampling = SamplingParams(max_tokens=3, temperature=0)
    return ChatRequest(messages=[Message("user", text)], chat_template=template, sampling=sampling, **more)


async def num_prompt_tokens(backend: NativeBackend, request: ChatRequest) -> int:
    usage = [delta.usage async for delta in backend.chat(request)][-1]
    assert usage is not None
    return usage.prompt_tokens


def test_a_template_is_used_for_its_request_alone(tiny_model_path: Path) -> None:
    """It decides what the model reads, for one request; then it is forgotten, and sessions go on as before."""

    async def work() -> None:
        async with running(tiny_model_path, TRUSTING) as backend:
            own = await num_prompt_tokens(backend, asked("", session="s"))
            plain = await num_prompt_tokens(backend, asked(PLAIN, session="s"))
            longer = await num_prompt_tokens(backend, asked(PLAIN + "abc", session="s"))
            assert plain < own
            assert longer > plain
            assert await num_prompt_tokens(backend, asked("", session="s")) == own
            for number in range(10):
                await num_prompt_tokens(backend, asked(f"{PLAIN}{number}"))
            gc.collect()  # the loop knows the rows of its last steps
            assert sum(type(found) is RequestTemplate for found in gc.get_objects()) < 5

    asyncio.run(work())


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for %}", "the chat template is not valid"),
        ("{{ messages.__class__.__mro__ }}", "the chat template was stopped"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}", "ran for more than"),
        ("{{ raise_exception('no') }}", "refuses this conversation: no"),
        ("a" * 70_000, "chat_template has 70000 characters"),
    ],
)
def test_hostile_template_ends_its_request(template: str, says: str, tiny_model_path: Path) -> None:
    """What breaks the sandbox's bounds, or is no template, is the request's fault, and takes seconds at most."""

    async def work() -> None:
        async with running(tiny_model_path, TRUSTING) as backend:
            with pytest.raises(RequestError, match=says) as caught:
                await num_prompt_tokens(backend, asked(template))
            assert caught.value.param in {"chat_template", "messages"}
            assert await num_prompt_tokens(backend, asked(PLAIN))

    asyncio.run(work())


def test_templates_of_requests_are_not_trusted_unless_the_settings_say_so(tiny_model_path: Path) -> None:
    """By default the field is refused by its name."""
    with native_server(tiny_model_path) as url:
        body = {"messages": HI, "chat_template": PLAIN}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert (told["param"], told["code"]) == ("chat_template", "unsupported_parameter"), told


def test_setting_lets_requests_bring_templates(tiny_model_path: Path) -> None:
    """With `engine.trust_request_chat_template` the link `native` takes them, from a process of its own too."""

    async def work() -> None:
        setting = {"engine.trust_request_chat_template": True}
        async with engine_of(tiny_model_path, process=True, **setting) as backend:
            assert await num_prompt_tokens(backend, asked(PLAIN)) < await num_prompt_tokens(backend, asked(""))

    asyncio.run(work())


def test_other_backends_refuse_templates_of_requests() -> None:
    """A server's own template is its own affair: the field is refused by name before anything is asked."""
    backend = OpenAIBackend("http://127.0.0.1:9/v1")
    with pytest.raises(UnsupportedError, match="cannot do chat_template"):
        asyncio.run(anext(aiter(backend.chat(asked(PLAIN)))))  # type: ignore[arg-type]
