"""The words of the notes: front matter, what a file defines and asks for, and the map of content. Pure.

What comes from files is shown as text: it makes no link, tag, heading or HTML of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from posixpath import relpath
from typing import Literal
from urllib.parse import quote

import msgspec

from pyagent.logic.agents.obsidian.files import SourceFile
from pyagent.logic.code.outline import Outline, Symbol, first_sentence

LinkStyle = Literal["wiki", "markdown"]
MAP = "Map of content.md"
KEPT_BELOW = "<!-- PyAgent wrote what is above, and writes it anew. What you write below this line stays. -->"
_MAX_DESCRIPTION = 300
_MAX_SYMBOLS = 500
_MOST_USED = 15
_SPECIAL = re.compile(r"([\\`*_\[\]#|^$%~=!{}])")
_CODE = re.compile(r"(?<!`)(`[^`]+`)(?!`)")
_NOT_IN_LABELS = str.maketrans("[]|", "---")
_COMMENT = re.compile(r"\A(?:#!.*\n)?((?:#(?![!#]) ?.*\n?)+)")
_HEADING = re.compile(r"^#{1,6}[ \t]+([^\n]{1,500})", re.MULTILINE)
_PICTURE_OR_LINK = re.compile(r"!?\[([^\[\]]{0,500})\]\([^()\n]{0,2000}\)|[`*]")


class Described(msgspec.Struct, frozen=True):
    """A file with its outline, the paths it asks for and that ask for it, and what it is, in a sentence."""

    file: SourceFile
    outline: Outline
    asks_for: list[str]
    used_by: list[str]
    description: str = ""


class Writer:
    """Writes the notes of described files; `names` gives each path and folder its note. The map is the folder `""`."""

    def __init__(self, title: str, files: Sequence[Described], names: Mapping[str, str], style: LinkStyle) -> None:
        self._title = title
        self._files = {each.file.path: each for each in files}
        self._names = names
        self._style = style
        self._folders: dict[str, list[str]] = {}
        self._inner: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()
        for path in self._files:
            folder = _parent(path)
            self._folders.setdefault(folder, []).append(path)
            while folder:
                self._counts[folder] += 1
                self._inner.setdefault(_parent(folder), set()).add(folder)
                folder = _parent(folder)

    def notes(self) -> dict[str, str]:
        """Return the text of each note by its name: of the files, the folders, and the map."""
        folders = [*self._folders, *self._inner]
        texts = {self._names[path]: self._file(each) for path, each in self._files.items()}
        texts |= {self._names[folder]: self._folder(folder) for folder in dict.fromkeys(folders) if folder}
        return {**texts, self._names[""]: self._map()}

    # -- one file ------------------------------------------------------------------------------------------------------

    def _file(self, each: Described) -> str:
        file, note = each.file, self._names[each.file.path]
        language = file.language or "text"
        matter = {
            "title": PurePosixPath(file.path).name,
            "path": file.path,
            "language": language,
            "lines": file.num_lines,
            "bytes": file.num_bytes,
            "sha256": file.digest,
            "description": each.description,
            "tags": [f"language/{language.lower()}"],
        }
        is_prose = language == "Markdown"
        lines = [
            *_front_matter(matter),
            f"# {plain(PurePosixPath(file.path).name)}",
            "",
            *([f"> {plain(each.description)}", ""] if each.description else []),
            f"In {self._link(note, _parent(file.path))}. {file.num_lines:,} lines.",
            *([f"The outline is missing: {plain(each.outline.fault)}."] if each.outline.fault else []),
            *_defined(each.outline.symbols),
            *self._listed(note, "Links to" if is_prose else "Asks for", each.asks_for),
            *self._listed(note, "Used by", each.used_by),
        ]
        return "\n".join(lines)

    def _listed(self, note: str, title: str, paths: Sequence[str]) -> Iterator[str]:
        if paths:
            yield from ("", f"## {title}", "", *(self._item(note, path) for path in paths))

    # -- folders and the map -------------------------------------------------------------------------------------------

    def _folder(self, folder: str) -> str:
        note = self._names[folder]
        matter = {
            "title": PurePosixPath(folder).name,
            "path": f"{folder}/",
            "files": self._counts[folder],
            "tags": ["folder"],
        }
        return "\n".join(
            [
                *_front_matter({**matter, "description": self._words_of(folder)}),
                f"# {plain(PurePosixPath(folder).name)}",
                "",
                *([f"> {plain(said)}", ""] if (said := self._words_of(folder)) else []),
                f"In {self._link(note, _parent(folder))}.",
                *self._contents(note, folder),
            ]
        )

    def _contents(self, note: str, folder: str) -> Iterator[str]:
        inner = sorted(self._inner.get(folder, ()))
        if inner:
            yield from ("", "## Folders", "", *(self._folder_item(note, each, "") for each in inner))
        if files := sorted(self._folders.get(folder, ())):
            yield from ("", "## Files", "", *(self._item(note, path, is_near=True) for path in files))

    def _map(self) -> str:
        note, said = self._names[""], self._words_of("")
        languages = Counter(each.file.language or "text" for each in self._files.values())
        by_language = ", ".join(f"{count:,} {name}" for name, count in languages.most_common())
        matter = {"title": self._title, "files": len(self._files), "description": said, "tags": ["map-of-content"]}
        most = sorted(self._files.values(), key=lambda each: (-len(each.used_by), each.file.path))[:_MOST_USED]
        used = [f"{self._item(note, each.file.path)} (used by {len(each.used_by)})" for each in most if each.used_by]
        return "\n".join(
            [
                *_front_matter(matter),
                f"# {plain(self._title)}",
                "",
                *([f"> {plain(said)}", ""] if said else []),
                f"{len(self._files):,} files: {by_language}.",
                *(["", "## Folders", "", *self._tree(note, "", "")] if self._inner else []),
                *(["", "## Files", "", *files] if (files := list(self._near(note))) else []),
                *(["", "## Most used", "", *used] if used else []),
            ]
        )

    def _near(self, note: str) -> Iterable[str]:
        return (self._item(note, path, is_near=True) for path in sorted(self._folders.get("", ())))

    def _tree(self, note: str, folder: str, indent: str) -> Iterator[str]:
        for inner in sorted(self._inner.get(folder, ())):
            yield self._folder_item(note, inner, indent)
            yield from self._tree(note, inner, f"{indent}    ")

    def _folder_item(self, note: str, folder: str, indent: str) -> str:
        count = self._counts[folder]
        said = self._words_of(folder)
        number = f"{count:,} file{'' if count == 1 else 's'}"
        return f"{indent}- {self._link(note, folder)} ({number})" + (f": {plain(said)}" if said else "")

    def _words_of(self, folder: str) -> str:
        """Return what a folder is: the words of its package, crate or README."""
        for name in ("__init__.py", "README.md", "lib.rs", "mod.rs", "doc.go", "index.ts", "index.js", "index.md"):
            each = self._files.get(f"{folder}/{name}" if folder else name)
            if each is not None and each.description:
                return each.description
        return ""

    # -- links ---------------------------------------------------------------------------------------------------------

    def _item(self, note: str, path: str, *, is_near: bool = False) -> str:
        said = self._files[path].description
        label = PurePosixPath(path).name if is_near else path
        return f"- {self._link(note, path, label)}" + (f": {plain(said)}" if said else "")

    def _link(self, note: str, path: str, label: str = "") -> str:
        target, shown = self._names[path], label or path or self._title
        if self._style == "wiki":
            label = shown.translate(_NOT_IN_LABELS)
            return f"[[{target}|{label}]]"
        return f"[{plain(shown)}]({quote(relpath(target, PurePosixPath(note).parent))})"


def plain(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line; what stands in backticks stays code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if at % 2 else _escaped(part) for at, part in enumerate(parts))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def own_words(file: SourceFile, outline: Outline) -> str:
    """Return what a file says of itself, in a sentence: its docstring, first comment, or first words."""
    if file.language == "Markdown":
        return _cut(_prose(file.text))
    if outline.doc:
        return _cut(first_sentence(outline.doc))
    comment = None if outline.language else _COMMENT.match(file.text)
    return _cut(first_sentence(re.sub(r"^#+ ?", "", comment[1], flags=re.MULTILINE))) if comment else ""


def _prose(text: str) -> str:
    """Return the first sentence that is no title, list, table, picture or front matter; else the title."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.DOTALL)
    for paragraph in body[:20_000].split("\n\n"):
        lines = [line for line in paragraph.strip().splitlines() if not line.startswith("#")]
        words = _PICTURE_OR_LINK.sub(r"\1", "\n".join(lines)).strip()
        if words and words[0].isalpha():
            return first_sentence(words)
    heading = _HEADING.search(body)
    title = heading[1].strip() if heading else ""
    without_marks = title.rstrip("#")
    return without_marks.rstrip() if without_marks.endswith((" ", "\t")) else title


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_DESCRIPTION else f"{text[: _MAX_DESCRIPTION - 1]}…"


def _defined(symbols: Sequence[Symbol]) -> Iterator[str]:
    if not symbols:
        return
    yield from ("", "## Defines", "")
    for symbol in symbols[:_MAX_SYMBOLS]:
        indent = "    " if symbol.kind == "method" else ""
        yield f"{indent}- {_code(symbol.signature)} (line {symbol.line})" + (
            f": {plain(symbol.doc)}" if symbol.doc else ""
        )
    if len(symbols) > _MAX_SYMBOLS:
        yield f"- and {len(symbols) - _MAX_SYMBOLS:,} more"


def _code(text: str) -> str:
    """Return a text as code on one line, between more backticks than stand in it side by side."""
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _front_matter(matter: Mapping[str, object]) -> Iterator[str]:
    """Yield properties as YAML: each value is JSON, which YAML contains."""
    yield "---"
    for name, value in matter.items():
        if value not in ("", []):
            yield f"{name}: {msgspec.json.encode(value).decode()}"
    yield "---"
    yield ""


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent
