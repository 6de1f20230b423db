"""The obsidian-describer agent: notes whose links all resolve, kept in step, and never over a person's words."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest

from pyagent.core.errors import AgentError, PyAgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents.obsidian import vault as vaults
from pyagent.logic.agents.obsidian.agent import ObsidianDescriberAgent, VaultReport
from pyagent.logic.agents.obsidian.notes import KEPT_BELOW, plain
from pyagent.logic.agents.obsidian.vault import MANIFEST, note_names
from pyagent.testing import ScriptedBackend

FILES = {
    "README.md": "# Post\n\nSends letters. See [the code](post/letters.py) and [people](post/people/).\n",
    "post/__init__.py": '"""All of the post."""\n',
    "post/letters.py": '"""Writes letters."""\nfrom . import stamps\nfrom post.people.names import Name\nimport os\n',
    "post/stamps.py": '"""Stamps: [[letters]] #tag <script>alert(1)</script> `code` $x$ %%hidden%%."""\n',
    "post/people/__init__.py": "",
    "post/people/names.py": "from ..stamps import Stamp\n\nclass Name: ...\n",
    "web/page.ts": "import { a } from './parts.js';\nimport b from './views';\nimport fs from 'fs';\n",
    "web/parts.ts": "// Parts of pages.\nexport const a = () => 1;\n",
    "web/views/index.ts": "export default 1;\n",
    "core/src/lib.rs": "//! The core.\nmod tables;\nuse crate::files::{read, write};\n",
    "core/src/tables.rs": "use crate::files::read;\n",
    "core/src/files/mod.rs": "mod inner;\n",
    "core/src/files/inner.rs": "",
    "go.mod": "module example.org/app\n",
    "main.go": 'package main\n\nimport "example.org/app/wire"\n',
    "wire/wire.go": "// Package wire sends.\npackage wire\n",
    "odd/a#b[c].txt": "odd\n",
    "odd/A.txt": "one\n",
    "odd/a.txt": "two\n",
}
LINKS = {
    "README.md": ["post/letters.py"],
    "post/letters.py": ["post/people/names.py", "post/stamps.py"],
    "post/people/names.py": ["post/stamps.py"],
    "web/page.ts": ["web/parts.ts", "web/views/index.ts"],
    "core/src/lib.rs": ["core/src/files/mod.rs", "core/src/tables.rs"],
    "core/src/tables.rs": ["core/src/files/mod.rs"],
    "core/src/files/mod.rs": ["core/src/files/inner.rs"],
    "main.go": ["wire/wire.go"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of files in six languages."""
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "project"


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """Return where the notes go."""
    return tmp_path / "notes"


def _describe(folder: Path, vault: Path, *, says: str = "", **arguments: object) -> VaultReport:
    fleet = Fleet(ScriptedBackend(says), [ObsidianDescriberAgent()])
    named = {"path": str(folder), "vault": str(vault), **arguments}
    report = asyncio.run(fleet.run_agent("obsidian-describer", Task(text="", arguments=named)))
    assert isinstance(report, VaultReport)
    return report


def _notes(vault: Path) -> dict[str, str]:
    return {path.relative_to(vault).as_posix(): path.read_text("utf-8") for path in vault.rglob("*.md")}


def _links(name: str, text: str) -> Iterator[str]:
    """Yield where a note's links lead, as names below the vault."""
    bare = re.sub(r"(`+).+?\1", "", re.sub(r"\\.", "", text))
    yield from (target for target, _ in re.findall(r"\[\[([^\]|]+)\|([^\]|]+)\]\]", bare))
    for target in re.findall(r"\]\(([^)]+)\)", bare):
        yield os.path.normpath(f"{Path(name).parent}/{unquote(target)}")


def _matter(text: str) -> dict[str, object]:
    """Return a note's front matter; each value stands on a line as JSON, which YAML contains."""
    lines = text.split("---\n")[1].splitlines()
    return {name: msgspec.json.decode(value) for name, _, value in (line.partition(": ") for line in lines)}


@pytest.mark.parametrize("style", ["wiki", "markdown"])
def test_every_link_leads_to_a_note(folder: Path, vault: Path, style: str) -> None:
    """Every file and folder has a note, every note is reached from the map, and no link of any note is broken."""
    report = _describe(folder, vault, links=style)
    notes = _notes(vault)
    assert sorted(report.written) == sorted(notes)
    targets = {name: set(_links(name, text)) for name, text in notes.items()}
    assert {target for found in targets.values() for target in found} == set(notes)
    assert {_matter(text)["path"] for text in notes.values() if "path" in _matter(text)} == {
        *FILES,
        *(f"{parent.as_posix()}/" for name in FILES for parent in Path(name).parents if parent != Path()),
    }


def test_imports_are_found_in_every_language(folder: Path, vault: Path) -> None:
    """A note links to the files that its file asks for, and back; nothing is executed."""
    _describe(folder, vault)
    notes, names = _notes(vault), note_names(FILES)
    for path in FILES:
        text = notes[names[path]]
        asked = re.split(r"^## (?:Asks for|Links to)$", text, flags=re.MULTILINE)[1:]
        found = list(_links("", asked[0].partition("## ")[0])) if asked else []
        assert found == [names[each] for each in LINKS.get(path, [])], path
    used = notes[names["post/stamps.py"]].partition("## Used by")[2]
    assert list(_links("", used)) == [names["post/letters.py"], names["post/people/names.py"]]


def test_words_of_files_are_shown_as_they_are(folder: Path, vault: Path) -> None:
    """A docstring makes no link, tag, HTML or hidden part; front matter keeps it whole."""
    _describe(folder, vault)
    text = _notes(vault)[note_names(FILES)["post/stamps.py"]]
    assert _matter(text)["description"] == "Stamps: [[letters]] #tag <script>alert(1)</script> `code` $x$ %%hidden%%."
    said = text.partition("\n> ")[2].partition("\n")[0]
    assert said == r"Stamps: \[\[letters\]\] \#tag &lt;script&gt;alert(1)&lt;/script&gt; `code` \$x\$ \%\%hidden\%\%."
    assert plain("a\n# b | c") == r"a \# b \| c"


def test_names_fit_every_system() -> None:
    """No two notes differ in case alone, none has signs that links or systems refuse, and long names are cut."""
    long = "d" * 300
    names = note_names(
        ["a/X.py", "A/x.py", "a/b", "a/b.md/c", "q?:*|[]#^.txt", "map of content", f"{long}1", f"{long}2"]
    )
    assert len({name.casefold() for name in names.values()}) == len(names)
    assert all(len(part.encode()) < 256 for name in names.values() for part in name.split("/"))
    assert names["q?:*|[]#^.txt"] == "q--------.txt.md"
    assert (names["a/b"], names["a/b.md/c"]) == ("a/b (2).md", "a/b.md/c.md")
    assert names[""] == "Map of content.md"
    assert names["map of content"] == "map of content (2).md"


def test_second_run_writes_what_changed(folder: Path, vault: Path) -> None:
    """A changed file's note is written anew, that of one that is gone is removed with its folder, others stay."""
    _describe(folder, vault)
    again = _describe(folder, vault)
    assert (again.written, again.removed, again.num_unchanged) == ([], [], len(_notes(vault)))
    (folder / "post/stamps.py").write_text("def stamp(): ...\n")
    (folder / "web/views/index.ts").unlink()
    (folder / "web/views").rmdir()
    changed = _describe(folder, vault)
    names = note_names(FILES)
    assert names["post/stamps.py"] in changed.written
    assert names["core/src/lib.rs"] not in changed.written
    assert sorted(changed.removed) == sorted([names["web/views/index.ts"], names["web/views"]])
    assert not (vault / "web/views").exists()
    targets = {target for name, text in _notes(vault).items() for target in _links(name, text)}
    assert targets == set(_notes(vault))


def test_persons_words_stay(folder: Path, vault: Path) -> None:
    """Words below the line go with the note, also to a newer one; a note changed above it is left alone, and named."""
    _describe(folder, vault)
    names = note_names(FILES)
    below, above, gone = (vault / names[path] for path in ("post/stamps.py", "main.go", "wire/wire.go"))
    below.write_text(below.read_text() + "\nMy own thought.\n")
    above.write_text("Mine. " + above.read_text())
    gone.write_text(gone.read_text() + "\nKeep me.\n")
    for path in ("post/stamps.py", "main.go"):
        (folder / path).write_text("x = 1\n")
    (folder / "wire/wire.go").unlink()
    report = _describe(folder, vault)
    assert below.read_text().endswith("stays. -->\n\nMy own thought.\n")
    assert "sha256" in below.read_text().partition(KEPT_BELOW)[0]
    assert above.read_text().startswith("Mine. ")
    assert gone.read_text().endswith("Keep me.\n")
    assert {names["main.go"], names["wire/wire.go"]} <= set(report.left_alone)
    assert "left alone: " in str(report)


def test_notes_that_nobody_wrote_here_are_left_alone(folder: Path, vault: Path) -> None:
    """A note of the same name that was there before is a person's."""
    mine = vault / note_names(FILES)["main.go"]
    mine.parent.mkdir(parents=True)
    mine.write_text("My note.")
    assert _describe(folder, vault).left_alone == [note_names(FILES)["main.go"]]
    assert mine.read_text() == "My note."


def test_a_killed_run_leaves_nothing_that_is_taken_for_a_persons(
    folder: Path, vault: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a death at any note the next run writes the rest, and leaves nothing alone."""
    _describe(folder, vault)
    for path in FILES:
        (folder / path).write_text((folder / path).read_text() + "\n")
    write, count = vaults.replace_file, 0

    def die(path: Path, text: str) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(vaults, "replace_file", die)
    with pytest.raises(AgentError, match="KeyboardInterrupt"):
        _describe(folder, vault)
    monkeypatch.setattr(vaults, "replace_file", write)
    report = _describe(folder, vault)
    assert report.left_alone == []
    assert report.written
    assert _describe(folder, vault).written == []


def test_preview_writes_nothing(folder: Path, vault: Path) -> None:
    """A preview tells what would be written."""
    report = _describe(folder, vault, preview=True)
    assert len(report.written) == len(note_names(FILES))
    assert "would be written" in str(report)
    assert not vault.exists()


def test_model_describes_files_without_words_once(folder: Path, vault: Path) -> None:
    """The model is asked about files that say nothing of themselves; its words are kept until the file changes."""
    asked: list[str] = []

    def says(request: ChatRequest) -> str:
        asked.append(request.messages[-1].text.splitlines()[0])
        return "Names people. And more."

    def describe(**arguments: object) -> VaultReport:
        fleet = Fleet(ScriptedBackend(says), [ObsidianDescriberAgent()])
        named = {"path": str(folder), "vault": str(vault), **arguments}
        report = asyncio.run(fleet.run_agent("obsidian-describer", Task(text="", arguments=named)))
        assert isinstance(report, VaultReport)
        return report

    name = note_names(FILES)["post/people/names.py"]
    assert describe(describe=True).num_described == len(asked)
    assert "post/people/names.py" in asked
    assert "post/letters.py" not in asked
    assert "> Names people.\n" in _notes(vault)[name]
    asked.clear()
    assert describe().written == []
    (folder / "post/people/names.py").write_text("class Name: ...\n")
    assert describe(describe=True).num_described == len(asked) == 1


def test_what_is_no_text_of_the_folder_has_no_note(folder: Path, vault: Path) -> None:
    """Binary files, links out, caches, environments, hidden files and a vault inside are passed over."""
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "out.py").symlink_to("/etc/hostname")
    (folder / "away").symlink_to("/etc")
    for name in (
        "node_modules/a.js",
        ".git/config",
        "venv/pyvenv.cfg",
        "venv/lib.py",
        "target/CACHEDIR.TAG",
        "target/x.rs",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    inside = folder / "notes"
    assert _describe(folder, inside).num_files == len(FILES)
    assert _describe(folder, inside).num_files == len(FILES)
    (folder / "one/two").mkdir(parents=True)
    assert _describe(folder, vault).num_files == len(FILES) + len(_notes(inside))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "nowhere"}, "nowhere"),
        ({"path": "project/README.md"}, "is no folder"),
        ({"path": "empty"}, "there are no texts in"),
        ({"path": "project", "vault": "project"}, "a folder of its own"),
        ({"path": "project", "vault": "project/go.mod"}, "go.mod is no folder"),
        ({"path": "project", "vault": "project/go.mod/notes"}, "notes cannot be written in"),
        ({"path": "project", "links": "html"}, "links"),
        ({"path": "project", "vault": "broken"}, "cannot be told from yours"),
        ({"path": "project", "vault": "evil"}, "would lie outside of"),
        ({"path": "project", "vault": "linked"}, "would lie outside of"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, str], said: str
) -> None:
    """What cannot be read or written is told; a list of notes or a link that leads out of the vault is refused."""
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "broken", "evil", "linked"):
        Path(name).mkdir()
    Path("broken", MANIFEST).write_text("{")
    Path("evil", MANIFEST).write_text('{"notes": {"../victim.md": {"digests": ["x"]}}}')
    Path("linked", "post").symlink_to(folder)
    Path("victim.md").write_text("mine")
    fleet = Fleet(ScriptedBackend(""), [ObsidianDescriberAgent()])
    with pytest.raises(PyAgentError, match=re.escape(said)):
        asyncio.run(fleet.run_agent("obsidian-describer", Task(text="", arguments={"vault": "notes", **arguments})))
    assert Path("victim.md").read_text() == "mine"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(FILES)


def test_only_a_person_here_writes_unasked(folder: Path, vault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task in words asks before it writes, which nobody answers here; one from the network is refused."""
    monkeypatch.chdir(vault.parent)
    fleet = Fleet(ScriptedBackend(""), [ObsidianDescriberAgent()])
    with pytest.raises(PyAgentError):
        asyncio.run(fleet.run_agent("obsidian-describer", f"write an obsidian vault of {folder}"))

    async def from_afar() -> None:
        task = Task(text="", arguments={"path": str(folder)})
        access = FileAccess.below(folder.parent)
        async with aclosing(fleet.run(task, agent="obsidian-describer", file_access=access)) as events:
            async for _ in events:
                pass

    with pytest.raises((RequestError, AgentError), match="not over the network"):
        asyncio.run(from_afar())
    assert not vault.exists()
    assert not (vault.parent / "project-notes").exists()


def test_router_finds_it_by_the_words_of_a_task(folder: Path) -> None:
    """It takes tasks that ask for notes on a folder that is there, and no others."""
    agent = ObsidianDescriberAgent()
    assert (agent.score(Task(text=f"make an obsidian vault of {folder}")) or 0.0) > 0.8
    assert not agent.score(Task(text="make an obsidian vault of my life"))
    assert not agent.score(Task(text=f"count the files of {folder}"))
