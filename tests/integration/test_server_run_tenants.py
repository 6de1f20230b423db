"""A run is its tenant's alone, by every door; and who may answer what a run asks, and with which files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.run_server import ADMIN, ALICE, BOB, RunServer, World, ended, followed, kinds, run_server, started

from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings import Server
from pyagent.infrastructure.server.route_table import APIS
from pyagent.infrastructure.storage.journal import SqliteJournal

ROUTES = [(api.method, api.path) for api in APIS if api.path.startswith("/v1/runs/{id}")]
BODIES: dict[str, dict[str, Any]] = {"fork": {"step": "gate"}, "answer": {"answer": "red"}, "mark": {"mark": "good"}}
SECRET = "the launch code is zebra"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with run_server(tmp_path, has_keys=True) as served:
        yield served


def asked_for(http: httpx.Client, method: str, path: str, run: str) -> httpx.Response:
    """Return what a route says of a run."""
    body = {"json": BODIES.get(path.rpartition("/")[2], {})} if method == "POST" else {}
    return http.request(method, path.replace("{id}", run), **body)


@pytest.mark.parametrize("is_private", [False, True])
def test_another_tenants_run_is_not_there(server: RunServer, is_private: bool) -> None:
    """By each route another tenant, an administrator too, is told what is told of a run that never was; it goes on."""
    with server.client(ALICE) as alice, server.client(BOB) as bob, server.client(ADMIN) as admin:
        run = started(alice, "gate", SECRET, private=is_private)["id"]
        never = run[:-2] + ("aa" if run[-2:] != "aa" else "bb")
        for other in (bob, admin):
            for method, path in ROUTES:
                theirs, none = asked_for(other, method, path, run), asked_for(other, method, path, never)
                assert theirs.status_code == none.status_code == 404, path
                assert theirs.text.replace(run, "ID") == none.text.replace(never, "ID"), path
                assert theirs.json()["error"]["code"] == "run_not_found"
            assert other.get("/v1/runs").json()["data"] == []
            assert other.get(f"/v1/runs?after={run}").status_code == 404
        server.world.may_go.set()
        assert ended(alice, run)["output"] == f"through with {SECRET}"
        assert len(alice.get("/v1/runs").json()["data"]) == (0 if is_private else 1)


def test_a_key_of_one_tenant_is_not_anothers(server: RunServer) -> None:
    """Equal idempotency keys of two tenants are two runs, and neither learns of the other's."""
    key = {"Idempotency-Key": "1"}
    with server.client(ALICE) as alice, server.client(BOB) as bob:
        mine = started(alice, "echo", "a", headers=key)["id"]
        theirs = started(bob, "echo", "b", headers=key)["id"]
        assert mine != theirs
        assert (ended(alice, mine)["output"], ended(bob, theirs)["output"]) == ("a!", "b!")


def test_a_question_is_answered_while_its_run_waits(server: RunServer) -> None:
    """The run tells its question; the answer has to be one of the options, and comes once."""
    with server.client(ALICE) as http:
        run = started(http, "curious", waits_for_answers=True)["id"]
        question = _asked(http, run)
        assert (question["text"], question["options"]) == ("Which colour?", ["red", "blue"])
        wrong = http.post(f"/v1/runs/{run}/answer", json={"answer": "green", "question": question["id"]})
        assert "one of red, blue" in wrong.json()["error"]["message"]
        missing = http.post(f"/v1/runs/{run}/answer", json={"answer": "red", "question": "q-0"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "question_not_found")
        assert http.post(f"/v1/runs/{run}/answer", json={"answer": "red"}).status_code == 200
        whole = ended(http, run)
        assert (whole["output"], whole["questions"]) == ("so it is red", [])
        late = http.post(f"/v1/runs/{run}/answer", json={"answer": "red"})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "over")


def test_an_answer_goes_on_with_a_run_that_ended_by_its_question(tmp_path: Path) -> None:
    """Where runs do not wait, the run ends with the question, also for another server; the answer resumes it."""
    with run_server(tmp_path) as server, server.client() as http:
        run = started(http, "curious")["id"]
        assert ended(http, run)["state"] == "needs_answer"
    with run_server(tmp_path) as server, server.client() as http:
        (question,) = http.get(f"/v1/runs/{run}").json()["questions"]
        body = {"answer": "blue", "question": question["id"]}
        assert http.post(f"/v1/runs/{run}/answer", json=body).status_code == 200
        assert ended(http, run)["output"] == "so it is blue"
        assert kinds(followed(http, run)).count("question_asked") == 1


