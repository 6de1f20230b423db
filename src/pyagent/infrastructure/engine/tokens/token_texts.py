"""The texts of a vocabulary in one piece, so that those which hold a text are found in one search."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

_BORDER = b"\xff"
"""In no UTF-8 text, so no text is found across the border of two tokens."""


class TokenTexts:
    """The bytes of all tokens."""

    def __init__(self, token_bytes: Iterable[bytes]) -> None:
        """`token_bytes` are those of the tokens from 0 on."""
        pieces = [data + _BORDER for data in token_bytes]
        self._starts = array("Q", accumulate(chain([0], map(len, pieces[:-1]))))
        self._joined = b"".join(pieces)

    def tokens_with(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens whose text holds one of some texts, in ascending order."""
        wanted = b"|".join(re.escape(text.encode(errors="replace")) for text in texts)
        if not wanted:
            return []
        # Each match reaches to the end of its token: one for a token, however often it holds the texts.
        found = re.finditer(b"(?:" + wanted + b")[^" + _BORDER + b"]*", self._joined)
        return [bisect_right(self._starts, match.start()) - 1 for match in found]
