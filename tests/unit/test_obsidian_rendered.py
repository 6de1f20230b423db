"""Vaults opened in a Markdown renderer: every link of the page leads to a note, and front matter is YAML."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents.obsidian.agent import ObsidianDescriberAgent, VaultReport
from pyagent.logic.agents.obsidian.notes import KEPT_BELOW
from pyagent.testing import ScriptedBackend

NAMES = (
    *("plain.py", "with blank.txt", "folder/a[b](c).txt", "folder/x|y.txt", "folder/#tag.txt", "folder/`tick`.txt"),
    *("folder/%41.txt", "folder/a&amp;<b>.txt", 'folder/"quoted".txt', "folder/[[nested]].txt", "folder/ünï/日本.txt"),
    *("folder/dots..txt", "folder/back\\slash.txt", "folder/*star*_under_.txt", "folder/Map of content.txt"),
)
SAYINGS = (
    "See [[nowhere]] and [here](nowhere.md) or ![picture](x.png)",
    "key: value # no comment, !!python/object:os.system ['x']",
    "--- and <script>alert(1)</script> <b>bold",
    "a `code with [[no link]] that does not end, $x$, %%hidden%%, ==marked==",
    "\\[[escaped\\]] ~~struck~~ ^block | table | {braces} *star* _under_",
    "\"quotes\" 'single' \\ backslash \\n null ~ yes: no",
)


def _wikilink(state: StateInline, silent: bool) -> bool:
    """Read `[[target|shown]]` as Obsidian does, where the renderer reads a link."""
    found = re.compile(r"\[\[([^\[\]|\n]+)(?:\|([^\[\]\n]+))?\]\]").match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("link_open", "a", 1).attrs = {"href": found[1], "class": "wiki"}
        state.push("text", "", 0).content = found[2] or found[1]
        state.push("link_close", "a", -1)
    state.pos = found.end()
    return True


def _renderer() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    made.inline.ruler.before("link", "wikilink", _wikilink)
    return made


def _tokens(text: str) -> Iterator[Token]:
    waiting: list[Token] = list(reversed(_renderer().parse(text)))
    while waiting:
        token = waiting.pop()
        yield token
        waiting += reversed(token.children or [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose files' names and words are made to break links, pages and front matter."""
    made = tmp_path / "project"
    for number, name in enumerate(NAMES):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(f"{SAYINGS[number % len(SAYINGS)]}.\n\nMore.\n", encoding="utf-8")
    for number, saying in enumerate(SAYINGS):
        quoted = repr(saying)
        (made / f"module{number}.py").write_text(f"{quoted}\nimport plain, module0, module1\n")
    (made / "plain.py").write_text('"""Read me.\n---\n[[x]]: no"""\n\n\ndef f(x: str = "]](") -> "[[a]]":\n    "`"\n')
    return made


def _vault(folder: Path, style: str) -> tuple[Path, VaultReport]:
    vault = folder.parent / f"notes-{style}"
    arguments = {"path": str(folder), "vault": str(vault), "links": style}
    fleet = Fleet(ScriptedBackend(""), [ObsidianDescriberAgent()])
    report = asyncio.run(fleet.run_agent("obsidian-describer", Task(arguments=arguments)))
    assert isinstance(report, VaultReport)
    return vault, report


def _parted(text: str) -> tuple[dict[str, Any], str]:
    """Return a note's front matter as YAML has it, and its body."""
    _, matter, body = re.split(r"^---\n", text, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(matter), body


def _target(note: str, token: Token) -> str:
    href = str(token.attrs["href"])
    if token.attrs.get("class") == "wiki":
        return href
    return os.path.normpath(f"{Path(note).parent}/{unquote(href)}")


def _pages(vault: Path) -> dict[str, tuple[dict[str, Any], Sequence[Token]]]:
    pages: dict[str, tuple[dict[str, Any], Sequence[Token]]] = {}
    for path in vault.rglob("*.md"):
        matter, body = _parted(path.read_text("utf-8"))
        pages[path.relative_to(vault).as_posix()] = matter, list(_tokens(body))
    return pages


@pytest.mark.parametrize("style", ["wiki", "markdown"])
def test_every_link_of_a_rendered_page_leads_to_a_note(folder: Path, style: str) -> None:
    """No link is broken, none comes of a file's own words, and every note is reached."""
    vault, report = _vault(folder, style)
    pages = _pages(vault)
    assert sorted(pages) == sorted(report.written)
    links = {name: [_target(name, each) for each in tokens if each.type == "link_open"]
             for name, (_, tokens) in pages.items()}  # fmt: skip
    assert {target for found in links.values() for target in found} == set(pages)
    assert all(links.values()), "each note leads back to that of its folder"
    assert not [each for _, tokens in pages.values() for each in tokens if each.type == "image"]


@pytest.mark.parametrize("style", ["wiki", "markdown"])
def test_front_matter_is_yaml_with_the_words_of_the_file(folder: Path, style: str) -> None:
    """Titles, paths and descriptions are texts, whatever they look like; no file is missing."""
    vault, _ = _vault(folder, style)
    matters = [matter for matter, _ in _pages(vault).values()]
    assert all(
        isinstance(matter["title"], str) and isinstance(matter.get("description", ""), str) for matter in matters
    )
    paths = {matter["path"] for matter in matters if "path" in matter}
    assert {*NAMES, *(f"module{number}.py" for number in range(len(SAYINGS)))} <= paths
    described = {matter["path"]: matter.get("description") for matter in matters if "path" in matter}
    assert [described[f"module{number}.py"] for number in range(len(SAYINGS))] == list(SAYINGS)


def test_a_files_words_are_no_markup_of_the_page(folder: Path) -> None:
    """No tag of a file's own is rendered: the only one is the mark above a person's own words."""
    vault, _ = _vault(folder, "wiki")
    for name, (_, tokens) in _pages(vault).items():
        raw = [each.content.strip() for each in tokens if each.type in {"html_inline", "html_block"}]
        assert raw == [KEPT_BELOW], name
        assert sum(each.type == "heading_open" and each.tag == "h1" for each in tokens) == 1, name
