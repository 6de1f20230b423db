"""Images of every kind become plain pixels, or are refused in a sentence, before anything is read in them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pyagent.core.errors import RequestError
from pyagent.logic.vision.ocr import images_of

GREYS = np.tile(np.linspace(0.0, 1.0, 200), (120, 1))
"""From black on the left to white on the right."""


def file_of(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png_of_bits(width: int, height: int) -> bytes:
    """A PNG of one bit a pixel, small for its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pressed = zlib.compressobj(9)
    rows = b"".join(pressed.compress(bytes(1 + (width + 7) // 8)) for _ in range(height)) + pressed.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("image", "form"),
    [
        (Image.fromarray((GREYS * 65_535).astype(np.uint16)), "PNG"),
        (Image.fromarray((GREYS * 65_535).astype(np.uint16)), "TIFF"),
        (Image.fromarray((GREYS * 4_095).astype(np.uint16)), "TIFF"),  # twelve bits in sixteen
        (Image.fromarray((GREYS * 1e9).astype(np.int32)), "TIFF"),
        (Image.fromarray(GREYS.astype(np.float32)), "TIFF"),
        (Image.fromarray((GREYS * 255).astype(np.uint8)), "PNG"),
        (Image.fromarray((GREYS * 255).astype(np.uint8)).convert("CMYK"), "TIFF"),
        (Image.fromarray((GREYS * 255).astype(np.uint8)).convert("LA"), "PNG"),
    ],
)
def test_greys_stay_greys_whatever_their_bits(image: Image.Image, form: str) -> None:
    """Black is black, white is white, and the middle is in between."""
    [pixels] = images_of(file_of(image, form), 1)
    assert pixels.shape == (120, 200, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels[60, :, 0] - 255 * np.linspace(0.0, 1.0, 200)).max() <= 2


def test_values_that_are_no_numbers_are_black() -> None:
    """A float image with NaN and infinity keeps its greys."""
    values = GREYS.astype(np.float32)
    values[0, 0], values[0, 1], values[0, 2] = np.nan, np.inf, -np.inf
    [pixels] = images_of(file_of(Image.fromarray(values), "TIFF"), 1)
    assert pixels[0, :3, 0].tolist() == [0, 255, 0]
    assert 125 <= pixels[60, 100, 0] <= 130


def test_what_is_transparent_is_white() -> None:
    """Black letters on nothing can be read."""
    [pixels] = images_of(file_of(Image.new("RGBA", (80, 80), (0, 0, 0, 0)), "PNG"), 1)
    assert (pixels == 255).all()


def test_each_page_of_a_tiff_is_read() -> None:
    """Scanners write several pages to one file; they are bounded as those of a PDF are."""
    pages = [Image.new("L", (100, 90 + number), 80 * number) for number in range(3)]
    data = file_of(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    assert [(int(each[0, 0, 0]), each.shape[0]) for each in images_of(data, 3)] == [(0, 90), (80, 91), (160, 92)]
    with pytest.raises(RequestError, match="the image has 3 pages; the most is 2"):
        list(images_of(data, 2))


def test_an_animation_is_its_first_picture() -> None:
    """It is one page, however many pictures follow."""
    pictures = [Image.new("L", (100, 100), 100 * number) for number in range(3)]
    data = file_of(pictures[0], "GIF", save_all=True, append_images=pictures[1:])
    [pixels] = images_of(data, 1)
    assert (pixels == 0).all()


@pytest.mark.parametrize(("width", "height"), [(1, 40_000), (40_000, 1), (1, 1), (64, 4_000), (200, 30)])
def test_long_images_get_an_edge(width: int, height: int) -> None:
    """The OCR enlarges what is narrow to hundreds of times its pixels: a PNG of 157 bytes took 5 GB."""
    [pixels] = images_of(png_of_bits(width, height), 1)
    sides = pixels.shape[:2]
    assert max(sides) <= 4_000
    assert min(sides) >= 64
    assert max(sides) <= 8 * min(sides)


def test_usual_images_get_no_edge() -> None:
    """Its pixels are those of the file."""
    [pixels] = images_of(file_of(Image.new("L", (700, 100)), "PNG"), 1)
    assert pixels.shape == (100, 700, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "this is neither an image nor a PDF that can be read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "this is neither an image nor a PDF that can be read"),
        (png_of_bits(20_000, 20_000), "the image is too large; the most is 40,000,000 pixels"),
        (png_of_bits(8_000, 8_000), "an image of 8000 x 8000 pixels is too large; the most is 40,000,000"),
        (png_of_bits(300, 300)[:-40], "this image cannot be read: image file is truncated"),
        (b"%PDF-1.4\nxref\n0 99999999\ntrailer<</Root 7 0 R>>\nstartxref\n9\n%%EOF", "this PDF cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(data: bytes, message: str) -> None:
    """Without words of a library's own that say nothing to a user."""
    with pytest.raises(RequestError) as caught:
        list(images_of(data, 1))
    assert str(caught.value).startswith(message)
    assert "object at" not in str(caught.value)
