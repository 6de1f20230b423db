"""Runs on a disk that is full, over HTTP and in Python: nothing happens twice, and what is lost is said."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import msgspec
import pytest
from support.fleets import Custom, events_of
from support.full_disk import full_disk
from support.run_server import ended, run_server, started
from support.waiting import wait_until

from pyagent.core.errors import NeedsAnswerError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.events import QuestionAsked, RunFinished
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend


def _questions(journal: SqliteJournal, run: str) -> list[str]:
    return [record.event.question.id for record in journal.replay(run) if isinstance(record.event, QuestionAsked)]


class Number(msgspec.Struct):
    value: int


@pytest.mark.anyio
async def test_no_effect_happens_that_a_full_disk_would_let_happen_twice(tmp_path: Path) -> None:
    """A disk that gets full in an effect ends the run before the next one; the resumed run asks about that effect alone
    and has every other one once."""
    done: list[int] = []
    disk = ExitStack()

    async def effect(number: Number) -> str:
        done.append(number.value)
        if number.value == 3:
            disk.enter_context(full_disk())
        return f"did {number.value}"

    async def work(context: Context, task: Task) -> object:
        return [await context.call_tool("effect", Number(value)) for value in range(6)]

    tool = FleetTool("effect", "has an effect", Number, effect)
    journal = SqliteJournal(tmp_path)
    async with Fleet(ScriptedBackend([]), [Custom("work", work)], [tool], journal=journal) as fleet:
        with disk:
            seen, error = await events_of(fleet, "go", agent="work")
        run = seen[0].run
        assert isinstance(error, RequestError)
        assert str(error).startswith(f"effect is not called: the journal of {run} cannot be written")
        assert done == [0, 1, 2, 3]
        with suppress(NeedsAnswerError):
            async for _ in fleet.resume(run):
                pass
        seen = [event async for event in fleet.resume(run, answers=dict.fromkeys(_questions(journal, run), "yes"))]
        assert isinstance(seen[-1], RunFinished)
    assert done == [0, 1, 2, 3, 4, 5]
    assert [row.state for row in journal.runs()] == ["done"]


def test_requests_on_a_full_disk_can_be_sent_again(tmp_path: Path) -> None:
    """One that has to be kept to happen once is refused until there is room, and then does its work."""
    key = {"Idempotency-Key": "nightly"}

    def begin(http: httpx.Client) -> httpx.Response:
        return http.post("/v1/runs", json={"task": "hello", "agent": "echo"}, headers=key)

    with run_server(tmp_path) as server, server.client() as http:
        asking = started(http, "careful", "x", waits_for_answers=False)["id"]
        ended(http, asking)
        answer = {"url": f"/v1/runs/{asking}/answer", "json": {"answer": "deny"}, "headers": {"Idempotency-Key": "no"}}
        with full_disk():
            refused = begin(http), begin(http), http.post(**answer), http.post(**answer)
        told = [(each.status_code, each.json()["error"]["code"]) for each in refused]
        assert told == [(503, "journal_unreadable")] * 4
        first, again = begin(http), begin(http)
        assert (first.status_code, again.status_code, again.json()["id"]) == (201, 200, first.json()["id"])
        assert http.post(**answer).status_code == 200
        ended(http, asking)
        assert len(http.get("/v1/runs").json()["data"]) == 2


def test_run_whose_end_had_no_room_is_resumed_by_its_server(tmp_path: Path) -> None:
    """What could not be kept of a run is not taken for a run that goes on."""
    with run_server(tmp_path) as server, server.client() as http:
        run = started(http, "gate", "x")["id"]
        with full_disk():
            server.world.may_go.set()
            wait_until(lambda: not server.agents.fleet().num_running)
        wait_until(lambda: http.get(f"/v1/runs/{run}").json()["state"] == "unfinished")  # its journal is closed last
        assert http.post(f"/v1/runs/{run}/resume").status_code == 200
        assert ended(http, run)["state"] == "done"
