"""The default chain: what is found on the machine, in order, looked for again and again, at next to no cost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support.chains import HI, Played, says

from pyagent.assembly import make_chain, make_host, present_links
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError
from pyagent.core.messages import ChatRequest, EmbedRequest
from pyagent.infrastructure.backends.found import FoundLink, candidates

VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "OLLAMA_HOST", "GITHUB_TOKEN")
SCHEMES = ("ollama", "github", "openai", "native", "lmstudio", "copilot")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with nothing in its environment, and no programs."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


GITHUB_HOST = "models.github.ai"


def found(*key_hosts: str, allow_remote: bool = True) -> list[str]:
    there = candidates(SCHEMES, key_hosts, allow_remote=allow_remote)
    return [candidate.entry for candidate in there if not candidate.look()]


def test_default_order_is_the_documented_one() -> None:
    """Links come in one order, of those that plugins bring."""
    schemes = [candidate.entry.partition(":")[0] for candidate in candidates(SCHEMES, ())]
    assert schemes == ["lmstudio", "native", "openai", "ollama", "copilot", "github"]
    assert [candidate.entry for candidate in candidates(["native"], ())] == ["native"]


def test_nothing_else_there_means_native_alone() -> None:
    """A user with nothing else is answered by the embedded engine, and looking takes milliseconds."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        assert found() == ["native"]
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 2  # milliseconds on an idle machine
    settings = load_settings().settings
    chain = make_chain(settings, make_host(settings))
    assert chain.names == ["native:smollm2:135m"]
    assert [link.use for link in present_links(settings, make_host(settings))] == ["native"]
    asyncio.run(chain.close())


def test_what_the_environment_names_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An address or a program is enough; a key of OpenAI's alone names no model, and a token of GitHub's no end."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert found() == ["native"]
    monkeypatch.setenv("OPENAI_MODEL", "m")
    assert found() == ["native", "openai:https://api.openai.com/v1#m"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("GITHUB_TOKEN", "t")
    (tmp_path / "copilot").write_text("#!/bin/sh\n")
    (tmp_path / "copilot").chmod(0o755)
    assert found() == ["native", "openai:http://127.0.0.1:9/v1#m", "ollama", "copilot"]
    assert found(GITHUB_HOST) == ["native", "openai:http://127.0.0.1:9/v1#m", "ollama", "copilot", "github"]


def test_default_chain_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever a machine has, the default chain sends no text off it until the user allows that or names the link."""
    (tmp_path / "copilot").write_text("#!/bin/sh\n")
    (tmp_path / "copilot").chmod(0o755)
    for name, value in (("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "m"), ("GITHUB_TOKEN", "t")):
        monkeypatch.setenv(name, value)
    for url, host in (
        ("", "http://gpu-box:11434"),
        ("http://gpu-box:8000/v1", "gpu-box"),
        ("http://10.0.0.2/v1", "10.0.0.2:9"),
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OLLAMA_HOST", host)
        assert found(GITHUB_HOST, allow_remote=False) == ["native"], (url, host)
    settings = load_settings().settings
    chain = make_chain(settings, make_host(settings))
    assert chain.names == ["native:smollm2:135m"]
    assert [state.backend for state in chain.link_states()] == chain.names, "what is not there has no state"
    rows = {row.backend: row.reason for row in asyncio.run(chain.explain(ChatRequest(messages=HI)))}
    assert "backends.allow_remote" in rows["copilot"]
    asyncio.run(chain.close())
    for url, host in (
        ("http://127.0.0.1:9/v1", "0.0.0.0"),
        ("http://[::1]:9/v1", "localhost"),
        ("http://localhost/v1", ":9"),
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OLLAMA_HOST", host)
        assert found(allow_remote=False) == ["native", f"openai:{url}#m", "ollama"]
    settings = load_settings(overrides={"backends.allow_remote": True}).settings
    assert "copilot" in [link.use for link in present_links(settings, make_host(settings))]


def test_server_is_no_link_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link that leads back to the server is not found, and refused at start where it is named."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8321/v1")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:8321")
    settings = load_settings().settings
    for own in (("127.0.0.1", 8321), ("0.0.0.0", 8321)):
        chain = make_chain(settings, make_host(settings), own_address=own)
        assert chain.names == ["native:smollm2:135m"]
        asyncio.run(chain.close())
    for link in ("openai:http://127.0.0.1:8321/v1", "ollama"):
        with pytest.raises(ConfigError, match="leads back to this server"):
            make_chain(settings, make_host(settings), ["native", link], own_address=("127.0.0.1", 8321))
    chain = make_chain(
        settings, make_host(settings), ["openai:http://127.0.0.1:8322/v1"], own_address=("127.0.0.1", 8321)
    )
    asyncio.run(chain.close())


def test_auto_stands_beside_named_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is an entry like others; what is named is not looked for again, and its table holds for each found."""
    monkeypatch.setenv("GITHUB_TOKEN", "t")
    file = tmp_path / "pyagent.toml"
    keys = f'[backends]\nallow_remote = true\n[backends.api_keys]\n"{GITHUB_HOST}" = "env:GITHUB_TOKEN"\n'
    file.write_text('chain = ["native:x", "native", { use = "auto", timeout_seconds = 9 }]\n' + keys)
    settings = load_settings(file).settings
    links = present_links(settings, make_host(settings))
    assert [(link.use, link.timeout_seconds) for link in links][:3] == [
        ("native:x", None),
        ("native", None),
        ("github", 9),
    ]


def test_link_that_comes_later_is_found_and_one_that_went_is_passed_by() -> None:
    """A link is made when it is first there, asked while it is, and passed by without a word when it is not."""
    state, now, made = {"why": "not running"}, [0.0], list[Played]()

    def make() -> Played:
        made.append(Played("late", says("late"), continues=True))
        return made[-1]

    late = FoundLink("late", lambda: state["why"], make, clock=lambda: now[0])
    chain = Chain([late, Played("b", says("b"))])

    def ask() -> tuple[str, int]:
        answer = asyncio.run(collect(chain.chat(ChatRequest(messages=HI))))
        return answer.text, len(answer.deltas[0].attempts)

    assert (ask(), made) == (("b", 0), [])
    rows = asyncio.run(chain.explain(ChatRequest(messages=HI)))
    assert rows[0].reason == "not found: not running"
    state["why"] = ""
    assert ask() == ("b", 0)  # looked for a moment ago
    now[0] += 10
    assert ask() == ("late", 0)
    assert chain._links[0].continues
    assert asyncio.run(chain.embed(EmbedRequest(model="", input=["x"]))).model == "link:late"
    state["why"] = "gone"
    now[0] += 10
    assert ask() == ("b", 0)
    assert len(made) == 1
    assert not asyncio.run(late.health()).is_ready
    asyncio.run(chain.close())
