"""A file's bytes as text, and back to bytes of the same encoding. Knows no files."""

from __future__ import annotations

import codecs

import msgspec

from pyagent.core.errors import RequestError

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_EXACT = {name for _, name in _MARKS}
"""Encodings in which no text has two forms."""


class NotTextError(ValueError):
    """The bytes are no text of the encoding; the message says why."""


class Decoded(msgspec.Struct, frozen=True):
    """A text, with its encoding and the byte order mark that stood before it."""

    text: str
    encoding: str
    mark: bytes = b""

    def encoded(self, text: str) -> bytes:
        """Return another text in the same encoding; raises `NotTextError` where that has no such letters."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            letter = text[error.start]
            raise NotTextError(f"{letter!r} cannot be written in its encoding, {self.encoding}") from error


def decoded(data: bytes, encoding: str | None = None) -> Decoded:
    """Return bytes as text: UTF-8, what their byte order mark says, or the encoding that is given."""
    mark, name = next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", encoding or "utf-8"))
    if b"\0" in data and not mark and not name.startswith(("utf-16", "utf-32")):
        raise NotTextError("binary")
    try:
        text = data[len(mark) :].decode(name)
        is_same = name in _EXACT or text.encode(name) == data
    except UnicodeError as error:
        raise NotTextError(f"not text in {name}") from error
    if not is_same:  # some encodings write a letter in two ways
        raise NotTextError(f"its bytes would change in {name}")
    return Decoded(text, name, mark)


def checked_encoding(name: str | None) -> str | None:
    """Return the encoding's usual name; raises `RequestError` for one that is none of texts."""
    if name is None:
        return None
    try:
        found = codecs.lookup(name)
        "".encode(found.name)
    except (LookupError, UnicodeError) as error:
        text = f"there is no encoding {name!r}; expected a name as latin-1 or cp1252"
        raise RequestError(text, param="encoding") from error
    return found.name
