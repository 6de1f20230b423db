"""The pictures of a reduction: rows as points by cluster, the variance explained, and how alike rows are."""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.errors import RequestError
from pyagent.logic.stats.axes import FAINT, HEIGHT, WIDTH, Frame, axis, fitting, head, swatch
from pyagent.logic.stats.picture import Dot, Picture, Rectangle, Words
from pyagent.logic.stats.reduction import Reduction

# Okabe and Ito's eight colours, which people with any colour vision tell apart; black and yellow come last.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#f0e442")
_NUM_NAMED = 40
_WIDEST_SQUARE = 46.0


def reduction_picture(found: Reduction, places: Sequence[Sequence[float]], labels: tuple[str, str]) -> Picture:
    """Return the picture of a result; `places` has each row's two coordinates, `labels` what they are."""
    if found.method == "similarity":
        return _heat(found)
    colours = found.assigned or [0] * len(places)
    xs, ys = [each[0] for each in places], [each[1] for each in places]
    num_clusters = len(found.clusters)
    frame = Frame(axis(xs, labels[0]), axis(ys, labels[1]), right=112 if num_clusters else 24)
    picture = Picture(WIDTH, HEIGHT, f"{found.method} of {found.num_rows:,} rows in {found.num_columns:,} dimensions")
    shown = f" · the first {len(places):,} of {found.num_rows:,}" if len(places) < found.num_rows else ""
    frame.draw(picture, f"{found.method} of {found.num_rows:,} rows", f"{_below(found)}{shown}")
    radius, opacity = (4.0, 0.85) if len(places) <= 200 else (2.5, 0.6)
    for x, y, colour in zip(xs, ys, colours, strict=True):
        picture.shapes.append(Dot(*frame.place(x, y), radius, COLOURS[colour % len(COLOURS)], opacity))
    for nth, cluster in enumerate(found.clusters[: len(COLOURS)]):
        swatch(picture, nth, COLOURS[nth], f"{nth}: {cluster.size:,} rows")
    if len(places) <= _NUM_NAMED and not num_clusters:
        for x, y, name in zip(xs, ys, found.names, strict=False):
            across, up = frame.place(x, y)
            is_right = across > WIDTH * 0.7
            words = Words(across + (-7 if is_right else 7), up + 4, fitting(name, 10, 150), 10, fill=FAINT)
            picture.shapes.append(words if not is_right else Words(words.x, words.y, words.text, 10, "end", FAINT))
    return picture


def _below(found: Reduction) -> str:
    if found.components:
        return (
            f"{found.components[min(1, len(found.components) - 1)].cumulative * 100:.1f} % of the variance is seen here"
        )
    if found.clusters:
        width = "" if found.silhouette is None else f" · silhouette {found.silhouette:.3f}"
        return f"{len(found.clusters)} clusters{width} · along the first two principal components"
    return "the first two of its dimensions"


def _heat(found: Reduction) -> Picture:
    """Return the matrix as squares from blue (unlike) over white to red (alike), with names where there is room."""
    matrix = found.similarities
    if not matrix:
        raise RequestError("a picture of similarities has at most 100 rows", param="plot")
    size, top, left = len(matrix), 64, 190
    side = min((HEIGHT - top - 30) / size, _WIDEST_SQUARE)
    low = min(0.0, *(value for row in matrix for value in row))
    picture = Picture(WIDTH, round(top + size * side) + 30, f"how alike {size} rows are")
    head(picture, f"how alike {size} rows are", f"white is 0, red is 1{', blue is below 0' if low < 0 else ''}")
    for down, row in enumerate(matrix):
        at = top + down * side
        if side >= 9:
            name = fitting(found.names[down], min(11, side), left - 20)
            picture.shapes.append(Words(left - 8, at + side / 2 + 4, name, min(11, side * 0.9), "end", FAINT))
        for across, value in enumerate(row):
            colour = _heat_colour(value)
            picture.shapes.append(Rectangle(left + across * side, at, side, side, colour))
            if side >= 24:
                ink = "#ffffff" if abs(value) > 0.75 else "#24292f"
                place, text = left + (across + 0.5) * side, f"{value:.2f}" if side >= 34 else f"{value:.1f}"
                picture.shapes.append(Words(place, at + side / 2 + 4, text, 10, "middle", ink))
    return picture


def _heat_colour(value: float) -> str:
    share = min(abs(value), 1.0)
    end = (178, 24, 43) if value >= 0 else (33, 102, 172)
    return "#" + "".join(f"{round(255 + (part - 255) * share):02x}" for part in end)
