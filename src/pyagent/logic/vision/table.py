"""A table from pieces of text: rows by height, columns by the gaps that all rows leave."""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.errors import RequestError
from pyagent.logic.vision.rows import character_width, rows_of
from pyagent.logic.vision.seen import Table, TextBox

_MAX_COLUMNS = 100


def table_of(pieces: Sequence[TextBox]) -> Table:
    """Return the cells. Raises `RequestError` where no two rows have two columns.

    A row of one piece that is wider than a column stands above or below the table, and is left out.
    """
    rows = rows_of(pieces)
    spans = _columns([row for row in rows if len(row) > 1], character_width(pieces))
    if len(spans) < 2 or len(spans) > _MAX_COLUMNS:
        raise RequestError("no table is seen: expected at least two rows of two columns", param="files")
    cells = [_cells(row, spans) for row in rows if len(row) > 1 or _is_of_one(row[0], spans)]
    return Table(cells)


def _columns(rows: Sequence[Sequence[TextBox]], width: float) -> list[tuple[float, float]]:
    """Return the columns' left and right ends: where pieces overlap, seen from above."""
    if len(rows) < 2:
        return []
    ends = sorted((piece.box.left, piece.box.right) for row in rows for piece in row)
    spans = [ends[0]]
    for left, right in ends[1:]:
        if left < spans[-1][1] + width / 2:
            spans[-1] = spans[-1][0], max(spans[-1][1], right)
        else:
            spans.append((left, right))
    return spans


def _is_of_one(piece: TextBox, spans: Sequence[tuple[float, float]]) -> bool:
    return sum(left < piece.box.right and piece.box.left < right for left, right in spans) == 1


def _cells(row: Sequence[TextBox], spans: Sequence[tuple[float, float]]) -> list[str]:
    cells: list[list[str]] = [[] for _ in spans]
    for piece in row:
        middle = piece.box.center[0]
        nearest = min(range(len(spans)), key=lambda at: max(spans[at][0] - middle, middle - spans[at][1], 0.0))
        cells[nearest].append(piece.text)
    return [" ".join(texts) for texts in cells]
