"""`pyagent run` and `pyagent agent` asked by an agent, at a terminal and in a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Terminal, fresh_environment, plain, pyagent
from support.installed import install

_CODE = """
from pyagent.plugin import hookimpl

class Painter:
    name = "painter"
    description = "Paints."

    async def run(self, context, task):
        colour = await context.ask("Which colour?", options=("red", "blue"))
        return f"painted {colour}"

@hookimpl
def pyagent_register_agents():
    return [Painter()]
"""


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    install(monkeypatch, tmp_path, "painting", _CODE, "agents")
    return fresh_environment(tmp_path)


def test_question_is_answered_at_a_terminal(env: dict[str, str]) -> None:
    """At a terminal the question is shown and asked again until the answer is an option, or the beginning of one."""
    terminal = Terminal("agent", "painter", "a wall", env=env)
    terminal.read_until("Which colour? [red/blue]")
    terminal.type("green\n")
    terminal.read_until("got 'green'")
    terminal.type("b\n")
    assert terminal.finish() == 0
    assert "painted blue" in plain(terminal.shown)


def test_question_in_a_pipe_ends_the_run(env: dict[str, str]) -> None:
    """Without a terminal the run ends with the question and what can be done."""
    done = pyagent("agent", "painter", "a wall", env=env)
    assert done.returncode == 1
    assert "the run needs an answer: Which colour? (red, blue)" in done.stderr
