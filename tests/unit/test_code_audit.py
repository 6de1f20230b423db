"""Audits: copies, functions that nothing names, the trend over commits, and reports that other programs read."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents.code_health import CodeHealthAgent
from pyagent.logic.code.audit import audit
from pyagent.logic.code.health import CodeHealth
from pyagent.logic.code.report import markdown, sarif
from pyagent.logic.code.trees import load_grammar
from pyagent.testing import ScriptedBackend

_BLOCK = "".join(f"    total += price * {n}\n" for n in range(10))
_TILL = f"""import os

def sum_up(price):
    total = 0
{_BLOCK}    return total


def forgotten():
    pass
"""
_AGAIN = f"""from shop.till import sum_up

def sum_it(price, total):
    # why
{_BLOCK}
    return sum_up(total)
"""
_FILES = {
    "shop/till.py": _TILL,
    "shop/again.py": _AGAIN,
    "shop/app.py": "import web\n\n@web.route\ndef index():\n    pass\n\ndef test_it():\n    sum_it(1, 2)\n",
    "settings.toml": 'entry = "shop.late:by_name"\n',
    "shop/late.py": "def by_name(x):\n" + "".join(f"    if x == {n}:\n        pass\n" for n in range(11)),
    "page.js": "export function open() {}\nfunction never() { return 1 }\n",
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in _FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _audit(path: str | Path, **options: Any) -> CodeHealth:
    return asyncio.run(audit([str(path)], **options))


def _git(folder: Path, *words: str, day: int = 1) -> None:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    when = f"2026-01-{day:02d}T12:00:00+0000"
    dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, env={**who, **dates})


def _commit(folder: Path, day: int) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "more", day=day)


def test_copies_are_told_with_their_places(shop: Path) -> None:
    """Ten equal lines are a copy, whatever blank lines and comments stand between; eleven are asked for, none."""
    (copy,) = _audit(shop).duplicates
    assert copy.lines == 10
    assert [str(place) for place in copy.places] == ["shop/again.py:5-14", "shop/till.py:5-14"]
    assert _audit(shop, min_lines=11).duplicates == []


def test_functions_that_nothing_names(shop: Path) -> None:
    """What settings, decorators, exports or test runners name is not told; the whole repository is looked at."""
    assert [one.name for one in _audit(shop).unnamed] == ["never", "forgotten"]
    (shop / ".git").mkdir()
    assert [one.name for one in _audit(shop / "shop").unnamed] == ["forgotten"]


def test_several_languages_in_one_report(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of other languages are counted with Python's; without their parser they are left out, and that is said."""
    health = _audit(shop)
    assert {file.language for file in health.files} == {"Python", "JavaScript"}
    assert (health.most_complex[0].name, health.most_complex[0].complexity) == ("by_name", 12)
    load_grammar.cache_clear()
    monkeypatch.setitem(sys.modules, "tree_sitter_javascript", None)
    health = _audit(shop)
    assert health.not_read == {"JavaScript": 1}
    assert "left out: 1 of JavaScript: the extra `code`" in str(health)


def test_trend_over_commits(shop: Path) -> None:
    """The newest and the oldest commit are shown, in the order of time, and the file that most commits make complex."""
    _git(shop, "init", "-q")
    for day in range(1, 6):
        with (shop / "shop/late.py").open("a") as file:
            file.write(f"\ndef more_{day}(x):\n    return 1 if x else 2\n")
        _commit(shop, day)
    (shop / "notes.md").write_text("no code")
    _commit(shop, 9)
    trend = _audit(shop, history=3).trend
    assert trend is not None
    assert [(one.date, one.files, one.functions) for one in trend.snapshots] == [
        *(("2026-01-01", 5, 9), ("2026-01-04", 5, 12), ("2026-01-09", 5, 13))
    ]
    assert [one.complex_functions for one in trend.snapshots] == [1, 1, 1]
    assert (trend.commits, trend.hotspots[0].path, trend.hotspots[0].commits) == (6, str(shop / "shop/late.py"), 5)
    below = _audit(shop / "shop", history=2)
    assert below.trend is not None
    assert [(one.files, below.trend.commits) for one in below.trend.snapshots] == [(4, 5), (4, 5)]
    assert "  2026-01-05  " in str(below)


def test_a_hostile_repository_starts_no_program(shop: Path) -> None:
    """What a repository's settings would have git start is not started."""
    _git(shop, "init", "-q")
    _commit(shop, 1)
    touch = shop / "touch.sh"
    touch.write_text(f"#!/bin/sh\ntouch {shop}/started\nexit 1\n")
    touch.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "gpg.program", "diff.external", "core.sshCommand", "diff.x.textconv"):
        _git(shop, "config", name, str(touch))
    _git(shop, "config", "log.showSignature", "true")
    (shop / ".gitattributes").write_text("*.py diff=x filter=x\n")
    _commit(shop, 2)
    (shop / "started").unlink(missing_ok=True)
    assert _audit(shop, history=2).trend is not None
    assert not (shop / "started").exists()


def test_history_is_refused_where_there_is_none(shop: Path) -> None:
    """No repository, no commits, too many snapshots, and somebody over the network: each is one sentence."""
    with pytest.raises(RequestError, match="not a git repository"):
        _audit(shop, history=3)
    _git(shop, "init", "-q")
    with pytest.raises(RequestError, match="git says of"):
        _audit(shop, history=3)
    with pytest.raises(RequestError, match="from 1 to 100, got 101"):
        _audit(shop, history=101)
    with pytest.raises(RequestError, match="2 or more, got 1"):
        _audit(shop, min_lines=1)
    fleet = Fleet(ScriptedBackend(""), [CodeHealthAgent()])

    async def from_afar() -> None:
        task = Task(arguments={"path": "shop", "history": 2})
        async for _ in fleet.run(task, agent="code-health", file_access=FileAccess.below(shop)):
            pass

    with pytest.raises(RequestError, match="a person at this machine only"):
        asyncio.run(from_afar())


def test_sarif_names_rules_places_and_fingerprints(shop: Path) -> None:
    """Each result has a rule that is there, a level, a place from the working folder; moved lines keep fingerprints."""
    (shop / "broken.py").write_text("def (:\n")
    log = json.loads(sarif(_audit(shop)))
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    results = run["results"]
    assert log["version"] == "2.1.0"
    assert all(rules[one["ruleIndex"]] == one["ruleId"] for one in results)
    assert [one["ruleId"] for one in results] == ["unreadable", "complexity", "duplicate", "unnamed", "unnamed"]
    where = results[2]["locations"][0]["physicalLocation"]
    assert where == {"artifactLocation": {"uri": "shop/again.py"}, "region": {"startLine": 5, "endLine": 14}}
    assert results[2]["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "shop/till.py"
    late = shop / "shop/late.py"
    late.write_text("\n\n\n" + late.read_text())
    moved = json.loads(sarif(_audit(shop)))["runs"][0]["results"]
    assert [one["partialFingerprints"] for one in moved] == [one["partialFingerprints"] for one in results]
    assert moved[1]["locations"] != results[1]["locations"]


def test_markdown_shows_odd_names_as_they_are(shop: Path) -> None:
    """A name cannot end its cell or begin markup."""
    (shop / "a|b`<i>.py").write_text("def f():\n    pass\n")
    text = markdown(_audit(shop, top=10))
    assert "## Longest copies" in text
    assert "| `f` | `a\\|b<i>.py:1` |" in text
    rows = [line for line in text.splitlines() if line.startswith("| 1 | ")]
    assert rows
    assert all(line.replace("\\|", "").count("|") == 4 for line in rows)
