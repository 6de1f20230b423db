"""How the command line is written: help, wrong usage, options of agents, standard input, encodings."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from support.command_line import pyagent, started

NOWHERE = ["--chain", "openai:http://127.0.0.1:9/v1"]


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["version"]])
def test_version_is_printed(arguments: list[str], environment: dict[str, str]) -> None:
    """`--version`, `-V` and `version` print the version and end well."""
    done = pyagent(*arguments, env=environment)
    assert (done.returncode, done.stdout.startswith("pyagent 0.")) == (0, True)


def test_help_is_a_command_too(environment: dict[str, str]) -> None:
    """`pyagent help runs show` is `pyagent runs show --help`, and `-h` is `--help`."""
    wanted = pyagent("runs", "show", "--help", env=environment).stdout
    assert "Show a run's steps as a tree" in wanted
    assert pyagent("help", "runs", "show", env=environment).stdout == wanted
    assert pyagent("runs", "show", "-h", env=environment).stdout == wanted


@pytest.mark.parametrize("arguments", [[], ["runs"], ["config"], ["models"], ["plugins"], ["cache"], ["chain"]])
def test_a_missing_subcommand_shows_help(arguments: list[str], environment: dict[str, str]) -> None:
    """A command that wants a sub-command shows which there are; that is exit code 2."""
    done = pyagent(*arguments, env=environment)
    assert (done.returncode, "Commands:" in done.stdout, done.stderr) == (2, True, "")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["rnu", "x"], "did you mean 'run'?"),
        (["runs", "lst"], "Did you mean 'list'?"),
        (["run", "x", "--jso"], "--json"),
        (["config", "show", "engine.memroy"], "did you mean 'engine.memory'?"),
        (["agent", "code-health", "--tpo", "2"], "did you mean '--top'?"),
        (["agent", "maths"], "did you mean 'math'?"),
    ],
)
def test_a_typo_is_told_the_nearest_name(arguments: list[str], hint: str, environment: dict[str, str]) -> None:
    """A mistyped command, option, setting or agent is answered with the nearest there is."""
    done = pyagent(*arguments, env=environment)
    assert done.returncode in {1, 2}
    assert hint in done.stderr


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_wrong_usage(seconds: str, environment: dict[str, str]) -> None:
    """`--seconds` takes a number above 0; all else is exit code 2 and names the flag."""
    for command in ("run", "agent"):
        words = ["2+2"] if command == "run" else ["math", "2+2"]
        done = pyagent(command, *words, "--seconds", seconds, env=environment)
        assert (done.returncode, "error: --seconds" in done.stderr) == (2, True)


def test_completion_scripts_complete(environment: dict[str, str]) -> None:
    """The script of each shell is printed, and what it asks for is commands, sub-commands, flags and agents."""
    for shell in ("bash", "zsh", "fish"):
        assert "_PYAGENT_COMPLETE" in pyagent("completion", shell, env=environment).stdout

    def completed(line: str) -> list[str]:
        asked = {"_PYAGENT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return pyagent(env=environment | asked).stdout.split()

    assert completed("pyagent ru") == ["run", "runs"]
    assert {"list", "show"} <= set(completed("pyagent runs "))
    assert "--private" in completed("pyagent run --")
    assert completed("pyagent agent mat") == ["math"]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["--action", "integrate", "--expression", "x^2", "--lower", "0", "--upper", "3"], "9"),
        (["--action", "differentiate", "--expression", "x^3", "--order", "2"], "6*x"),
        (["x^2", "--action", "integrate"], "x**3/3"),
        (["--expression=x^2", "--lower=0", "--upper=3"], "9"),
        (["--equations", "x + y = 3", "--equations", "x - y = 1"], "x = 2"),
    ],
)
def test_agent_options_are_read_by_their_types(words: list[str], result: str, environment: dict[str, str]) -> None:
    """An option is what its field's type says; words stand in for the required text; a list is repeated."""
    done = pyagent("agent", "math", *words, *NOWHERE, env=environment)
    assert done.returncode == 0, done.stderr
    assert result in done.stdout


