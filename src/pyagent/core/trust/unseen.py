"""Characters that people do not see, or see as others: tags, zero widths, turned directions, lookalikes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{1,16}\U000e007f")
_TAGS = re.compile("[\U000e0001-\U000e007f]{2,}")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}")
_IN_WORD = re.compile("(?<=[a-zA-Z])[\u200b-\u200d\u2060-\u2064\ufeff]+(?=[a-zA-Z])")
_RUN = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff]{8,}")
_TURNED = re.compile("[\u202d\u202e]")


class Unseen(msgspec.Struct, frozen=True):
    """Where something is not seen, how much that weighs, and the text it carries."""

    start: int
    end: int
    weight: float
    carried: str = ""


def unseen(text: str) -> Iterator[Unseen]:
    """Find what is not seen. Flags, joined emoji and the signs that Persian and Hebrew need are none of it."""
    if text.isascii():
        return
    flags = {found.start() + 1 for found in _FLAG.finditer(text)}
    for found in _TAGS.finditer(text):
        if found.start() not in flags:
            carried = "".join(chr(ord(each) - 0xE0000) for each in found[0] if 0xE0020 <= ord(each) < 0xE007F)
            yield Unseen(*found.span(), 0.85, carried)
    for found in _SELECTORS.finditer(text):
        yield Unseen(*found.span(), 0.75, _bytes_of(found[0]).decode(errors="replace"))
    in_words = list(_IN_WORD.finditer(text))
    for found in in_words[:8]:
        yield Unseen(*found.span(), 0.35 if len(in_words) > 1 else 0.25)
    for found in _RUN.finditer(text):
        yield Unseen(*found.span(), 0.6)
    for found in _TURNED.finditer(text):
        yield Unseen(*found.span(), 0.5)


def _bytes_of(selectors: str) -> bytes:
    """Return the bytes that variation selectors stand for: 16 in one block of Unicode, 240 in another."""
    return bytes(ord(each) - 0xFE00 if each < "\uff00" else ord(each) - 0xE0100 + 16 for each in selectors)
