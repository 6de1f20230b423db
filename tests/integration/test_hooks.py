"""Webhooks that come in: only genuine ones, each once, kept before they are answered, each the beginning of a run."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import httpx
import msgspec
import pytest
from support.run_server import ADMIN, RunServer, World, run_server
from support.waiting import wait_until

from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.settings import Server
from pyagent.core.settings.hooks import HookSettings
from pyagent.core.webhooks.signing import key_of, new_secret, signed_headers
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.infrastructure.storage.webhooks.inbox import Inbox, Received

SECRET, GITHUB = new_secret(), "It's a Secret to Everybody"
JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", SECRET)
    monkeypatch.setenv("WEBHOOK_TEST_GITHUB", GITHUB)


def hooks(tmp_path: Path) -> Server:
    schema = tmp_path / "order.json"
    schema.write_text(
        json.dumps({"type": "object", "required": ["order"], "properties": {"order": {"type": "object"}}})
    )
    made = {
        "orders": HookSettings(
            secret="env:WEBHOOK_TEST_SECRET",
            task="order {order.id}: {order.lines.0}",
            agent="echo",
            schema=str(schema),
            max_bytes=1_000,
            max_waiting=3,
        ),
        "gate": HookSettings(secret="env:WEBHOOK_TEST_SECRET", task="wait", agent="gate", max_waiting=2),
        "flaky": HookSettings(secret="env:WEBHOOK_TEST_SECRET", task="{payload}", agent="flaky"),
        "issues": HookSettings(
            form="github",
            secret="env:WEBHOOK_TEST_GITHUB",
            task="{event}: {issue.title}",
            events=("issues",),
            agent="echo",
        ),
        "unset": HookSettings(secret="env:WEBHOOK_TEST_NO_SUCH", task="x"),
    }
    return Server(hooks=made)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    """A server that asks for keys, which senders of webhooks have not."""
    with run_server(tmp_path / "runs", settings=hooks(tmp_path), has_keys=True) as served:
        yield served


@cache
def _http() -> httpx.Client:
    return httpx.Client(timeout=60)  # each takes 25 ms to make


def inbox_of(server: RunServer) -> Inbox:
    journal = server.agents.fleet().journal
    assert isinstance(journal, SqliteJournal)
    return journal.webhooks.inbox


def sent(server: RunServer, hook: str, payload: object, message_id: str = "msg_1", **headers: str) -> httpx.Response:
    """Send a payload, signed by the right secret unless a header says otherwise."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    signed = signed_headers([key_of(SECRET)], message_id, int(time.time()), body)
    return _http().post(f"{server.url}/v1/hooks/{hook}", content=body, headers=JSON | signed | headers)


def settled(server: RunServer, num: int = 1) -> list[Received]:
    """Wait until so many messages came to an end, and return them, oldest first."""
    inbox = inbox_of(server)
    wait_until(lambda: sum(one.state in {"done", "dead"} for one in inbox.messages()) >= num)
    return inbox.messages()[::-1]


ORDER = {"order": {"id": 7, "lines": ["{event} bread"]}}


def test_a_genuine_message_begins_one_run(server: RunServer) -> None:
    """202 when it is kept; sent again, it is taken again and begins nothing. What is put in is not read as a place."""
    first, again = (sent(server, "orders", ORDER) for _ in range(2))
    assert [one.status_code for one in (first, again)] == [202, 202]
    assert first.json() == again.json() == {"id": "msg_1", "state": "accepted"}
    [message] = settled(server)
    journal = server.agents.fleet().journal
    [row] = journal.runs()
    assert (message.state, message.run, row.state) == ("done", row.run, "done")
    assert row.task == "order 7: {event} bread"


def test_what_is_not_genuine_is_refused_before_it_is_read(server: RunServer) -> None:
    """A wrong signature, an old one, another's secret: 401, whatever the body is; and nothing is kept."""
    wrong = signed_headers([key_of(new_secret())], "msg_1", int(time.time()), b"{}")
    old = signed_headers([key_of(SECRET)], "msg_1", int(time.time()) - 400, b"no json")
    for headers, said in ((wrong, "no signature"), (old, "too old"), ({"webhook-id": ""}, "webhook-id is missing")):
        answer = sent(server, "orders", b"no json", **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "wrong_signature")
        assert said in answer.json()["error"]["message"]
        assert SECRET[6:] not in answer.text
    assert inbox_of(server).messages() == []


