"""Each hook has a page whose plugin is a file of the examples, is loaded as it stands there, and passes its suite."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from pyagent.core.plugin_checks import NOUNS, PREFIX
from pyagent.core.plugins import PluginHost

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/how-to/hooks"
SHOWN = re.compile(r"<!-- include (\S+) -->\n```python\n(.*?)```", re.DOTALL)
NO_SUITE_ON_ITS_PAGE = {"runners"}
"""A runner's suite takes a model: tests/integration/test_runner_conformance.py runs it on the page's plugin."""


def shown(noun: str) -> dict[str, str]:
    """The files of Python that a hook's page shows, by their paths."""
    return dict(SHOWN.findall((PAGES / f"{noun}.md").read_text()))


def test_every_hook_has_a_page() -> None:
    """A page for each hook, and none for what is no hook; the guide leads to each."""
    assert {page.stem for page in PAGES.glob("*.md")} == set(NOUNS)
    guide = (ROOT / "docs/how-to/write-a-plugin.md").read_text()
    assert [noun for noun in NOUNS if f"(hooks/{noun}.md)" not in guide] == []


@pytest.mark.parametrize("noun", NOUNS)
def test_plugin_of_a_page_is_loaded(noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code on the page, run as a module, is a plugin that brings something by the hook the page is of."""
    path, code = next(iter(shown(noun).items()))
    name = Path(path).parent.name if path.endswith("__init__.py") else Path(path).stem
    folder = ROOT / Path(*Path(path).parts[:2])
    entries = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]["pyagent"]
    assert [(entry.partition(".")[2], target) for entry, target in entries.items()] == [(noun, name)]
    module = ModuleType(name)
    module.__file__ = str(ROOT / path)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, os.fspath(ROOT / path), "exec", dont_inherit=True), module.__dict__)
    host = PluginHost()
    host.register(module, name)
    assert getattr(host, noun)(), f"{PREFIX}{noun} brings nothing"


@pytest.mark.parametrize("noun", sorted(set(NOUNS) - NO_SUITE_ON_ITS_PAGE))
def test_page_shows_how_its_suite_is_run(noun: str) -> None:
    """The page shows the test of its plugin that derives from the suite; `test_docs.py` runs it."""
    tests = [code for path, code in shown(noun).items() if Path(path).name.startswith("test_")]
    assert any("Conformance)" in code for code in tests)
