"""Commands that plugins bring: an installed package's, as its user runs them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.command_line import pyagent
from support.installed import write_distribution

EXAMPLE = Path(__file__).parents[2] / "examples" / "pyagent-count" / "pyagent_count.py"
_BROKEN = """
import typer
from pyagent.plugin import hookimpl

group = typer.Typer(help="A group.")

@group.command()
def one() -> None:
    "The first."
    print("one")

@group.command()
def two() -> None:
    "The second."
    raise SystemExit(3)

@hookimpl
def pyagent_register_commands():
    return {"run": one, "things": group}
"""


@pytest.fixture
def plugged(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """A user who has installed the example, a group of commands, and a plugin that fails at import."""
    site = tmp_path / "site"
    write_distribution(site, "count", "count.commands = pyagent_count")
    write_distribution(site, "things", "things.commands = pyagent_things")
    write_distribution(site, "broken", "broken.commands = pyagent_broken")
    shutil.copy(EXAMPLE, site)
    (site / "pyagent_things.py").write_text(_BROKEN)
    (site / "pyagent_broken.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "text.txt").write_text("three small words")
    return environment | {"PYTHONPATH": os.pathsep.join([environment.get("PYTHONPATH", ""), str(site)])}


def test_a_plugin_brings_a_command(plugged: dict[str, str]) -> None:
    """It runs with arguments and options, has help, fails in one line, and stands in the list of commands."""
    assert pyagent("count", "text.txt", "--longest", env=plugged).stdout == "3\nthree\n"
    assert "--longest" in pyagent("count", "--help", env=plugged).stdout
    assert "Count the words of a file." in pyagent("--help", env=plugged).stdout
    missing = pyagent("count", "nowhere", env=plugged)
    assert (missing.returncode, missing.stderr.splitlines()[-1]) == (
        1,
        "error: nowhere cannot be read: No such file or directory",
    )
    assert pyagent("count", env=plugged).returncode == 2
    assert "did you mean 'count'?" in pyagent("coutn", env=plugged).stderr


def test_a_group_and_a_built_in_name(plugged: dict[str, str]) -> None:
    """A group of commands is brought whole, with its exit codes; a built-in command stays the built-in one."""
    assert pyagent("things", "one", env=plugged).stdout == "one\n"
    assert pyagent("things", "two", env=plugged).returncode == 3
    assert "--private" in pyagent("run", "--help", env=plugged).stdout


def test_built_in_commands_import_no_plugin(plugged: dict[str, str], tmp_path: Path) -> None:
    """A plugin of commands that is broken is not even imported by other commands."""
    done = pyagent("version", env=plugged)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commands=1" in pyagent("plugins", "list", env=plugged).stdout
