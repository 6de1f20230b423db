"""Runs over HTTP: started, followed from any point, cancelled, gone on with, exported and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.run_server import RunServer, World, ended, events_of, followed, kinds, run_server, started
from support.waiting import wait_until

from pyagent.core.settings import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with run_server(tmp_path) as served:
        yield served


@pytest.fixture
def http(server: RunServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_a_run_goes_on_without_its_client(server: RunServer, http: httpx.Client) -> None:
    """POST answers at once with the run; another connection finds it, and its result when it is there."""
    answer = http.post("/v1/runs", json={"task": "bread", "agent": "gate"})
    run = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    assert (run["object"], run["state"], run["output"], run["error"]) == ("run", "running", None, None)
    assert run["steps"] == [{"name": "gate", "task": "bread", "agent": "gate", "after": [], "steps": []}]
    server.world.may_go.set()
    with server.client() as other:
        whole = ended(other, run["id"])
    assert (whole["state"], whole["output"], whole["task"]) == ("done", "through with bread", "bread")
    assert whole["totals"]["seconds"] > 0
    assert followed(http, run["id"])[-1] == {"event": "end", "run": run["id"], "state": "done"}


def test_steps_stand_as_in_a_graphs_file(http: httpx.Client) -> None:
    """Steps are those of a graph's file: items, what comes after, the run's task in its place."""
    steps = [
        {"name": "each", "agent": "echo", "task": "{task} {item}", "for_each": ["a", "b"]},
        {"name": "last", "agent": "echo", "task": "end", "after": ["each"]},
    ]
    run = http.post("/v1/runs", json={"task": "go", "steps": steps, "priority": -1}).json()
    assert [(step["name"], step["task"]) for step in run["steps"]] == [
        ("each-1", "go a"),
        ("each-2", "go b"),
        ("last", "end"),
    ]
    assert ended(http, run["id"])["output"] == "end!"


def test_events_come_from_any_point(server: RunServer, http: httpx.Client) -> None:
    """`?start=` and `Last-Event-ID` give the rest, of a run under way as of one that is over, each event once."""
    run = started(http, "gate")["id"]
    with http.stream("GET", f"/v1/runs/{run}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        live = events_of(response)
        first = [next(live) for _ in range(4)]
        server.world.may_go.set()
        whole = first + list(live)
    assert [event["id"] for event in whole[:-1]] == list(range(len(whole) - 1))
    assert kinds(whole)[:2] == ["run_started", "route_chosen"]
    assert kinds(whole)[-2:] == ["run_finished", "end"]
    assert followed(http, run) == whole
    assert followed(http, run, "?start=3") == whole[3:]
    assert followed(http, run, **{"Last-Event-ID": "3"}) == whole[4:]
    over = http.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": str(len(whole) - 2)})
    assert over.status_code == 204, "an EventSource that reconnects is told to stop"
    for query, headers in (("?start=-1", {}), ("?start=x", {}), ("", {"Last-Event-ID": "9" * 40})):
        refused = http.get(f"/v1/runs/{run}/events{query}", headers=headers)
        assert refused.status_code == 400
        assert "is the number of an event" in refused.json()["error"]["message"]


def test_texts_are_told_as_they_come_and_not_kept(http: httpx.Client) -> None:
    """A reader of a run under way gets pieces of text without ids, before the answer that has them whole."""
    body = {"task": "tell", "agent": "teller", "stream": True}
    with http.stream("POST", "/v1/runs", json=body) as response:
        live = list(events_of(response))
    run = live[0]["run"]
    assert response.headers["content-location"] == f"/v1/runs/{run}"
    said = [event for event in live if event["event"] == "text_delta"]
    assert "".join(event["text"] for event in said) == "answer to tell"
    assert not any("id" in event for event in said)
    assert kinds(live).index("text_delta") < kinds(live).index("model_called")
    assert "text_delta" not in kinds(followed(http, run))


def test_a_silent_run_is_heard_of(server: RunServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing happens comments keep the connection, so that a reader knows a dead one."""
    from pyagent.infrastructure.server.runs import stream

    monkeypatch.setitem(stream.server_sent.__kwdefaults__, "heartbeat_seconds", 0.05)
    run = started(http, "gate")["id"]
    with http.stream("GET", f"/v1/runs/{run}/events") as response:
        lines = response.iter_lines()
        assert ": still running" in lines
        server.world.may_go.set()
        assert any("run_finished" in line for line in lines)


def test_a_client_that_leaves_ends_its_run_only_if_it_asks_to(server: RunServer, http: httpx.Client) -> None:
    """A run goes on when its reader is gone; with `on_disconnect` cancel it is cancelled."""
    runs = {}
    for wish in ("continue", "cancel"):
        body = {"task": "x", "agent": "gate", "stream": True, "on_disconnect": wish}
        with server.client() as leaver, leaver.stream("POST", "/v1/runs", json=body) as response:
            runs[wish] = next(events_of(response))["run"]
    assert ended(http, runs["cancel"])["state"] == "cancelled"
    assert http.get(f"/v1/runs/{runs['continue']}").json()["state"] == "running"
    server.world.may_go.set()
    assert ended(http, runs["continue"])["state"] == "done"
    refused = http.post("/v1/runs", json={"task": "x", "on_disconnect": "cancel"})
    assert "needs stream=true" in refused.json()["error"]["message"]


