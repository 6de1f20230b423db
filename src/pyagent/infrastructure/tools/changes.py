"""Changes of many files that are finished or taken back whole, also after a process was killed in the middle.

What files held before a change, and what they are to hold, is on the disk before the first of them is touched; then
each is replaced whole. So at any instant each file is the old one or the new one, and its digest tells which: `finish`
and `undo` need to know nothing else. Knows nothing of why files change.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.infrastructure.private_files import make_private_folder, opened_private
from pyagent.infrastructure.tools.folder import Folder

MAX_KEPT = 50
"""Changes that can be undone; the oldest are deleted."""
MAX_KEPT_BYTES = 2_000_000_000
_PARTIAL = ".begun"
_WRITERS = 8
"""Files written at once: a disk confirms several in the time of one."""
State = Literal["prepared", "done", "undone"]


class Content(msgspec.Struct, frozen=True):
    """Where a file's bytes are kept."""

    offset: int
    num_bytes: int
    digest: str


class FileChange(msgspec.Struct, frozen=True):
    """A file below a folder. `old` is None when it was not there, `new` when it is to go."""

    root: str
    name: str
    old: Content | None
    new: Content | None

    @property
    def path(self) -> str:
        """The file, in full."""
        return str(PurePosixPath(self.root) / self.name)


class Change(msgspec.Struct, frozen=True):
    """A change of files, as it is recorded."""

    id: str
    title: str
    at: float
    files: list[FileChange]


class Draft:
    """A change that is being written down. Nothing of it happens before `ChangeStore.record` ends."""

    def __init__(self, change_id: str, texts: BinaryIO) -> None:
        self.id = change_id
        self._texts = texts
        self._offset = 0
        self.files: list[FileChange] = []

    def add(self, root: Path, name: str, old: bytes | None, new: bytes | None) -> None:
        """Add a file with what it holds, and what it is to hold."""
        self.files.append(FileChange(str(root), name, self._kept(old), self._kept(new)))

    def _kept(self, data: bytes | None) -> Content | None:
        if data is None:
            return None
        self._texts.write(data)
        self._offset += len(data)
        return Content(self._offset - len(data), len(data), digest_of(data))


