"""Reads GBNF, the grammars of llama.cpp, which xgrammar calls EBNF: rules with `::=`, the first of them `root`.

A rule goes on over lines until the next one begins, as in xgrammar; so what llama.cpp takes is read as it means it.
Pure; bounded in size, nesting and repetitions. Errors name line and column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyagent.core.errors import RequestError
from pyagent.core.structured_output.nodes import Chars, Either, Node, Ref, Repeat, Sequence, Text, Token

MAX_CHARS = 1 << 17
_MAX_RULES, _MAX_DEPTH, _MAX_STACKED, _MAX_REPETITIONS = 2000, 40, 2, 10_000
_MAX_CODE = 0x10FFFF
_SPACE = re.compile(r"(?:\s+|#[^\n]*)+")
_RULE = re.compile(r"([A-Za-z0-9_-]+)\s*::=")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_BRACES = re.compile(r"\{\s*+(\d*+)\s*+(,?+)\s*+(\d*+)\s*+\}")
_TOKEN = re.compile(r"(!?)<(?:\[(\d{1,9})\]|([^<>\s]{1,200}))>")
_LOOK_AHEAD = re.compile(r"\(\s*=")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}


def read_gbnf(text: str) -> Mapping[str, Node]:
    """Return the rules by their names. Raises `RequestError` with line and column."""
    if len(text) > MAX_CHARS:
        raise RequestError(
            f"response_format.grammar has {len(text)} characters; as GBNF {MAX_CHARS} are taken",
            param="response_format",
        )
    return _Reader(text).rules()


class _Reader:
    """A place in a grammar's text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._refs: dict[str, int] = {}

    def rules(self) -> Mapping[str, Node]:
        rules = dict[str, Node]()
        self._skip()
        while self._at < len(self._text):
            found = _RULE.match(self._text, self._at)
            if found is None:
                raise self._wrong("expected a rule, as in `root ::= ...`")
            name = found[1]
            if len(rules) == _MAX_RULES:
                raise self._wrong(f"a grammar has at most {_MAX_RULES} rules")
            if name in rules:
                raise self._wrong(f"the rule {name:.60} is there twice")
            self._at = found.end()
            rules[name] = self._either()
            if self._peek() == ")":
                raise self._wrong("there is no ( for this )")
        if "root" not in rules:
            raise self._wrong("there is no rule `root`, which says what the whole answer is")
        for name, place in self._refs.items():
            if name not in rules:
                raise self._wrong(f"there is no rule {name:.60}", place)
        return rules

    def _either(self) -> Node:
        ways = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else Either(tuple(ways))

    def _sequence(self) -> Node:
        items = list[Node]()
        while True:
            self._skip()
            if self._peek() in {"", "|", ")"} or _RULE.match(self._text, self._at):
                return items[0] if len(items) == 1 else Sequence(tuple(items))
            items.append(self._repeated(self._item()))

    def _item(self) -> Node:
        start = self._at
        letter = self._peek()
        if letter == "(":
            return self._group()
        if letter in {'"', "'"}:
            self._at += 1
            return Text(self._string(letter, start))
        if letter == "[":
            self._at += 1
            return self._chars(start)
        if letter == ".":
            self._at += 1
            return Chars((), is_negated=True)
        if token := _TOKEN.match(self._text, self._at):
            self._at = token.end()
            return Token(int(token[2]) if token[2] else None, token[3] or "", bool(token[1]))
        if name := _NAME.match(self._text, self._at):
            self._at = name.end()
            self._refs.setdefault(name[0], start)
            return Ref(name[0])
        raise self._wrong(f"{letter!r} begins nothing that a grammar has")

    def _group(self) -> Node:
        start = self._at
        if _LOOK_AHEAD.match(self._text, start):
            raise self._wrong("look-ahead is not supported")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(f"groups are nested more than {_MAX_DEPTH} deep")
        self._at += 1
        inner = self._either()
        if self._peek() != ")":
            raise self._wrong("this ( is not closed", start)
        self._at += 1
        self._depth -= 1
        return inner

    def _string(self, quote: str, start: int) -> str:
        letters = list[str]()
        while (letter := self._peek()) != quote:
            if letter in {"", "\n"}:
                raise self._wrong("this text is not closed", start)
            letters.append(self._letter())
        self._at += 1
        return "".join(letters)

    def _chars(self, start: int) -> Node:
        is_negated = self._peek() == "^"
        self._at += is_negated
        ranges = list[tuple[int, int]]()
        while self._peek() != "]":
            low = high = self._class_letter(start)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                high = self._class_letter(start)
                if high < low:
                    raise self._wrong("the range goes backwards")
            ranges.append((low, high))
        self._at += 1
        if not ranges and not is_negated:
            raise self._wrong("this class has no characters", start)
        return Chars(tuple(ranges), is_negated)

    def _class_letter(self, start: int) -> int:
        if self._peek() == "":
            raise self._wrong("this [ is not closed", start)
        return ord(self._letter())

    def _letter(self) -> str:
        """Read a character, which may be escaped."""
        letter = self._text[self._at]
        self._at += 1
        if letter != "\\":
            return letter
        escaped = self._peek()
        self._at += 1
        if escaped in _HEX:
            return self._by_code(_HEX[escaped])
        if escaped in _ESCAPES:
            return _ESCAPES[escaped]
        if not escaped or escaped.isalnum():
            raise self._wrong(f"there is no escape \\{escaped}", self._at - 2)
        return escaped

    def _by_code(self, num_digits: int) -> str:
        digits = self._text[self._at : self._at + num_digits]
        is_hex = len(digits) == num_digits and all(digit in "0123456789abcdefABCDEF" for digit in digits)
        code = int(digits, 16) if is_hex else -1
        if not 0 <= code <= _MAX_CODE or 0xD800 <= code < 0xE000:
            raise self._wrong(f"expected a character by {num_digits} hexadecimal digits")
        self._at += num_digits
        return chr(code)

    def _repeated(self, item: Node) -> Node:
        """Return an item with the repetitions written after it."""
        num_stacked = 0
        while (letter := self._peek()) in {"*", "+", "?", "{"} and letter:
            num_stacked += 1
            if num_stacked > _MAX_STACKED:
                raise self._wrong(f"more than {_MAX_STACKED} repetitions of one thing; put one in their place")
            if letter == "{":
                item = self._counted(item)
            else:
                self._at += 1
                item = Repeat(item, int(letter == "+"), 1 if letter == "?" else None)
        return item

    def _counted(self, item: Node) -> Node:
        found = _BRACES.match(self._text, self._at)
        if found is None or not (found[1] or found[3]):
            raise self._wrong("expected {3}, {3,}, {,5} or {3,5}")
        least = int(found[1][:9] or 0)
        most = int(found[3][:9]) if found[3] else None if found[2] else least
        if max(least, most or 0) > _MAX_REPETITIONS:
            raise self._wrong(f"at most {_MAX_REPETITIONS} repetitions are taken")
        if most is not None and most < least:
            raise self._wrong("the most repetitions are fewer than the least")
        self._at = found.end()
        return Repeat(item, least, most)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self) -> None:
        if space := _SPACE.match(self._text, self._at):
            self._at = space.end()

    def _wrong(self, text: str, place: int | None = None) -> RequestError:
        place = self._at if place is None else place
        line = self._text.count("\n", 0, place) + 1
        column = place - self._text.rfind("\n", 0, place)
        return RequestError(
            f"response_format.grammar, line {line}, column {column}: {text}", param="response_format.grammar"
        )
