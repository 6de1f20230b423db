"""Who may ask the server: keys, this machine alone, a port that is taken."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import openai
import pytest
from support.server import HI, KEY, fault, keys, post, run

from pyagent.core.errors import (
    ConfigError,
)
from pyagent.core.settings import Server
from pyagent.infrastructure.server.api_keys import ApiKey, is_loopback, read_keys
from pyagent.infrastructure.server.uvicorn_server import bind


def test_server_keys_are_needed_when_set(caplog: pytest.LogCaptureFixture) -> None:
    """With keys every /v1 path wants one of them; health stays open; no key is logged."""
    known = keys("another-key-of-16", KEY)
    caplog.set_level("DEBUG")
    refused = post({"messages": HI}, api_keys=known)
    assert (refused.status_code, fault(refused)["code"]) == (401, "invalid_api_key")
    assert post({"messages": HI}, api_keys=known, headers={"authorization": f"Bearer {KEY}x"}).status_code == 401
    assert post({"messages": HI}, api_keys=known, headers={"authorization": f"Basic {KEY}"}).status_code == 401

    async def work(url: str, client: openai.AsyncOpenAI) -> None:
        assert (await client.chat.completions.create(model="m", messages=HI)).choices
        async with httpx.AsyncClient(verify=False) as http:
            assert (await http.get(f"{url}/health", headers={"host": "gpu-box"})).status_code == 200

    run(work, api_keys=known)
    assert KEY not in caplog.text


def test_server_without_keys_answers_for_this_machine_only() -> None:
    """A request whose Host is another name is refused: a page in a browser may have sent it."""
    evil = post({"messages": HI}, headers={"host": "evil.example:8321"})
    assert (evil.status_code, fault(evil)["code"]) == (403, "wrong_host")
    for host in ("localhost:8321", "127.0.0.1", "[::1]:8321", "LOCALHOST"):
        assert post({"messages": HI}, headers={"host": host}).status_code == 200
    assert [is_loopback(host) for host in ("127.9.9.9", "::1", "0.0.0.0", "example.com")] == [True, True, False, False]


def test_server_beyond_loopback_needs_keys(tmp_path: Path) -> None:
    """Listening for others without keys is refused; an empty, short or missing key file too."""
    file = tmp_path / "keys"
    here, open_to_all = Server(api_keys_file=file), Server(api_keys_file=file, host="0.0.0.0")
    assert read_keys(Server()) == []
    with pytest.raises(ConfigError, match=r"needs API keys; set server\.api_keys_file"):
        read_keys(Server(host="0.0.0.0"))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_keys(open_to_all)
    for text, told in (
        ("# none yet\n\n", "holds no API key"),
        ("# first\n\nshort\n", "line 3 of .* is shorter than 16"),
        (f"# a comment\na b {KEY}\n", "line 2 of "),
        (f"a/b {KEY}\n", "line 1 of "),
        (f"ann {KEY}\nbob {KEY}\n", "stands twice"),
        (f"ann {KEY}\nann {KEY}2\n", "stands twice"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=told) as caught:
            read_keys(here)
        assert KEY not in str(caught.value)
    file.write_text(f"# laptop\n{KEY}\r\nann {KEY}2\n")
    [unnamed, ann] = read_keys(open_to_all)
    assert (unnamed.secret, ann) == (KEY.encode(), ApiKey("ann", f"{KEY}2".encode()))
    assert re.fullmatch("key [0-9a-f]{8}", unnamed.name)
    file.write_text(f"{KEY}3\n{KEY}\n")
    [before, after] = read_keys(open_to_all)
    assert after == unnamed, "a tenant goes by its key, not by the place of the key"
    assert before.name != unnamed.name
    assert KEY not in repr(read_keys(open_to_all))
    admins = tmp_path / "admins"
    admins.write_text(f"root {KEY}3\n")
    assert read_keys(Server(admin_keys_file=admins, host="0.0.0.0")) == [
        ApiKey("root", f"{KEY}3".encode(), is_admin=True)
    ]


def test_server_port_in_use_is_one_sentence() -> None:
    """A taken port, or an address of another machine, says what to do."""
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use; .*--port"):
        bind("127.0.0.1", port)
    taken.close()
    with pytest.raises(ConfigError, match="not an address of this machine"):
        bind("no.such.host.invalid", 0)
