"""The bytes of a page as text, whatever encoding they are said to be in. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

_META = re.compile(rb"<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}[\"']?([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_MAX_CONTROL_SHARE = 0.01


def page_text(data: bytes, charset: str = "") -> str | None:
    """Return the text of a page; None for bytes that are no text.

    A byte order mark counts first, then valid UTF-8 (other texts hardly ever are, and pages name the wrong charset),
    then what the server said, then what the page says, and in the end windows-1252, which takes all bytes.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _checked(data[len(mark) :].decode(name, "replace"))
    for name in _names(data, charset):
        try:
            return _checked(data.decode(name))
        except UnicodeError:
            continue
    return _checked(data.decode("cp1252", "replace"))


def _names(data: bytes, charset: str) -> Iterator[str]:
    yield "utf-8"
    declared = _META.search(data[:4096])
    for name in (charset, declared[1].decode("ascii") if declared else ""):
        try:
            found = codecs.lookup(name)
            "".encode(found.name)
        except (LookupError, ValueError):  # none of texts
            continue
        yield found.name


def _checked(text: str) -> str | None:
    num_controls = sum(1 for _ in _CONTROLS.finditer(text[:100_000]))
    return None if num_controls > _MAX_CONTROL_SHARE * min(len(text), 100_000) + 1 else _CONTROLS.sub("", text)