class ChangeStore:
    """The changes kept in a folder, which only this user may read: it has what files held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def record(self, title: str) -> Generator[Draft]:
        """Give a draft, and make a change of it at the end, unless an error ends it. One of no files gets no id."""
        make_private_folder(self._folder)
        self._remove_old()
        change_id = f"r{secrets.token_hex(4)}"
        begun = self._folder / f"{change_id}{_PARTIAL}"
        begun.mkdir(mode=0o700)
        try:
            with open(begun / "texts", "wb", opener=opened_private) as texts:
                draft = Draft(change_id, texts)
                yield draft
                _synced(texts)
            if not draft.files:
                draft.id = ""
                shutil.rmtree(begun)
                return
            change = Change(change_id, title, time.time(), draft.files)
            with open(begun / "change.json", "wb", opener=opened_private) as file:
                file.write(msgspec.json.encode(change))
                _synced(file)
            self._set_state(begun, "prepared")
            begun.rename(self._folder / change_id)
            _sync_folder(self._folder)
        except BaseException:
            shutil.rmtree(begun, ignore_errors=True)
            raise

    def changes(self) -> list[tuple[Change, State]]:
        """Return the changes kept, newest first."""
        found = [
            self._read(path.parent.name) for path in self._folder.glob("*/change.json") if path.parent.suffix == ""
        ]
        return [(change, self._state(change.id)) for change in sorted(found, key=lambda change: -change.at)]

    def change(self, change_id: str) -> Change:
        """Return a change; raises `RequestError` for one that is not kept."""
        return self._read(change_id)

    def finish(self, change_id: str, *, leaves_others: bool = False) -> list[str]:
        """Make the files what the change says; return those left alone since they hold something else by now.

        Without `leaves_others` such files are an error, and none is touched.
        """
        return self._become(change_id, lambda file: file.new, "done", leaves_others=leaves_others)

    def undo(self, change_id: str, *, leaves_others: bool = False) -> list[str]:
        """Make the files what they were before the change, as `finish` does."""
        return self._become(change_id, lambda file: file.old, "undone", leaves_others=leaves_others)

    def discard(self, change_id: str) -> None:
        """Forget a change of which nothing was done."""
        shutil.rmtree(self._folder / self._read(change_id).id)

    def apply(self, change_id: str) -> None:
        """Finish a change that has just been recorded; where that fails what was done of it is taken back."""
        try:
            self.finish(change_id)
        except BaseException:
            self.undo(change_id, leaves_others=True)
            raise

    def _become(
        self, change_id: str, target: Callable[[FileChange], Content | None], state: State, *, leaves_others: bool
    ) -> list[str]:
        change = self._read(change_id)
        with self._locked(change_id) as texts, ThreadPoolExecutor(_WRITERS) as pool:
            held = list(pool.map(_held, change.files))
            others = [file for file, digest in zip(change.files, held, strict=True) if not _is_known(file, digest)]
            if others and not leaves_others:
                raise _changed_since(change, others)
            todo = [
                file
                for file, digest in zip(change.files, held, strict=True)
                if file not in others and digest != _digest(target(file))
            ]
            list(pool.map(partial(_write, target=target, texts=texts, mark=change_id), todo))
            for file in change.files if len(todo) < len(change.files) else ():
                Folder(Path(file.root)).clear(file.name, change_id)
            _sync_parents(todo)
            self._set_state(self._folder / change_id, state)
        return [file.path for file in others]

    @contextmanager
    def _locked(self, change_id: str) -> Generator[int]:
        """Give the kept bytes' descriptor; raises `RequestError` while another process works on the change."""
        descriptor = os.open(self._folder / change_id / "texts", os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"another process works on the change {change_id}; wait for its end"
                raise RequestError(text, param="change") from error
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, change_id: str) -> Change:
        if not (change_id.isascii() and change_id.isalnum()):
            raise _no_change(change_id)
        try:
            return msgspec.json.decode((self._folder / change_id / "change.json").read_bytes(), type=Change)
        except FileNotFoundError as error:
            raise _no_change(change_id) from error
        except (OSError, msgspec.DecodeError) as error:
            raise RequestError(f"the change {change_id} cannot be read: {error}", param="change") from error

    def _state(self, change_id: str) -> State:
        text = (self._folder / change_id / "state").read_text()
        return "done" if text == "done" else "undone" if text == "undone" else "prepared"

    def _set_state(self, folder: Path, state: State) -> None:
        partial = folder / "state.new"
        with open(partial, "w", opener=opened_private) as file:
            file.write(state)
            _synced(file)
        partial.rename(folder / "state")
        _sync_folder(folder)

    def _remove_old(self) -> None:
        """Delete the oldest changes that are over, and what never became one."""
        for begun in self._folder.glob(f"*{_PARTIAL}"):
            if time.time() - begun.stat().st_mtime > 86_400:  # another process's may be under way
                shutil.rmtree(begun, ignore_errors=True)
        num_bytes = 0
        for number, (change, state) in enumerate(self.changes(), 1):
            num_bytes += (self._folder / change.id / "texts").stat().st_size
            if state != "prepared" and (number >= MAX_KEPT or num_bytes > MAX_KEPT_BYTES):
                shutil.rmtree(self._folder / change.id, ignore_errors=True)


def digest_of(data: bytes) -> str:
    """Return what tells one content from another."""
    return blake2b(data, digest_size=16).hexdigest()


def _digest(content: Content | None) -> str | None:
    return None if content is None else content.digest


def _held(file: FileChange) -> str | None:
    """Return the digest of what a file holds now; None when it is not there, "" when it cannot be read."""
    try:
        return digest_of(Folder(Path(file.root)).read_bytes(file.name))
    except RequestError as error:
        return None if isinstance(error.__cause__, FileNotFoundError) else ""


def _is_known(file: FileChange, digest: str | None) -> bool:
    return digest in {_digest(file.old), _digest(file.new)}


def _write(file: FileChange, target: Callable[[FileChange], Content | None], texts: int, mark: str) -> None:
    folder, content = Folder(Path(file.root)), target(file)
    if content is None:
        folder.remove(file.name)
        return
    data = os.pread(texts, content.num_bytes, content.offset)
    if digest_of(data) != content.digest:
        raise RequestError(f"what {file.path} held is damaged where it is kept", param="change")
    folder.write_bytes(file.name, data, mark, is_folder_synced=False)


def _sync_parents(files: Iterable[FileChange]) -> None:
    """Wait until the new names are on the disk, once a folder."""
    for file in {PurePosixPath(file.path).parent: file for file in files}.values():
        Folder(Path(file.root)).sync(file.name)


def _changed_since(change: Change, others: list[FileChange]) -> RequestError:
    shown = ", ".join(file.path for file in others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
    text = f"{shown} changed after {change.id} ({change.title}); nothing is written"
    return RequestError(text, param="change", code="changed")


def _no_change(change_id: str) -> RequestError:
    text = f"there is no change {change_id!r:.80} to undo or finish; `pyagent replace --list` shows those there are"
    return RequestError(text, param="change")


def _synced(file: IO[bytes] | IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
