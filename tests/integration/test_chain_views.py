"""How the links of a chain stand, where people look: /metrics, /pyagent/chain, `pyagent doctor`, `pyagent chain`."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.chains import Played, chain_of, in_turn, says

from pyagent.assembly import make_chain, make_host
from pyagent.cli.root import run as run_command
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import BackendError, ConfigError
from pyagent.core.messages import ChatRequest, Message
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, openai_server, serve

DOWN = BackendError("down", backend="link:a")
HI = {"messages": [{"role": "user", "content": "hi"}]}
CHAIN = 'chain = [{ use = "link:a", price = { output = 1000 }, concurrency = 4 }, { use = "link:b", continues = true }]'


def test_links_are_in_metrics_and_in_the_chains_state(tmp_path: Path) -> None:
    """Requests, failures by kind, breaker, limits and answers taken over are counted for each link."""
    a = Played("a", in_turn(says("one"), says("half ", DOWN), *[says(DOWN)] * 3))
    b = Played("b", says("two"))
    with serve(create_app(chain_of(tmp_path, CHAIN, a, b))) as url, httpx.Client(base_url=url, timeout=30) as http:
        texts = [http.post("/v1/chat/completions", json=HI | {"stream": True}).text for _ in range(5)]
        families = text_string_to_metric_families(http.get("/metrics").text)
        samples = {(s.name, s.labels.get("link"), s.labels.get("kind")): s.value for f in families for s in f.samples}
        states = {state["backend"]: state for state in http.get("/pyagent/chain").json()}
    assert '"resumed":{"kind":"continue","backend":"link:a","reason":"down"}' in texts[1]
    assert samples["pyagent_link_requests_total", "link:a", None] == 4  # then its breaker is open
    assert samples["pyagent_link_answers_total", "link:a", None] == 1
    assert samples["pyagent_link_failures_total", "link:a", "backend"] == 2
    assert samples["pyagent_link_failures_total", "link:a", "broken_off"] == 1
    assert samples["pyagent_link_failures_total", "link:a", "open"] == 1
    assert samples["pyagent_link_breaker", "link:a", None] == 2
    assert samples["pyagent_link_concurrency_limit", "link:a", None] == 4
    assert ("pyagent_link_concurrency_limit", "link:b", None) not in samples
    assert samples["pyagent_link_continued_total", "link:b", None] == 1
    assert samples["pyagent_link_cost_usd_total", "link:a", None] > 0
    assert states["link:a"]["breaker"] == "open"
    assert states["link:b"]["num_answers"] == 4


def test_state_of_a_server_without_a_chain_is_refused() -> None:
    """A server over one backend says that it has no chain."""
    with serve(create_app(ScriptedBackend([]))) as url:
        assert httpx.get(f"{url}/pyagent/chain").status_code == 404


def test_answer_that_began_anew_is_whole_for_who_did_not_stream(tmp_path: Path) -> None:
    """A body holds the answer that counts, who gave it, and that another broke off."""
    a, b = Played("a", says("half ", DOWN)), Played("b", says("all of it"))
    with serve(create_app(chain_of(tmp_path, 'chain = ["link:a", "link:b"]', a, b))) as url:
        body = httpx.post(f"{url}/v1/chat/completions", json=HI).json()
    assert body["choices"][0]["message"]["content"] == "all of it"
    assert (body["backend"], body["resumed"]["kind"]) == ("link:b", "restart")
    assert body["attempts"][0]["backend"] == "link:a"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))
    return tmp_path


def test_chain_test_tries_each_link(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each link is asked one question: the time to its first token, or what is wrong and what to do."""
    with serve(create_app(ScriptedBackend(lambda _request: "hello there"))) as url:
        links = [f"openai:{url}/v1", "openai:http://127.0.0.1:1/v1", "nothing-like-it"]
        (here / "pyagent.toml").write_text(f"chain = {json.dumps(links)}\n")
        assert run_command(["chain", "test"]) == 1
        shown = capsys.readouterr().out.splitlines()
        assert run_command(["chain", "test", "--json"]) == 1
        trials = msgspec.json.decode(capsys.readouterr().out)
    assert shown[0].startswith(f"✓ openai:{url}/v1")
    assert "first token after 0." in shown[0]
    assert shown[1].startswith("✗ openai:http://127.0.0.1:1/v1")
    assert "start it or correct its address" in shown[2]
    assert "no plugin brings the backend" in shown[3]
    assert [trial["is_well"] for trial in trials] == [True, False, False]
    (here / "pyagent.toml").write_text('chain = ["openai:http://127.0.0.1:1/v1"]\n')
    assert run_command(["chain", "test"]) == 1


