"""Search and replace in many files: what would change, and the change.

A plan reads each file once and writes down what it held and what it is to hold (`changes`); no file is touched
before that is on the disk. What is not text, too long or a link is left alone and told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.errors import RequestError
from pyagent.infrastructure.tools.changes import ChangeStore, Draft
from pyagent.infrastructure.tools.difference import difference
from pyagent.infrastructure.tools.encodings import NotTextError, checked_encoding, decoded
from pyagent.infrastructure.tools.folder import MAX_FILE_BYTES, Folder, fits

if TYPE_CHECKING:
    from pyagent._rust import Replacer

MAX_FILES = 100_000
_MAX_ENTRIES = 1_000_000
_MAX_CHANGED_BYTES = 1_000_000_000
_MAX_SECONDS_A_FILE = 5.0


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """What to replace by what, in which files.

    With `is_regex` the pattern is one of Rust's `regex`, which takes linear time for each match.
    """

    pattern: str
    replacement: str
    is_regex: bool = False
    ignore_case: bool = False
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    encoding: str | None = None

    @property
    def title(self) -> str:
        """The replacement in a few words."""
        return f"{self.pattern:.60} -> {self.replacement:.60}"

    def replacer(self) -> Replacer:
        """Return the compiled pattern; raises `RequestError` for one that is none."""
        if not self.pattern:
            raise RequestError("the pattern is empty; give the text to replace", param="pattern")
        from pyagent._rust import Replacer  # the extension is loaded when it is first used

        try:
            return Replacer(self.pattern, self.replacement, is_regex=self.is_regex, ignore_case=self.ignore_case)
        except UnicodeEncodeError as error:
            raise RequestError("the pattern and the replacement have to be text", param="pattern") from error
        except ValueError as error:
            raise RequestError(f"the pattern cannot be used: {error}", param="pattern") from error

    def takes(self, name: str) -> bool:
        """Return whether a file below a folder is one of those meant."""
        parts = PurePosixPath(name).parts
        if any(fits(name, glob) or any(fnmatch(part, glob) for part in parts) for glob in self.exclude):
            return False
        return not self.include or any(fits(name, glob) for glob in self.include)


class Found(msgspec.Struct, frozen=True):
    """A file that changes: how often it matched, and what to say of it."""

    path: str
    num_matches: int
    note: str = ""


class Skipped(msgspec.Struct, frozen=True):
    """A file that is left alone, and why."""

    path: str
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """What a replacement does. `change` is its id in the store; "" where nothing matches, or it was only shown."""

    files: list[Found]
    skipped: list[Skipped]
    num_read: int
    change: str = ""

    @property
    def num_matches(self) -> int:
        """Matches in all files."""
        return sum(file.num_matches for file in self.files)


Target = tuple[Path, str] | Skipped
"""A file, by a folder and the name below it; or one that is left alone."""


def preview(replacement: Replacement, targets: Iterable[Target], show: Callable[[str], object]) -> Plan:
    """Show what would change, a file at a time, and write nothing."""
    work = _Work(replacement)
    for root, name, old, new in work.changes(targets):
        before, after = decoded(old, work.encoding).text, decoded(new, work.encoding).text
        show(difference(str(root / name), before, after))
    return work.plan()


def prepare(replacement: Replacement, targets: Iterable[Target], store: ChangeStore) -> Plan:
    """Write a change down; `store.apply` makes it. Nothing is kept where nothing matches."""
    work = _Work(replacement)
    try:
        with store.record(replacement.title) as draft:
            _fill(draft, work, targets)
    except OSError as error:
        raise RequestError(
            f"the change cannot be written down: {error.strerror}; set paths.data", param="paths"
        ) from error
    return work.plan(draft.id)


def _fill(draft: Draft, work: _Work, targets: Iterable[Target]) -> None:
    num_bytes = 0
    for root, name, old, new in work.changes(targets):
        draft.add(root, name, old, new)
        num_bytes += len(old) + len(new)
        if num_bytes > _MAX_CHANGED_BYTES:
            text = f"over {_MAX_CHANGED_BYTES:,} bytes would change at once: name fewer files"
            raise RequestError(text, param="paths")


class _Work:
    """One pass over the files."""

    def __init__(self, replacement: Replacement) -> None:
        self._wanted = replacement
        self._replacer = replacement.replacer()
        self.encoding = checked_encoding(replacement.encoding)
        self._skipped: list[Skipped] = []
        self._found: list[Found] = []
        self._num_read = 0

    def plan(self, change: str = "") -> Plan:
        return Plan(self._found, self._skipped, self._num_read, change)

    def changes(self, targets: Iterable[Target]) -> Iterator[tuple[Path, str, bytes, bytes]]:
        """Yield the files that change: folder, name below it, bytes before and after."""
        seen: set[Path] = set()
        for target in targets:
            if isinstance(target, Skipped):
                self._skipped.append(target)
                continue
            root, name = target
            path = root / name
            if not self._wanted.takes(name) or path in seen:
                continue
            seen.add(path)
            if self._num_read >= MAX_FILES:
                raise RequestError(f"these are over {MAX_FILES:,} files: name fewer", param="paths")
            self._num_read += 1
            if (changed := self._changed(root, name)) is not None:
                yield root, name, *changed

    def _changed(self, root: Path, name: str) -> tuple[bytes, bytes] | None:
        path = str(root / name)
        try:
            old = Folder(root).read_bytes(name)
            replaced = self._replaced(old)
            if replaced is None or replaced[0] == old:
                return None
            num_names = Folder(root).num_names(name)
        except (NotTextError, RequestError, ValueError) as error:
            self._skipped.append(Skipped(path, str(error)))
            return None
        note = f"has {num_names} names (hard links); the others keep the old text" if num_names > 1 else ""
        self._found.append(Found(path, replaced[1], note))
        return old, replaced[0]

    def _replaced(self, old: bytes) -> tuple[bytes, int] | None:
        before = decoded(old, self.encoding)
        replaced = self._replacer.replace(before.text, MAX_FILE_BYTES, _MAX_SECONDS_A_FILE)
        if replaced is None:
            return None
        text, count = replaced
        return before.encoded(text), count


def targets_of(paths: Iterable[Path]) -> Iterator[Target]:
    """Yield each file that the paths name or hold; raises `RequestError` for a path where nothing is."""
    for path in paths:
        parent = Path(os.path.realpath(path.parent))
        full = parent / path.name if path.name else parent
        if full.is_symlink():
            yield Skipped(str(path), "a link; name what it leads to")
        elif full.is_dir():
            yield from ((full, name) for name in Folder(full).files(most=_MAX_ENTRIES))
        elif full.is_file():
            yield parent, full.name
        elif full.exists():
            yield Skipped(str(path), "neither a file nor a folder")
        else:
            raise RequestError(f"there is no file or folder {str(path)!r}", param="paths")
