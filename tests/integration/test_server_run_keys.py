"""`Idempotency-Key` where a run is gone on with: each request does its work once, as when it begins one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.run_server import ALICE, BOB, RunServer, World, ended, followed, kinds, run_server, started
from support.waiting import wait_until

KEY = {"Idempotency-Key": "order 66"}
OTHER = {"Idempotency-Key": "order 67"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with run_server(tmp_path) as served:
        yield served


@pytest.fixture
def http(server: RunServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def post(http: httpx.Client, run: str, action: str, key: dict[str, str], **body: Any) -> httpx.Response:
    return http.post(f"/v1/runs/{run}/{action}", json=body, headers=key)


def refused_key(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_repeated_fork_is_one_run(tmp_path: Path) -> None:
    """One key is one fork: side by side, later, after a restart; another step, task or run by it is refused."""
    with run_server(tmp_path) as server, server.client() as http:
        run, other = (started(http, "echo", word)["id"] for word in ("one", "two"))
        ended(http, run)
        ended(http, other)

        def fork(_: int) -> str:
            return str(post(http, run, "fork", KEY, step="echo", task="three").json()["id"])

        with ThreadPoolExecutor(8) as threads:
            (forked,) = set(threads.map(fork, range(8)))
        assert ended(http, forked)["output"] == "three!"
        assert len(http.get("/v1/runs").json()["data"]) == 3
    with run_server(tmp_path) as server, server.client() as http:
        again = post(http, run, "fork", KEY, step="echo", task="three")
        assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, forked, "done")
        assert refused_key(post(http, run, "fork", KEY, step="echo"))
        assert refused_key(post(http, run, "fork", KEY, step="echo", task="four"))
        assert refused_key(post(http, other, "fork", KEY, step="echo", task="three"))
        assert refused_key(http.post("/v1/runs", json={"task": "three", "agent": "echo"}, headers=KEY))
        wrong = post(http, run, "fork", {"Idempotency-Key": "\x01"}, step="echo")
        assert "printable" in wrong.json()["error"]["message"]
        assert len(http.get("/v1/runs").json()["data"]) == 3


def test_repeated_resume_goes_on_once(tmp_path: Path) -> None:
    """A run that failed is tried again once for a key, also after a restart, and again for the next key."""
    world = World(is_broken=True)
    with run_server(tmp_path, world=world) as server, server.client() as http:
        run = started(http, "flaky")["id"]
        ended(http, run)
        for _ in range(3):
            assert post(http, run, "resume", KEY).status_code == 200
            assert ended(http, run)["state"] == "failed"
        assert world.ran == ["flaky"] * 2
        assert refused_key(post(http, run, "resume", KEY, waits_for_answers=True))
    with run_server(tmp_path, world=world) as server, server.client() as http:
        assert post(http, run, "resume", KEY).json()["state"] == "failed"
        assert world.ran == ["flaky"] * 2
        world.is_broken = False
        post(http, run, "resume", OTHER)
        assert ended(http, run)["output"] == "mended"
        assert post(http, run, "resume", OTHER).json()["output"] == "mended"
        assert post(http, run, "resume", {}).status_code == 409


def test_repeated_answer_is_given_once(http: httpx.Client) -> None:
    """The same answer by the same key is taken again after the run's end; another one by it is refused."""
    run = started(http, "curious", waits_for_answers=True)["id"]
    wait_until(lambda: http.get(f"/v1/runs/{run}").json()["questions"])
    assert post(http, run, "answer", KEY, answer="red").status_code == 200
    assert ended(http, run)["output"] == "so it is red"
    again = post(http, run, "answer", KEY, answer="red")
    assert (again.status_code, again.json()["output"]) == (200, "so it is red")
    assert refused_key(post(http, run, "answer", KEY, answer="blue"))
    assert post(http, run, "answer", {}, answer="red").status_code == 409
    assert kinds(followed(http, run)).count("question_answered") == 1


def test_answers_side_by_side_resume_a_run_once(http: httpx.Client) -> None:
    """A run that ended with its question goes on once, though its answer comes eight times at once."""
    run = started(http, "curious")["id"]
    assert ended(http, run)["state"] == "needs_answer"

    def answer(_: int) -> int:
        return post(http, run, "answer", KEY, answer="red").status_code

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(answer, range(8))) == {200}
    assert ended(http, run)["output"] == "so it is red"
    assert kinds(followed(http, run)).count("run_resumed") == 1


def test_key_of_a_refused_request_is_free(http: httpx.Client) -> None:
    """A request that did nothing keeps no key: the mended one may have it."""
    run = started(http, "curious")["id"]
    ended(http, run)
    assert "one of red, blue" in post(http, run, "answer", KEY, answer="green").json()["error"]["message"]
    assert post(http, run, "answer", KEY, answer="blue").status_code == 200
    assert ended(http, run)["output"] == "so it is blue"


def test_key_stands_for_one_request(server: RunServer, http: httpx.Client) -> None:
    """What began a run goes on with none, and the other way round; a deleted run's key is free again."""
    server.world.is_broken = True
    run = started(http, "flaky", headers=KEY)["id"]
    ended(http, run)
    assert refused_key(post(http, run, "resume", KEY))
    assert post(http, run, "resume", OTHER).status_code == 200
    ended(http, run)
    assert refused_key(http.post("/v1/runs", json={"task": "x", "agent": "echo"}, headers=OTHER))
    assert refused_key(post(http, run, "fork", OTHER, step="flaky"))
    assert http.delete(f"/v1/runs/{run}").status_code == 200
    assert http.post("/v1/runs", json={"task": "x", "agent": "echo"}, headers=OTHER).status_code == 201


def test_private_run_is_answered_once(http: httpx.Client) -> None:
    """The keys of a private run are in memory, as it is."""
    run = started(http, "curious", waits_for_answers=True, private=True)["id"]
    wait_until(lambda: http.get(f"/v1/runs/{run}").json()["questions"])
    assert [post(http, run, "answer", KEY, answer="red").status_code for _ in range(2)] == [200, 200]
    assert ended(http, run)["output"] == "so it is red"


def test_tenants_have_their_own_keys(tmp_path: Path) -> None:
    """Equal keys of two tenants resume the run of each."""
    world = World(is_broken=True)
    with run_server(tmp_path, world=world, has_keys=True) as server:
        for secret in (ALICE, BOB):
            with server.client(secret) as http:
                run = started(http, "flaky")["id"]
                ended(http, run)
                assert post(http, run, "resume", KEY).status_code == 200
                ended(http, run)
    assert world.ran == ["flaky"] * 4
