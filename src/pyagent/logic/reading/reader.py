"""Asks the process that reads pages of the web and PDFs; what is missing for it is said in one sentence."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TypeVar

from pyagent.core.errors import RequestError
from pyagent.core.web_search import PageText
from pyagent.logic.reading.asked import MAX_TEXT_CHARACTERS, Bytes, PdfText
from pyagent.logic.reading.charsets import page_text
from pyagent.logic.sandbox.pool import Work, WorkerPool

R = TypeVar("R")
_SECONDS = 20.0
"""Of the processor, for a page or a PDF."""
_MEMORY_BYTES = 2 << 30
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w:.-]{2,40})", re.IGNORECASE)


class PageReader:
    """Reads pages of the web, of up to two at a time."""

    def __init__(self) -> None:
        self._workers = WorkerPool(_work(PageText), max_workers=2)
        self._pdf_workers = WorkerPool(_work(PdfText), max_workers=1)

    async def read(self, body: bytes, content_type: str, url: str) -> PageText:
        """Return what people read on a page: of HTML without its frame. Raises `RequestError` for one without text."""
        if content_type.lower().startswith("application/pdf") or body.startswith(b"%PDF-"):
            check_pdf_reader("reading this page")
            pages = (await self._pdf_workers.ask(Bytes(body, "pdf"))).pages
            return _cut("\n\n".join(pages))
        charset = _CHARSET.search(content_type)
        named = charset[1] if charset else ""
        if content_type.lower().startswith("text/plain"):
            return _cut(page_text(body, named) or "")
        if find_spec("trafilatura") is None:
            raise RequestError("reading pages needs a package that is not installed: pip install trafilatura")
        return await self._workers.ask(Bytes(body, "html", url, named))

    async def close(self) -> None:
        """End the processes."""
        await self._workers.close()
        await self._pdf_workers.close()


async def read_pdf(data: bytes) -> list[str]:
    """Return the texts of a PDF's pages. Raises `RequestError` for what is no PDF."""
    workers = WorkerPool(_work(PdfText), max_workers=1)
    try:
        return (await workers.ask(Bytes(data, "pdf"))).pages
    finally:
        await workers.close()


async def read_html(data: bytes) -> PageText:
    """Return the words of an HTML file: without its frame where trafilatura is installed. Raises `RequestError`."""
    workers = WorkerPool(_work(PageText), max_workers=1)
    try:
        return await workers.ask(Bytes(data, "html"))
    finally:
        await workers.close()


def check_pdf_reader(what: str) -> None:
    """Raise `RequestError` where PDFs cannot be read."""
    if find_spec("pypdfium2") is None:
        raise RequestError(f"{what} needs a package that is not installed: pip install pypdfium2", param="files")


def _cut(text: str) -> PageText:
    if not text.strip():
        raise RequestError("it has no text", param="url")
    return PageText(text[:MAX_TEXT_CHARACTERS], is_cut=len(text) > MAX_TEXT_CHARACTERS)


def _work(result: type[R]) -> Work[R]:
    return Work("reading", "pyagent.logic.reading.worker", result, "a smaller file", "the extra `web` or `pdf`",
                _SECONDS, _MEMORY_BYTES)  # fmt: skip