@pytest.mark.parametrize(
    ("payload", "status", "said"),
    [
        (b"no json", 400, "the payload is not"),
        (b"[" * 900, 400, "the payload"),
        ({"other": 1}, 400, "does not follow the hook's schema: the value: 'order' is a required property"),
        ({"order": {"id": 1, "lines": []}}, 400, "has no order.lines.0"),
        ({"order": "x" * 2_000}, 413, "larger than 1000 bytes"),
    ],
)
def test_what_is_genuine_and_wrong_is_told(server: RunServer, payload: object, status: int, said: str) -> None:
    """The sender is told what is wrong, so that it can be mended there."""
    answer = sent(server, "orders", payload)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert inbox_of(server).messages() == []


def test_github_signs_in_its_own_way(server: RunServer) -> None:
    """By X-Hub-Signature-256; events that were not asked for are taken and dropped."""
    body = json.dumps({"issue": {"title": "It is broken"}}).encode()
    mac = hmac.digest(GITHUB.encode(), body, "sha256").hex()
    headers = JSON | {"x-hub-signature-256": f"sha256={mac}", "x-github-delivery": "d-1", "x-github-event": "issues"}
    url = f"{server.url}/v1/hooks/issues"
    assert httpx.post(url, content=body, headers=headers | {"x-github-event": "ping"}).json()["state"] == "ignored"
    assert httpx.post(url, content=body, headers=headers).status_code == 202
    assert httpx.post(url, content=body, headers=headers | {"x-github-delivery": "d-2"}).status_code == 202
    assert httpx.post(url, content=body + b" ", headers=headers).status_code == 401
    settled(server)
    assert [row.task for row in server.agents.fleet().journal.runs()] == ["issues: It is broken"]


def _has_waiting_at_most(inbox: Inbox, most: int) -> bool:
    return sum(one.state == "waiting" for one in inbox.messages()) <= most


def test_a_full_inbox_says_when_to_come_again(server: RunServer) -> None:
    """429 with Retry-After when as many of a hook wait as may; other hooks go on."""
    inbox = inbox_of(server)
    for number in range(10):  # eight run at once
        assert sent(server, "gate", {}, f"msg_{number}").status_code == 202
        wait_until(partial(_has_waiting_at_most, inbox, 0 if number < 8 else 2))
    full = sent(server, "gate", {}, "msg_10")
    assert (full.status_code, full.headers["retry-after"]) == (429, "5")
    assert "2 messages of the hook gate wait already" in full.json()["error"]["message"]
    assert sent(server, "gate", {}, "msg_3").status_code == 202, "one that is kept is taken again"
    server.world.may_go.set()
    assert {one.state for one in settled(server, 10)} == {"done"}


def test_a_run_that_fails_is_a_dead_letter_that_can_be_replayed(server: RunServer) -> None:
    """With the run's id; replayed, it is another run."""
    server.world.is_broken = True
    assert sent(server, "flaky", {"a": 1}).status_code == 202
    [dead] = settled(server)
    assert dead.state == "dead"
    assert dead.error == f"its run is failed: pyagent runs show {dead.run}"
    server.world.is_broken = False
    inbox = inbox_of(server)
    metrics = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {ADMIN}"}).text
    assert 'pyagent_hook_messages{state="dead"} 1.0' in metrics
    assert 'pyagent_webhook_messages{state="waiting"} 0.0' in metrics
    inbox.replay(dead.name)
    with pytest.raises(RequestError, match="in-1 is waiting: dead letters are replayed"):
        inbox.replay(dead.name)
    assert sent(server, "orders", ORDER, "msg_2").status_code == 202  # the server looks into the inbox at once
    wait_until(lambda: inbox.messages()[1].state == "done")
    assert inbox.messages()[1].run != dead.run


def test_only_hooks_that_there_are(server: RunServer, tmp_path: Path) -> None:
    """An unknown one is 404, also without any; one without its secret is the server's fault, told without more."""
    assert sent(server, "nothing", {}).json()["error"]["code"] == "hook_not_found"
    assert sent(server, "unset", {}).status_code == 500
    with run_server(tmp_path / "bare", has_keys=True) as bare:
        assert sent(bare, "orders", ORDER).status_code == 401, "without hooks the path is as any other"
    with run_server(tmp_path / "open") as bare:
        assert sent(bare, "orders", ORDER).status_code == 404


