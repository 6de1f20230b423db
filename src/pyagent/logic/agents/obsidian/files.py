"""The files of a folder that get a note: its texts.

Hidden ones, caches, environments, links, and what lies more than `MAX_DEPTH` folders deep are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.code.folders import is_skipped
from pyagent.logic.code.outline import MAX_CHARACTERS, language_of

MAX_FILES = 20_000
MAX_DEPTH = 64
_BINARY_SAMPLE = 8_192


class SourceFile(msgspec.Struct, frozen=True):
    """A text file, by its path below the folder, with slashes."""

    path: str
    text: str
    num_bytes: int
    digest: str

    @property
    def num_lines(self) -> int:
        """How many lines it has."""
        return self.text.count("\n") + (bool(self.text) and not self.text.endswith("\n"))

    @property
    def language(self) -> str:
        """Its language by its name; empty for one that is not known."""
        return language_of(self.path)


def read_folder(root: Path, besides: Path) -> list[SourceFile]:
    """Return the texts below a folder in the order of their paths, without what lies in `besides`.

    Raises `RequestError` for a folder that cannot be read or has more than `MAX_FILES` of them.
    """
    found: list[SourceFile] = []
    for path in _paths(root, besides):
        if (file := _read(root, path)) is not None:
            found.append(file)
        if len(found) > MAX_FILES:
            raise RequestError(f"{root} has more than {MAX_FILES:,} files: name a folder in it", param="path")
    return sorted(found, key=lambda file: file.path)


def _paths(root: Path, besides: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        if Path(error.filename or "") == root:
            raise RequestError(f"{root} cannot be read: {error.strerror or error}", param="path") from error

    for folder, inner, names in os.walk(root, onerror=fail, followlinks=False):
        is_deep = len(Path(folder).relative_to(root).parts) >= MAX_DEPTH
        inner[:] = (
            []
            if is_deep
            else [name for name in inner if Path(folder, name) != besides and not is_skipped(Path(folder, name))]
        )
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _read(root: Path, path: Path) -> SourceFile | None:
    """Return a file's text; None for what is no text, cannot be read, or is too long to be written by a person."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 4 * MAX_CHARACTERS:
            return None
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        name.encode()
        if b"\0" in content[:_BINARY_SAMPLE]:
            return None
        return SourceFile(name, content.decode("utf-8-sig"), len(content), sha256(content).hexdigest())
    except (OSError, UnicodeError):
        return None
