"""What a run looks like on a terminal and in a pipe: it moves, it has colours, and it leaves the run's name."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from support.command_line import Terminal, plain, pyagent, started

from pyagent.testing.openai import openai_server
from pyagent.testing.servers import Fault

_CLOCK = re.compile(r"(\d+\.\d) s ·")


def _slow_run(chain: str, environment: dict[str, str], tmp_path: Path) -> Terminal:
    (tmp_path / "story.txt").write_text("forever and ever. " * 20)
    return Terminal("agent", "summarize", "forever", "--file", "story.txt", "--chain", chain, env=environment)


def test_live_view_moves_with_the_clock(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """The clock and the spinner go on while an agent works; Ctrl+C leaves the run's id and how to show it."""
    terminal = _slow_run(chain, environment, tmp_path)
    terminal.read_until(lambda shown: len(set(_CLOCK.findall(plain(shown)))) > 5)
    assert len(set(re.findall("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", terminal.shown))) > 1
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish() == 130
    assert re.search(r"interrupted in .* · run (r-\w+) \(pyagent runs show \1\)", plain(terminal.shown))
    assert "summarize" in plain(terminal.shown).splitlines()[-3]


def test_colours_are_for_terminals_that_want_them(chain: str, environment: dict[str, str]) -> None:
    """A terminal gets colours, one with NO_COLOR none, a pipe none."""
    coloured = {name: value for name, value in environment.items() if name != "NO_COLOR"}
    green = "\x1b[32m"
    for env, wants in ((coloured, True), (environment, False), (coloured | {"TERM": "dumb"}, False)):
        terminal = Terminal("run", "2+2", "--chain", chain, env=env)
        assert terminal.finish() == 0
        assert (green in terminal.shown) == wants
    assert "\x1b" not in pyagent("run", "2+2", "--chain", chain, env=coloured).stdout


def test_interrupted_and_failed_runs_are_named(chain: str, environment: dict[str, str], tmp_path: Path) -> None:
    """In a pipe, too, a run that is stopped or fails says its id."""
    (tmp_path / "story.txt").write_text("forever and ever. " * 20)
    process = started("agent", "summarize", "forever", "--file", "story.txt", "--chain", chain, env=environment)
    assert process.stdout
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert re.search(r"interrupted in .*runs show r-", rest)
    assert re.search(r"failed in .*runs show r-", pyagent("run", "1/0", "--chain", chain, env=environment).stdout)


def test_words_of_others_are_not_obeyed_by_a_terminal(environment: dict[str, str]) -> None:
    """A task that came by HTTP and a server's error are shown as they are, by each command that tells of a run."""
    obeyed = "\x1b]0;owned\x07\x1b[2J"
    with openai_server(fault=Fault("error", text=f"out of order{obeyed}")) as server:
        chain = ["--chain", f"openai:{server.url}#fake-1"]
        run = Terminal("agent", "reasoning", f"hello{obeyed}", *chain, env=environment)
        assert run.finish() == 1
        [name] = set(re.findall(r"run (r-\w+)", plain(run.shown)))
        told = [
            ["runs", "list"],
            ["runs", "show", name],
            ["runs", "replay", name, "--speed", "0"],
            ["chain", "test", *chain],
        ]
        shown = [run, *(Terminal(*command, env=environment) for command in told)]
        for terminal in shown[1:]:
            terminal.finish()
    for terminal in shown:
        assert "\\x1b]0;owned\\x07" in terminal.shown
        assert "\x1b]0;owned" not in terminal.shown


def test_a_model_is_fetched_when_one_is_needed(environment: dict[str, str], tmp_path: Path) -> None:
    """A task that no model is asked for fetches none."""
    env = environment | {"PYAGENT_PATHS__MODELS": str(tmp_path / "models")}
    done = pyagent("run", "17*23", "--chain", "native:smollm2:135m", env=env)
    assert (done.returncode, "391" in done.stdout) == (0, True)
    assert "fetching" not in done.stdout + done.stderr
    assert not (tmp_path / "models").exists()
