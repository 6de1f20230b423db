"""`pyagent cache` and the routes it asks, against a real server over the tiny model."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.server import keys
from typer.testing import CliRunner

from pyagent.cli.cache import app
from pyagent.cli.running_servers import announced
from pyagent.core.chain import Chain
from pyagent.core.errors import BackendError, RequestError
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

SYSTEM = "You are at the user's system, and it is on, and the user is at ease. " * 3
KEY = "sk-0123456789abcdef"


@pytest.fixture
def url(tiny_model_path: Path) -> Iterator[str]:
    backend = NativeBackend.of(
        "tiny", lambda: tiny_model_path, EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 20))
    )
    with serve(create_app(Chain([backend]))) as served:
        yield served
    asyncio.run(backend.close())


def said(*arguments: str) -> str:
    """What a command writes; raises what it raises."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def chat(url: str, *messages: tuple[str, str], **more: object) -> dict[str, object]:
    body = {"messages": [{"role": role, "content": text} for role, text in messages], "max_tokens": 4, **more}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_cache_is_shown_explained_and_pinned(url: str, tmp_path: Path) -> None:
    """A server's prompts are listed with their sessions; a changed one is explained; a pin is made and ended."""
    assert "no model is loaded yet" in said("show", "--url", url)
    chat(url, ("system", SYSTEM), ("user", "what is it at?"), session="mine")
    shown = said("show", "--url", url)
    assert "tiny: 1.0 MB of KV memory" in shown
    assert "[mine]" in shown
    assert re.search(r"^  [0-9a-f]{16} +\d+ tokens", shown, re.MULTILINE), "each prompt has a key"
    request = tmp_path / "request.json"
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "what is it on? And where is it now?"},
    ]
    request.write_text(json.dumps({"messages": messages, "session": "mine"}))
    explained = said("explain", str(request), "--url", url)
    assert "in messages[1] (user): the text differs from the cached one" in explained
    assert "found     'on? And where" in explained
    assert "expected  'at?" in explained
    assert json.loads(said("explain", str(request), "--url", url, "--json"))["miss"]["reason"] == "changed"
    system = tmp_path / "system.txt"
    system.write_text(SYSTEM)
    assert "tokens are pinned until: pyagent cache unpin rules" in said("pin", "rules", str(system), "--url", url)
    assert "pinned: rules (" in said("show", "--url", url)
    (tmp_path / "short.txt").write_text("Hi")
    with pytest.raises(RequestError, match="less than a block of 16"):
        said("pin", "short", str(tmp_path / "short.txt"), "--url", url)
    said("unpin", "rules", "--url", url)
    with pytest.raises(RequestError, match="nothing is pinned as 'rules'"):
        said("unpin", "rules", "--url", url)


def test_cold_prompt_is_said_to_be_cold(url: str, tmp_path: Path) -> None:
    """A request like no other before is explained as such, and nothing is computed for it."""
    request = tmp_path / "request.json"
    request.write_text(json.dumps([{"role": "user", "content": SYSTEM}]))
    assert "nothing that begins like it was computed" in said("explain", str(request), "--url", url)
    assert json.loads(said("show", "--url", url, "--json"))[0]["pages"]["cached_pages"] == 0


@pytest.mark.parametrize("command", [["show"], ["unpin", "x"], ["explain", "-"]])
def test_without_a_server_the_reader_is_told_how_to_start_one(command: list[str]) -> None:
    """No server, no traceback: the address that was tried, and what to do."""
    with pytest.raises(BackendError, match=r"no server answers at http://127\.0\.0\.1:9: .*pyagent serve"):
        said(*command, "--url", "http://127.0.0.1:9")


