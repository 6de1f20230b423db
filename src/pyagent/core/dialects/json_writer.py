"""Writes JSON from marks and values as a model puts them: one that is missing is written, one too many is left out.

Knows no text that is read. What it returns is given out at once, so that nothing is taken back; only the first element
within braces is kept until it is known whether they are an object's or a set's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

_LIST, _OBJECT, _SET = "]]", "}}", "}]"
"""What closes a bracket: as it was opened, and as JSON has it."""
_BRACKETS = {"(": ")]", "[": _LIST, "{": _OBJECT}
_MAX_DEPTH_SEARCHED = 64


@dataclass(slots=True)
class JsonWriter:
    """JSON under way. `expected` is what comes next in the innermost bracket.

    The outermost braces of `is_arguments` are an object's. What stands between values is kept where it `keeps_space`.
    """

    is_arguments: bool = False
    keeps_space: bool = False
    expected: Literal["key", "colon", "value", "comma"] = "value"
    _stack: list[str] = field(default_factory=list[str])
    _gap: list[str] = field(default_factory=list[str])
    """White space and the comma since the last value."""
    _undecided: list[str] | None = None
    """The first element within braces that may be a set's."""

    @property
    def is_outermost(self) -> bool:
        """Whether no bracket is open."""
        return not self._stack

    @property
    def expects_key(self) -> bool:
        """Whether a key comes next, perhaps after a comma that is missing."""
        return self.expected == "key" or (self.expected == "comma" and self.is_in_object)

    @property
    def is_in_object(self) -> bool:
        """Whether the innermost bracket is an object's."""
        return self._stack[-1:] == [_OBJECT]

    @property
    def is_done(self) -> bool:
        """Whether the value is whole."""
        return not self._stack and self.expected == "comma"

    def shown(self, text: str) -> str:
        """Return a piece of a value that is given out now."""
        if self._undecided is None:
            return text
        self._undecided.append(text)
        return ""

    def begin(self) -> str:
        """Return what stands before a key or a value."""
        before, expected = "".join(self._gap), self.expected
        self._gap.clear()
        if expected == "colon":
            self.expected = "value"
            return f"{self.decided('{')}: "
        if expected == "comma":
            self._expect()
            before = ", "
        return self.shown(before)

    def end(self) -> None:
        """End a key or a value."""
        self.expected = "colon" if self.expected == "key" else "comma"

    def space(self, space: str) -> None:
        """Take white space between values."""
        if self._stack and self.keeps_space:
            self._gap.append("".join(one for one in space if one in " \t\r\n"))

    def comma(self) -> str:
        """Take a comma within brackets; return what is missing before it."""
        text = ""
        if self.expected == "colon":
            text, self.expected = self.decided("[") or ": null", "comma"
        elif self.expected == "value" and self.is_in_object:
            text, self.expected = "null", "comma"
        if self.expected == "comma":
            self._gap.append("," if self.keeps_space else ", ")
            self._expect()
        return text

    def colon(self) -> str:
        """Take a colon."""
        if self.expected != "colon":
            return ""
        self.expected = "value"
        before = self.decided("{") + "".join(self._gap)
        self._gap.clear()
        return before + (":" if self.keeps_space else ": ")

    def open(self, mark: str) -> str:
        """Open a bracket; one in the place of a key gets an empty key."""
        before = ""
        if self._undecided is not None and self.expected == "key":
            before, self.expected = self.decided("["), "value"
        before += self.begin()
        if self.expected == "key":
            before += '"": '
        self._stack.append(_BRACKETS[mark])
        self._expect()
        if mark == "{" and (len(self._stack) > 1 or not self.is_arguments):
            self._undecided = []
            return before
        return before + ("{" if mark == "{" else "[")

    def has_open(self, mark: str) -> bool:
        """Whether a closing bracket closes one of those that are open."""
        return self._depth(mark) is not None

    def close(self, mark: str) -> str:
        """Close the bracket that the mark closes with all inside of it; where there is none, the innermost."""
        return "".join(self._pop() for _ in range((self._depth(mark) or 0) + 1))

    def complete(self) -> str:
        """Close all brackets."""
        pieces = ["" if self._stack or self.is_done else "null"]
        while self._stack:
            pieces.append(self._pop())
        self.expected = "comma"
        return "".join(pieces)

    def decided(self, brace: str) -> str:
        """Decide what the innermost braces are; return what was kept of them."""
        if self._undecided is None:
            return ""
        kept, self._undecided = "".join(self._undecided), None
        if brace == "[":
            self._stack[-1] = _SET
        return brace + kept

    def _expect(self) -> None:
        self.expected = "key" if self.is_in_object else "value"

    def _depth(self, mark: str) -> int | None:
        innermost = [closing[0] for closing in self._stack[: -_MAX_DEPTH_SEARCHED - 1 : -1]]
        return innermost.index(mark) if mark in innermost else None

    def _pop(self) -> str:
        """Return what closes the innermost bracket, after what is missing in it."""
        text = ""
        if self._undecided is not None:
            text = self.decided("[" if self.expected == "colon" else "{")
        elif self.expected == "colon":
            text = ": null"
        elif self.expected == "value" and self.is_in_object:
            text = "null"
        space = "".join(one for one in self._gap if not one.startswith(","))
        self._gap.clear()
        self.expected = "comma"
        return text + space + self._stack.pop()[1]