def test_a_server_that_ends_is_gone_on_with(tmp_path: Path) -> None:
    """What was taken and had not begun begins in the next server, and what was under way is resumed."""
    with run_server(tmp_path / "runs", settings=hooks(tmp_path)) as first:
        assert sent(first, "gate", {}).status_code == 202
        wait_until(lambda: bool(first.agents.fleet().journal.runs()))
        [running] = inbox_of(first).messages()
    journal = SqliteJournal(tmp_path / "runs")
    journal.webhooks.inbox.keep("orders", "msg_left", "left", 10)
    journal.close()
    world = World()
    world.may_go.set()
    with run_server(tmp_path / "runs", world=world, settings=hooks(tmp_path)) as second:
        assert sent(second, "orders", ORDER, "msg_new").status_code == 202
        ended = settled(second, 3)
        assert [one.state for one in ended] == ["done"] * 3
        assert ended[0].run == running.run
        assert len(second.agents.fleet().journal.runs()) == 3


def test_two_servers_begin_one_run(tmp_path: Path) -> None:
    """One takes a message and is slow to begin; the other holds it for dead and begins: by one id, so once."""
    with run_server(tmp_path / "runs", settings=hooks(tmp_path)) as server:
        journal = SqliteJournal(tmp_path / "runs")
        inbox = journal.webhooks.inbox
        inbox.keep("flaky", "msg_1", "x", 10)
        taken = inbox.take()
        assert taken is not None
        slow = taken[0]
        assert sent(server, "orders", ORDER, "msg_2").status_code == 202  # the server begins to work
        settled(server, 2)
        found = inbox.messages()[1]
        assert (found.state, found.run) == ("done", slow.run)
        inbox.settle(msgspec.structs.replace(slow, run="r-other"), "dead", "late")
        assert inbox.messages()[1].state == "done", "what another run came to is not this one's"
        assert len(journal.runs()) == 2
        journal.close()


def test_hooks_take_turns(tmp_path: Path) -> None:
    """A message of a quiet hook is next, however many wait of another one of which runs are under way."""
    journal = SqliteJournal(tmp_path)
    inbox = journal.webhooks.inbox
    for number in range(20):
        inbox.keep("loud", f"l{number}", "task", 100)
    first = [inbox.take(), inbox.take()]
    for number in range(3):
        inbox.keep("quiet", f"q{number}", "task", 100)
    taken = [message for message in (*first, *(inbox.take() for _ in range(5))) if message is not None]
    assert [message.id for message, _ in taken] == ["l0", "l1", "q0", "q1", "l2", "q2", "l3"]
    journal.close()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[server.hooks.x]\ntask = "t"', "expected a table with `secret` and `task` as the hook x"),
        ('[server.hooks.x]\nsecret = "whsec_abc"\ntask = "t"', "expected env:NAME or file:PATH, never the secret"),
        ('[server.hooks.x]\nsecret = "env:A"\ntask = " "', "expected a task such as"),
        ('[server.hooks.x]\nsecret = "env:A"\ntask = "t"\nevnts = []', "expected events in the hook x, got 'evnts'"),
        ('[server.hooks."a b"]\nsecret = "env:A"\ntask = "t"', "as a hook's name, got 'a b'"),
        ('[server.hooks.x]\nsecret = "env:A"\ntask = "t"\nmax_bytes = "1GB"', "expected at most 2,000,000 bytes"),
    ],
)
def test_settings_of_hooks_are_checked(tmp_path: Path, table: str, said: str) -> None:
    """Each mistake is named; a secret is never told."""
    file = tmp_path / "pyagent.toml"
    file.write_text(table)
    with pytest.raises(ConfigError) as told:
        load_settings(file)
    assert said in str(told.value)
    assert "whsec_abc" not in str(told.value)


def test_a_schema_stands_beside_the_file_of_settings(tmp_path: Path) -> None:
    """A relative path is relative to the file."""
    file = tmp_path / "pyagent.toml"
    file.write_text('[server.hooks.x]\nsecret = "env:A"\ntask = "t"\nschema = "order.json"')
    assert load_settings(file).settings.server.hooks["x"].schema == str(tmp_path / "order.json")


def test_what_is_old_or_too_much_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were done or died a month ago, and the oldest of too many that were done; none that waits."""
    journal = SqliteJournal(tmp_path)
    inbox = journal.webhooks.inbox
    for state in ("done", "done", "done", "dead", "waiting"):
        kept, _ = inbox.keep("orders", f"msg_{len(inbox.messages())}", "x", 10)
        inbox.settle(kept, state)  # type: ignore[arg-type]
    monkeypatch.setattr("pyagent.infrastructure.storage.webhooks.inbox.MAX_DONE", 2)
    inbox.prune(time.time())
    assert [one.state for one in inbox.messages()] == ["waiting", "dead", "done", "done"]
    inbox.prune(time.time() + 31 * 86_400)
    assert [one.state for one in inbox.messages()] == ["waiting"]
    journal.close()
