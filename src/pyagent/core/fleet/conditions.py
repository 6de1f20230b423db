"""Conditions on the results of steps: `review.score >= 8 and not failed draft`. Read, never evaluated as code.

    condition  = part, "or" and "and" between, "not" before, brackets around
    part       = value (== != < <= > >= in, not in) value | value | exists | done | failed | skipped, and a step
    value      = a step's result and what is in it: review.score, find.items[0], `odd name`["a key"]
               | 'text' | "text" | 1.5 | true | false | null | [value, ...]

What is not in a result is null. Results are data: whatever they say, a condition only compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from pyagent.core.errors import RequestError
from pyagent.core.fleet.condition_values import (
    Check,
    Comparison,
    Constant,
    Junction,
    Listed,
    Reference,
    Seen,
    Value,
    truth,
)

MAX_CHARACTERS = 2_000
_MAX_DEPTH = 32
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d{1,15}(?:\.\d{1,15})?(?![\w.]))"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<name>[^\W\d][\w-]*|`[^`]+`)"
    r"|(?P<sign>==|!=|<=|>=|[<>().,\[\]]))"
)
_ORDERS = ("<", "<=", ">", ">=")
_COMPARISONS = ("==", "!=", *_ORDERS, "in", "not in")
_CONSTANTS: dict[str, object] = {"true": True, "false": False, "null": None}
_WORDS = ("exists", "done", "failed", "skipped")
_KEYWORDS = frozenset({"and", "or", "not", "in", *_CONSTANTS, *_WORDS})


@lru_cache(maxsize=1024)
def read_condition(text: str) -> Value:
    """Return a condition; raises `RequestError` that says where it cannot be read."""
    reader = _Reader(text)
    condition = reader.either()
    reader.end()
    return condition


@lru_cache(maxsize=1024)
def read_reference(text: str) -> Reference:
    """Return what `{find.items}` refers to; raises `RequestError` when that is not of this form."""
    if not (text.startswith("{") and text.endswith("}")):
        raise RequestError(f"a reference is written like {{find.items}}, got {text!r:.80}", param="graph")
    reader = _Reader(text[1:-1])
    reference = reader.reference()
    reader.end()
    return reference


def is_met(text: str, seen: Seen) -> bool:
    """Return whether a condition holds; raises `RequestError` for values that cannot be compared."""
    condition = read_condition(text)
    try:
        return truth(condition.value(seen))
    except RequestError as error:
        raise RequestError(f"the condition {text!r:.200} cannot be decided: {error}", param="graph") from error


@dataclass(slots=True)
class _Reader:
    """Reads a condition from left to right."""

    text: str
    tokens: list[tuple[str, str]] = field(init=False)
    place: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise RequestError("a condition is empty; write one like review.score >= 8", param="graph")
        if len(self.text) > MAX_CHARACTERS:
            text = f"a condition has at most {MAX_CHARACTERS:,} characters, got {len(self.text):,}"
            raise RequestError(text, param="graph")
        self.tokens = _tokens(self.text)

    def either(self) -> Value:
        """Read conditions with `or` between them."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise RequestError(f"a condition has more than {_MAX_DEPTH} brackets or nots inside each other")
        value = self._joined("or", lambda: self._joined("and", self._negated))
        self.depth -= 1
        return value

    def _joined(self, word: Literal["and", "or"], part: Callable[[], Value]) -> Value:
        parts = [part()]
        while self._takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _negated(self) -> Value:
        num_nots = 0
        while self._takes("not"):
            num_nots += 1
        value = self._comparison()
        return Junction("not", (value,)) if num_nots % 2 else value

    def _comparison(self) -> Value:
        if self._takes("("):
            value = self.either()
            self._expect(")")
            return value
        kind, word = self._next()
        if kind == "name" and word in _WORDS:
            self.place += 1
            return Check(word, self.reference())
        left = self._value()
        sign = self._next()[1]
        if sign == "not":
            self.place += 1
            self._expect("in")
            return Comparison("not in", left, self._value())
        if sign not in _COMPARISONS:
            return left
        self.place += 1
        return Comparison(sign, left, self._value())

    def _value(self) -> Value:
        kind, text = self._next()
        if kind == "number":
            self.place += 1
            return Constant(float(text) if "." in text else int(text))
        if kind == "text":
            self.place += 1
            return Constant(text[1:-1])
        if text in _CONSTANTS:
            self.place += 1
            return Constant(_CONSTANTS[text])
        return self._list() if text == "[" else self.reference()

    def _list(self) -> Value:
        self._expect("[")
        parts: list[Value] = []
        while not self._takes("]"):
            kind, text = self._next()
            if kind not in {"number", "text"} and text not in _CONSTANTS:
                raise self._wrong("a number, a text, true, false or null in the list")
            parts.append(self._value())
            if self._next()[1] != "]":
                self._expect(",")
        return Listed(tuple(parts))

    def reference(self) -> Reference:
        """Read a step's name and what is in its result."""
        kind, name = self._next()
        if kind != "name" or name in _KEYWORDS:
            raise self._wrong("the name of a step")
        self.place += 1
        path: list[str | int] = []
        while self._next()[1] in {".", "["} and self._next()[0] == "sign":
            path.append(self._key())
        return Reference(name.strip("`"), tuple(path))

    def _key(self) -> str | int:
        if self._takes("."):
            kind, text = self._next()
            if kind != "name":
                raise self._wrong("a name after the dot")
            self.place += 1
            return text.strip("`")
        self._expect("[")
        kind, text = self._next()
        if kind not in {"number", "text"} or (kind == "number" and "." in text):
            raise self._wrong("a place or a 'key' in the brackets")
        self.place += 1
        self._expect("]")
        return int(text) if kind == "number" else text[1:-1]

    def end(self) -> None:
        """Raise when something is left."""
        if self._next()[0]:
            raise self._wrong("and, or, or its end")

    def _next(self) -> tuple[str, str]:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("", "")

    def _takes(self, word: str) -> bool:
        kind, text = self._next()
        is_it = text == word and kind in {"name", "sign"}
        self.place += is_it
        return is_it

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._wrong(repr(word))

    def _wrong(self, expected: str) -> RequestError:
        found = self._next()[1] or "its end"
        text = f"the condition {self.text!r:.200} cannot be read: expected {expected}, got {found!r:.40}"
        return RequestError(text, param="graph")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            rest = text[place:].strip()
            raise RequestError(f"the condition {text!r:.200} cannot be read from {rest!r:.40} on", param="graph")
        tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
        place = found.end()
    return tokens
