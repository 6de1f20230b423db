"""Images of a file and the texts in them: Pillow and pdfium read it, RapidOCR's bundled models the text.

Worker process only: what decodes other people's files may be killed or crash.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pyagent.core.errors import RequestError
from pyagent.logic.vision.seen import Box, TextBox

MAX_PIXELS = 40_000_000
_PDF_DOTS = 200 / 72
"""Pixels for each of a PDF's points: 200 dpi."""
_MAX_SIDE = 4_000
_MIN_SIDE = 64
_MOST_STRETCHED = 8
"""Of the longer side to the shorter one: the OCR enlarges what is longer to many times its pixels."""
_TALL = 1.5
_SURE = 0.85


def images_of(data: bytes, max_pages: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the image, or the pages of a PDF or a TIFF, as [height, width, 3] in red, green, blue on white.

    Of an animation it is the first picture. Raises `RequestError` for what is neither, too large, or has more pages.
    """
    if data[:1024].lstrip().startswith(b"%PDF-"):
        yield from _pages(data, max_pages)
        return
    try:
        with Image.open(io.BytesIO(data)) as opened:
            num_pages = int(getattr(opened, "n_frames", 1)) if opened.format == "TIFF" else 1
            _check_pages("image", num_pages, max_pages)
            for number in range(num_pages):
                opened.seek(number)
                _check_pixels(opened)
                yield _plain(opened)
    except Image.DecompressionBombError as error:
        raise RequestError(f"the image is too large; the most is {MAX_PIXELS:,} pixels", param="files") from error
    except UnidentifiedImageError as error:
        raise RequestError("this is neither an image nor a PDF that can be read", param="files") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise RequestError(f"this image cannot be read: {error}"[:300], param="files") from error


def _check_pages(what: str, num_pages: int, max_pages: int) -> None:
    if num_pages > max_pages:
        raise RequestError(f"the {what} has {num_pages} pages; the most is {max_pages}", param="files")


def _check_pixels(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        text = f"an image of {image.width} x {image.height} pixels is too large; the most is {MAX_PIXELS:,}"
        raise RequestError(text, param="files")


def _pages(data: bytes, max_pages: int) -> Iterator[NDArray[np.uint8]]:
    import pypdfium2

    try:
        pdf: Any = pypdfium2.PdfDocument(data)
        _check_pages("PDF", len(pdf), max_pages)
        for page in pdf:
            width, height = page.get_size()
            scale = min(_PDF_DOTS, _MAX_SIDE / max(width, height, 1.0))
            yield _plain(page.render(scale=scale).to_pil())
    except pypdfium2.PdfiumError as error:
        raise RequestError(f"this PDF cannot be read: {error}", param="files") from error


def _plain(image: Image.Image) -> NDArray[np.uint8]:
    turned = ImageOps.exif_transpose(image)
    if turned.mode in {"RGBA", "LA", "PA"} or "transparency" in turned.info:
        clear = turned.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        turned = Image.alpha_composite(white, clear)
    plain = (_eight_bits(turned) if turned.mode.startswith(("I", "F")) else turned).convert("RGB")
    if max(plain.size) > _MAX_SIDE:
        plain.thumbnail((_MAX_SIDE, _MAX_SIDE))
    least = max(_MIN_SIDE, -(-max(plain.size) // _MOST_STRETCHED))
    if min(plain.size) < least:
        edge = cast("tuple[int, ...]", plain.getpixel((0, 0)))
        beside, above = (max(0, least - side + 1) // 2 for side in plain.size)
        plain = ImageOps.expand(plain, (beside, above, beside, above), edge)
    return np.array(plain)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return greys of more than eight bits from black to white: those of a scan need not use the whole range."""
    values = np.asarray(image, dtype=np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    shares = (np.nan_to_num(np.clip(values, low, high), nan=low) - low) / (high - low or 1.0)
    return Image.fromarray((255 * shares).astype(np.uint8))


class Reader:
    """The OCR's models in memory."""

    def __init__(self, num_threads: int) -> None:
        from rapidocr import RapidOCR

        # Without the classifier of lines that stand on their heads: noise makes it turn lines that do not.
        engine = "EngineConfig.onnxruntime"
        threads = {f"{engine}.intra_op_num_threads": num_threads, f"{engine}.inter_op_num_threads": 1}
        self._read: Any = RapidOCR(params={"Global.log_level": "critical", "Global.use_cls": False, **threads})

    def read(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[TextBox]]:
        """Return the image upright, and the texts in it."""
        pieces = self._pieces(image)
        turns = _turns(pieces)
        turned = [np.ascontiguousarray(np.rot90(image, quarters)) for quarters in turns]
        reads = [(image, pieces), *((each, self._pieces(each)) for each in turned)]
        return max(reads, key=lambda read: _certainty(read[1]))

    def _pieces(self, image: NDArray[np.uint8]) -> list[TextBox]:
        found = self._read(np.ascontiguousarray(image[..., ::-1]))
        if found.boxes is None:
            return []
        boxes = cast("NDArray[np.float32]", found.boxes)
        return [
            TextBox(str(text), float(score), Box(*map(float, (*corners.min(axis=0), *corners.max(axis=0)))))
            for text, score, corners in zip(found.txts, found.scores, boxes, strict=True)
            if str(text).strip()
        ]


def _turns(pieces: list[TextBox]) -> tuple[int, ...]:
    """Return the quarter turns by which an image may stand wrong: texts higher than wide, or hardly to be read."""
    long = [piece for piece in pieces if len(piece.text) > 1 or piece.box.height > piece.box.width]
    if long and median(piece.box.height / max(piece.box.width, 1.0) for piece in long) >= _TALL:
        return 1, 3
    num_characters = sum(len(piece.text) for piece in pieces)
    return (2,) if pieces and _certainty(pieces) < _SURE * num_characters else ()


def _certainty(pieces: list[TextBox]) -> float:
    return sum(piece.score * len(piece.text) for piece in pieces)
