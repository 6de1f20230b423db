"""Every setting and option, given what it is not: one line with its name, the value, its source, what is allowed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyagent.cli.root import COMMANDS, real_command, run
from pyagent.core.config import env_name, leaf_settings, load_settings
from pyagent.core.errors import ConfigError

WRONG: tuple[object, ...] = (
    -1, 0, 1.5, float("nan"), 10**30, True, "?!", "", "x" * 5000, "a\nb", [1], {"a": 1}, {"a": {"b": []}}, {"": "x"},
)  # fmt: skip
FOREIGN = re.compile(
    r"Input should|Value error|unable to parse|valid (integer|number|string)|pydantic|msgspec|Traceback"
)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of settings, and none in the environment."""
    for name in [name for name in os.environ if name.startswith("PYAGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def faults(key: str) -> Iterator[tuple[object, str]]:
    for value in WRONG:
        try:
            load_settings(overrides={key: value})
        except ConfigError as error:
            yield value, str(error)


@pytest.mark.parametrize("key", leaf_settings())
def test_each_setting_says_what_it_takes(key: str) -> None:
    """From a flag: the key, the value unless it may hold a key, the source, and what is expected; nothing foreign."""
    told = list(faults(key))
    assert told, "some of these are wrong for any setting"
    for value, text in told:
        assert text.startswith(key)
        assert "(flag): expected " in text
        assert (len(text.splitlines()), FOREIGN.search(text)) == (1, None)
        assert len(text) < 500
        if isinstance(value, int | float) and key != "backends.api_keys":
            assert text.startswith(f"{key} = {value!r:.100} (flag)")


def test_files_and_variables_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file or the environment has is refused with its place."""
    file = tmp_path / "pyagent.toml"
    numbers = [key for key, leaf in leaf_settings().items() if leaf.setting.kind.text in {"whole number", "number"}]
    assert len(numbers) > 30
    for key in numbers:
        file.write_text(f"{key} = {json.dumps('soon')}")
        with pytest.raises(ConfigError) as caught:
            load_settings(file)
        assert str(caught.value).startswith(f"{key} = 'soon' (pyagent.toml:{file}): expected a ")
        monkeypatch.setenv(env_name(key), "soon")
        with pytest.raises(ConfigError) as caught:
            load_settings()
        monkeypatch.delenv(env_name(key))
        assert str(caught.value).startswith(f"{key} = 'soon' (env {env_name(key)}): expected a ")


def commands(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield words, command
        return
    for name, each in inner.items():
        yield from commands(each, [*words, name])


def all_commands() -> Iterator[tuple[list[str], Any]]:
    for name in COMMANDS:
        if name not in {"version", "help", "completion"}:
            yield from commands(real_command(name), [name])


def test_an_option_without_its_value_points_to_the_commands_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a command within a group too, where the parser knows no more than the option."""
    for words in (["models", "quantize"], ["models"], ["serve"]):
        told = [*words, "--config"] if words != ["models", "quantize"] else [*words, "./x", "--output"]
        if words == ["models"]:
            told = [*words, "--nonsense"]
        assert run(told) == 2
        assert capsys.readouterr().err.splitlines()[1] == f"pyagent {' '.join(words)} --help shows what there is"


def test_each_option_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong number or choice of any command is refused before anything is done, in two lines of ours."""
    num_tried = 0
    for words, command in all_commands():
        for param in command.params:
            kind = param.type_descriptor
            if kind.annotation not in {int, float} and not kind.choices:
                continue
            name = max((one for one in param.opts if one.startswith("--")), key=len, default=None)
            if name is None:
                continue
            num_tried += 1
            assert run([*words, name, "soon"]) == 2
            told = capsys.readouterr().err
            assert re.match(rf"error: {name} = 'soon': expected (a (whole )?number|')", told), told
            assert told.splitlines()[1:] == [f"pyagent {' '.join(words)} --help shows what there is"]
            assert not FOREIGN.search(told)
            least = kind.parameter_info.min
            if least is not None:
                assert run([*words, f"{name}={least - 1}"]) == 2
                assert f"{name} = '{least - 1}': expected a " in capsys.readouterr().err
    assert num_tried > 15


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--port"], "--port wants a value"),
        (["serve", "--port", "y" * 500], f"--port = '{'y' * 80}': expected a whole number from 0 to 65535"),
        (["models", "pull", "a", "y" * 500], f"there is no place for '{'y' * 80}'"),
        (["serve", "--nope"], "there is no option '--nope'"),
        (["run", "x", "--cofnig", "f"], "there is no option '--cofnig'; did you mean '--config'?"),
        (["run", "--json=yes"], "--json takes no value"),
        (["models", "pull"], "NAME is missing"),
        (["models", "pull", "a", "b\x1b[31m"], "there is no place for 'b\\x1b[31m'"),
        (["runs", "gate", "r"], "--min is missing"),
        (["completion", "tcsh"], "SHELL = 'tcsh': expected 'bash', 'zsh' or 'fish'"),
        (["run", "x", "--seconds", "-1"], "--seconds: expected seconds above 0, got -1"),
    ],
)
def test_wrong_usage_is_told_in_two_lines(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing, unknown or too much is named; the second line says where help is."""
    assert run(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {told}"
    assert second.startswith(f"pyagent {words[0]}")
