"""A vault on disk: notes are written when their words changed, and only over notes that are as they were written.

The file `.pyagent-notes.json` in the vault knows what was written. It is there before a note that it tells of is
changed, so a process that is killed leaves nothing that the next one takes for a person's. What a person wrote
below the line of a note stays, and a note that a person changed above it is left alone, and named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.agents.obsidian.notes import KEPT_BELOW, MAP

MANIFEST = ".pyagent-notes.json"
_FORBIDDEN = re.compile(r'[\[\]#^|\\:*?"<>\x00-\x1f\x7f]')
_MAX_NAME_BYTES = 200


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """A note that was written: the digests that it may have, and what a model said of its file of that digest."""

    digests: list[str]
    source: str = ""
    words: str = ""


class Manifest(msgspec.Struct, omit_defaults=True):
    """What was written, by the notes' names."""

    notes: dict[str, Written] = {}
    version: int = 1


class Changes(msgspec.Struct, frozen=True):
    """The names of the notes by what happens to them; `left_alone` are a person's, whole or in part."""

    written: list[str]
    removed: list[str]
    left_alone: list[str]
    num_unchanged: int


def note_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the note of each path and of its folders, no two alike even where letters' case does not count."""
    files = sorted(paths)
    folders = sorted({str(folder) for path in files for folder in PurePosixPath(path).parents} - {"."})
    taken = {_allowed(folder).casefold() for folder in folders}  # a note has no name that a folder of notes has
    names = {"": _free(MAP, taken)}
    for path in files:
        names[path] = _free(f"{_allowed(path)}.md", taken)
    for folder in folders:
        names[folder] = _free(f"{_allowed(folder)}/{_allowed(PurePosixPath(folder).name)}.md", taken)
    return names


def _allowed(path: str) -> str:
    """Return a path without what Obsidian's links and other systems' files may not have in their names."""
    return "/".join(_short(_FORBIDDEN.sub("-", part).rstrip(". ") or "-") for part in path.split("/"))


def _short(name: str) -> str:
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    return f"{name.encode()[:_MAX_NAME_BYTES].decode(errors='ignore')}-{sha256(name.encode()).hexdigest()[:8]}"


def _free(name: str, taken: set[str]) -> str:
    stem, number, free = name.removesuffix(".md"), 1, name
    while free.casefold() in taken:
        number += 1
        free = f"{stem} ({number}).md"
    taken.add(free.casefold())
    return free


class Vault:
    """The notes below a folder. `compare` says what would happen, `write` does it."""

    def __init__(self, folder: Path) -> None:
        """Raises `RequestError` for a folder that is none, or whose list of notes cannot be read."""
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise RequestError(f"{folder} is no folder", param="vault")
        self.manifest = self._read_manifest()

    def compare(self, texts: Mapping[str, str]) -> Changes:
        """Return what `write` would do."""
        written: list[str] = []
        left_alone: list[str] = []
        for name, text in texts.items():
            head, _ = self._parts(name)
            if head is None or (head != text and self._is_own(name, head)):
                written.append(name)
            elif head != text:
                left_alone.append(name)
        gone = [name for name in self.manifest.notes if name not in texts and self._parts(name)[0] is not None]
        removed = [name for name in gone if self._is_unchanged(name)]
        left_alone += [name for name in gone if name not in removed]
        return Changes(written, removed, left_alone, len(texts) - len(written) - len(set(left_alone) & set(texts)))

    def write(self, texts: Mapping[str, str], words: Mapping[str, Written]) -> Changes:
        """Make the notes as they are to be; `words` has what is known of their sources. Raises `RequestError`."""
        changes = self.compare(texts)
        known = self.manifest.notes
        kept = {name: known[name] for name in changes.left_alone if name in known}
        after = {
            name: msgspec.structs.replace(words.get(name, Written([])), digests=[digest(text)])
            for name, text in texts.items()
            if name not in changes.left_alone
        }
        between = {
            name: msgspec.structs.replace(one, digests=[*one.digests, *(known[name].digests if name in known else [])])
            for name, one in after.items()
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._keep({**known, **between, **kept})
            for name in changes.written:
                replace_file(self._path(name), f"{texts[name]}\n\n{KEPT_BELOW}\n{self._parts(name)[1]}")
            for name in changes.removed:
                self._path(name).unlink(missing_ok=True)
                self._drop_empty(self._path(name).parent)
            self._keep({**after, **kept})
        except OSError as error:
            said = error.strerror or error
            raise RequestError(f"notes cannot be written in {self.folder}: {said}", param="vault") from error
        return changes

    def _parts(self, name: str) -> tuple[str | None, str]:
        """Return what was written of a note, and what a person wrote below; None when there is no note."""
        path = self._path(name)
        try:
            head, line, below = path.read_text(encoding="utf-8").partition(KEPT_BELOW)
        except FileNotFoundError:
            return None, ""
        except (OSError, UnicodeError):
            return "\0", ""  # something else of that name: not ours, and left alone
        return (head.rstrip("\n") if line else f"{head}\0"), below.removeprefix("\n")

    def _is_own(self, name: str, head: str) -> bool:
        return name in self.manifest.notes and digest(head) in self.manifest.notes[name].digests

    def _is_unchanged(self, name: str) -> bool:
        head, below = self._parts(name)
        return head is not None and self._is_own(name, head) and not below.strip()

    def _path(self, name: str) -> Path:
        """Return a note's path; raises `RequestError` for one that leads out of the vault."""
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise RequestError(f"the note {name!r:.200} would lie outside of {self.folder}", param="vault")
        return path

    def _drop_empty(self, folder: Path) -> None:
        while folder != self.folder and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _read_manifest(self) -> Manifest:
        path = self.folder / MANIFEST
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (FileNotFoundError, NotADirectoryError):
            return Manifest()
        except (OSError, ValueError) as error:
            text = f"{path} cannot be read: {error}; without it notes cannot be told from yours. Name another vault"
            raise RequestError(text, param="vault") from error

    def _keep(self, notes: Mapping[str, Written]) -> None:
        self.manifest = Manifest(dict(sorted(notes.items())))
        replace_file(self.folder / MANIFEST, msgspec.json.format(msgspec.json.encode(self.manifest)).decode())


def digest(text: str) -> str:
    """Return what tells one text from another."""
    return sha256(text.encode()).hexdigest()[:32]


def replace_file(path: Path, text: str) -> None:
    """Write a file whole, or leave the one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}.{path.name[:40]}.part")
    beside.write_text(text, encoding="utf-8", newline="\n")
    beside.replace(path)


def sources(names: Mapping[str, str], digests: Mapping[str, str], words: Mapping[str, str]) -> dict[str, Written]:
    """Return what to keep of each file's note: the digest of the file that a model's words are of."""
    return {names[path]: Written([], digests[path], said) for path, said in words.items()}


def said_before(manifest: Manifest, names: Mapping[str, str], digests: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return a model's words of files that are as they were."""
    found: dict[str, str] = {}
    for path, now in digests:
        before = manifest.notes.get(names[path])
        if before is not None and before.words and before.source == now:
            found[path] = before.words
    return found
