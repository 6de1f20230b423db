"""The frame of a chart: from numbers to places, with ticks at round numbers that a reader can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from pyagent.logic.stats.picture import Line, Picture, Point, Rectangle, Words

GRID, INK, FAINT = "#e6e8eb", "#24292f", "#57606a"
WIDTH, HEIGHT = 720, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 56, 60
_NUM_TICKS = 6
_LETTER_SHARE = 0.56
"""About how wide a letter is for its size."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of numbers, its ticks, and its name."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: str

    def share(self, value: float) -> float:
        """Return how far along the axis a number is: 0 at its beginning, 1 at its end."""
        return (value - self.low) / (self.high - self.low)

    def text(self, tick: float) -> str:
        """Return a tick in as few digits as tell it from its neighbours."""
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else abs(tick) or 1.0
        largest = max(abs(each) for each in self.ticks) or 1.0
        if largest >= 1e7 or largest < 1e-4:
            digits = max(0, floor(log10(largest)) - floor(log10(step) + 1e-9))
            mantissa, _, exponent = f"{tick:.{min(digits, 15)}e}".partition("e")
            return f"{mantissa}e{int(exponent)}" if tick else "0"
        decimals = max(0, -floor(log10(step) + 1e-9))
        return f"{tick:,.{decimals}f}" if largest >= 10_000 else f"{tick:.{decimals}f}"  # 1950 is a year


def axis(values: Sequence[float], label: str) -> Axis:
    """Return the axis that holds all values, with a little room at both ends."""
    low, high = min(values), max(values)
    if not high > low:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    room = (high - low) * 0.04
    low, high = low - room, high + room
    return Axis(low, high, _ticks(low, high), label)


def _ticks(low: float, high: float) -> tuple[float, ...]:
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** floor(log10(raw))
    step = min((each * power for each in (1, 2, 5, 10)), key=lambda each: abs(log10(each / raw)))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    if not isfinite(step) or last - first > 2 * _NUM_TICKS:
        return (low, high)
    ticks = tuple(tick for tick in (at * step for at in range(first, last + 1)) if low <= tick <= high)
    return ticks if len(set(ticks)) == len(ticks) and len(ticks) > 1 else (low, high)


@dataclass(frozen=True, slots=True)
class Frame:
    """Two axes on a picture."""

    x: Axis
    y: Axis
    right: int = _RIGHT

    def place(self, x: float, y: float) -> Point:
        """Return where a point is; far out of the frame is at its edge."""
        across = min(max(self.x.share(x), -0.5), 1.5)
        up = min(max(self.y.share(y), -0.5), 1.5)
        return _LEFT + across * (WIDTH - _LEFT - self.right), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    def draw(self, picture: Picture, heading: str, below: str = "") -> None:
        """Draw the grid, the ticks, the axes' names and the heading."""
        right, bottom = WIDTH - self.right, HEIGHT - _BOTTOM
        for tick in self.x.ticks:
            at, _ = self.place(tick, self.y.low)
            picture.shapes.append(Line([(at, _TOP), (at, bottom)], GRID))
            picture.shapes.append(Words(at, bottom + 18, self.x.text(tick), 11, "middle", FAINT))
        for tick in self.y.ticks:
            _, at = self.place(self.x.low, tick)
            picture.shapes.append(Line([(_LEFT, at), (right, at)], GRID))
            picture.shapes.append(Words(_LEFT - 8, at + 4, self.y.text(tick), 11, "end", FAINT))
        picture.shapes.append(Line([(_LEFT, _TOP), (_LEFT, bottom), (right, bottom)], FAINT))
        wide, tall = right - _LEFT, bottom - _TOP
        picture.shapes += [
            Words((_LEFT + right) / 2, bottom + 40, fitting(self.x.label, 13, wide), 13, "middle"),
            Words(20, (_TOP + bottom) / 2, fitting(self.y.label, 13, tall), 13, "middle", is_upright=True),
        ]
        head(picture, heading, below)


def head(picture: Picture, heading: str, below: str = "") -> None:
    """Write the picture's heading, and a smaller line under it."""
    room = WIDTH - _LEFT - _RIGHT
    picture.shapes.append(Words(_LEFT, 26, fitting(heading, 15, room), 15))
    if below:
        picture.shapes.append(Words(_LEFT, 44, fitting(below, 11, room), 11, fill=FAINT))


def fitting(text: str, size: float, room: float) -> str:
    """Return the text, shortened to what about fits in the room."""
    most = int(room / (size * _LETTER_SHARE))
    return text if len(text) <= most else text[: most - 1] + "…"


def swatch(picture: Picture, nth: int, colour: str, text: str) -> None:
    """Write an entry of the legend, in the column right of the frame."""
    at = _TOP + 10 + 20 * nth
    picture.shapes += [
        Rectangle(WIDTH - 96, at - 9, 11, 11, colour),
        Words(WIDTH - 80, at, fitting(text, 11, 78), 11, fill=INK),
    ]
