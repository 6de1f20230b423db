"""Command lines read without the parser, and what a server does not import before it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from pyagent.cli import serve, serving
from pyagent.cli.plain_flags import read_plain
from pyagent.cli.startup import read_settings

LATE = [
    *(
        "typer",
        "rich",
        "pydantic",
        "jinja2",
        "tokenizers",
        "llguidance",
        "httpx",
        "zmq",
        "wsproto",
        "structlog",
        "sympy",
    ),
    *("pyagent.fleet", "pyagent.core.fleet.orchestrator", "pyagent.logic.agents", "pyagent.infrastructure.storage"),
    "pyagent.infrastructure.engine.models.loaded_model",
]


def values_by_typer(arguments: list[str]) -> dict[str, object] | None:
    """What the declared command makes of the arguments; None when it refuses them or prints its help."""
    command: typing.Any = typer.main.get_command(serve.app)
    given: list[dict[str, object]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "serve", lambda **values: given.append(values))
        try:
            command.main(args=arguments, standalone_mode=False)
        except typer.TyperException:
            return None
    return given[0] if given else None


def test_plain_flags_are_those_declared() -> None:
    """The flags read without the parser are all that the command has."""
    command: typing.Any = typer.main.get_command(serve.app)
    declared = {name for parameter in command.params for name in parameter.opts if parameter.name != "help"}
    assert declared == set(serving.FLAGS)


WORDS = st.sampled_from(
    ["a", "8080", "70000", "-1", "007", "", "auto", "gpu", "./m.gguf", "a=b", "--port", "--help", "-h", "--"]
)


@given(st.lists(st.tuples(st.sampled_from([*serving.FLAGS, "--prt", "port"]), WORDS, st.booleans()), max_size=3))
def test_plain_flags_are_read_as_typer_reads_them(pairs: list[tuple[str, str, bool]]) -> None:
    """What is read without the parser the parser reads alike."""
    arguments: list[str] = []
    for flag, text, is_joined in pairs:
        arguments += [f"{flag}={text}"] if is_joined else [flag, text]
    plain = read_plain(arguments, serving.FLAGS)
    if plain is not None:
        defaults: dict[str, object] = dict.fromkeys(
            ("model", "chain", "chat_template", "data_parallel", "host", "port", "config")
        )
        assert values_by_typer(arguments) == {**defaults, **plain}


@pytest.mark.parametrize("arguments", [["--help"], ["--port"], ["--port", "x"], ["--model", "--port"], ["extra"]])
def test_what_is_not_plain_is_left_to_the_parser(arguments: list[str]) -> None:
    """Help, a missing value, a wrong value, an argument too many: none is read."""
    assert read_plain(arguments, serving.FLAGS) is None


def test_serve_imports_little_before_it_answers(tmp_path: Path) -> None:
    """Before a server answers it has imported no parser, no agents, no tokenizer, no templates, no other libraries."""
    program = f"""
import sys, asyncio
from pyagent.infrastructure.server import uvicorn_server
async def told(*_, **__):
    print([name for name in {LATE!r} if name in sys.modules])
uvicorn_server.serve = told
from pyagent.core.chain import Chain
async def load(self): await asyncio.sleep(600)  # what comes after the first model is not before the answer
Chain.load = load
from pyagent.infrastructure.server.agents import AgentBackend
AgentBackend.fleet = lambda self: None
sys.argv = ["pyagent", "serve", "--model", {str(tmp_path / "m.gguf")!r}, "--port", "0"]
from pyagent.cli.main import main
main()
"""
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYAGENT_PATHS__MODELS": str(tmp_path)},
    )
    assert said.stdout.splitlines()[-1] == "[]"


def test_settings_in_force_are_logged_with_their_origin(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At level info a command says which settings are not defaults, and where each came from; never a value."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYAGENT_LOG__LEVEL", "info")
    caplog.set_level("INFO", "pyagent")  # is put back at the end
    read_settings(chain="native", server__port=0)
    origins = next(vars(record)["origins"] for record in caplog.records if record.name == "pyagent.settings")
    assert (origins["chain"], origins["server.port"], origins["log.level"]) == (
        "flag",
        "flag",
        "env PYAGENT_LOG__LEVEL",
    )


def test_serve_says_at_its_start_which_settings_are_not_defaults() -> None:
    """Its second line names them by origin, and there is none when all are defaults; as JSON there is one line."""
    origins = {"chain": "flag", "engine.models": "pyagent.toml:/srv/pyagent.toml", "server.port": "flag"}
    told = serving.start_text("http://127.0.0.1:80", ["a", "b"], origins, is_json=False).splitlines()
    assert told == [
        "PyAgent answers on http://127.0.0.1:80 (a, b); Ctrl+C stops it",
        "not defaults: chain, server.port (flag); engine.models (pyagent.toml:/srv/pyagent.toml)",
    ]
    assert serving.start_text("http://127.0.0.1:80", ["a"], {}, is_json=False).count("\n") == 1
    line = json.loads(serving.start_text("http://127.0.0.1:80", ["a"], origins, is_json=True))
    assert (line["url"], line["links"], line["settings"]) == ("http://127.0.0.1:80", ["a"], origins)
