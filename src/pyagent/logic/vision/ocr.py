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
_MIN_HEIGHT = 64
_TALL = 1.5
_SURE = 0.85


def images_of(data: bytes, max_pages: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the image, or the pages of a PDF, as [height, width, 3] in red, green, blue on white.

    Raises `RequestError` for what is neither, too large, or has more pages.
    """
    if data[:1024].lstrip().startswith(b"%PDF-"):
        yield from _pages(data, max_pages)
        return
    try:
        with Image.open(io.BytesIO(data)) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise RequestError(f"an image of {opened.width} x {opened.height} pixels is too large; the most is "
                                   f"{MAX_PIXELS:,}", param="files")  # fmt: skip
            yield _plain(opened)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RequestError(
            f"this is neither an image nor a PDF that can be read: {error}"[:300], param="files"
        ) from error


def _pages(data: bytes, max_pages: int) -> Iterator[NDArray[np.uint8]]:
    import pypdfium2

    try:
        pdf: Any = pypdfium2.PdfDocument(data)
        if len(pdf) > max_pages:
            raise RequestError(f"the PDF has {len(pdf)} pages; the most is {max_pages}", param="files")
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
    plain = turned.convert("RGB")
    if max(plain.size) > _MAX_SIDE:
        plain.thumbnail((_MAX_SIDE, _MAX_SIDE))
    if plain.height < _MIN_HEIGHT or plain.width < _MIN_HEIGHT:
        edge = cast("tuple[int, ...]", plain.getpixel((0, 0)))
        plain = ImageOps.expand(plain, _MIN_HEIGHT // 2, edge)
    return np.array(plain)


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
