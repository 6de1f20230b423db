"""What log and metrics have of runs: one line and one count for each, and no text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.run_server import ALICE, World, ended, run_server, started
from support.waiting import wait_until

from pyagent.infrastructure.storage.journal import SqliteJournal

SECRET = "my diagnosis is flu"


def lines(caplog: pytest.LogCaptureFixture) -> dict[str, dict[str, Any]]:
    """Return the lines of runs, by the runs' ids."""
    found = [vars(record) for record in caplog.records if record.name == "pyagent.runs"]
    told = {str(line["run"]): line for line in found}
    assert len(told) == len(found), "one line a run"
    return told


def test_each_run_is_one_line_without_text(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Id, state, agents, steps, tokens, money, time and why it ended are told; no text of tasks or errors is."""
    caplog.set_level("INFO", "pyagent")
    world = World(is_broken=True)
    with run_server(tmp_path, world=world, has_keys=True) as server, server.client(ALICE) as http:
        done = started(http, "ask", SECRET)["id"]
        failed = started(http, "flaky", SECRET)["id"]
        asks = started(http, "curious", SECRET)["id"]
        steps = [{"name": name, "agent": "echo", "task": SECRET} for name in ("a", "b")]
        two = http.post("/v1/runs", json={"steps": steps}).json()["id"]
        for run in (done, failed, asks, two):
            ended(http, run)
        cancelled = started(http, "gate", SECRET)["id"]
        http.post(f"/v1/runs/{cancelled}/cancel", json={"wait": True})
        left = started(http, "gate", SECRET)["id"]
        wait_until(lambda: world.ran.count("gate") == 2)
    told = lines(caplog)
    states = {run: line["state"] for run, line in told.items()}
    assert states == {
        done: "done",
        failed: "failed",
        asks: "needs_answer",
        two: "done",
        cancelled: "cancelled",
        left: "unfinished",
    }
    line = told[done]
    assert (line["agents"], line["num_steps"], line["model_calls"], line["key"]) == (["ask"], 1, 1, "key 1")
    assert line["prompt_tokens"] > 0
    assert line["completion_tokens"] > 0
    assert line["seconds"] > 0
    assert line["usd"] == 0
    assert told[two]["num_steps"] == 2
    assert (told[failed]["reason"], told[failed]["error"]) == ("error", "AgentError")
    assert told[asks]["reason"] == "needs_answer"
    assert told[cancelled]["reason"] == "cancelled"
    assert SECRET not in str(told) + caplog.text
    assert "machine.py" not in str(told)


def test_a_run_of_a_program_is_logged_and_nothing_at_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A run without a server has its line too; at the default level good runs cost none."""

    async def main() -> None:
        async with World().fleet(SqliteJournal(tmp_path)) as fleet:
            await fleet.run_agent("echo", SECRET)

    caplog.set_level("WARNING", "pyagent")
    asyncio.run(main())
    assert lines(caplog) == {}
    caplog.set_level("INFO", "pyagent")
    asyncio.run(main())
    [line] = lines(caplog).values()
    assert (line["state"], line["agents"]) == ("done", ["echo"])
    assert "key" not in line


def test_runs_are_counted_by_state(tmp_path: Path) -> None:
    """Runs under way, those over by state, and each step's time are in the metrics of an administrator alone."""
    with run_server(tmp_path) as server, server.client() as http:
        ended(http, started(http, "echo")["id"])
        server.world.is_broken = True
        ended(http, started(http, "flaky")["id"])
        run = started(http, "gate")["id"]

        def value(name: str, **labels: str) -> float:
            families = text_string_to_metric_families(http.get("/metrics").text)
            samples = [sample for family in families for sample in family.samples if sample.name == name]
            return next((sample.value for sample in samples if sample.labels == labels), 0.0)

        assert value("pyagent_runs_running") == 1
        assert value("pyagent_runs_total", state="done") == 1
        assert value("pyagent_runs_total", state="failed") == 1
        assert value("pyagent_run_step_seconds_count") == 2
        server.world.may_go.set()
        ended(http, run)
        assert value("pyagent_runs_running") == 0
        assert value("pyagent_run_step_seconds_count") == 3
    with run_server(tmp_path, has_keys=True) as server, server.client(ALICE) as http:
        ended(http, started(http, "echo")["id"])
        assert "pyagent_run" not in http.get("/metrics").text
