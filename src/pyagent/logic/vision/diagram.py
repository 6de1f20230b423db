"""A diagram as nodes and edges: closed boxes around texts, and the ink between them. Worker process only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pyagent.core.errors import RequestError
from pyagent.logic.vision.rows import rows_of, text_of_rows
from pyagent.logic.vision.seen import Box, Diagram, Edge, TextBox

_MIN_SIDE = 12
_NEAR = 0.02
"""Of the image's larger side: how near to a box a line's end must be."""
_MAX_NODES = 200


def diagram_of(image: NDArray[np.uint8], pieces: Sequence[TextBox]) -> Diagram:
    """Return boxes and what joins them. Raises `RequestError` where no box is seen. `image` is [height, width, 3]."""
    grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    ink = _ink(grey)
    boxes = _boxes(ink, pieces)
    if not boxes or len(boxes) > _MAX_NODES:
        raise RequestError("no diagram is seen: expected boxes with texts in them", param="files")
    nodes = [text_of_rows(rows_of([piece for piece in pieces if box.holds(*piece.box.center)])) for box in boxes]
    return Diagram(nodes, _edges(ink, boxes, pieces))


def _ink(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return 255 where something stands, whichever of dark and light is the background."""
    _, dark = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY_INV + cv2.THRESH_OTSU)
    if np.count_nonzero(dark) > dark.size // 2:
        dark = cv2.bitwise_not(dark)
    return np.asarray(dark, dtype=np.uint8)


def _boxes(ink: NDArray[np.uint8], pieces: Sequence[TextBox]) -> list[Box]:
    """Return the innermost closed outlines that have text in them, from top to bottom."""
    contours, _ = cv2.findContours(ink, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    height, width = ink.shape
    found: list[Box] = []
    for contour in contours:
        left, top, wide, high = cv2.boundingRect(contour)
        box = Box(float(left), float(top), float(left + wide), float(top + high))
        is_large = wide >= _MIN_SIDE and high >= _MIN_SIDE and wide * high < 0.9 * width * height
        if is_large and cv2.contourArea(contour) >= 0.45 * wide * high and _is_around_text(box, pieces):
            found.append(box)
    innermost = [box for box in found if not any(_is_inside(other, box) for other in found)]
    return _one_each(sorted(innermost, key=lambda box: (round(box.top / 10), box.left)))


def _is_around_text(box: Box, pieces: Sequence[TextBox]) -> bool:
    """Whether a text lies in the box, with room beside it: letters' own outlines have none."""
    inside = [piece.box for piece in pieces if box.holds(*piece.box.center)]
    return any(box.width >= text.width and box.height >= text.height for text in inside)


def _is_inside(inner: Box, outer: Box) -> bool:
    """Whether a box lies in another by more than the width of a line."""
    margin = 0.1 * min(outer.width, outer.height)
    return (
        inner != outer
        and outer.left <= inner.left and inner.right <= outer.right
        and outer.top <= inner.top and inner.bottom <= outer.bottom
        and (outer.width - inner.width > 2 * margin or outer.height - inner.height > 2 * margin)
    )  # fmt: skip


def _one_each(boxes: Sequence[Box]) -> list[Box]:
    """Return one box of the two outlines, within and without, that each line has."""
    kept: list[Box] = []
    for box in boxes:
        if not any(other.holds(*box.center) and box.holds(*other.center) for other in kept):
            kept.append(box)
    return kept


class _End(NamedTuple):
    node: int
    ink: int


def _edges(ink: NDArray[np.uint8], boxes: Sequence[Box], pieces: Sequence[TextBox]) -> list[Edge]:
    """Return a line for each piece of ink outside of boxes and texts that touches two boxes."""
    left_over = ink.copy()
    for box in boxes:
        _wipe(left_over, box, 3)
    for piece in pieces:
        if not any(box.holds(*piece.box.center) for box in boxes):
            _wipe(left_over, piece.box, 0)
    near = max(6.0, _NEAR * max(ink.shape))
    num, labels = cv2.connectedComponents(cv2.dilate(left_over, np.ones((3, 3), np.uint8)))
    edges: list[Edge] = []
    for label in range(1, num):
        ys, xs = np.nonzero((labels == label) & (left_over > 0))
        if (edge := _edge(xs, ys, boxes, near)) is not None:
            edges.append(edge)
    return edges


def _wipe(ink: NDArray[np.uint8], box: Box, margin: int) -> None:
    top, bottom = max(0, int(box.top) - margin), int(box.bottom) + margin + 1
    ink[top:bottom, max(0, int(box.left) - margin) : int(box.right) + margin + 1] = 0


def _edge(xs: NDArray[np.int64], ys: NDArray[np.int64], boxes: Sequence[Box], near: float) -> Edge | None:
    """Return the line between the two boxes that ink comes near to; its head is the end with plainly more ink."""
    ends: list[_End] = []
    for node, box in enumerate(boxes):
        apart = np.maximum(np.maximum(box.left - xs, xs - box.right), np.maximum(box.top - ys, ys - box.bottom))
        if len(apart) and apart.min() <= near:
            ends.append(_End(node, int(np.count_nonzero(apart <= apart.min() + 2 * near))))
    if len(ends) != 2:
        return None
    first, second = ends
    more, less = (first, second) if first.ink > second.ink else (second, first)
    is_directed = more.ink > 1.3 * less.ink
    return Edge(less.node, more.node, is_directed) if is_directed else Edge(first.node, second.node, is_directed=False)
