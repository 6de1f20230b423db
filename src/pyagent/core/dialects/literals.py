"""Reads a literal of Python, or of Gemma's likeness of JSON, as it comes, and gives it out as JSON text.

Nesting is a list, not recursion. What is no literal (a name, a call, an expression) becomes a string: nothing is run.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache, partial

from pyagent.core.dialects.json_value import escaped
from pyagent.core.dialects.source import Source

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU]|.)", re.DOTALL)
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_NUMBER_CHARS = 1000


@lru_cache(maxsize=16)
def _mark_in_string(delimiter: str, *, has_escapes: bool) -> re.Pattern[str]:
    """Return what ends a string, or begins an escape."""
    return re.compile(rf"{re.escape(delimiter)}|\\" if has_escapes else re.escape(delimiter))


def json_string_part(text: str) -> str:
    """Return text as it stands inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(slots=True)
class LiteralValue:
    """A value under way. With `quote`, strings stand between two of it and keys stand bare, as Gemma writes."""

    stop: str = ""
    quote: str = ""
    is_done: bool = False
    _stack: list[str] = field(default_factory=list[str])
    _is_key: bool = False
    _word: list[str] = field(default_factory=list[str])
    _word_depth: int = 0
    _delimiter: str = ""
    _is_begun: bool = False
    _is_after_value: bool = False

    def read(self, source: Source) -> str:
        """Read what has come of the value, as JSON text."""
        pieces: list[str] = []
        while not self.is_done and source.num_left:
            piece = self._read_string(source) if self._delimiter else self._read_outside(source)
            if piece is None:
                break
            pieces.append(piece)
        return "".join(pieces)

    def end(self) -> str:
        """Return what the end of the answer leaves: a word of no type yet, as the beginning of a string."""
        return f'{self._begin_value()}"{json_string_part("".join(self._word))}' if self._word else ""

    # -- strings ------------------------------------------------------------------------------------------------------

    def _read_string(self, source: Source) -> str | None:
        text, start = source.text, source.at
        found = _mark_in_string(self._delimiter, has_escapes=not self.quote).search(text, start)
        if found is None:
            kept = 0 if source.is_last else self._num_held(text, start)
            taken = source.take(source.num_left - kept)
            return json_string_part(taken) if taken else None
        if found.start() > start:
            return json_string_part(source.take(found.start() - start))
        if text.startswith(self._delimiter, start):
            source.take(len(self._delimiter))
            self._delimiter = ""
            return '"' + self._end_value()
        return self._read_escape(source)

    def _num_held(self, text: str, start: int) -> int:
        """How much of the end may begin the closing quotes."""
        for length in range(min(len(self._delimiter) - 1, len(text) - start), 0, -1):
            if text.endswith(self._delimiter[:length]):
                return length
        return 0

    def _read_escape(self, source: Source) -> str | None:
        kind = source.text[source.at + 1 : source.at + 2]
        if source.num_left < 2 + _HEX_DIGITS.get(kind, 0) and not source.is_last:
            return None
        match = _ESCAPE.match(source.text, source.at)
        source.take(len(match.group()) if match else 1)
        return _unescaped(match.group(1)) if match else "\\\\"  # one that ends the answer stands for itself

    # -- outside of strings -------------------------------------------------------------------------------------------

    def _read_outside(self, source: Source) -> str | None:
        mark = source.first
        if self.stop and self.stop[0] == mark:
            seen = source.text[source.at : source.at + len(self.stop)]
            if seen == self.stop:
                self.is_done = True
                return self._end_word() if self._word else ""
            if self.stop.startswith(seen) and not source.is_last:
                return None
        if self._word:
            return self._read_word(source, mark)
        quote = self._quote_at(source, mark)
        if quote is None:
            return None
        if quote:
            source.take(len(quote))
            self._delimiter = quote
            return self._begin_value() + '"'
        return self._read_mark(source, mark)

    def _quote_at(self, source: Source, mark: str) -> str | None:
        """Return the quotes that begin a string here; empty for none, None while more text must tell."""
        text, at = source.text, source.at
        if self.quote and mark == self.quote[0]:
            seen = text[at : at + len(self.quote)]
            if seen == self.quote:
                return self.quote
            return None if self.quote.startswith(seen) and not source.is_last else ""
        if self.quote or mark not in "\"'":
            return ""
        seen = text[at : at + 3]
        if seen == mark * 3:
            return seen
        if len(seen) < 3 and seen == mark * len(seen) and not source.is_last:
            return None
        return mark

    def _read_mark(self, source: Source, mark: str) -> str:
        if mark.isspace():
            if self._is_over():
                self.is_done = True
            else:
                source.take(1)
            return ""
        if mark in "([{":
            source.take(1)
            begun = self._begin_value() + ("{" if mark == "{" else "[")
            self._stack.append(_CLOSING[mark])
            self._is_key, self._is_after_value = mark == "{", False
            return begun
        if mark in ")]}":
            return self._close(source)
        if mark == "," and not self._stack:
            self.is_done = True
            return ""
        source.take(1)
        if mark == ":" and self._stack:
            self._is_key = self._is_after_value = False
            return ": "
        if mark == ",":
            self._is_key = self._stack[-1] == "}"
        else:
            self._word.append(mark)
        return ""

    def _is_over(self) -> bool:
        return not self._stack and self._is_begun

    def _close(self, source: Source) -> str:
        """Close the innermost bracket, whichever kind was written; one too many ends the value."""
        if not self._stack:
            self.is_done = True
            return ""
        source.take(1)
        closing = self._stack.pop()
        self._is_key = False
        return ("}" if closing == "}" else "]") + self._end_value()

    def _read_word(self, source: Source, mark: str) -> str:
        ends = ",)]}\n" if self.quote else ",)]} \t\n"
        is_key_end = mark == ":" and self._is_key
        if self._word_depth == 0 and (mark in ends or is_key_end):
            return self._end_word()
        if mark in "\"'" and not self.quote and len(self._word) < 3 and self._word_depth == 0:  # r"..." and its kind
            self._word = []
            return ""
        self._word_depth += (mark in "([") - (mark in ")]")
        self._word.append(source.take(1))
        return ""

    def _end_word(self) -> str:
        word = "".join(self._word).strip()
        self._word, self._word_depth = [], 0
        if self._is_key:
            return f"{self._begin_value()}{json.dumps(word, ensure_ascii=False)}{self._end_value()}"
        return f"{self._begin_value()}{_json_word(word)}{self._end_value()}"

    def _begin_value(self) -> str:
        """Return what stands before a value: commas are written here, so that one too many or too few does no harm."""
        self._is_begun = True
        return ", " if self._is_after_value and self._stack else ""

    def _end_value(self) -> str:
        self._is_after_value = True
        self.is_done = self.is_done or not self._stack
        return ""


def _unescaped(said: str) -> str:
    """Return what follows a backslash in Python as it stands in a JSON string."""
    if said[0] == "u" and len(said) > 1:
        return f"\\{said}"
    if said[0] in "xU" and len(said) > 1:
        code = int(said[1:], 16)
        if 0xD800 <= code < 0xE000:
            return f"\\u{code:04x}"
        return json_string_part(chr(code) if code < 0x110000 else f"\\{said}")
    if said in _PLAIN_ESCAPES:
        plain = _PLAIN_ESCAPES[said]
        return escaped(plain) if plain else ""
    return json_string_part(said if said in "\"'\\/" else f"\\{said}")


def _json_word(word: str) -> str:
    """Return a bare word as JSON: a constant, a number, else a string."""
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return word
    if len(word) <= _MAX_NUMBER_CHARS:
        for read in (partial(int, base=0), float):
            try:
                value = read(word)
            except ValueError:
                continue
            if math.isfinite(value):
                return json.dumps(value)
    return json.dumps(word, ensure_ascii=False)
