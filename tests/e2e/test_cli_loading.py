"""What a person at a terminal sees while a model loads: a line that goes when the model is there, or fails."""

from __future__ import annotations

import io
import logging
import signal
import sys
from pathlib import Path

import pytest
from support.command_line import Terminal, fresh_environment, plain, started
from support.slow_loads import go_on, install_slow_runner
from support.tiny_model import write_tiny_model

from pyagent.cli.chat import Loop, _take_one
from pyagent.cli.conversation import Conversation
from pyagent.cli.load_line import loads_on_terminal, loads_shown
from pyagent.core.load_progress import LoadProgress
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.load_watch import LoadLog

CLEARED = "\r\x1b[2K"


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, str]]:
    """A model whose load stops at half of its weights, until `go_on`, and a user who has it."""
    install_slow_runner(monkeypatch, tmp_path / "site")
    write_tiny_model(tmp_path / "tiny.gguf")
    return "./tiny.gguf", fresh_environment(tmp_path) | {"PYAGENT_ENGINE__RUNNER": "slow", "TERM": "xterm"}


def at_half(shown: str) -> bool:
    return "tiny: 50 %, 206.7 kB of 413.4 kB, " in shown


def test_server_shows_a_line_until_the_model_is_there(slow: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """`pyagent serve` shows percent, bytes and time, in its own process as here, and nothing of it stays."""
    model, environment = slow
    terminal = Terminal("serve", "--port", "0", "--model", model, env=environment)
    terminal.read_until(at_half)
    terminal.read_until("PyAgent answers on")
    go_on(tmp_path / "tiny.gguf")
    terminal.read_until(lambda shown: shown.endswith(CLEARED))
    terminal.process.send_signal(signal.SIGINT)
    terminal.finish()


def test_chat_shows_a_line_once_it_is_asked_and_ends_it_before_an_error(
    slow: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Nothing is written where a person types; a load that fails leaves the error on a line of its own."""
    model, environment = slow
    terminal = Terminal("chat", "--model", model, env=environment | {"PYAGENT_ENGINE__PROCESS": "true"})
    terminal.read_until("> ")
    terminal.type("ab\r")
    terminal.read_until(at_half)
    go_on(tmp_path / "tiny.gguf", "fail")
    shown = terminal.read_until(lambda shown: shown.count("\n") > 2 and shown.endswith("> "))
    after = shown.rpartition(CLEARED)[2]
    assert "loading" not in after
    assert "error: the second half is lost" in plain(after).splitlines()
    terminal.type("\x04")
    terminal.finish()


def test_nothing_is_shown_while_a_person_types() -> None:
    """What is told while `pyagent chat` reads a line is left out, and what comes after that is shown again."""
    shown, log = list[LoadProgress](), LoadLog()

    def typed() -> str:
        log.watch(LoadProgress(model="m", seconds=1.0))
        return "/help"

    with loads_shown(shown.append):
        assert _take_one(Conversation(Settings(), Loop("test")), typed, is_terminal=True)
        assert not shown
        log.watch(LoadProgress(model="m", seconds=2.0))
    assert [load.seconds for load in shown] == [2.0]


class _Terminal(io.StringIO):
    """One that does not say how many columns it has."""

    def isatty(self) -> bool:
        return True


def test_a_line_is_no_longer_than_the_terminal_and_moves_nothing_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps leaves its first half for good, and a model's name is whatever a request has."""
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    log = LoadLog()
    with loads_on_terminal():
        log.watch(LoadProgress(model="a\x1b[2J\n", seconds=1.0))
        log.watch(LoadProgress(model="b" * 200, seconds=1.0))
    lines = [line for line in terminal.getvalue().replace("\x1b[2K", "").split("\r") if line]
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 80 for line in lines)
    assert terminal.getvalue().endswith(CLEARED)
    assert not logging.getLogger("pyagent.loads").handlers


def test_run_shows_loads_among_its_rows(slow: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """`pyagent run` draws the load in its own display, of which none stays."""
    model, environment = slow
    terminal = Terminal("run", "--model", model, "hello", env=environment)
    terminal.read_until(lambda shown: at_half(shown) and "\n  loading tiny: " in shown)
    go_on(tmp_path / "tiny.gguf")
    assert terminal.finish() == 0
    assert "done in " in terminal.shown
    assert "loading" not in terminal.shown.rpartition("\x1b[2K")[2]


def test_nothing_is_shown_where_there_is_no_terminal(slow: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """In a pipe standard error stays empty; the log alone tells loads, at `info`."""
    model, environment = slow
    process = started("score", "--model", model, "ab", env=environment)
    go_on(tmp_path / "tiny.gguf")
    _, errors = process.communicate()
    assert "loading" not in errors