def test_agent_help_lists_its_options(environment: dict[str, str]) -> None:
    """`pyagent agent NAME --help` has the agent's own options with types and defaults, and those of all agents."""
    shown = pyagent("agent", "code-health", "--help", env=environment).stdout
    for text in ("--top INTEGER", "--path TEXT", "--seconds", "--private", "--file"):
        assert text in shown, text
    math = pyagent("agent", "math", "--help", env=environment).stdout
    for text in ("--operation determinant|inverse", "[default: 6]", "[required]"):
        assert text in math, text
    essay = pyagent("agent", "web-search-essay", "--help", env=environment).stdout
    assert "--sources INTEGER from 1 to 20" in essay
    assert "--file" in pyagent("agent", "--help", env=environment).stdout


def test_a_number_out_of_bounds_is_told_the_bounds(environment: dict[str, str]) -> None:
    """The error of a number that is too large names the bounds, not the type alone."""
    done = pyagent("agent", "web-search-essay", "tides", "--sources", "99", env=environment)
    assert "--sources takes INTEGER from 1 to 20, got '99'" in done.stderr


@pytest.mark.parametrize("arguments", [["agent", "math"], ["run", "-"], ["run"], ["agent", "math", "-"]])
def test_a_task_is_read_from_a_pipe(arguments: list[str], environment: dict[str, str]) -> None:
    """A piped text is the task where there is none, or where it is written `-`."""
    done = pyagent(*arguments, *NOWHERE, env=environment, text="17*23\n")
    assert (done.returncode, "391" in done.stdout) == (0, True), done.stderr


def test_a_minus_among_words_is_no_input(environment: dict[str, str]) -> None:
    """`-` between words is a word."""
    assert "= -2" in pyagent("agent", "math", "3", "-", "5", *NOWHERE, env=environment, text="7").stdout


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_file_is_read_from_a_pipe(name: str, environment: dict[str, str], chain: str) -> None:
    """`--file -` and `--file /dev/stdin` are what is piped in, for agents as for every file."""
    arguments = ["agent", "summarize", "--file", name, "--json", "--chain", chain]
    done = pyagent(*arguments, env=environment, text="The cat sat on the mat. " * 40)
    assert done.returncode == 0, done.stderr
    assert "The cat sat" in json.dumps(json.loads(done.stdout))


def test_a_named_pipe_is_a_file(environment: dict[str, str], chain: str, tmp_path: Path) -> None:
    """A FIFO is read to its end; Ctrl+C while nothing comes ends the program once and at once."""
    pipe = tmp_path / "news"
    os.mkfifo(pipe)
    process = started("agent", "summarize", "--file", "news", "--chain", chain, env=environment)
    writer = threading.Thread(target=lambda: pipe.write_text("The dog ran. " * 40))
    writer.start()
    shown, errors = process.communicate(timeout=60)
    writer.join()
    assert (process.returncode, "The dog ran" in shown) == (0, True), errors
    waiting = started("agent", "summarize", "--file", "news", "--chain", chain, env=environment)
    with pipe.open("wb"):  # opening it waits for the program to open it as well
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=20)
    assert (waiting.returncode, errors) == (130, "")


def test_terminals_without_the_characters_are_served(environment: dict[str, str]) -> None:
    """On an ASCII terminal a mark becomes `?` and nothing fails; JSON stays UTF-8."""
    ascii_only = environment | {"PYTHONIOENCODING": "ascii"}
    done = pyagent("agent", "math", "2+2", *NOWHERE, env=ascii_only)
    assert (done.returncode, "2+2 = 4" in done.stdout) == (0, True), done.stderr
    told = pyagent("run", "2+2 ü", "--json", *NOWHERE, env=ascii_only)
    assert json.loads(told.stdout.splitlines()[0])["task"] == "2+2 ü"


def test_enough_output_is_no_failure(environment: dict[str, str]) -> None:
    """A reader that stops after the first line (`| head -1`) is no failure: exit code 0, nothing on standard error."""
    process = started("run", "2+2", "--json", *NOWHERE, env=environment)
    assert process.stdin
    assert process.stdout
    assert process.stderr
    with process.stdin, process.stderr as errors:
        with process.stdout as output:
            assert json.loads(output.readline())["event"] == "run_started"
        assert (process.wait(60), errors.read()) == (0, "")


def test_exit_codes(environment: dict[str, str]) -> None:
    """0 is done, 1 failed, 2 wrong usage; 130, interrupted, has tests of its own."""
    codes = [
        pyagent(*arguments, *NOWHERE, env=environment).returncode
        for arguments in (["agent", "math", "2+2"], ["agent", "math", "1/0"], ["run"])
    ]
    assert codes == [0, 1, 2]
