"""Unified diffs, as `diff -u` and `git diff` write them: read strictly, and applied to texts. Knows no files.

What a diff says besides lines (renames, modes, links, binary files) is refused, so that nothing of it is lost unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from pyagent.core.errors import RequestError

MAX_PATCH_CHARACTERS = 2_000_000
MAX_PATCHED_FILES = 200
_MAX_HUNKS = 1_000
_MAX_SEARCHED = 2_000_000
"""Lines of a file times lines of a hunk, up to which a hunk is looked for elsewhere than it says."""
_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@")
_NOWHERE = "/dev/null"
_MORE_THAN_LINES = ("rename from ", "copy from ", "old mode ", "Binary files ", "GIT binary patch")
_SIGNATURE = "-- "
"""What `git format-patch` ends with."""


class Hunk(msgspec.Struct, frozen=True):
    """Lines, with their ends, that replace others; `begin` of them stand before it, says the diff."""

    begin: int
    old: list[str]
    new: list[str]


class FilePatch(msgspec.Struct, frozen=True):
    """What a diff does to one file."""

    name: str
    is_new: bool
    is_removed: bool
    hunks: list[Hunk]

    def applied(self, text: str) -> str:
        """Return the text after it; raises `RequestError` where the text is not the one it was made for."""
        before = _lines(text)
        after, place = list[str](), 0
        for number, hunk in enumerate(self.hunks, 1):
            at = _place(before, hunk, place)
            if at is None:
                told = f"the lines of hunk {number} do not stand in {self.name!r}, or more than once; read it again"
                raise RequestError(told, param="patch")
            after += [*before[place:at], *hunk.new]
            place = at + len(hunk.old)
        after += before[place:]
        if any(not line.endswith("\n") for line in after[:-1]):
            raise RequestError(f"the patch of {self.name!r} puts lines after a last line without end", param="patch")
        if self.is_removed and after:
            raise RequestError(f"the patch removes {self.name!r}, but not all of its lines", param="patch")
        return "".join(after)


def read_patch(text: str) -> list[FilePatch]:
    """Return what a unified diff does, a file at a time; raises `RequestError` for what is none."""
    if len(text) > MAX_PATCH_CHARACTERS:
        raise RequestError(f"the patch is over {MAX_PATCH_CHARACTERS:,} characters", param="patch")
    lines = text.removesuffix("\n").split("\n")
    files = list(_files(lines))
    if not files:
        raise RequestError("the patch has no file; give a unified diff, with lines --- and +++ and @@", param="patch")
    if sum(line.startswith("diff --git ") for line in lines) > len(files):
        text = "the patch changes a file otherwise than by lines (an empty file, say); give changes of lines alone"
        raise RequestError(text, param="patch")
    if len(files) > MAX_PATCHED_FILES or sum(len(file.hunks) for file in files) > _MAX_HUNKS:
        text = f"the patch has over {MAX_PATCHED_FILES} files or {_MAX_HUNKS:,} hunks; give a smaller one"
        raise RequestError(text, param="patch")
    return files


def _files(lines: list[str]) -> Iterator[FilePatch]:
    index = 0
    while index < len(lines):
        line = lines[index].rstrip("\r")
        if line.startswith(_MORE_THAN_LINES) or (line.startswith("new file mode ") and not line.endswith(" 100644")):
            raise _wrong(index, f"{line!r:.60} is more than a change of lines, which is all that is done")
        if line.startswith("@@ "):
            raise _wrong(index, "a hunk stands where none can: the counts of the one before are wrong, or no +++")
        if not (line.startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")):
            index += 1
            continue
        old, new = _names(line, lines[index + 1].rstrip("\r"), index)
        hunks, after = _hunks(lines, index + 2)
        is_new, is_removed = old == _NOWHERE, new == _NOWHERE
        if is_new and any(hunk.old for hunk in hunks):
            raise _wrong(index, "a new file has no old lines")
        yield FilePatch(old if is_removed else new, is_new, is_removed, hunks)
        index = after


def _names(before: str, after: str, index: int) -> tuple[str, str]:
    old, new = (line[4:].split("\t")[0].strip() for line in (before, after))
    if old.startswith("a/") or old == _NOWHERE:
        new = new.removeprefix("b/")
        if old.startswith("a/") and (new == _NOWHERE or new == old[2:]):
            old = old[2:]
    if not old or not new or old == new == _NOWHERE or old.startswith('"') or new.startswith('"'):
        raise _wrong(index, "the lines --- and +++ need a plain name each, as a/src/main.py and b/src/main.py")
    if old != new and _NOWHERE not in {old, new}:
        raise _wrong(index, f"{old!r:.80} would become {new!r:.80}; files are not renamed")
    return old, new


def _hunks(lines: list[str], index: int) -> tuple[list[Hunk], int]:
    hunks = list[Hunk]()
    while index < len(lines) and (head := _HUNK.match(lines[index])):
        begin, num_old, num_new = int(head[1]), int(head[2] or 1), int(head[4] or 1)
        old, new, after = _body(lines, index + 1, num_old, num_new)
        hunks.append(Hunk(begin - 1 if num_old else begin, old, new))
        index = after
    if not hunks:
        raise _wrong(index, "expected a hunk, as @@ -1,3 +1,4 @@")
    if index < len(lines) and lines[index][:1] in {" ", "+", "-"} and not _ends_file(lines, index):
        raise _wrong(index, "the hunk before has more lines than its @@ says")
    return hunks, index


def _ends_file(lines: list[str], index: int) -> bool:
    following = lines[index + 1] if index + 1 < len(lines) else ""
    return lines[index].rstrip("\r") == _SIGNATURE or (lines[index].startswith("--- ") and following.startswith("+++ "))


def _body(lines: list[str], index: int, num_old: int, num_new: int) -> tuple[list[str], list[str], int]:
    """Return a hunk's old and new lines, and where it ends."""
    old, new = list[str](), list[str]()
    touched: list[list[str]] = []
    while index < len(lines):
        line = lines[index]
        if line.startswith("\\") and touched:
            for side in touched:
                side[-1] = side[-1].removesuffix("\n")
        elif len(old) == num_old and len(new) == num_new:
            break
        else:
            touched = _sides(line, old, new, index)
            for side in touched:
                side.append((line[1:] if line.strip("\r") else line) + "\n")
        index += 1
    if len(old) != num_old or len(new) != num_new:
        raise _wrong(index, f"the hunk has {len(old)} old and {len(new)} new lines, its @@ says {num_old}, {num_new}")
    return old, new, index


def _sides(line: str, old: list[str], new: list[str], index: int) -> list[list[str]]:
    match line[:1]:
        case " " | "" | "\r":  # an editor took the space of an empty line away
            return [old, new]
        case "-":
            return [old]
        case "+":
            return [new]
        case _:
            raise _wrong(index, "a line of a hunk begins with a space, + or -")


def _place(lines: list[str], hunk: Hunk, least: int) -> int | None:
    """Return where a hunk's old lines stand: where it says, or else the only place where they do."""
    length = len(hunk.old)
    if least <= hunk.begin <= len(lines) and lines[hunk.begin : hunk.begin + length] == hunk.old:
        return hunk.begin
    if not length or len(lines) * length > _MAX_SEARCHED:
        return None
    found = None
    for at in range(least, len(lines) - length + 1):
        if lines[at : at + length] == hunk.old:
            if found is not None:
                return None
            found = at
    return found


def _lines(text: str) -> list[str]:
    """Return the lines with their ends; a carriage return alone ends none."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def _wrong(index: int, told: str) -> RequestError:
    return RequestError(f"line {index + 1} of the patch: {told}", param="patch")
