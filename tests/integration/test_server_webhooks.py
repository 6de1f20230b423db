"""A key's webhooks over HTTP: its own alone, the secret told once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.receiver import receiver
from support.run_server import ALICE, BOB, RunServer, run_server

from pyagent.infrastructure.server.route_table import APIS
from pyagent.infrastructure.storage.journal import SqliteJournal

HOOK = {"url": "https://ci.example.org/hook?token=hush-hush", "events": ["run.finished"]}
NAMED = [(api.method, api.path) for api in APIS if api.path.startswith("/v1/webhooks/{id}")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunServer]:
    with run_server(tmp_path_factory.mktemp("runs"), has_keys=True) as served:
        yield served


def test_a_webhook_over_http(server: RunServer) -> None:
    """Added with its secret, listed without, given another secret, removed; wrong bodies told."""
    with server.client(ALICE) as http:
        made = http.post("/v1/webhooks", json=HOOK)
        webhook, secret = made.json()["id"], made.json()["secret"]
        assert (made.status_code, made.headers["location"]) == (201, f"/v1/webhooks/{webhook}")
        shown = http.get(made.headers["location"])
        listed = http.get("/v1/webhooks")
        assert [one["id"] for one in listed.json()["data"]] == [webhook]
        for answer in (shown, listed):
            assert secret not in answer.text
            assert "hush-hush" not in answer.text
        assert http.post(f"/v1/webhooks/{webhook}/rotate", json={}).json()["secret"] not in {secret, ""}
        assert http.get(f"/v1/webhooks/{webhook}/messages?state=dead").json()["data"] == []
        for path, body, said in (
            ("", {"url": "https://x.org", "events": ["run.end"]}, "there is no event"),
            ("", {"url": "http://127.0.0.1/", "events": ["*"]}, "expected an https:// URL"),
            ("", {"url": "https://x.org", "events": ["*"], "secret": "env:HOME"}, "secret"),
            (f"/{webhook}/replay", {}, "name 1 to 1000 messages"),
        ):
            refused = http.post(f"/v1/webhooks{path}", json=body)
            assert (refused.status_code, said in refused.text) == (400, True), refused.text
        assert "state is one of" in http.get(f"/v1/webhooks/{webhook}/messages?state=x").text
        assert http.delete(f"/v1/webhooks/{webhook}").json()["deleted"] is True
        assert http.get(f"/v1/webhooks/{webhook}").status_code == 404


@pytest.mark.parametrize(("method", "path"), NAMED)
def test_another_keys_webhook_is_not_there(server: RunServer, method: str, path: str) -> None:
    """Each route tells one like one that does not exist."""
    with server.client(ALICE) as alice, server.client(BOB) as bob:
        webhook = alice.post("/v1/webhooks", json=HOOK).json()["id"]
        body = {"since_seconds": 1} if path.endswith("replay") else {}
        told = [
            bob.request(method, path.replace("{id}", name), json=None if method in {"GET", "DELETE"} else body)
            for name in (webhook, "wh-00000000")
        ]
        assert [answer.status_code for answer in told] == [404, 404]
        assert told[0].text.replace(webhook, "wh-00000000") == told[1].text
        assert bob.get("/v1/webhooks").json()["data"] == []
        assert alice.delete(f"/v1/webhooks/{webhook}").status_code == 200


def test_a_webhook_is_tried_over_http(server: RunServer) -> None:
    """What the receiver answers is told; here that its address is not public, unless that is allowed."""
    journal = server.agents.fleet().journal
    assert isinstance(journal, SqliteJournal)
    with receiver() as there, server.client(ALICE) as http:
        journal.webhooks.allows_private = True
        try:
            webhook = http.post("/v1/webhooks", json={"url": there.url, "events": ["*"]}).json()["id"]
            there.plays = [204, 500]
            tried = [http.post(f"/v1/webhooks/{webhook}/test", json={}).json() for _ in range(2)]
        finally:
            journal.webhooks.allows_private = False
        assert tried[0] == {"delivered": True, "status": 204, "error": ""}
        assert tried[1] == {"delivered": False, "status": 500, "error": "it answered with status 500"}
        assert json.loads(there.came[0][1])["type"] == "webhook.ping"
        refused = http.post(f"/v1/webhooks/{webhook}/test", json={}).json()["error"]
        assert "which is not public" in refused
