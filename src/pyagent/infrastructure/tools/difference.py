"""What changed in a text, as `diff -u` shows it, in time that is bounded for any two texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import islice

_MAX_COMPARED = 4_000_000
"""Lines of the one text times lines of the other, past their equal ends, that are compared."""
_NO_NEWLINE = "\\ No newline at end of file"
_Hunk = tuple[int, int, int, int]


def difference(name: str, old: str, new: str, *, context: int = 3, max_lines: int | None = None) -> str:
    """Return the difference of a file, lines joined by newlines; "" where there is none."""
    if old == new:
        return ""
    before, after = _lines(old), _lines(new)
    hunks = list(_grouped(_changed(before, after), context))
    lines = islice(_shown(before, after, hunks, context), max_lines)
    cut = list(lines)
    more = ["[more changes are not shown]"] if max_lines is not None and len(cut) == max_lines else []
    return "\n".join([f"--- {name}", f"+++ {name}", *cut, *more])


def _lines(text: str) -> list[str]:
    """Return the lines with their ends; a carriage return alone ends none, as in `diff`."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()
    return lines if last == "\n" else [*lines, last[:-1]]


def _changed(before: list[str], after: list[str]) -> Iterator[_Hunk]:
    """Yield the spans of lines that differ."""
    if len(before) == len(after):
        begin = None
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if old == new and begin is not None:
                yield begin, index, begin, index
                begin = None
            elif old != new and begin is None:
                begin = index
        if begin is not None:
            yield begin, len(before), begin, len(after)
        return
    head = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    most = min(len(before), len(after)) - head
    tail = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(old) * len(new) > _MAX_COMPARED:
        yield head, head + len(old), head, head + len(new)
        return
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield head + a, head + b, head + c, head + d


def _grouped(hunks: Iterator[_Hunk], context: int) -> Iterator[list[_Hunk]]:
    """Yield the spans that stand together: what is between them is shown whole."""
    together: list[_Hunk] = []
    for hunk in hunks:
        if together and hunk[0] - together[-1][1] > 2 * context:
            yield together
            together = []
        together.append(hunk)
    if together:
        yield together


def _shown(before: list[str], after: list[str], groups: list[list[_Hunk]], context: int) -> Iterator[str]:
    for group in groups:
        lead = min(context, group[0][0])
        trail = min(context, len(before) - group[-1][1])
        a, b = group[0][0] - lead, group[-1][1] + trail
        c, d = group[0][2] - lead, group[-1][3] + trail
        yield f"@@ -{_span(a, b)} +{_span(c, d)} @@"
        place = a
        for old_begin, old_end, new_begin, new_end in group:
            yield from _marked(" ", before[place:old_begin])
            yield from _marked("-", before[old_begin:old_end])
            yield from _marked("+", after[new_begin:new_end])
            place = old_end
        yield from _marked(" ", before[place:b])


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_NEWLINE


def _span(begin: int, end: int) -> str:
    length = end - begin
    return f"{begin + 1 if length else begin},{length}"
