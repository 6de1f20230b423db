"""Files below one folder that nothing leads out of: no `..`, no link, no race.

Each name is opened a part at a time, relative to the folder above it, and no part may be a link: what is swapped for a
link meanwhile is refused as well. Only regular files are read and written; a pipe or a device is none. Text is UTF-8.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from unicodedata import bidirectional, category

from pyagent.core.errors import RequestError
from pyagent.infrastructure.live_files import is_live
from pyagent.infrastructure.tools.whole_file import replace_at, status_at

MAX_FILE_BYTES = 10_000_000
MAX_ENTRIES = 50_000
"""Files and folders that a walk looks at."""
MAX_DEPTH = 64
"""Folders within folders that a walk goes into; each holds a descriptor."""
_UNPLAIN = {"Cc", "Cs", "Zl", "Zp"}
_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder and what is below it. Every method raises `RequestError` for what is not there or not allowed."""

    root: Path

    def read(self, name: str) -> str:
        """Return a file's text."""
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"{name!r} is not text in UTF-8", param="path") from error

    def read_bytes(self, name: str) -> bytes:
        """Return what a file holds."""
        with self._parent(name) as (folder, leaf):
            return _read_at(folder, leaf, name)

    def num_names(self, name: str) -> int:
        """Return how many names (hard links) a file has."""
        with self._parent(name) as (folder, leaf), _told(name):
            return os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_nlink

    def write(self, name: str, text: str) -> None:
        """Replace a file's text, or make the file, whole or not at all."""
        self.write_bytes(name, text.encode(errors="replace"), secrets.token_hex(6))

    def write_bytes(self, name: str, data: bytes, mark: str, *, is_folder_synced: bool = True) -> None:
        """Replace what a file holds, or make the file. What is written beside it has the mark in its name."""
        with self._parent(name, makes=True) as (folder, leaf):
            _check_file(folder, leaf, name)
            with _told(name):
                replace_at(folder, leaf, data, _partial(leaf, mark), is_folder_synced=is_folder_synced)

    def clear(self, name: str, mark: str) -> None:
        """Remove what a write with this mark left beside a file when its process was killed."""
        with suppress(RequestError), self._parent(name) as (folder, leaf), suppress(OSError):
            os.unlink(_partial(leaf, mark), dir_fd=folder)

    def sync(self, name: str) -> None:
        """Wait until the names in the folder of a file are on the disk."""
        with self._parent(name) as (folder, _), _told(name):
            os.fsync(folder)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._parent(name) as (folder, leaf), _told(name):
            os.unlink(leaf, dir_fd=folder)

    def files(self, name: str = ".", pattern: str = "*", *, most: int | None = None) -> Iterator[str]:
        """Yield the files below a folder whose path or name fits the pattern, in order.

        A walk ends after `MAX_ENTRIES` files and folders; with `most` one that has more is refused instead.

        Passed by are links, folders too deep, and names that would look like something else in a list: of several
        lines, with control characters, or with what turns the order of letters. So are names that are not UTF-8.
        """
        parts = _parts(name)
        with self._opened(parts, name) as folder:
            left = [MAX_ENTRIES if most is None else most]
            for path in _walk(folder, "/".join(parts), left):
                if fits(path, pattern):
                    yield path
            if most is not None and left[0] < 0:
                raise RequestError(f"{name!r} has over {most:,} files and folders: name a part of it", param="path")

    @contextmanager
    def _opened(self, parts: list[str], name: str, *, makes: bool = False) -> Generator[int]:
        """Give the folder at the end of the parts."""
        with _told(name):
            current = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                with _told(name):
                    if makes:
                        with suppress(FileExistsError):
                            os.mkdir(part, 0o777, dir_fd=current)
                    below = os.open(part, _FOLDER_FLAGS, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)

    @contextmanager
    def _parent(self, name: str, *, makes: bool = False) -> Generator[tuple[int, str]]:
        """Give the folder that a file stands in, and the file's name there."""
        parts = _parts(name)
        if not parts:
            raise RequestError(f"{name!r} names no file", param="path")
        with self._opened(parts[:-1], name, makes=makes) as folder:
            yield folder, parts[-1]


def fits(path: str, pattern: str) -> bool:
    """Return whether a file's path or name fits a pattern."""
    return pattern in {"*", "**"} or fnmatch(path, pattern) or fnmatch(PurePosixPath(path).name, pattern)


def _parts(name: str) -> list[str]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise RequestError(f"{name!r} is outside the folder; name files below it, as src/main.py", param="path")
    return [part for part in path.parts if part != "."]


@contextmanager
def _told(name: str) -> Generator[None]:
    """Say what the system refuses in words that have the name alone, and not where the folder is."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK} or (error.errno == errno.ENOTDIR and "/" in name):
            text = f"{name!r} cannot be opened: a part of it is a link or a file, and links are not followed"
            raise RequestError(text, param="path") from error
        raise RequestError(f"{name!r} cannot be opened: {error.strerror}", param="path") from error


def _read_at(folder: int, leaf: str, name: str) -> bytes:
    _check_not_live(status_at(folder, leaf), leaf, name)
    with _told(name):
        descriptor = os.open(leaf, _FILE_FLAGS, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # `fdopen` of a folder fails, and leaves it open
        os.close(descriptor)
        raise RequestError(f"{name!r} is not a file", param="path")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(f"{name!r} is over {MAX_FILE_BYTES:,} bytes", param="path")
    return data


def _check_file(folder: int, leaf: str, name: str) -> None:
    """Refuse to replace what is no file: a link, a folder, a device."""
    status = status_at(folder, leaf)
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{name!r} is not a file, and is left as it is", param="path")
    _check_not_live(status, leaf, name)


def _check_not_live(status: os.stat_result | None, leaf: str, name: str) -> None:
    """Refuse to open what this process keeps its records in: to close it again would take its locks away."""
    if status is not None and is_live(status, leaf):
        raise RequestError(f"{name!r} is a database of pyagent that is in use, and is not opened", param="path")


def _partial(leaf: str, mark: str) -> str:
    return f".{leaf[:60]}.{mark}"


def _walk(folder: int, prefix: str, left: list[int]) -> Iterator[str]:
    """Yield the files below an open folder, by their paths; folders that begin with a dot are passed by."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        if (left := _counted(left))[0] < 0:
            return
        if not _is_plain(entry.name):
            continue
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if entry.is_file(follow_symlinks=False):
            yield path
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            folders.append(entry.name)
    for name in folders if prefix.count("/") < MAX_DEPTH else ():
        try:
            below = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        except OSError:  # gone, or a link meanwhile
            continue
        try:
            yield from _walk(below, f"{prefix}/{name}" if prefix else name, left)
        finally:
            os.close(below)


def _is_plain(name: str) -> bool:
    """Whether a name reads as what it is; spaces and joiners of any script do."""
    return all(category(letter) not in _UNPLAIN and bidirectional(letter) not in _TURNING for letter in name)


def _counted(left: list[int]) -> list[int]:
    left[0] -= 1
    return left
