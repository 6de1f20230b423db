"""Plans on the command line: made, shown, accepted, edited and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Terminal, plain, pyagent

from pyagent.infrastructure.server.app import create_app
from pyagent.testing import ScriptedBackend, serve

_PLAN = {"step_1": {"agent": "math", "task": "6*7"}, "step_2": {"agent": "math", "task": "2+2", "after": ["step_1"]}}


@pytest.fixture(scope="module")
def chain() -> Iterator[str]:
    """The chain entry of a model that plans."""
    with serve(create_app(ScriptedBackend(lambda _: json.dumps(_PLAN)))) as url:
        yield f"openai:{url}/v1"


def test_task_is_planned_and_run(environment: dict[str, str], chain: str) -> None:
    """`run --plan` shows the plan and runs its steps."""
    done = pyagent("run", "calculate things", "--plan", "--chain", chain, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a plan of 2 steps" in done.stdout
    assert "6*7 = 42" in done.stdout
    assert "2+2 = 4" in done.stdout


def test_plan_waits_for_a_word(environment: dict[str, str], chain: str) -> None:
    """Where nobody can be asked `--confirm` ends with the question, and the run goes on with a plan as the answer."""
    asked = pyagent("run", "calculate things", "--confirm", "--chain", chain, env=environment)
    assert asked.returncode == 1
    assert 'agent = "math"' in asked.stderr
    run = json.loads(pyagent("runs", "list", "--json", env=environment).stdout)[0]["run"]
    plan = '[[steps]]\nname = "a"\nagent = "math"\ntask = "3*5"'
    done = pyagent("runs", "resume", run, "--answer", plan, "--chain", chain, env=environment)
    assert (done.returncode, "3*5 = 15" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(("keys", "told"), [("edit\n", "5*5 = 25"), ("ref\n", "was refused")])
def test_plan_is_decided_at_a_terminal(
    environment: dict[str, str], chain: str, tmp_path: Path, keys: str, told: str
) -> None:
    """At a terminal the plan is changed in an editor, or refused."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/6\\*7/5*5/" "$1"\n')
    editor.chmod(0o755)
    terminal = Terminal("run", "x", "--confirm", "--chain", chain, env={**environment, "EDITOR": str(editor)})
    terminal.read_until("[accept/edit/refuse]")
    terminal.type(keys)
    terminal.finish()
    assert told in plain(terminal.shown)


def test_what_leaves_nothing_to_plan_is_refused(environment: dict[str, str], chain: str) -> None:
    """`--plan` with a named agent is one line that says why not."""
    done = pyagent("run", "x", "--plan", "--agent", "math", "--chain", chain, env=environment)
    assert done.returncode == 1
    assert "nothing to plan" in done.stderr
