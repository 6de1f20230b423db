"""Pieces of text in the order in which people read: rows from top to bottom, in each from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pyagent.logic.vision.seen import TextBox

_SAME_ROW = 0.5
"""Of a piece's height: how far its middle may lie from its row's."""


def rows_of(pieces: Sequence[TextBox]) -> list[list[TextBox]]:
    """Return the pieces row by row."""
    rows: list[list[TextBox]] = []
    for piece in sorted(pieces, key=lambda each: each.box.center[1]):
        if rows and _is_beside(rows[-1], piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [sorted(row, key=lambda each: each.box.left) for row in rows]


def _is_beside(row: Sequence[TextBox], piece: TextBox) -> bool:
    middle = median(each.box.center[1] for each in row)
    height = min(piece.box.height, median(each.box.height for each in row))
    return abs(piece.box.center[1] - middle) < _SAME_ROW * height


def text_of_rows(rows: Sequence[Sequence[TextBox]]) -> str:
    """Return the rows as lines, pieces of a row parted by a blank."""
    return "\n".join(" ".join(piece.text for piece in row) for row in rows)


def character_width(pieces: Sequence[TextBox]) -> float:
    """Return how wide a character is, in the middle of all pieces; long ones count for more."""
    widths = sorted((piece.box.width / len(piece.text), len(piece.text)) for piece in pieces if piece.text)
    half, passed = sum(length for _, length in widths) / 2, 0
    for width, length in widths:
        passed += length
        if passed >= half:
            return max(width, 1.0)
    return 1.0
