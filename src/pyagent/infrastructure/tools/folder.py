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
        with self._parent(name) as (folder, leaf):
            return _read_at(folder, leaf, name)

    def write(self, name: str, text: str) -> bool:
        """Replace a file's text, or make the file, whole or not at all; return whether it was there."""
        with self._parent(name, makes=True) as (folder, leaf):
            mode = _mode_of(folder, leaf, name)
            _write_at(folder, leaf, text, mode)
            return mode is not None

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._parent(name) as (folder, leaf), _told(name):
            os.unlink(leaf, dir_fd=folder)

    def files(self, name: str = ".", pattern: str = "*") -> Iterator[str]:
        """Yield the files below a folder whose path or name fits the pattern, in order.

        Passed by are links, folders too deep, and names that would look like something else in a list: of several
        lines, with control characters, or with what turns the order of letters. So are names that are not UTF-8.
        """
        parts = _parts(name)
        with self._opened(parts, name) as folder:
            left = [MAX_ENTRIES]
            for path in _walk(folder, "/".join(parts), left):
                if pattern in {"*", "**"} or fnmatch(path, pattern) or fnmatch(PurePosixPath(path).name, pattern):
                    yield path

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


def _read_at(folder: int, leaf: str, name: str) -> str:
    with _told(name):
        descriptor = os.open(leaf, _FILE_FLAGS, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"{name!r} is not a file", param="path")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(f"{name!r} is over {MAX_FILE_BYTES:,} bytes", param="path")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{name!r} is not text in UTF-8", param="path") from error


def _mode_of(folder: int, leaf: str, name: str) -> int | None:
    """Return the mode of a file that is to be replaced; None when there is none. A link or a folder is refused."""
    try:
        status = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{name!r} is not a file, and is left as it is", param="path")
    return stat.S_IMODE(status.st_mode)


def _write_at(folder: int, leaf: str, text: str, mode: int | None) -> None:
    """Write beside the file, then put it in its place: a reader sees the old text or the new, also after a crash."""
    partial = f".{leaf[:100]}.{secrets.token_hex(6)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _told(leaf):
        descriptor = os.open(partial, flags, 0o666 if mode is None else mode, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode(errors="replace"))
                file.flush()
                if mode is not None:
                    os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            os.rename(partial, leaf, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise
        os.fsync(folder)


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