def test_chain_test_says_what_a_key_a_model_and_a_certificate_lack(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that is not set, a model that is damaged and a server without TLS each get advice of their own."""
    (here / "cut.gguf").write_bytes(b"GGUF" + bytes(20))
    with serve(create_app(ScriptedBackend(lambda _request: "hello there"))) as url:
        secure = url.replace("http:", "https:")
        (here / "pyagent.toml").write_text(
            f'chain = [{{ use = "openai:{url}/v1", key = "env:NOPE_NOT_SET" }}, "native:{here}/cut.gguf", '
            f'"openai:{secure}/v1"]\n'
        )
        assert run_command(["chain", "test"]) == 1
        shown = capsys.readouterr().out
        assert run_command(["chain", "explain"]) == 0
        explained = capsys.readouterr().out
    assert "its key env:NOPE_NOT_SET is not set" in shown
    assert "name its key" in shown
    assert "pyagent models pull" in shown
    assert "no secure connection" in shown
    assert "https:// or http://" in shown
    assert "its key env:NOPE_NOT_SET is not set" in explained


def test_misspelt_private_link_is_refused(here: Path) -> None:
    """`rules.private` that names what is nearly a scheme would refuse every private request: it is said at start."""
    (here / "pyagent.toml").write_text('chain = ["native"]\n[rules]\nprivate = ["natve"]\n')
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        run_command(["chain", "explain", "--private"])
    (here / "pyagent.toml").write_text('chain = ["native"]\n[rules]\nprivate = ["native", "ollama"]\n')
    assert run_command(["chain", "explain", "--private"]) == 0


def test_chain_explain_shows_conditions_and_limits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The explanation says which condition a request does not meet, and what bounds each link."""
    (here / "pyagent.toml").write_text(
        'chain = [{ use = "openai:http://127.0.0.1:1/v1", when = "tools", rate = "60/min" }, "native"]\n'
    )
    assert run_command(["chain", "explain", "hello"]) == 0
    shown = capsys.readouterr().out
    assert "only when tools" in shown
    assert "60 in 60 s" in shown


def test_doctor_shows_the_links_of_a_running_server(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a server that runs here did with each link stands beside what this machine has."""
    a, b = Played("a", says(DOWN)), Played("b", says("b"))
    with serve(create_app(chain_of(here, 'chain = ["link:a", "link:b"]', a, b))) as url:
        for _ in range(4):
            httpx.post(f"{url}/v1/chat/completions", json=HI)
        port = url.rpartition(":")[2]
        (here / "pyagent.toml").write_text(f'chain = ["openai:{url}/v1"]\n[server]\nport = {port}\n')
        assert run_command(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "serving" in shown
    assert "0 of 3 requests answered; not answered: 3 backend, 1 open" in shown
    assert re.search(r"✓ link:b +4 of 4 requests answered", shown)
    assert "its breaker is open; 0 of 3" in shown


def test_link_sends_the_key_its_table_names(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link's own key goes to its server, before the one that its host has for all."""
    monkeypatch.setenv("OWN_KEY", "mine")
    monkeypatch.setenv("HOST_KEY", "everybodys")
    with openai_server(api_key="mine", answer="hello") as server:
        host = server.url.partition("//")[2].partition("/")[0]
        file = here / "pyagent.toml"
        file.write_text(
            f'chain = [{{ use = "openai:{server.url}", key = "env:OWN_KEY" }}]\n'
            f'[backends.api_keys]\n"{host}" = "env:HOST_KEY"\n'
        )
        settings = load_settings(file).settings
        chain = make_chain(settings, make_host(settings))
        answer = asyncio.run(collect(chain.chat(ChatRequest(messages=[Message("user", "hi")]))))
    assert answer.text == "hello"


def test_chain_without_a_link_is_for_a_node_alone() -> None:
    """Without a link nothing could answer but the peers of a node: every other command says so."""
    settings = load_settings(overrides={"chain": []}).settings
    with pytest.raises(ConfigError, match="the chain is empty: name a link in `chain`"):
        make_chain(settings, make_host(settings))
    assert not make_chain(settings, make_host(settings), may_be_empty=True).links
