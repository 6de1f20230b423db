"""Links of the OpenAI-compatible client: addresses, models, keys and headers."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.chains import Played, chain_of, says
from support.wire import WHOLE, answered, ask, chat, head, serving

from pyagent.assembly import make_host, make_link
from pyagent.core.backends import LinkSpec, collect
from pyagent.core.chain import LinkSettings
from pyagent.core.errors import (
    BackendError,
    ConfigError,
    RequestError,
)
from pyagent.core.messages import (
    ChatRequest,
    Message,
)
from pyagent.core.plugin_checks import backend_problem
from pyagent.core.settings import Backends, Settings
from pyagent.infrastructure.backends.openai import (
    GITHUB,
    OpenAIBackend,
    make_backend,
    make_github,
    pyagent_register_backends,
)


def test_openai_backend_key_is_sent_and_shown_nowhere() -> None:
    """The key goes into the header alone: not into the name, nor into any error."""
    _, wire = ask(WHOLE, api_key="sk-secret")
    assert wire.requests[0][1]["authorization"] == "Bearer sk-secret"
    assert "authorization" not in ask(WHOLE)[1].requests[0][1]
    with pytest.raises(BackendError) as caught:
        ask((head("401 Unauthorized", "application/json"), b'{"error": {"message": "bad key"}}'), api_key="sk-secret")
    assert "sk-secret" not in repr(caught.value) + str(caught.value)
    assert "backends.api_keys" in str(caught.value)
    assert not caught.value.retryable


def test_openai_backend_without_a_model_asks_the_server() -> None:
    """With no model named, the first that the server lists is used; a server without one says what to do."""

    async def main(*models: str) -> str:
        listing = json.dumps({"data": [{"id": model, "max_model_len": 4096} for model in models]}).encode()
        async with serving(head(kind="application/json"), listing) as wire:
            backend = OpenAIBackend(wire.url)
            found = await backend.models()
            assert [(model.id, model.context_length) for model in found] == [(model, 4096) for model in models]
            health = await backend.health()
            assert health.is_ready
            try:
                return await backend._pick_model(chat())
            finally:
                await backend.close()

    assert asyncio.run(main("first", "second")) == "first"
    with pytest.raises(BackendError, match="lists no model"):
        asyncio.run(main())


def test_openai_backend_fixed_model_refuses_another() -> None:
    """A link that names its model does not answer for another one, so a chain passes it by."""
    with pytest.raises(RequestError, match="serves 'm', not 'other'") as caught:
        ask(WHOLE, chat(model="other"))
    assert caught.value.code == "model_not_found"
    assert ask(WHOLE, chat(model="m"))[0].text == "Hello"


def test_openai_backend_is_made_from_a_chain_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """`openai:URL#model` with the key that the settings name for that host."""
    monkeypatch.setenv("BOX_KEY", "k")
    settings = Settings(backends=Backends(api_keys={"gpu-box:8000": "env:BOX_KEY"}))
    backend = make_backend(LinkSpec.parse("openai:http://gpu-box:8000/v1/#qwen"), settings)
    assert backend_problem(backend, "openai") is None
    assert backend.name == "openai:http://gpu-box:8000/v1#qwen"
    assert backend._pool._headers == {"authorization": "Bearer k"}  # type: ignore[attr-defined]
    assert pyagent_register_backends() == {"openai": make_backend, "github": make_github}
    other = make_backend(LinkSpec.parse("openai:http://other/v1"), settings)
    assert other._pool._headers == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", ["openai", "ollama"])
def test_links_headers_are_sent(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of a link's table go with every request, their secrets read where they are; the key stays beside them."""
    monkeypatch.setenv("GATE", "let-me-in")
    monkeypatch.setenv("OLLAMA_API_KEY", "let-me-in")

    async def main() -> list[dict[str, str]]:
        async with serving(*answered({"data": [{"id": "m"}], "models": []})) as wire:
            headers = {"x-a": "b", "x-gate": "env:GATE"}
            entry = LinkSettings(use=f"{scheme}:{wire.url}#m", key="env:GATE", headers=headers)
            backend = make_link(entry, Settings(), make_host(Settings()))
            await backend.models()
            with suppress(BackendError):
                await collect(backend.chat(ChatRequest(messages=[Message("user", "hi")])))
            await backend.close()
            return [headers for _, headers, _ in wire.requests]

    sent = asyncio.run(main())
    assert len(sent) > 1
    for one in sent:
        assert (one["x-a"], one["x-gate"], one["authorization"]) == ("b", "let-me-in", "Bearer let-me-in")


