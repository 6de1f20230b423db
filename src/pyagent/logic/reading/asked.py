"""What is asked of the process that reads files, and what it answers, as values."""

from __future__ import annotations

from typing import Literal

import msgspec

Form = Literal["html", "pdf"]
MAX_TEXT_CHARACTERS = 200_000
"""Of one page of the web: about 120 pages of a book."""
MAX_PDF_PAGES = 2_000


class Bytes(msgspec.Struct, frozen=True):
    """A file's bytes, what they are, and for a page of the web where it was found and the charset it was sent with."""

    data: bytes
    form: Form
    url: str = ""
    charset: str = ""


class PdfText(msgspec.Struct, frozen=True):
    """The texts of a PDF's pages, in their order; a page that is a picture has none."""

    pages: list[str]
