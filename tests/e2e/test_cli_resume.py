"""Runs of other processes on the command line: cancelled, killed in the middle of a tool, gone on with, and forked."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import fresh_environment, pyagent, started
from support.installed import find_first, write_distribution
from support.waiting import wait_until

_CODE = """
import asyncio
from pathlib import Path

import pyagent
from pyagent.plugin import hookimpl

@pyagent.tool(effect="once")
async def lay(brick: str) -> int:
    '''Lay a brick.'''
    with (Path.home() / "bricks").open("a") as file:
        file.write(f"{brick}\\n")
    while (Path.home() / "wait").exists():
        await asyncio.sleep(0.01)
    return len(brick)

class Builder:
    name = "builder"
    description = "Builds."

    async def run(self, context, task):
        return f"{task.text} took {await context.call_tool('lay', {'brick': task.text})}"

@hookimpl
def pyagent_register_agents():
    return [Builder()]

@hookimpl
def pyagent_register_tools():
    return [lay]
"""


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "building.py").write_text(_CODE)
    write_distribution(tmp_path, "building", "building.agents = building\nbuilding.tools = building")
    find_first(monkeypatch, tmp_path)
    return fresh_environment(tmp_path)


@contextmanager
def _in_mid_tool(env: dict[str, str]) -> Generator[tuple[str, int]]:
    """Have a process in the middle of the tool; gives the run's id and the process's."""
    home = Path(env["HOME"])
    (home / "wait").touch()
    with started("agent", "builder", "wall", env=env) as process:
        try:
            wait_until((home / "bricks").exists)
            yield _row(env)["run"], process.pid
        finally:
            process.kill()
            (home / "wait").unlink(missing_ok=True)


def _row(env: dict[str, str]) -> dict[str, str]:
    return json.loads(pyagent("runs", "list", "--json", env=env).stdout)[0]


def _bricks(env: dict[str, str]) -> list[str]:
    return (Path(env["HOME"]) / "bricks").read_text().splitlines()


def test_run_of_another_process_is_cancelled(env: dict[str, str]) -> None:
    """A run in the middle of a tool ends with its process when another one cancels it, and only once."""
    with _in_mid_tool(env) as (run, _):
        done = pyagent("runs", "cancel", run, env=env)
        assert (done.returncode, f"cancelled {run}" in done.stdout) == (0, True), done.stderr
        assert _row(env)["state"] == "cancelled"
    again = pyagent("runs", "cancel", run, env=env)
    assert (again.returncode, "is over: cancelled" in again.stderr) == (1, True)


def test_tool_killed_in_the_middle_is_asked_about(env: dict[str, str]) -> None:
    """After `kill -9` within a tool, resuming asks whether it happened; the answer ends the run, a fork begins anew."""
    with _in_mid_tool(env) as (run, _):
        pass
    assert _row(env)["state"] == "unfinished"
    asked = pyagent("runs", "resume", run, env=env)
    assert (asked.returncode, "did that happen?" in asked.stderr) == (1, True), asked.stderr
    wrong = pyagent("runs", "resume", run, "--answer", "perhaps", env=env)
    assert (wrong.returncode, "is one of yes, no" in wrong.stderr) == (1, True), wrong.stderr
    answered = pyagent("runs", "resume", run, "--answer", "yes", env=env)
    assert (answered.returncode, "wall took None" in answered.stdout) == (0, True), answered.stderr
    assert _bricks(env) == ["wall"]
    forked = pyagent("runs", "fork", run, "builder", "tower", env=env)
    assert (forked.returncode, "tower took 5" in forked.stdout) == (0, True), forked.stderr
    assert _bricks(env) == ["wall", "tower"]
