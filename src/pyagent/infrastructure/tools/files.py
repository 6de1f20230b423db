"""Tools for files below one folder: read, list, search; write, edit, replace in many, and undo.

A run of a server's client reads below the server's `files_root` and changes nothing. What a change replaced is kept for
`undo_change`: of one file in memory, as long as the program runs; of many on the disk (`changes`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import current_access
from pyagent.core.fleet.tool_functions import tool
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.tools.bulk_replace import Plan, Replacement, prepare, preview
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.difference import difference
from pyagent.infrastructure.tools.folder import Folder

T = TypeVar("T")
_MAX_LINES = 2_000
_MAX_LINE_CHARACTERS = 2_000
_MAX_LISTED = 1_000
_MAX_MATCHES = 200
_MAX_SEARCHED = 200_000_000
_MAX_CHANGES = 50
_MAX_KEPT_BYTES = 64_000_000
_MAX_SHOWN_LINES = 60
_MAX_SHOWN_FILES = 200

Name = Annotated[str, msgspec.Meta(description="A path below the folder, as src/main.py.", min_length=1)]
Glob = Annotated[str, msgspec.Meta(description="Names or paths to take, as *.py or src/*.py.")]


class Change(msgspec.Struct, frozen=True):
    """What files had before a change (None: they were not there), and what it made of them."""

    before: dict[str, str | None]
    after: dict[str, str]

    @property
    def num_bytes(self) -> int:
        """What it takes, about."""
        return sum(len(text or "") for files in (self.before, self.after) for text in files.values())


class FileTools:
    """The tools of one folder; changes may be undone, newest first. `store` keeps those of many files."""

    def __init__(self, root: Path, store: ChangeStore) -> None:
        self._root = root
        self._store = store
        self._changes: OrderedDict[str, Change] = OrderedDict()
        self._num_changes = 0

    def reading(self) -> list[FleetTool]:
        """Return the tools that change nothing."""
        return [
            tool(name="read_file", effect="none")(self.read_file),
            tool(name="list_files", effect="none")(self.list_files),
            tool(name="search_files", effect="none")(self.search_files),
        ]

    def writing(self) -> list[FleetTool]:
        """Return the tools that change files; a person allows each call."""
        return [
            tool(name="write_file", effect="idempotent", needs_approval=True)(self.write_file),
            tool(name="edit_file", effect="once", needs_approval=True)(self.edit_file),
            tool(name="replace_in_files", effect="once", needs_approval=True)(self.replace_in_files),
            tool(name="undo_change", effect="once", needs_approval=True)(self.undo_change),
        ]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def read_file(self, path: Name, first_line: int = 1, num_lines: int = _MAX_LINES) -> str:
        """Read a text file, its lines numbered from first_line on."""
        text = await _aside(lambda: self._folder().read(path))
        lines = text.splitlines()
        begin = max(1, first_line)
        shown = lines[begin - 1 : begin - 1 + max(1, min(num_lines, _MAX_LINES))]
        numbered = [f"{number}\t{line[:_MAX_LINE_CHARACTERS]}" for number, line in enumerate(shown, begin)]
        left = len(lines) - (begin - 1 + len(shown))
        return "\n".join([*numbered, *([f"[{left} more lines]"] if left > 0 else [])]) or "[the file is empty]"

    async def list_files(self, path: str = ".", pattern: Glob = "*") -> str:
        """List the files below a folder."""
        found = await _aside(lambda: list(islice(self._folder().files(path, pattern), _MAX_LISTED + 1)))
        more = [f"[more than {_MAX_LISTED} files; give a pattern]"] if len(found) > _MAX_LISTED else []
        return "\n".join([*found[:_MAX_LISTED], *more]) or "[no files]"

    async def search_files(
        self,
        text: Annotated[str, msgspec.Meta(description="What to look for, letter by letter.", min_length=1)],
        path: str = ".",
        pattern: Glob = "*",
        ignore_case: bool = False,
    ) -> str:
        """Find the lines of files that have a text."""
        found = await _aside(lambda: self._matches(text, path, pattern, ignore_case=ignore_case))
        more = [f"[more than {_MAX_MATCHES} lines; say more of what to look for]"] if len(found) > _MAX_MATCHES else []
        return "\n".join([*found[:_MAX_MATCHES], *more]) or "[no line has it]"

    def _matches(self, text: str, path: str, pattern: str, *, ignore_case: bool) -> list[str]:
        folder, found, num_left = self._folder(), list[str](), _MAX_SEARCHED
        wanted = text.casefold() if ignore_case else text
        for name in folder.files(path, pattern):
            if num_left <= 0:
                return [*found, f"[stopped at {name}: give a folder or a pattern]"]
            read = _text_or_nothing(folder, name)
            num_left -= len(read)
            for number, line in enumerate(read.splitlines(), 1):
                if wanted in (line.casefold() if ignore_case else line):
                    found.append(f"{name}:{number}: {line.strip()[:200]}")
            if len(found) > _MAX_MATCHES:
                break
        return found

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write_file(self, path: Name, content: str) -> str:
        """Write a whole file, making it and its folders where they are not there."""
        return await _aside(lambda: self._change({path: content}))

    async def edit_file(
        self,
        path: Name,
        old: Annotated[str, msgspec.Meta(description="The text to replace, exactly as in the file.", min_length=1)],
        new: str,
        replace_all: bool = False,
    ) -> str:
        """Replace a text in a file; it must be there once, unless all are to be replaced."""
        return await _aside(lambda: self._change({path: self._edited(path, old, new, replace_all=replace_all)}))

    async def replace_in_files(  # noqa: PLR0913, PLR0917 - what a model may say
        self,
        old: Annotated[str, msgspec.Meta(description="The text to replace, letter by letter.", min_length=1)],
        new: str,
        path: str = ".",
        pattern: Glob = "*",
        regex: Annotated[bool, msgspec.Meta(description="old is a regular expression, and new may have $1.")] = False,
        preview: Annotated[bool, msgspec.Meta(description="Only show what would change.")] = False,
    ) -> str:
        """Replace a text wherever it stands in the files below a folder; a file that fails leaves all as they were."""
        wanted = Replacement(pattern=old, replacement=new, is_regex=regex)
        return await _aside(lambda: self._replaced(wanted, path, pattern, is_shown=preview))

    async def undo_change(
        self, change: Annotated[str, msgspec.Meta(description="The change's id, as it was told.")]
    ) -> str:
        """Put the files of a change back as they were before it."""
        return await _aside(lambda: self._undone(change))

    def _edited(self, path: str, old: str, new: str, *, replace_all: bool) -> str:
        text = self._writable().read(path)
        count = text.count(old)
        if count == 0:
            raise RequestError(f"{path} does not have the text to replace; read it again", param="old")
        if count > 1 and not replace_all:
            text = f"{path} has the text {count} times: give more of what stands around it, or replace_all"
            raise RequestError(text, param="old")
        return text.replace(old, new)

    def _replaced(self, wanted: Replacement, path: str, pattern: str, *, is_shown: bool) -> str:
        folder, lines = self._writable(), list[str]()
        targets = ((folder.root, name) for name in folder.files(path, pattern))
        if is_shown:
            preview(wanted, targets, lambda text: lines.extend(text.splitlines()[: _MAX_SHOWN_LINES + 2]))
            more = [f"[{len(lines) - _MAX_LINES} more lines]"] if len(lines) > _MAX_LINES else []
            return "\n".join([*lines[:_MAX_LINES], *more]) or "[no file has it]"
        plan = prepare(wanted, targets, self._store)
        if not plan.change:
            return "[no file has it]"
        self._store.apply(plan.change)
        return _told(plan, folder)

    def _change(self, name_to_text: dict[str, str]) -> str:
        """Write the files, all or none; return what was done, with the id to undo it by."""
        folder = self._writable()
        before: dict[str, str | None] = {}
        try:
            for name, text in name_to_text.items():
                old = _old_text(folder, name)
                folder.write(name, text)
                before[name] = old
        except BaseException:
            _put_back(folder, before)
            raise
        self._num_changes += 1
        change = f"c{self._num_changes}"
        self._changes[change] = Change(before, dict(name_to_text))
        while len(self._changes) > _MAX_CHANGES or (len(self._changes) > 1 and self._kept_bytes() > _MAX_KEPT_BYTES):
            self._changes.popitem(last=False)
        shown = [
            difference(name, before[name] or "", text, context=1, max_lines=_MAX_SHOWN_LINES)
            for name, text in name_to_text.items()
        ]
        return "\n".join([f"changed {len(before)} files; undo_change takes {change} back", *shown])

    def _undone(self, change: str) -> str:
        folder = self._writable()
        if change.startswith("r") and all(file.root == str(folder.root) for file in self._store.change(change).files):
            self._store.undo(change)
            return f"put back {len(self._store.change(change).files)} files"
        if change not in self._changes:
            there = ", ".join(self._changes) or "none"
            raise RequestError(f"there is no change {change!r} to undo; there are {there}", param="change")
        kept = self._changes[change]
        later = [name for name, text in kept.after.items() if _old_text(folder, name) != text]
        if later:
            raise RequestError(f"{', '.join(later)} changed after {change}; undo what came later first", param="change")
        _put_back(folder, kept.before)
        del self._changes[change]
        return f"put back {', '.join(kept.before)}"

    def _kept_bytes(self) -> int:
        return sum(change.num_bytes for change in self._changes.values())

    # -- where --------------------------------------------------------------------------------------------------------

    def _folder(self) -> Folder:
        """Return the folder that the run may read."""
        access = current_access()
        if not access.is_limited:
            return Folder(self._root)
        if access.root is None:
            raise RequestError(
                "agents of this run read no files; server.files_root names a folder for clients", param="path"
            )
        return Folder(access.root)

    def _writable(self) -> Folder:
        if current_access().is_limited:
            raise RequestError("a client of a server may change no files", param="path")
        return Folder(self._root)


async def _aside(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


def _told(plan: Plan, folder: Folder) -> str:
    """Say what was replaced, with the id to undo it by."""
    lines = [f"changed {len(plan.files)} files; undo_change takes {plan.change} back"]
    root = Path(folder.root)
    for file in plan.files[:_MAX_SHOWN_FILES]:
        note = f" ({file.note})" if file.note else ""
        lines.append(f"{Path(file.path).relative_to(root)}: {file.num_matches}{note}")
    return "\n".join(lines)


def _text_or_nothing(folder: Folder, name: str) -> str:
    try:
        return folder.read(name)
    except RequestError:  # not text, too long, or gone
        return ""


def _old_text(folder: Folder, name: str) -> str | None:
    """Return a file's text; None when there is none. One that cannot be read is not replaced, as it has no undo."""
    try:
        return folder.read(name)
    except RequestError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _put_back(folder: Folder, before: dict[str, str | None]) -> None:
    for name, text in before.items():
        if text is None:
            folder.remove(name)
        else:
            folder.write(name, text)
