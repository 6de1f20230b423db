"""The documented backend of a plugin, `command:PROGRAM`, where the docs say that it can be used: chat and agents."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.installed import write_distribution

EXAMPLE = Path(__file__).parents[2] / "examples/pyagent-command/pyagent_command.py"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that has the example installed, and a folder of its own."""
    site = tmp_path / "site"
    write_distribution(site, "pyagent-command", "command.backends = pyagent_command")
    shutil.copy(EXAMPLE, site)
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "PYAGENT_PATHS__DATA": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}


def pyagent(environment: dict[str, str], *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", "from pyagent.cli.main import main; main()", *words]
    return subprocess.run(
        arguments, input=text, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_example_backend_talks(environment: dict[str, str]) -> None:
    """`pyagent chat --chain command:cat` answers, though a program knows no temperature."""
    done = pyagent(environment, "chat", "--chain", "command:cat", text="hi there\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hi there" in done.stdout


@pytest.mark.parametrize("agent", ["reasoning", "summarize"])
def test_example_backend_serves_agents(environment: dict[str, str], agent: str) -> None:
    """Agents, which ask for temperatures, penalties and seeds, work with it."""
    done = pyagent(environment, "agent", agent, "Rain falls. The street is wet.", "--chain", "command:cat")
    assert done.returncode == 0, done.stderr
    assert "Rain falls" in done.stdout


def test_chain_test_fails_when_one_link_does(environment: dict[str, str]) -> None:
    """Each link is tried; the status is 1 when one does not answer, and says what to do."""
    assert pyagent(environment, "chain", "test", "--chain", "command:cat").returncode == 0
    done = pyagent(environment, "chain", "test", "--chain", "command:cat,command:false")
    assert done.returncode == 1
    assert "✓ command:cat" in done.stdout
    assert "✗ command:false" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        (
            'frozenset({"prompt"})',
            'frozenset({"promt"})',
            "`capabilities.abilities` names 'promt', which no request asks",
        ),
        ("Capabilities(abilities=", "Capabilities(abilites=", "abilites"),
        ("self.name = str(link)", "self.name = 'native:x'", "`name` is 'native:x', expected the scheme 'command'"),
    ],
)
def test_backend_that_says_what_is_not_so_is_named(
    environment: dict[str, str], tmp_path: Path, right: str, wrong: str, complaint: str
) -> None:
    """A misspelt ability or field, or another scheme's name, ends the command with an error that names the plugin."""
    module = tmp_path / "site/pyagent_command.py"
    source = module.read_text(encoding="utf-8")
    assert source.count(right) == 1
    module.write_text(source.replace(right, wrong), encoding="utf-8")
    done = pyagent(environment, "chat", "--chain", "command:cat", text="hi there\n")
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "command" in done.stderr
    assert "Traceback" not in done.stderr