def test_a_repeated_post_gives_the_same_run(tmp_path: Path) -> None:
    """One key is one run: side by side, later, after a restart; with another task it is refused."""
    world, key = World(), {"Idempotency-Key": "order 66"}
    with run_server(tmp_path, world=world) as server, server.client() as http:

        def post(_: int) -> str:
            return str(started(http, "gate", headers=key)["id"])

        with ThreadPoolExecutor(8) as threads:
            (run,) = set(threads.map(post, range(8)))
        other = http.post("/v1/runs", json={"task": "y", "agent": "gate"}, headers=key)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
        private = http.post("/v1/runs", json={"task": "x", "agent": "gate", "private": True}, headers=key)
        assert private.status_code == 422
        world.may_go.set()
        assert ended(http, run)["state"] == "done"
        assert world.ran == ["gate"]
    with run_server(tmp_path, world=world) as server, server.client() as http:
        again = http.post("/v1/runs", json={"task": "x", "agent": "gate"}, headers=key)
        assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, run, "done")
        for wrong in ("", "x" * 257, "\x01"):
            refused = http.post("/v1/runs", json={"task": "x"}, headers={"Idempotency-Key": wrong})
            assert "printable" in refused.json()["error"]["message"]
    assert world.ran == ["gate"]


def test_cancel_ends_a_run_and_resume_goes_on(server: RunServer, http: httpx.Client) -> None:
    """A cancelled run says so, is cancelled twice without an error, and ends well when it is resumed."""
    run = started(http, "gate")["id"]
    cancelled = http.post(f"/v1/runs/{run}/cancel", json={"wait": True})
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert cancelled.json()["error"]["reason"] == "cancelled"
    assert http.post(f"/v1/runs/{run}/cancel").status_code == 200
    server.world.may_go.set()
    assert http.post(f"/v1/runs/{run}/resume").json()["id"] == run
    whole = ended(http, run)
    assert (whole["state"], whole["output"], whole["error"]) == ("done", "through with x", None)
    for action, code in (("resume", "done"), ("cancel", "over")):
        refused = http.post(f"/v1/runs/{run}/{action}", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, code)


def test_a_failed_run_tells_why_without_this_machines_folders(server: RunServer, http: httpx.Client) -> None:
    """The error is words without folders, in the run as in its events; resumed, what is mended is done."""
    server.world.is_broken = True
    run = started(http, "flaky")["id"]
    failed = ended(http, run)
    assert (failed["state"], failed["error"]["kind"]) == ("failed", "AgentError")
    assert "machine.py" in failed["error"]["error"]
    texts = [json.dumps(failed), json.dumps(followed(http, run)), http.get(f"/v1/runs/{run}/export").text]
    assert not any("/usr/lib" in text for text in texts)
    server.world.is_broken = False
    http.post(f"/v1/runs/{run}/resume", json={})
    assert ended(http, run)["output"] == "mended"


