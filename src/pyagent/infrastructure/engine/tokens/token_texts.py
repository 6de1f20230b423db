"""The texts of a vocabulary in one piece, so that those which hold a text are found in one search."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
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
        return sorted({token for text in texts for token in self._tokens_with(text.encode(errors="replace"))})

    def _tokens_with(self, data: bytes) -> Iterator[int]:
        place = self._joined.find(data)
        while place >= 0:
            token = bisect_right(self._starts, place) - 1
            yield token
            end = self._starts[token + 1] if token + 1 < len(self._starts) else len(self._joined)
            place = self._joined.find(data, end)
