"""Reads the files people hand to an agent as text: plain text, HTML, and PDF with the extra `pdf`.

HTML and PDF are other people's: they are read in a process of its own, with bounded time and memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.file_access import readable_path
from pyagent.core.one_line import printable
from pyagent.logic.reading.reader import check_pdf_reader, read_html, read_pdf

MAX_FILE_BYTES = 50_000_000
PAGE_BREAK = "\n\n"
"""Between the pages of a PDF in its text."""


class Document(msgspec.Struct, frozen=True):
    """A file's text, under the name it was asked for by; for a PDF where each page begins in it."""

    path: str
    text: str
    page_starts: tuple[int, ...] = ()


async def read_documents(paths: Sequence[str]) -> list[Document]:
    """Return the files' texts. Raises `RequestError` naming the file that cannot be read."""
    return [await _read(path) for path in paths]


def bytes_of(name: str) -> bytes:
    """Return a file's bytes; waits, so call it in a thread. Raises `RequestError` naming what cannot be read."""
    path = readable_path(name)
    try:
        if path.is_dir():
            raise RequestError(f"{name} is a folder; name files", param="files")
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise RequestError(f"{name} has {size:,} bytes; the most is {MAX_FILE_BYTES:,}", param="files")
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}", param="files") from error


async def _read(name: str) -> Document:
    data = await asyncio.to_thread(bytes_of, name)
    suffix = name.lower().rpartition(".")[2]
    try:
        if suffix == "pdf" or data.startswith(b"%PDF-"):
            check_pdf_reader(f"reading {name}")
            document = _paged(name, await read_pdf(data))
        elif suffix in {"html", "htm", "xhtml"}:
            document = Document(name, (await read_html(data)).text)
        else:
            document = Document(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not text in UTF-8", param="files") from error
    except (RequestError, AgentError) as error:
        told = str(error)
        text = told if name in told else f"{printable(name)} cannot be read: {told}"
        raise RequestError(text, param="files") from error
    if not document.text.strip() or "\0" in document.text:
        raise RequestError(f"{name} has no text", param="files")
    return document


def _paged(name: str, pages: Sequence[str]) -> Document:
    starts, length = list[int](), 0
    for page in pages:
        starts.append(length)
        length += len(page) + len(PAGE_BREAK)
    return Document(name, PAGE_BREAK.join(pages), tuple(starts))