def test_only_server_that_runs_is_asked_at_its_own_port(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server started with `--port` is found without --url; of two servers, that of the settings is asked."""
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))
    monkeypatch.setenv("PYAGENT_SERVER__PORT", "9")
    with announced(tmp_path, "0.0.0.0", int(url.rpartition(":")[2])):
        assert "no model is loaded yet" in said("show")
        with (tmp_path / "servers" / "other.json").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)  # as a second server holds it
            other.write(json.dumps({"process_id": 1, "host": "127.0.0.1", "port": 10}))
            other.flush()
            with pytest.raises(BackendError, match=r"no server answers at http://127\.0\.0\.1:9: "):
                said("show")


def test_server_of_other_backends_says_that_it_keeps_nothing(tmp_path: Path) -> None:
    """A chain without the embedded engine has no prompts to look at."""
    request = tmp_path / "request.json"
    request.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    with serve(create_app(Chain([ScriptedBackend([])]))) as other:
        assert "no model is loaded yet" in said("show", "--url", other)
        with pytest.raises(RequestError, match="no link of the chain keeps prompts itself"):
            said("explain", str(request), "--url", other)
        assert httpx.get(f"{other}/pyagent/engine").status_code == 404


def test_routes_need_a_key_where_there_are_keys(tmp_path: Path) -> None:
    """Nobody without a key looks into the cache; the command takes the key from the settings' file."""
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n")
    config = tmp_path / "pyagent.toml"
    config.write_text(f'[server]\napi_keys_file = "{file}"\n')
    with serve(create_app(Chain([ScriptedBackend([])]), api_keys=keys(KEY))) as other:
        for path in ("/pyagent/cache", "/pyagent/engine", "/metrics"):
            assert httpx.get(other + path).status_code == 401
        assert "no model" in said("show", "--url", other, "--config", str(config))
        with pytest.raises(RequestError, match="a valid API key is needed"):
            said("show", "--url", other)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "9" * 23, "9" * 5000, "", "1e3"])
def test_bad_limit_is_named_and_quoted(url: str, limit: str) -> None:
    """A limit out of range, however long, is a 400 that says what is taken and what came."""
    answer = httpx.get(f"{url}/pyagent/cache", params={"limit": limit})
    got = repr(limit) if len(limit) < 41 else "5000 characters"
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
    assert answer.json()["error"]["message"] == f"limit is a number from 1 to 1000, got {got}"


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("cache/pin", {"name": "x", "messages": []}, "messages is empty"),
        ("cache/pin", {"name": "x", "messages": [{"role": "user", "content": " "}]}, "needs a name, and messages"),
        ("cache/pin", {"name": "", "messages": [{"role": "user", "content": "hi"}]}, "needs a name, and messages"),
        ("cache/pin", {"name": 1, "messages": []}, "name must be a string, got an integer"),
        ("cache/explain", {"messages": []}, "messages is empty"),
        ("engine/sleep", {"level": 7}, "level"),
        ("engine/sleep", {"depth": 1}, "unknown field 'depth'"),
        ("engine/drain", {"grace_seconds": -1}, "from 0 to 3600"),
    ],
)
def test_bad_bodies_are_refused_by_name(url: str, path: str, body: object, says: str) -> None:
    """What cannot be understood or done is a client's error that says what is wrong."""
    answer = httpx.post(f"{url}/pyagent/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_engine_rests_and_wakes_over_http(url: str) -> None:
    """The engine's state is told; asleep it has given its cache back, drained it is not ready, woken it answers."""
    chat(url, ("user", SYSTEM))

    def told() -> dict[str, object]:
        return next(iter(httpx.get(f"{url}/pyagent/engine").json().values()))

    def state() -> object:
        return told()["state"]

    assert state() == "ready"
    assert httpx.post(f"{url}/pyagent/engine/sleep", json={"level": 1}).status_code == 200
    assert state() == "asleep"
    assert json.loads(said("show", "--url", url, "--json"))[0]["pages"]["cached_pages"] == 0
    chat(url, ("user", "hi"))  # wakes it
    assert state() == "ready"
    drained = httpx.post(f"{url}/pyagent/engine/drain", json={"grace_seconds": 1})
    assert drained.json() == {"num_running": 0}
    assert httpx.get(f"{url}/ready").status_code == 503
    assert httpx.post(f"{url}/pyagent/engine/wake", json={}).status_code == 200
    assert httpx.get(f"{url}/ready").status_code == 200


def test_memory_is_told_by_account(url: str) -> None:
    """Over HTTP and as metrics every account has its bytes, the process's own among them; swap files are apart."""
    chat(url, ("user", SYSTEM))
    told = next(iter(httpx.get(f"{url}/pyagent/engine").json().values()))
    accounts = {account.partition(":")[0]: size for account, size in told["memory"].items()}
    assert accounts.keys() >= {"process", "weights", "kv", "workspace", "tokenizer", "sessions"}
    assert accounts["process"] > 10_000_000
    assert sum(accounts.values()) <= told["memory_bytes"]
    assert set(told["swap_bytes"].values()) == {0}
    metrics = httpx.get(f"{url}/metrics").text
    for account in told["memory"]:
        assert f'pyagent_engine_memory_bytes{{account="{account}",engine="0"}}' in metrics
    assert "pyagent_engine_swap_bytes{" in metrics
