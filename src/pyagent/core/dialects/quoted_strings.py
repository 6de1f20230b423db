"""The text between quotes, as it comes, as it stands inside of a JSON string: with Python's escapes, or without any."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pyagent.core.dialects.json_text import string_part, unescaped
from pyagent.core.dialects.source import Source

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU]|.)", re.DOTALL)
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@lru_cache(maxsize=32)
def _mark(quotes: str, *, has_escapes: bool) -> re.Pattern[str]:
    """Return what ends a string, or begins an escape."""
    return re.compile(rf"{re.escape(quotes)}|\\" if has_escapes else re.escape(quotes))


@dataclass(slots=True)
class QuotedString:
    """A string under way, after its opening quotes. Where it `joins_lines`, a backslash ends a line for nothing."""

    quotes: str
    has_escapes: bool = True
    joins_lines: bool = False
    is_closed: bool = False

    def read(self, source: Source) -> str | None:
        """Read what has come, up to the closing quotes; None while more text must tell."""
        text, start = source.text, source.at
        found = _mark(self.quotes, has_escapes=self.has_escapes).search(text, start)
        if found is None:
            kept = 0 if source.is_last else self._num_held(text, start)
            taken = source.take(source.num_left - kept)
            return string_part(taken) if taken else None
        if found.start() > start:
            return string_part(source.take(found.start() - start))
        if text.startswith(self.quotes, start):
            source.take(len(self.quotes))
            self.is_closed = True
            return ""
        return self._read_escape(source)

    def _num_held(self, text: str, start: int) -> int:
        """Return how many characters of the end may begin the closing quotes."""
        for length in range(min(len(self.quotes) - 1, len(text) - start), 0, -1):
            if text.endswith(self.quotes[:length]):
                return length
        return 0

    def _read_escape(self, source: Source) -> str | None:
        kind = source.text[source.at + 1 : source.at + 2]
        if source.num_left < 2 + _HEX_DIGITS.get(kind, 0) and not source.is_last:
            return None
        match = _ESCAPE.match(source.text, source.at)
        source.take(len(match.group()) if match else 1)
        if match is None:  # one that ends the answer stands for itself
            return "\\\\"
        return "" if self.joins_lines and match.group(1) == "\n" else unescaped(match.group(1))