def test_a_fork_runs_a_step_again(http: httpx.Client) -> None:
    """A fork is a new run with the old one's beginning and another task; a step that is not there is named."""
    run = started(http, "echo", "one")["id"]
    ended(http, run)
    answer = http.post(f"/v1/runs/{run}/fork", json={"step": "echo", "task": "two"})
    fork = answer.json()
    assert answer.status_code == 201
    assert (fork["forked_from"], fork["id"] != run) == (run, True)
    assert ended(http, fork["id"])["output"] == "two!"
    refused = http.post(f"/v1/runs/{run}/fork", json={"step": "ecco"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "step")
    assert "'echo'" in refused.json()["error"]["message"]


def test_export_and_delete(server: RunServer, http: httpx.Client) -> None:
    """An export is JSON lines; a run under way is not deleted, and a deleted one is not there."""
    run = started(http, "gate")["id"]
    refused = http.delete(f"/v1/runs/{run}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "still_running")
    server.world.may_go.set()
    ended(http, run)
    head, *lines = [json.loads(line) for line in http.get(f"/v1/runs/{run}/export").text.splitlines()]
    assert head["run"] == run
    assert head["num_records"] == len(lines)
    assert [line["number"] for line in lines] == list(range(len(lines)))
    assert http.delete(f"/v1/runs/{run}").json() == {"id": run, "object": "run", "deleted": True}
    assert http.get(f"/v1/runs/{run}").status_code == 404


def test_runs_are_listed_by_pages(http: httpx.Client) -> None:
    """The newest come first; `after` goes on from a page's end."""
    runs = [started(http, "echo", str(number))["id"] for number in range(3)]
    for run in runs:
        ended(http, run)
    first = http.get("/v1/runs?limit=2").json()
    assert [row["id"] for row in first["data"]] == [runs[2], runs[1]]
    assert (first["has_more"], first["last_id"]) == (True, runs[1])
    assert first["data"][0]["state"] == "done"
    rest = http.get(f"/v1/runs?limit=2&after={runs[1]}").json()
    assert ([row["id"] for row in rest["data"]], rest["has_more"]) == ([runs[0]], False)
    for limit in ("0", "101", "x", "-1"):
        assert http.get(f"/v1/runs?limit={limit}").status_code == 400


def test_a_private_run_is_kept_nowhere_and_read_while_the_server_lives(tmp_path: Path) -> None:
    """Its events come, and come again, from memory; the journal has no word of it, and nothing goes on from it."""
    with run_server(tmp_path) as server, server.client() as http:
        key = {"Idempotency-Key": "mine"}
        run = started(http, "gate", "my secret", private=True, headers=key)["id"]
        assert started(http, "gate", "my secret", private=True, headers=key)["id"] == run
        server.world.may_go.set()
        events = followed(http, run)
        assert kinds(events)[-2:] == ["run_finished", "end"]
        assert followed(http, run) == events
        assert http.get(f"/v1/runs/{run}").json()["output"] == "through with my secret"
        assert http.get("/v1/runs").json()["data"] == []
        for action, body in (("resume", {}), ("fork", {"step": "gate"})):
            refused = http.post(f"/v1/runs/{run}/{action}", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_resumable")
        assert http.post(f"/v1/runs/{run}/cancel").json()["error"]["code"] == "over"
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"my secret" in file.read_bytes()]


def test_what_a_restart_leaves_is_unfinished_and_resumed(tmp_path: Path) -> None:
    """A run under way when its server ends is unfinished, not cancelled; the next server goes on with it."""
    with run_server(tmp_path) as server, server.client() as http:
        run = started(http, "gate")["id"]
        wait_until(lambda: "gate" in server.world.ran)
    world = World()
    world.may_go.set()
    with run_server(tmp_path, world=world) as server, server.client() as http:
        assert http.get(f"/v1/runs/{run}").json()["state"] == "unfinished"
        assert followed(http, run)[-1] == {"event": "end", "run": run, "state": "unfinished"}
        http.post(f"/v1/runs/{run}/resume")
        assert ended(http, run)["state"] == "done"


def test_a_key_has_so_many_runs_at_once(tmp_path: Path) -> None:
    """One run more than `server.max_runs` gets 429 with `Retry-After`; when one has ended there is room."""
    with run_server(tmp_path, settings=Server(max_runs=1)) as server, server.client() as http:
        run = started(http, "gate")["id"]
        refused = http.post("/v1/runs", json={"task": "x", "agent": "echo"})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "server.max_runs" in refused.json()["error"]["message"]
        server.world.may_go.set()
        ended(http, run)
        wait_until(lambda: http.post("/v1/runs", json={"task": "x", "agent": "echo"}).status_code == 201)
        wait_until(lambda: all(row["state"] == "done" for row in http.get("/v1/runs").json()["data"]))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "task", "the task is empty"),
        ({"task": "x", "agent": "ecco"}, "agent", "did you mean 'echo'"),
        ({"task": "x", "agnet": "echo"}, "agnet", "agent"),
        ({"task": "x", "timeout_seconds": 0}, "timeout_seconds", "above 0"),
        ({"task": "x", "steps": [{"name": "a", "task": "y"}], "agent": "echo"}, "agent", "in the steps"),
        ({"task": "x", "steps": []}, "steps", "at least one step"),
        ({"task": "x", "steps": [{"name": "g", "steps": [{"name": "a", "agent": "ecco"}]}]}, "agent", "'echo'"),
        ({"task": "x", "request_class": "x" * 257}, "request_class", "256 characters"),
        ({"task": "x", "priority": 2**40}, "priority", "at most"),
        ({"task": "x", "steps": [{"name": "a", "task": "y", "after": ["b"]}]}, None, "does not exist"),
        ({"task": "x" * 2_000_001}, "task", "2000000 characters"),
        ({"task": "x" * 1_000_001, "steps": [{"name": "a", "task": "{task}{task}"}]}, "task", "1,000,000 characters"),
        ({"task": "x", "files": ["a.txt"], "agent": "reader"}, "path", "read no files"),
    ],
)
def test_wrong_requests_are_told(http: httpx.Client, body: dict[str, object], param: str | None, words: str) -> None:
    """What is wrong is one sentence, with the field at fault; nothing is begun."""
    refused = http.post("/v1/runs", json=body)
    error = refused.json()["error"]
    assert refused.status_code in {400, 404}
    assert error["param"] == param
    assert words in error["message"]
    assert http.get("/v1/runs").json()["data"] == []


def test_a_server_without_a_fleet_says_so() -> None:
    """A server of models alone has no runs."""
    from pyagent.infrastructure.server.app import create_app
    from pyagent.testing import ScriptedBackend, serve

    with serve(create_app(ScriptedBackend([]))) as url:
        answer = httpx.get(f"{url}/v1/runs")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_fleet")
