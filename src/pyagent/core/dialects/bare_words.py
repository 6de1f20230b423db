"""A bare word of a literal as it comes: a constant, a number, an unquoted text, or an expression with its brackets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyagent.core.dialects.source import Source

_PLAIN = re.compile(r"[\w.]+")
_MAX_NAME_PIECES = 64
_MAX_SHORT_CHARS = 64


@dataclass(slots=True)
class BareWord:
    """Characters outside of quotes. Where it `is_nested`, within brackets or quotes of its own, no mark ends it."""

    _pieces: list[str] = field(default_factory=list[str])
    _num_chars: int = 0
    _depth: int = 0
    _quote: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def is_short(self) -> bool:
        """Whether it may be a number or a prefix of a string."""
        return self._num_chars <= _MAX_SHORT_CHARS

    @property
    def is_nested(self) -> bool:
        """Whether it goes on whatever comes."""
        return self._depth > 0

    @property
    def ends_with_space(self) -> bool:
        """Whether white space came last."""
        return bool(self._pieces) and self._pieces[-1].isspace()

    def take(self, source: Source) -> None:
        """Take the next character, or the letters and digits that come."""
        match = _PLAIN.match(source.text, source.at)
        piece = source.take(len(match.group()) if match else 1)
        if self._quote:
            self._quote = "" if piece in {self._quote, "\n"} else self._quote
        elif self._depth and piece in {'"', "'"}:
            self._quote = piece
        else:
            self._depth += (piece in "([{") - (piece in ")]}")
        self._pieces.append(piece)
        self._num_chars += len(piece)

    def last_name(self, *, is_tail: bool) -> str:
        """Return the name at its end; empty for none. One that is all of the word counts where it `is_tail`."""
        parts = "".join(self._pieces[-_MAX_NAME_PIECES:]).rsplit(None, 1)
        is_name = bool(parts) and parts[-1].isidentifier() and (len(parts) > 1 or is_tail)
        return parts[-1] if is_name else ""

    def drop(self, name: str) -> None:
        """Drop the name at its end."""
        self._pieces = [self.text.rstrip().removesuffix(name)]
