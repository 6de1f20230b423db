"""Reads one JSON value as it comes: brackets and strings are followed, nothing else is judged.

A value's text passes through as the model wrote it, but for control characters in strings, which models leave bare and
JSON wants escaped. Nesting costs no recursion, and a value of any length no memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyagent.core.dialects.source import Source

_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r'[^"{}\[\],<\s]*')
_OUTSIDE = re.compile(r'[^"{}\[\]<]*')
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def escaped(character: str) -> str:
    """Return a control character as JSON writes it."""
    return _ESCAPES.get(character, f"\\u{ord(character):04x}")


@dataclass(slots=True)
class JsonValue:
    """A value under way. Outside of strings `stop`, the tag that ends the call, ends a broken value."""

    stop: str = ""
    is_done: bool = False
    is_object: bool = False
    is_begun: bool = False
    _depth: int = 0
    _is_in_string: bool = False
    _is_escaped: bool = False

    def read(self, source: Source) -> str:
        """Read what has come of the value."""
        if not self.is_begun and source.num_left:
            self.is_begun, self.is_object = True, source.first == "{"
        pieces: list[str] = []
        while not self.is_done and source.num_left:
            piece = self._read_string(source) if self._is_in_string else self._read_outside(source)
            if piece is None:
                break
            pieces.append(piece)
        return "".join(pieces)

    def end(self) -> str:
        """Return what the end of the answer leaves of the value: nothing is held back."""
        return ""

    def _read_string(self, source: Source) -> str:
        if self._is_escaped:
            self._is_escaped = False
            return self._shown(source.take(1))
        match = _IN_STRING.match(source.text, source.at)
        piece = source.take(match.end() - source.at) if match else ""
        mark = source.take(1)
        if mark == "\\":
            self._is_escaped = True
        elif mark == '"':
            self._is_in_string = False
            self.is_done = self._depth == 0
        return piece + self._shown(mark)

    @staticmethod
    def _shown(character: str) -> str:
        return escaped(character) if "" < character < " " else character

    def _read_outside(self, source: Source) -> str | None:
        match = (_OUTSIDE if self._depth else _WORD).match(source.text, source.at)
        if match and match.end() > source.at:
            return source.take(match.end() - source.at)
        mark = source.first
        if self.stop and mark == self.stop[0]:
            seen = source.text[source.at : source.at + len(self.stop)]
            if seen == self.stop:
                self.is_done = True
                return None
            if self.stop.startswith(seen) and not source.is_last:
                return None
        return self._read_mark(source, mark)

    def _read_mark(self, source: Source, mark: str) -> str | None:
        if self._depth == 0 and (mark in ",}]" or mark.isspace()):  # ends a number or a word
            self.is_done = True
            return None
        if mark == '"':
            self._is_in_string = True
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            self.is_done = self._depth == 0
        return source.take(1)
