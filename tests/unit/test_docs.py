"""What the documentation shows is true: links, commands, settings, paths and examples."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from pyagent.core.config import load_settings
from pyagent.core.messages import ChatRequest, FunctionCall, ToolCall
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import Reply, ScriptedBackend, serve

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY"))]
)
PLUGIN_EXAMPLES = sorted(folder.name for folder in EXAMPLES.glob("pyagent-*"))

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_RENDERED = re.compile(r"<!-- (?:include|api) .*?<!-- end -->", re.DOTALL)
_PATH = re.compile(
    r"[\w.-]+(/[\w.-]+)+\.(py|rs|md|toml|txt)|(src|rust_core|docs|tests|examples|benchmarks|plugins)/[\w./-]+"
)
_TREES = ("src", "rust_core", "docs", "tests", "examples", "benchmarks", "plugins")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def written(page: Path) -> str:
    """A page without what is rendered into it."""
    return _RENDERED.sub("", page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, without those that show a file or the code."""
    return [body for name, body in _FENCE.findall(written(page)) if name == language]


def script(name: str) -> ModuleType:
    """A script of the documentation's, as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def command_of() -> Callable[[list[str]], tuple[Any, list[str]]]:
    """Finds the command that words begin with, and the words that are left."""
    reference = script("cli_reference")
    known = dict(cast("Iterator[tuple[str, Any]]", reference.commands()))

    def find(words: list[str]) -> tuple[Any, list[str]]:
        for length in (2, 1):
            if command := known.get(" ".join(words[:length])):
                return command, words[length:]
        raise AssertionError(f"pyagent {' '.join(words)}: there is no such command")

    return find


# -- links and paths --------------------------------------------------------------------------------------------------


@each_page
def test_links_resolve(page: Path):
    """Every relative link of a page leads to a file."""
    targets = [target.partition("#")[0] for target in _LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert not missing


@each_page
def test_paths_exist(page: Path):
    """Every path of this repository that a page names exists."""
    named = [text for text in _INLINE.findall(written(page)) if _PATH.fullmatch(text)]
    missing = [text for text in named if not is_path_here(text)]
    assert not missing


def is_path_here(text: str) -> bool:
    """Whether the tree has it, from its root or from inside a package."""
    return (ROOT / text).exists() or any(True for tree in _TREES for _ in (ROOT / tree).glob(f"**/{text}"))


def test_decisions_are_listed():
    """The list of decisions has every page there is once, in the order of their numbers."""
    listed = [target for target in _LINK.findall((DOCS / "decisions/index.md").read_text()) if target[:1] == "0"]
    assert listed == sorted(page.name for page in DOCS.glob("decisions/0*.md"))


# -- commands ---------------------------------------------------------------------------------------------------------


def shown_commands(text: str) -> list[str]:
    """Command lines in code blocks: those that begin with `pyagent`, after a prompt perhaps."""
    fenced = "\n".join(body for name, body in _FENCE.findall(text) if name in {"", "sh", "console"})
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    lines = (line.strip().removeprefix("$ ") for line in f"{fenced}\n{indented}".splitlines())
    return [line for line in lines if line.startswith("pyagent ")]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "cli.md"], ids=page_id)
def test_shown_commands_parse(page: Path, command_of: Callable[[list[str]], tuple[Any, list[str]]]):
    """Every command line a page shows is one the program takes."""
    for line in shown_commands(written(page)):
        command, rest = command_of(shlex.split(line, comments=True)[1:])
        command.make_context(command.name, rest)  # raises what the user would be told


@each_page
def test_mentioned_commands_exist(page: Path, command_of: Callable[[list[str]], tuple[Any, list[str]]]):
    """Every command mentioned in a sentence exists, with the flags it is mentioned with."""
    for text in _INLINE.findall(_FENCE.sub("", written(page))):
        words = text.split()
        if words[0] != "pyagent" or len(words) < 2 or words[1].startswith("-") or "config reference" in text:
            continue
        command, rest = command_of(words[1:])
        flags = {flag for parameter in command.params for flag in parameter.opts}
        unknown = [word for word in rest if word.startswith("--") and word not in flags]
        assert not unknown


def test_event_reference_is_whole_and_current() -> None:
    """docs/reference/events.md is what docs/event_reference.py prints: each event by its kind, and when it comes."""
    page, reference = (DOCS / "reference/events.md").read_text(), script("event_reference")
    assert page == reference.render(), "run .venv/bin/python docs/event_reference.py > docs/reference/events.md"
    for kind in reference.kinds():
        _, _, told = page.partition(f"## `{kind.__struct_config__.tag}` (`{kind.__name__}`)\n\n")
        assert len(told.partition("\n")[0].split()) > 4, f"{kind.__name__} does not say when it comes"


def test_command_line_page_is_current():
    """docs/reference/cli.md is what docs/cli_reference.py prints."""
    assert (DOCS / "reference/cli.md").read_text() == script("cli_reference").render()


# -- settings and code ------------------------------------------------------------------------------------------------


@each_page
def test_settings_load(page: Path, tmp_path: Path):
    """Every block of settings a page shows is accepted."""
    for number, body in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(body)
        load_settings(file)


@each_page
def test_python_is_valid(page: Path):
    """Python that is not included from an example is at least Python; a whole program is an example's text."""
    for body in blocks(page, "python"):
        compile(body, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if "import " in body or page.name == "README.md":
            assert any(body in file.read_text() for file in EXAMPLES.rglob("*.py")), f"not in examples/:\n{body}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.is_relative_to(DOCS)], ids=page_id)
def test_page_shows_the_code_as_it_is(page: Path):
    """What a page includes of examples and of the code's own documentation is rendered (`docs/render.py`), and now."""
    text = page.read_text()
    assert script("render").rendered(text) == text, "run .venv/bin/python docs/render.py"


# -- examples ---------------------------------------------------------------------------------------------------------


_MOST_SECONDS = 600  # it bounds a program that hangs; several suites of tests took 66 s beside 20 others on two cores


def run(arguments: list[str], folder: Path, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=_MOST_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_example_plugins_pass_their_tests(tmp_path: Path):
    """Each example plugin passes the tests it comes with."""
    folders = [str(EXAMPLES / name) for name in PLUGIN_EXAMPLES]
    arguments = [
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    path = os.pathsep.join(
        [*folders, f"{EXAMPLES / 'pyagent-haiku/src'}", str(ROOT / "src")]
    )  # this tree's, wherever else the package is installed from
    run([*arguments, *folders], tmp_path, PYTHONPATH=path, PYAGENT_PATHS__DATA=str(tmp_path))


def answer(request: ChatRequest) -> str:
    """What a model might say, in the form asked for."""
    wanted = request.response_format
    if wanted is None:
        return "Rhine, Nile and Ganges"
    if wanted.type == "regex":
        return "2030-12-25"
    return wanted.choice[0] if wanted.choice else '{"city": "Lagos", "population": 17000000}'


@pytest.mark.parametrize(
    ("program", "expected"),
    [("openai_client.py", "Rhine, Nile and Ganges"), ("constrained_answers.py", "positive\nLagos\n2030-12-25\n")],
)
def test_client_examples_run(program: str, expected: str, tmp_path: Path):
    """The examples that use OpenAI's client work against our server, at the address they name but for the port."""
    source = (EXAMPLES / program).read_text()
    assert "http://127.0.0.1:8321/v1" in source
    with serve(create_app(ScriptedBackend(answer))) as url:
        assert run(["-c", source.replace("http://127.0.0.1:8321", url)], tmp_path) == expected


def test_fleet_example_runs(tmp_path: Path):
    """The example that gives the fleet a task prints the agent chosen and the result."""
    said = run([str(EXAMPLES / "ask_fleet.py")], tmp_path, PYAGENT_PATHS__DATA=str(tmp_path))
    assert "agent='math'" in said
    assert "391 + sqrt(2)" in said


def test_agent_tools_example_runs(tmp_path: Path):
    """The example of a tool runs it: the model calls it once, and answers from its result."""

    def reply(request: ChatRequest) -> Reply | str:
        told = [message.text for message in request.messages if message.role == "tool"]
        call = FunctionCall("opening_hours", '{"day": "Sunday"}')
        return f"It is {told[-1]}." if told else Reply(tool_calls=(ToolCall(id="c", function=call),))

    with serve(create_app(ScriptedBackend(reply))) as url:
        settings = {"PYAGENT_PATHS__DATA": str(tmp_path), "PYAGENT_CHAIN": f"openai:{url}/v1"}
        assert run([str(EXAMPLES / "agent_tools.py")], tmp_path, **settings) == "It is closed.\n"
