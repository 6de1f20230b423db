"""Reads the files people hand to an agent as text: plain text in UTF-8, and PDF with the extra `pdf`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import readable_path

MAX_FILE_BYTES = 50_000_000


class Document(msgspec.Struct, frozen=True):
    """A file's text, under the name it was asked for by."""

    path: str
    text: str


async def read_documents(paths: Sequence[str]) -> list[Document]:
    """Return the files' texts. Raises `RequestError` naming the file that cannot be read."""
    return [Document(path, await asyncio.to_thread(_read, path)) for path in paths]


def _read(name: str) -> str:
    path = readable_path(name)
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise RequestError(f"{name} is a folder; name files", param="files")
        if size > MAX_FILE_BYTES:
            raise RequestError(f"{name} has {size:,} bytes; the most is {MAX_FILE_BYTES:,}", param="files")
        text = _read_pdf(path, name) if path.suffix.lower() == ".pdf" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}", param="files") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not text in UTF-8", param="files") from error
    if not text.strip() or "\0" in text:
        raise RequestError(f"{name} has no text", param="files")
    return text


def _read_pdf(path: Path, name: str) -> str:
    try:
        pypdf: Any = import_module("pypdf")  # optional, so its types cannot be relied on
    except ImportError as error:
        raise RequestError(
            f"reading {name} needs a package that is not installed: pip install pypdf", param="files"
        ) from error
    try:
        return "\n\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
    except Exception as error:
        raise RequestError(f"{name} is not a PDF that can be read: {error}", param="files") from error
