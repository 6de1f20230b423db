r"""A regular expression as GBNF, for llama.cpp's server, which takes grammars but no expressions. Pure.

What GBNF has no words for (what looks around, refers back, flags, Unicode's classes) is not translated. `\d`, `\w` and
`\s` are ASCII's letters, which every dialect of expressions takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_MAX_CHARS, _MAX_DEPTH, _MAX_TIMES = 8_192, 40, 1_000
_KINDS = {"d": "0-9", "w": "0-9A-Z_a-z", "s": r"\t\n\x0B\x0C\r "}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xu]\{([0-9a-fA-F]{1,6})\}")
_TIMES = re.compile(r"\{(\d{1,5})(,?)(\d{0,5})\}")
_OPENING = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w*>|(?!\?))")
_OPERATORS = ("&&", "--", "~~")
_ESCAPED: Mapping[str, str] = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def gbnf_of_regex(regex: str) -> str | None:
    """Return a grammar for exactly the texts that the expression matches whole; None where there is none to write."""
    inner = regex.removeprefix("^")
    if inner.endswith("$") and not inner.endswith(r"\$"):
        inner = inner[:-1]
    if len(inner) > _MAX_CHARS:
        return None
    try:
        return f"root ::= {_Reader(inner).whole()}"
    except (_ForeignError, OverflowError):
        return None


def quoted(text: str) -> str:
    """Return a text as GBNF has it: control characters by their codes."""
    letters = (_ESCAPED.get(letter) or (letter if letter >= " " else f"\\x{ord(letter):02X}") for letter in text)
    return f'"{"".join(letters)}"'


class _ForeignError(Exception):
    """Something of the expression has no counterpart."""


class _Reader:
    """A place in an expression."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def whole(self) -> str:
        found = self._either()
        if self._at < len(self._text):
            raise _ForeignError
        return found

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        letter = self._next
        if not letter:
            raise _ForeignError
        self._at += 1
        return letter

    def _either(self) -> str:
        ways = [self._sequence()]
        while self._next == "|":
            self._at += 1
            ways.append(self._sequence())
        return " | ".join(ways)

    def _sequence(self) -> str:
        parts = list[str]()
        while self._next not in {"", "|", ")"}:
            parts.append(self._atom() + self._times())
        return " ".join(parts) or '""'

    def _times(self) -> str:
        """Return how often what is before may come; that it prefers few or many changes no text."""
        found = ""
        if self._next in {"*", "+", "?"}:
            found = self._take()
        elif self._next == "{":
            given = _TIMES.match(self._text, self._at)
            if given is None or max(int(given[1]), int(given[3] or 0)) > _MAX_TIMES:
                raise _ForeignError
            found, self._at = given[0], given.end()
        if found and self._next == "?":
            self._at += 1
        if self._next in {"*", "+", "?", "{"}:
            raise _ForeignError
        return found

    def _atom(self) -> str:
        if self._next == "(":
            return self._group()
        letter = self._take()
        if letter == "[":
            return self._class()
        if letter == ".":
            return r"[^\n]"
        if letter == "\\":
            kind = _KINDS.get(self._next)
            if kind is not None:
                self._at += 1
                return f"[{kind}]"
            return quoted(self._escaped())
        if letter in "^$)*+?{":
            raise _ForeignError
        return quoted(letter)

    def _group(self) -> str:
        opening = _OPENING.match(self._text, self._at)
        self._depth += 1
        if opening is None or self._depth > _MAX_DEPTH:
            raise _ForeignError
        self._at = opening.end()
        inner = self._either()
        self._depth -= 1
        if self._take() != ")":
            raise _ForeignError
        return f"({inner})"

    def _escaped(self) -> str:
        """Return the letter that a backslash stands before."""
        if code := _CODE.match(self._text, self._at):
            self._at = code.end()
            number = int(code[1] or code[2] or code[3], 16)
            if number > 0x10FFFF:
                raise _ForeignError
            return chr(number)
        letter = self._take()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter.isalnum() or letter == "_":
            raise _ForeignError
        return letter

    def _class(self) -> str:
        is_not = self._next == "^"
        self._at += is_not
        parts = list[str]()
        while self._next != "]":
            if self._next == "[" or self._text.startswith(_OPERATORS, self._at):
                raise _ForeignError
            if self._next == "\\" and (kind := _KINDS.get(self._text[self._at + 1 : self._at + 2])):
                if is_not:
                    raise _ForeignError  # all but ASCII's would be more than is meant
                self._at += 2
                parts.append(kind)
                continue
            first = last = self._letter()
            if self._next == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", "", "\\"}:
                self._at += 1
                last = self._letter()
            if last < first:
                raise _ForeignError
            parts.append(_in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}")
        self._at += 1
        if not parts:
            raise _ForeignError
        return f"[{'^' if is_not else ''}{''.join(parts)}]"

    def _letter(self) -> str:
        letter = self._take()
        return self._escaped() if letter == "\\" else letter


def _in_class(letter: str) -> str:
    """Return a letter as it stands in a class, by its code where it would mean something there."""
    return f"\\x{ord(letter):02X}" if letter in '\\[]^-"' or letter < " " else letter
