"""The process that reads pages and PDFs, as `pyagent.logic.sandbox` runs and bounds it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pyagent.core.errors import RequestError
from pyagent.core.html_text import html_text
from pyagent.core.web_search import PageText
from pyagent.logic.reading.asked import MAX_PDF_PAGES, MAX_TEXT_CHARACTERS, Bytes, PdfText
from pyagent.logic.reading.charsets import page_text
from pyagent.logic.sandbox.serving import bound_process, serve


def main() -> None:
    """Serve until standard input ends."""
    bound_process(int(sys.argv[1]))
    serve(Bytes, answer)


def answer(asked: Bytes) -> PageText | PdfText:
    """Return what the bytes say; raises `RequestError` for what has no text."""
    return pdf_text(asked.data) if asked.form == "pdf" else html_page(asked)


def pdf_text(data: bytes) -> PdfText:
    """Return the text of each page of a PDF."""
    import pypdfium2

    try:
        pdf: Any = pypdfium2.PdfDocument(data)
        if len(pdf) > MAX_PDF_PAGES:
            raise RequestError(f"the PDF has {len(pdf)} pages; the most is {MAX_PDF_PAGES}", param="files")
        pages = [str(page.get_textpage().get_text_bounded()).replace("\r\n", "\n").replace("\0", "") for page in pdf]
    except pypdfium2.PdfiumError as error:
        raise RequestError(f"this is not a PDF that can be read: {error}", param="files") from error
    return PdfText([page.replace("\ufffe\n", "").replace("\ufffe", "") for page in pages])


def html_page(asked: Bytes) -> PageText:
    """Return the words of a page without its frame, as trafilatura finds them, else all of its words.

    What people do not see is left out: hidden elements, comments, scripts.
    """
    html = page_text(asked.data, asked.charset)
    if html is None:
        raise RequestError("it is no text", param="url")
    if find_spec("trafilatura") is None:
        return _bounded(PageText(html_text(html)))
    import trafilatura

    from pyagent.logic.reading.visible import without_hidden

    tree = without_hidden(html)
    found = None if tree is None else trafilatura.bare_extraction(tree, url=asked.url or None, include_comments=False,
                                                                  include_tables=True, with_metadata=True)  # fmt: skip
    if found is None or isinstance(found, dict) or not (found.text or "").strip():
        return _bounded(PageText(html_text(html) if tree is None else _plain(tree)))
    return _bounded(
        PageText(found.text or "", _line(found.title), _line(found.author), _line(found.date)[:10]),
    )


def _plain(tree: Any) -> str:
    html: Any = import_module("lxml.html")
    return html_text(str(html.tostring(tree, encoding="unicode")))


def _line(text: str | None) -> str:
    return " ".join((text or "").split())[:300]


def _bounded(page: PageText) -> PageText:
    if not page.text.strip():
        raise RequestError("it has no text", param="url")
    is_cut = len(page.text) > MAX_TEXT_CHARACTERS
    return PageText(page.text[:MAX_TEXT_CHARACTERS], page.title, page.author, page.date, is_cut)


if __name__ == "__main__":
    main()
