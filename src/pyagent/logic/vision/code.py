"""Code from a screenshot: indentation from where lines begin, blank lines from the gaps between them.

Editors and terminals show code in letters of one width, so a line's beginning divided by that width is its indentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from pyagent.logic.vision.rows import character_width, rows_of
from pyagent.logic.vision.seen import TextBox

_WIDE_SIGNS = str.maketrans(
    "（）［］｛｝：；，．＝＋－＊／＜＞＂＇！？＃＆｜％＠｀～＿、。“”‘’", "()[]{}:;,.=+-*/<>\"'!?#&|%@`~_,.\"\"''"
)
"""What OCR that also reads Chinese takes for signs of code."""
_MAX_LINE_NUMBERS_SHARE = 0.6
_OFF_LEVEL = 0.2
"""Of a level: how far a line may begin beside it."""


def code_of(pieces: Sequence[TextBox]) -> str:
    """Return the lines with their indentation and the blank lines between them."""
    rows = _without_line_numbers(rows_of(pieces))
    if not rows:
        return ""
    width = character_width([piece for row in rows for piece in row])
    columns = _columns([row[0].box.left for row in rows], width)
    lines: list[str] = []
    pitch = _pitch(rows)
    for number, (row, column) in enumerate(zip(rows, columns, strict=True)):
        if number:
            gap = row[0].box.center[1] - rows[number - 1][0].box.center[1]
            lines += [""] * min(5, max(0, round(gap / pitch) - 1))
        lines.append(" " * column + _joined(row, width))
    return "\n".join(lines)


def _joined(row: Sequence[TextBox], width: float) -> str:
    text = row[0].text
    for before, piece in pairwise(row):
        text += " " * max(1, round((piece.box.left - before.box.right) / width)) + piece.text
    return text.translate(_WIDE_SIGNS)


def _pitch(rows: Sequence[Sequence[TextBox]]) -> float:
    """Return how far lines that follow each other are apart: the middle of the smaller gaps."""
    centers = [row[0].box.center[1] for row in rows]
    gaps = sorted(below - above for above, below in pairwise(centers))
    return max(1.0, median(gaps[: len(gaps) // 2 + 1])) if gaps else 1.0


def _columns(lefts: Sequence[float], width: float) -> list[int]:
    """Return at how many characters lines begin: multiples of one level, where all lines begin at such.

    OCR's boxes are wider than the letters and lose blanks, so the width of a character is a third too large at worst;
    which of two, four and eight characters a level has, it tells all the same.
    """
    offsets = [left - min(lefts) for left in lefts]
    indented = [offset for offset in offsets if offset > 1.25 * width]
    first = min(indented, default=0.0)
    unit = sum(indented) / sum(round(offset / first) for offset in indented) if indented else 0.0
    steps = [offset / unit for offset in indented] if unit else []
    if all(abs(step - round(step)) < _OFF_LEVEL for step in steps):
        level = 2 if unit < 2.75 * width else 4 if unit < 5.6 * width else 8
        return [level * round(offset / unit) if unit and offset > 1.25 * width else 0 for offset in offsets]
    return [round(offset / width) if offset > 1.25 * width else 0 for offset in offsets]


def _without_line_numbers(rows: list[list[TextBox]]) -> list[list[TextBox]]:
    """Return the rows without the numbers that an editor shows on the left, where most rows have one, rising."""
    numbered = [int(row[0].text) for row in rows if _is_line_number(row[0].text)]
    is_rising = all(before < after for before, after in pairwise(numbered))
    if len(rows) < 2 or len(numbered) < _MAX_LINE_NUMBERS_SHARE * len(rows) or not is_rising:
        return rows
    kept = [row[1:] if _is_line_number(row[0].text) else row for row in rows]
    return [row for row in kept if row]


def _is_line_number(text: str) -> bool:
    return len(text) <= 6 and text.isascii() and text.isdigit()
