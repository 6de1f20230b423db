"""Pictures as a list of shapes, and their two forms: SVG, written here, and PNG, by Pillow (extra `stats`).

Texts come from other people's files: they are escaped, and hold no character that XML forbids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
_PNG_SCALE = 2
_SMOOTH = 2
_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A box; `stroke` is empty for none."""

    left: float
    top: float
    width: float
    height: float
    fill: str
    stroke: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[Point]
    stroke: str
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: Sequence[Point]
    fill: str
    opacity: float


@dataclass(frozen=True, slots=True)
class Dot:
    """A disc."""

    x: float
    y: float
    radius: float
    fill: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text on its baseline; `is_upright` turns it a quarter to the left."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: Anchor = "start"
    fill: str = "#24292f"
    is_upright: bool = False


Shape = Rectangle | Line | Area | Dot | Words


@dataclass(slots=True)
class Picture:
    """Shapes in their order, and what they show in words, for those who cannot see them."""

    width: int
    height: int
    about: str
    shapes: list[Shape] = field(default_factory=list[Shape])


def to_svg(picture: Picture) -> str:
    """Return the picture as SVG 1.1, without scripts, links or fonts of its own."""
    size = f'width="{picture.width}" height="{picture.height}" viewBox="0 0 {picture.width} {picture.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(_FONT)} role="img">',
        f"<title>{_clean(picture.about)}</title>",
        f'<rect width="{picture.width}" height="{picture.height}" fill="#ffffff"/>',
        *(_tag(shape) for shape in picture.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _clean(text: str) -> str:
    return escape(printable(text))


def _tag(shape: Shape) -> str:
    match shape:
        case Rectangle():
            box = f'x="{shape.left:.2f}" y="{shape.top:.2f}" width="{shape.width:.2f}" height="{shape.height:.2f}"'
            stroke = f' stroke="{shape.stroke}"' if shape.stroke else ""
            return f'<rect {box} fill="{shape.fill}"{stroke}/>'
        case Line():
            style = f'fill="none" stroke="{shape.stroke}" stroke-width="{shape.width:g}" stroke-linejoin="round"'
            return f'<polyline points="{_points(shape.points)}" {style}/>'
        case Area():
            return f'<polygon points="{_points(shape.points)}" fill="{shape.fill}" fill-opacity="{shape.opacity:g}"/>'
        case Dot():
            faint = f' fill-opacity="{shape.opacity:g}"' if shape.opacity < 1 else ""
            return f'<circle cx="{shape.x:.2f}" cy="{shape.y:.2f}" r="{shape.radius:g}" fill="{shape.fill}"{faint}/>'
        case Words():
            turn = f' transform="rotate(-90 {shape.x:.2f} {shape.y:.2f})"' if shape.is_upright else ""
            place = f'x="{shape.x:.2f}" y="{shape.y:.2f}" font-size="{shape.size:g}" text-anchor="{shape.anchor}"'
            return f'<text {place} fill="{shape.fill}"{turn}>{_clean(shape.text)}</text>'


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def to_png(picture: Picture) -> bytes:
    """Return the picture as PNG, twice as wide for screens of high density; needs Pillow."""
    try:
        image_module: Any = import_module("PIL.Image")  # optional, so its types cannot be relied on
        draw_module: Any = import_module("PIL.ImageDraw")
        font_module: Any = import_module("PIL.ImageFont")
    except ImportError as error:
        text = "a PNG needs Pillow (extra `stats`), which is not installed: pip install pillow; a .svg needs nothing"
        raise RequestError(text, param="plot") from error
    scale = _PNG_SCALE * _SMOOTH
    image = image_module.new("RGB", (picture.width * scale, picture.height * scale), "#ffffff")
    draw = draw_module.Draw(image, "RGBA")
    for shape in picture.shapes:
        if isinstance(shape, Words):
            _write(image, draw_module, font_module.load_default(round(shape.size * scale)), shape, scale)
        else:
            _draw(draw, shape, scale)
    file = BytesIO()
    image.reduce(_SMOOTH).save(file, "PNG")
    return file.getvalue()


def _draw(draw: Any, shape: Rectangle | Line | Area | Dot, scale: int) -> None:
    match shape:
        case Rectangle():
            corners = [shape.left, shape.top, shape.left + shape.width, shape.top + shape.height]
            outline = shape.stroke or None
            draw.rectangle([each * scale for each in corners], fill=_rgba(shape.fill, 1), outline=outline, width=scale)
        case Line():
            points = [(x * scale, y * scale) for x, y in shape.points]
            draw.line(points, fill=shape.stroke, width=round(shape.width * scale), joint="curve")
        case Area():
            points = [(x * scale, y * scale) for x, y in shape.points]
            draw.polygon(points, fill=_rgba(shape.fill, shape.opacity))
        case Dot():
            box = [shape.x - shape.radius, shape.y - shape.radius, shape.x + shape.radius, shape.y + shape.radius]
            draw.ellipse([each * scale for each in box], fill=_rgba(shape.fill, shape.opacity))


def _write(image: Any, draw_module: Any, font: Any, words: Words, scale: int) -> None:
    text, place = printable(words.text), (words.x * scale, words.y * scale)
    if not words.is_upright:
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[words.anchor]
        draw_module.Draw(image).text(place, text, fill=words.fill, font=font, anchor=anchor)
        return
    width, height = round(font.getlength(text)) + scale, round(words.size * scale * 1.5)
    mask = import_module("PIL.Image").new("L", (width, height), 0)
    draw_module.Draw(mask).text((0, words.size * scale), text, fill=255, font=font, anchor="ls")
    turned = mask.transpose(import_module("PIL.Image").Transpose.ROTATE_90)
    along = {"start": width, "middle": width / 2, "end": 0}[words.anchor]
    image.paste(words.fill, (round(place[0] - words.size * scale), round(place[1] - along)), turned)


def _rgba(colour: str, opacity: float) -> tuple[int, int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue, round(opacity * 255)
