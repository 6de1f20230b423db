"""`server.run_rate`: how many runs each API key may begin, by whichever route, also after a restart."""

from __future__ import annotations

from pathlib import Path

from support.run_server import ALICE, BOB, ended, run_server, started

from pyagent.core.settings import Server

SETTINGS = Server(run_rate="2/h")


def test_runs_of_each_key_have_a_rate(tmp_path: Path) -> None:
    """The third run of a key gets 429 and when to try again, by each route and after a restart; others go on."""
    with run_server(tmp_path, has_keys=True, settings=SETTINGS) as server, server.client(ALICE) as alice:
        key = {"Idempotency-Key": "1"}
        run = started(alice, "echo", headers=key)["id"]
        ended(alice, run)
        assert alice.post(f"/v1/runs/{run}/fork", json={"step": "echo"}).status_code == 201
        refused = alice.post("/v1/runs", json={"task": "x", "agent": "echo"})
        assert refused.status_code == 429
        assert 1_000 < int(refused.headers["retry-after"]) <= 1_800
        assert "may begin 2/h runs (server.run_rate)" in refused.json()["error"]["message"]
        again = alice.post("/v1/runs", json={"task": "x", "agent": "echo"}, headers=key)
        assert (again.status_code, again.json()["id"]) == (200, run), "what was begun is told, and begins nothing"
        with server.client(BOB) as bob:
            assert ended(bob, started(bob, "echo")["id"])["output"] == "x!"
    with run_server(tmp_path, has_keys=True, settings=SETTINGS) as server, server.client(ALICE) as alice:
        assert alice.post("/v1/runs", json={"task": "x", "agent": "echo"}).status_code == 429
        body = {"model": "agent:echo", "messages": [{"role": "user", "content": "x"}]}
        assert alice.post("/v1/chat/completions", json=body).status_code == 429