@pytest.mark.parametrize("may_approve", [False, True])
def test_a_clients_key_approves_only_where_it_may(tmp_path: Path, may_approve: bool) -> None:
    """What acts on the server's machine is allowed by an administrator, in runs of its own; a client may deny."""
    settings = Server(clients_may_approve=may_approve)
    with run_server(tmp_path, has_keys=True, settings=settings) as server:
        for secret, allowed in ((ALICE, may_approve), (ADMIN, True)):
            with server.client(secret) as http:
                run = started(http, "careful", "rm", waits_for_answers=True)["id"]
                question = _asked(http, run)
                assert question["kind"] == "approval"
                answer = http.post(f"/v1/runs/{run}/answer", json={"answer": "allow"})
                assert answer.status_code == (200 if allowed else 403), answer.text
                if not allowed:
                    assert answer.json()["error"]["code"] == "admin_key_needed"
                    assert server.world.ran == []
                    assert http.post(f"/v1/runs/{run}/answer", json={"answer": "deny"}).status_code == 200
                    assert "denied" in ended(http, run)["error"]["error"]
                    by_resume = http.post(f"/v1/runs/{run}/resume", json={"answers": {question["id"]: "allow"}})
                    assert by_resume.status_code in {403, 404}
                else:
                    assert ended(http, run)["output"] == "did rm"


def test_a_client_resumes_no_answer_that_it_may_not_give(server: RunServer) -> None:
    """A run that ended with an approval is not gone on with by a client's `allow`."""
    with server.client(ALICE) as http:
        run = started(http, "careful", "rm")["id"]
        (question,) = ended(http, run)["questions"]
        for path, body in (
            ("resume", {"answers": {question["id"]: "allow"}}),
            ("answer", {"answer": "allow"}),
            ("answer", {"answer": "always"}),
        ):
            assert http.post(f"/v1/runs/{run}/{path}", json=body).status_code == 403, path
        assert server.world.ran == []


def test_files_are_those_below_the_servers_folder(tmp_path: Path) -> None:
    """A file below the root is read by its name there; all others are told at once, like one that is not there."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "note.txt").write_text("milk", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("zebra", encoding="utf-8")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    with run_server(tmp_path / "journal", root=root) as server, server.client() as http:
        run = started(http, "reader", files=["note.txt"])["id"]
        assert ended(http, run)["output"] == "milk"
        assert str(root) not in http.get(f"/v1/runs/{run}/export").text
        for name in ("../secret.txt", "link.txt", str(tmp_path / "secret.txt"), "/etc/passwd", "none.txt", "a\0b"):
            for body in (
                {"task": "x", "agent": "reader", "files": [name]},
                {"task": "x", "steps": [{"name": "a", "agent": "reader", "files": [name]}]},
            ):
                refused = http.post("/v1/runs", json=body)
                assert refused.status_code == 400, name
                assert refused.json()["error"]["message"] == f"there is no file or folder {name!r}"


def test_a_run_of_the_command_line_is_not_gone_on_with_over_http(tmp_path: Path) -> None:
    """A run that may read all files is shown to this machine's clients; none may fork it to read other ones."""
    journal, world = SqliteJournal(tmp_path), World()
    asyncio.run(_run_here(world.fleet(journal)))
    (row,) = journal.runs()
    journal.close()
    with run_server(tmp_path) as server, server.client() as http:
        assert http.get(f"/v1/runs/{row.run}").json()["output"] == "hello!"
        for action, body in (("fork", {"step": "echo", "task": "/etc/passwd"}), ("resume", {})):
            refused = http.post(f"/v1/runs/{row.run}/{action}", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_resumable")
            assert "pyagent runs resume" in refused.json()["error"]["message"]


async def _run_here(fleet: Fleet) -> None:
    async for _ in fleet.run("hello", agent="echo"):
        pass


def test_a_runs_tokens_are_its_keys(tmp_path: Path) -> None:
    """What a run uses when its request is over is taken from the key's allowance all the same."""
    limited = Server(tokens_per_minute=3)
    with (
        run_server(tmp_path, has_keys=True, settings=limited) as server,
        server.client(ALICE) as alice,
        server.client(BOB) as bob,
    ):
        ended(alice, started(alice, "ask", "many words that are tokens")["id"])
        assert alice.post("/v1/runs", json={"task": "x", "agent": "echo"}).status_code == 429
        assert ended(bob, started(bob, "echo")["id"])["state"] == "done"
        assert 'pyagent_key_tokens_total{key="key 1"}' in alice.get("/metrics").text


def _asked(http: httpx.Client, run: str) -> dict[str, Any]:
    """Wait for a run's question."""
    while not (questions := http.get(f"/v1/runs/{run}").json()["questions"]):
        pass
    return questions[0]