def test_header_without_its_value_is_told_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable that is not set, or a file of two lines, is an error that shows no value."""
    (tmp_path / "secret").write_text("very\nsecret")
    for place in ("env:NOT_SET", f"file:{tmp_path / 'secret'}"):
        link = LinkSpec("openai", "http://h/v1", {"x-gate": place})
        with pytest.raises(ConfigError, match=r"the header x-gate of openai:http://h/v1 is to be") as caught:
            make_backend(link, Settings())
        assert "very" not in str(caught.value)


def test_headers_of_a_link_that_sends_none_are_refused(tmp_path: Path) -> None:
    """A backend that would pass over headers is not given any."""
    text = 'chain = [{ use = "link:http://h", headers = { x-a = "b" } }]'
    with pytest.raises(ConfigError, match="link:http://h sends no headers of yours"):
        chain_of(tmp_path, text, Played("http://h", says("hi")))


@pytest.mark.parametrize(
    "target", ["", "gpu-box:8000", "ftp://x/v1", "http://", "http://u:p@host/v1", "http://[", "http://h:x/"]
)
def test_openai_backend_refuses_a_bad_url(target: str) -> None:
    """What is not an http(s) URL, or holds a password, is refused with an example."""
    with pytest.raises(ConfigError, match="openai:"):
        make_backend(LinkSpec("openai", target), Settings())


@pytest.mark.parametrize(
    "target",
    [
        "http://host/v1?api_key=my-own-word",
        "http://host/v1?my-own-word",
        "https://host/v1?key=my-own-word#model",
        "http://my-own-word@host/v1",
        "http://user:my-own-word@host/v1",
        "ftp://user:my-own-word@host/v1",
        "host/v1?token=my-own-word",
    ],
)
def test_key_in_a_url_is_refused_and_not_shown(target: str) -> None:
    """A URL with a key, which each error and metric would show, is refused by an error that does not show it."""
    for made in (lambda: make_backend(LinkSpec("openai", target), Settings()), lambda: OpenAIBackend(target)):
        with pytest.raises(ConfigError, match="openai:") as caught:
            made()
        assert "my-own-word" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["openai", "ollama", "lmstudio", "nosuch"])
def test_password_in_any_links_url_is_refused_and_not_shown(scheme: str) -> None:
    """A link's name is its URL, which answers, metrics and logs have: one with a password is refused by any scheme."""
    with pytest.raises(ConfigError) as caught:
        make_link(LinkSettings(use=f"{scheme}:http://user:my-own-word@host:1/v1"), Settings(), make_host(Settings()))
    assert "my-own-word" not in str(caught.value)


def test_github_models_is_a_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """`github:MODEL` needs no URL; without a token it says in one sentence what to set."""
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    backend = make_github(LinkSpec.parse("github:openai/gpt-4.1"), Settings())
    assert backend.name == "github:openai/gpt-4.1"
    health = asyncio.run(backend.health())
    assert health.detail.startswith("its key env:GITHUB_TOKEN is not set")
    with pytest.raises(BackendError, match="GITHUB_TOKEN"):
        asyncio.run(collect(backend.chat(chat())))
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_x")
    assert make_github(LinkSpec.parse("github"), Settings())._missing_key == ""  # type: ignore[attr-defined]

    async def listed() -> list[tuple[str, int | None]]:
        body = [{"id": "openai/gpt-4.1", "limits": {"max_input_tokens": 8000}}]
        async with serving(*answered(body)) as wire:
            preset = replace(GITHUB, url=wire.url, models_url=f"{wire.url}/catalog")
            box = OpenAIBackend(wire.url, api_key="k", preset=preset)
            models = await box.models()
            await box.close()
            assert wire.requests[0][0].startswith("GET /v1/catalog ")
            return [(model.id, model.context_length) for model in models]

    assert asyncio.run(listed()) == [("openai/gpt-4.1", 8000)]


def test_openai_backend_logs_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """With everything logged, the key is in no line."""
    with caplog.at_level("DEBUG"):
        ask(WHOLE, api_key="sk-secret")
        with pytest.raises(BackendError):
            ask((head("500 Oh"), b"sk-"), api_key="sk-secret")
    assert "sk-secret" not in caplog.text
