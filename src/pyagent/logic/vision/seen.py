"""What is asked of an image and what is seen in it, as values. Lengths are pixels of the image, from its left top."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Kind = Literal["text", "code", "table", "chart", "diagram"]
MAX_PAGES = 50


class Box(NamedTuple):
    """A rectangle that stands upright."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top

    @property
    def center(self) -> tuple[float, float]:
        """Its middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def holds(self, x: float, y: float) -> bool:
        """Whether a point is inside."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom


class TextBox(msgspec.Struct, frozen=True):
    """A piece of a line as OCR reads it, and how sure of it the OCR is, from 0 to 1."""

    text: str
    score: float
    box: Box


class Table(msgspec.Struct, frozen=True):
    """Cells row by row; each row has as many as the others, and an empty text where there is nothing."""

    rows: list[list[str]]


class Bar(msgspec.Struct, frozen=True):
    """A bar: what stands below it, and its height by the axis."""

    label: str
    value: float


class Chart(msgspec.Struct, frozen=True):
    """A bar chart. Without numbers on an axis values are in pixels, and `is_scaled` is false."""

    bars: list[Bar]
    is_scaled: bool


class Edge(msgspec.Struct, frozen=True):
    """A line between two nodes, by their numbers; directed where one end has an arrowhead."""

    source: int
    target: int
    is_directed: bool


class Diagram(msgspec.Struct, frozen=True):
    """Boxes by their texts, numbered from 0 from top to bottom, and the lines between them."""

    nodes: list[str]
    edges: list[Edge]


class PageSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One image, or one page of a PDF. `confidence` is the OCR's mean; `text` has all lines in reading order."""

    page: int = 1
    text: str
    confidence: float
    code: str | None = None
    table: Table | None = None
    chart: Chart | None = None
    diagram: Diagram | None = None


class Look(msgspec.Struct, frozen=True):
    """A file's bytes and what is wanted of it."""

    data: bytes
    kind: Kind
    max_pages: int = MAX_PAGES
