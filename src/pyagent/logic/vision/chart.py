"""A bar chart as data: filled rectangles over one base line, scaled by the numbers of the axis. Worker process only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from pyagent.core.errors import RequestError
from pyagent.logic.vision.seen import Bar, Box, Chart, TextBox

_NUMBER = re.compile(r"[-+−]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+−]?\d+(?:\.\d+)?|[-+−]?\.\d+")
_FACTOR_OF_SIGN = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "%": 1.0}
_MIN_BAR_SHARE = 0.0005
"""Of the image: what is smaller is no bar."""
_BASE_TOLERANCE = 0.02
_FILLED = 0.85


def chart_of(image: NDArray[np.uint8], pieces: Sequence[TextBox]) -> Chart:
    """Return the bars from left to right. Raises `RequestError` where none are seen.

    `image` is [height, width, 3]. Bars stand upright on one line; others are not read.
    """
    boxes = _bars(image)
    if not boxes:
        raise RequestError("no bar chart is seen: expected filled bars that stand on one line", param="files")
    base = median(box.bottom for box in boxes)
    scale = _scale(pieces, boxes)
    return Chart([_bar(box, pieces, base, scale) for box in boxes], is_scaled=scale is not None)


def number_in(text: str) -> float | None:
    """Return the number that a text is; None when it is none."""
    text = text.strip().lstrip("$€£").strip()
    found = _NUMBER.match(text)
    if found is None or text[found.end() :].strip() not in _FACTOR_OF_SIGN:
        return None
    value = float(found[0].replace(",", "").replace("−", "-"))
    return value * _FACTOR_OF_SIGN[text[found.end() :].strip()]


def _bars(image: NDArray[np.uint8]) -> list[Box]:
    """Return the filled rectangles whose lower ends are on one line, from left to right."""
    height, width = image.shape[:2]
    quantised = (image // 32).astype(np.int32)
    colours = quantised[..., 0] * 64 + quantised[..., 1] * 8 + quantised[..., 2]
    background = int(np.bincount(colours.ravel()).argmax())
    found: list[Box] = []
    for colour in np.argsort(np.bincount(colours.ravel()))[::-1][:24]:
        if colour == background:
            continue
        mask = (colours == colour).astype(np.uint8)
        stats = cast("NDArray[np.int32]", cv2.connectedComponentsWithStats(mask, connectivity=4)[2])
        for left, top, wide, high, area in cast("list[list[int]]", stats.tolist())[1:]:
            is_large = area >= _MIN_BAR_SHARE * width * height and min(wide, high) >= 4
            if is_large and area >= _FILLED * wide * high and wide < 0.8 * width:
                found.append(Box(left, top, left + wide, top + high))
    return _on_one_line(found, _BASE_TOLERANCE * height)


def _on_one_line(boxes: Sequence[Box], tolerance: float) -> list[Box]:
    """Return the largest set of boxes whose lower ends are near each other, from left to right."""
    best: list[Box] = []
    for one in boxes:
        beside = [box for box in boxes if abs(box.bottom - one.bottom) <= tolerance]
        if len(beside) > len(best):
            best = beside
    return sorted(best)


def _scale(pieces: Sequence[TextBox], boxes: Sequence[Box]) -> tuple[float, float] | None:
    """Return value = a + b * y by the numbers left of the bars (or right of them); None where two are not to be had."""
    first, last = min(box.left for box in boxes), max(box.right for box in boxes)
    before = _marks([piece for piece in pieces if piece.box.right <= first])
    behind = _marks([piece for piece in pieces if piece.box.left >= last])
    marks = before if len(before) >= len(behind) else behind
    slope, intercept = _line_through(marks)
    return (intercept, slope) if slope < 0 else None


def _marks(pieces: Sequence[TextBox]) -> list[tuple[float, float]]:
    """Return the numbers among pieces of text, each behind the height it stands at."""
    found = [(piece.box.center[1], number_in(piece.text)) for piece in pieces]
    return [(y, value) for y, value in found if value is not None]


def _line_through(marks: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the line through marks that a wrongly read one does not move: medians of slopes and of what is left."""
    slopes = [(v - u) / (y - x) for at, (x, u) in enumerate(marks) for y, v in marks[at + 1 :] if abs(y - x) > 1.0]
    if not slopes:
        return 0.0, 0.0
    slope = median(slopes)
    return slope, median(value - slope * y for y, value in marks)


def _bar(box: Box, pieces: Sequence[TextBox], base: float, scale: tuple[float, float] | None) -> Bar:
    middle = box.center[0]
    below = [piece for piece in pieces if piece.box.top >= base - 2 and _is_under(piece.box, box)]
    label = min(below, key=lambda piece: (piece.box.top, abs(piece.box.center[0] - middle))).text if below else ""
    value = base - box.top if scale is None else scale[0] + scale[1] * box.top
    return Bar(label, _rounded(value, scale))


def _is_under(text: Box, bar: Box) -> bool:
    margin = bar.width / 2
    return bar.left - margin <= text.center[0] <= bar.right + margin


def _rounded(value: float, scale: tuple[float, float] | None) -> float:
    """Return a value to what a pixel can tell."""
    if scale is None or not scale[1]:
        return round(value, 1)
    digits = max(0, -int(np.floor(np.log10(abs(scale[1])))))
    return round(value, digits) + 0.0
