"""The code-health agent: which files it looks at, what it reports, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents.code_health import CodeHealthAgent, pyagent_register_tools
from pyagent.logic.code.audit import code_files
from pyagent.logic.code.health import CodeHealth
from pyagent.testing import ScriptedBackend

_SIMPLE = "def one():\n    return 1\n"
_BRANCHY = "def many(x):\n" + "".join(f"    if x == {n}:\n        return {n}\n" for n in range(9)) + "    return 0\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "a.py": _SIMPLE,
        "pkg/b.py": _BRANCHY,
        "pkg/broken.py": "def (:\n",
        "pkg/notes.txt": "no code",
        ".git/hook.py": _SIMPLE,
        "env/pyvenv.cfg": "",
        "env/lib/c.py": _SIMPLE,
        "pkg/__pycache__/d.py": _SIMPLE,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "link").symlink_to("/usr/lib")
    (tmp_path / "linked.py").symlink_to("/etc/passwd")
    return tmp_path


def _run(task: str | Task) -> CodeHealth:
    fleet = Fleet(ScriptedBackend([]), [CodeHealthAgent()], pyagent_register_tools())
    result = asyncio.run(fleet.run_agent("code-health", task))
    assert isinstance(result, CodeHealth)
    return result


def test_walk_skips_what_is_not_the_code(tree: Path) -> None:
    """Hidden folders, environments, caches and links are left out; the order is fixed."""
    assert [str(Path(path).relative_to(tree)) for path in code_files(str(tree))] == [
        *("a.py", "pkg/b.py", "pkg/broken.py")
    ]


def test_report_has_every_file_and_ranks_functions(tree: Path) -> None:
    """Each file has its numbers, or the reason it has none; the most complex function comes first."""
    health = _run(str(tree))
    by_name = {Path(file.path).name: file for file in health.files}
    assert [(row.name, row.complexity) for row in health.most_complex] == [("many", 10), ("one", 1)]
    assert by_name["broken.py"].maintainability is None
    assert by_name["broken.py"].error
    assert 0 < (by_name["b.py"].maintainability or 0) < (by_name["a.py"].maintainability or 0) <= 100
    plain = msgspec.to_builtins(health)
    assert plain["files"][1]["functions"] == [{"name": "many", "line": 1, "complexity": 10}]
    shown = str(health)
    assert "10  " in shown
    assert "1 of them unreadable" in shown
    assert "unreadable: " in shown
    assert "broken.py: " in shown
    assert "maintainability" in shown
    assert shown.index("b.py", shown.index("lowest")) < shown.index("a.py", shown.index("lowest"))


def test_sentence_names_path_and_count(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`3 most complex functions of ./pkg` is understood; a single file is too."""
    monkeypatch.chdir(tree)
    assert len(_run("1 most complex functions of ./pkg").most_complex) == 1
    assert len(_run("a.py").files) == 1
    assert len(_run("how complex is this code").files) == 3


def test_typed_arguments(tree: Path) -> None:
    """Programs name path and count; unknown fields are refused."""
    assert len(_run(Task(arguments={"path": str(tree), "top": 1})).most_complex) == 1
    with pytest.raises(RequestError, match="one path"):
        _run(Task(text="a.py", arguments={"path": str(tree)}))
    with pytest.raises(RequestError, match="arguments"):
        _run(Task(arguments={"folder": str(tree)}))
    with pytest.raises(RequestError, match="top"):
        _run(Task(arguments={"path": str(tree), "top": -1}))


def test_options_leave_the_path_alone(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in the text is looked at whatever options stand beside it; `top` 0 names no functions."""
    monkeypatch.chdir(tree)
    assert [Path(file.path).name for file in _run(Task(text="a.py", arguments={"top": 2})).files] == ["a.py"]
    health = _run(Task(text="pkg", arguments={"top": 0}))
    assert (len(health.files), health.most_complex) == (2, [])
    assert "no functions" not in str(health)
    assert "maintainability" in str(health)


@pytest.mark.parametrize("text", ["/no/such/place", "nosuch", "complexity of ./nosuch"])
def test_missing_path_is_refused(text: str) -> None:
    """A path that is not there is named in the refusal."""
    with pytest.raises(RequestError, match="no file or folder"):
        _run(text)


def test_folder_without_code_is_refused(tmp_path: Path) -> None:
    """A folder without files of code is not reported as healthy."""
    with pytest.raises(RequestError, match="no files of code"):
        _run(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("3 most complex functions of ./src", True),
        ("How maintainable is this code?", True),
        ("Summarise this complex argument", False),
        ("Explain complex functions in mathematics", False),
        ("What is the time complexity of this method?", False),
        ("solve 2x = 1", False),
    ],
)
def test_router_rule(text: str, is_taken: bool) -> None:
    """The rule takes questions about code's complexity only."""
    assert ((CodeHealthAgent().score(Task(text=text)) or 0) >= 0.5) is is_taken


def test_reports_are_told_in_the_format_asked_for(tree: Path) -> None:
    """`format` makes the text a report; the rest of the result stays."""
    assert str(_run(Task(arguments={"path": str(tree), "format": "markdown"}))).startswith("# Code health")
    health = _run(Task(arguments={"path": str(tree), "format": "sarif"}))
    assert msgspec.json.decode(str(health))["version"] == "2.1.0"
    assert len(health.files) == 3
