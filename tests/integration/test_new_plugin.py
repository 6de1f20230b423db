"""`pyagent plugins new`: what it writes is listed and passes its own tests; what it cannot write it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plugin_kinds import install_package, write_kinds

from pyagent.assembly import make_host
from pyagent.cli.plugin_package import KINDS, files_of, package_of
from pyagent.cli.root import run
from pyagent.core.config import Settings
from pyagent.core.errors import RequestError
from pyagent.infrastructure.engine.runners.choice import pick_runners


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user without settings, in an empty folder; what a test installed is forgotten after it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    before = set(sys.modules)
    yield
    for module in set(sys.modules) - before:
        if module.startswith("pyagent_"):
            del sys.modules[module]


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """What `pyagent plugins list` shows, by plugin."""
    assert run(["plugins", "list", "--json"]) == 0
    return {told["name"]: told for told in json.loads(capsys.readouterr().out)}


def test_each_kind_is_listed_and_passes_its_own_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each kind a package is written whose tests pass, and which brings one thing of its name."""
    packages = write_kinds(tmp_path)
    for package in packages:
        install_package(monkeypatch, tmp_path / package.distribution)
    shown = listed(capsys)
    for package in packages:
        assert shown[package.name]["provides"] == {KINDS[package.kind].noun: [package.name]}, shown[package.name]
    runners = pick_runners("auto", make_host(Settings()).runners())
    assert [runner.name for runner in runners.available() if runner.name in ("cpu", "my-runner")] == ["cpu"]
    tests = [str(tmp_path / package.distribution / "tests") for package in packages]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--import-mode=importlib",
        "-W",
        "error",
        "--rootdir",
        str(tmp_path),
    ]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [*command, *tests], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["agent", "Tide_Table"], "a-z, 0-9 and single hyphens"),
        (["agent", "t" * 41], "at most 40"),
        (["agent", "../tide"], "a-z, 0-9 and single hyphens"),
        (["agent", "math"], "there is a plugin 'math' already"),
        (["agent", "fleet"], "the package pyagent-fleet .* is installed already"),
        (["tool", "calculator"], "there is a tool 'calculator' already"),
        (["command", "run"], "there is a command 'run' already"),
        (["parser", "hermes"], "there is a parser 'hermes' already"),
        (["policy", "fair"], "there is a policy 'fair' already"),
        (["backend", "auto"], "there is a backend 'auto' already"),
        (["agent", "tide", "--description", 'says "hi"'], "without \" and "),
        (["agent", "tide", "--path", "nowhere/tide"], "cannot be written: No such file"),
        (["agent", "tide", "--path", "."], "exists already"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(words: list[str], complaint: str) -> None:
    """A name that will not do or is taken, and a folder that is there, are told in a sentence; nothing is written."""
    with pytest.raises(RequestError, match=complaint):
        run(["plugins", "new", *words])
    assert not list(Path().iterdir())


def test_an_existing_folder_is_left_as_it_is() -> None:
    """A folder of the package's name is not written into, not even an empty one."""
    Path("pyagent-tide").mkdir()
    with pytest.raises(RequestError, match="pyagent-tide exists already"):
        run(["plugins", "new", "agent", "tide"])
    assert not list(Path("pyagent-tide").iterdir())


def test_the_tutorials_package_is_what_is_written() -> None:
    """The example of the tutorial has the files that its first command writes."""
    example = Path(__file__).parents[2] / "examples" / "pyagent-haiku"
    written = files_of(
        package_of("agent", "haiku", "An agent of PyAgent that writes haiku and counts their syllables.")
    )
    assert {path for path in written if (example / path).is_file()} == set(written)
    assert (example / "pyproject.toml").read_text() == written["pyproject.toml"]
    assert (example / "README.md").read_text() == written["README.md"]
