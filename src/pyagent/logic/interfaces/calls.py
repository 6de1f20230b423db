"""Reads Dart and Swift as far as interfaces go: calls with their arguments, lists, closures and texts.

What else an expression may be is kept as its source. Reading is bounded in depth, and takes time in the length only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.interfaces.mending import clean

Language = Literal["Dart", "Swift"]
_MAX_DEPTH = 120
_DART_STRING = (
    r"r?'''(?:[^\\]|\\.)*?'''|r'[^'\n]*'|r\"[^\"\n]*\""
    r"|'(?:[^'\\\n$]|\\.|\$\{[^{}\n]*\}|\$)*'|\"(?:[^\"\\\n$]|\\.|\$\{[^{}\n]*\}|\$)*\""
)
_SWIFT_STRING = r"\"\"\"(?:[^\\\"]|\\.|\"(?!\"\"))*\"\"\"|\"(?:[^\"\\\n]|\\.)*\""
_REST = r"|\d[\d_]*(?:\.\d+)?|[@$#]?[A-Za-z_]\w*|=>|\?\?|\?\.|&&|\|\||[=!<>]=|\.\.\.?|->|\S"
_SKIPPED = r"(?:\s+|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)+"
_TOKENS = {
    "Dart": re.compile(f"({_SKIPPED})|0x[0-9A-Fa-f]+|{_DART_STRING}{_REST}", re.DOTALL),
    "Swift": re.compile(f"({_SKIPPED})|0x[0-9A-Fa-f]+|{_SWIFT_STRING}{_REST}", re.DOTALL),
}
_OPERATORS = frozenset(
    {"+", "-", "*", "/", "%", "==", "!=", "<=", ">=", "<", ">", "&&", "||", "??", "=", "?", ":", "..", "...", "&", "|"}
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_DART_ESCAPE = re.compile(r"\\(u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class Token(NamedTuple):
    """A word or sign, and where it begins."""

    text: str
    at: int


class Node(msgspec.Struct):
    """A part of an expression.

    A call has its `name`, `arguments` with their labels, what its closure holds in `body`, and what is called of it in
    `modifiers`; a text has `text`; a list has `items`. `source` is what stands in the code.
    """

    kind: Literal["call", "text", "list", "name", "closure", "other"]
    source: str = ""
    line: int = 0
    name: str = ""
    text: str = ""
    items: list[Node] = []
    arguments: list[tuple[str, Node]] = []
    body: list[Node] = []
    modifiers: list[Node] = []

    def argument(self, label: str) -> Node | None:
        """Return the argument with a label; nothing when there is none."""
        return next((node for name, node in self.arguments if name == label), None)

    def place(self, number: int) -> Node | None:
        """Return the argument at a place among those without a label."""
        plain = [node for name, node in self.arguments if not name]
        return plain[number] if number < len(plain) else None

    def modifier(self, name: str) -> Node | None:
        """Return what is called of it by a name; nothing when it is not called."""
        return next((node for node in self.modifiers if node.name == name), None)

    def said(self) -> str:
        """Return its text, or its source in braces where the text is computed."""
        return clean(self.text if self.kind == "text" else f"{{{self.source}}}")


def text_of(node: Node | None) -> str:
    """Return a node's text; nothing for none."""
    return "" if node is None else node.said()


def tokens_of(text: str, language: Language) -> list[Token]:
    """Return the words and signs of a text, without spaces and comments."""
    return [Token(match[0], match.start()) for match in _TOKENS[language].finditer(text) if match[1] is None]


class Parser:
    """Parses expressions of a text from any of its tokens on."""

    def __init__(self, text: str, language: Language) -> None:
        self.text = text
        self.tokens = tokens_of(text, language)
        self.at = 0
        self._is_swift = language == "Swift"
        self._depth = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def line(self, at: int) -> int:
        """Return the line, from 1, of a sign."""
        from bisect import bisect_right

        return bisect_right(self._starts, self.tokens[min(at, len(self.tokens) - 1)].at) if self.tokens else 1

    def peek(self, ahead: int = 0) -> str:
        """Return a sign that comes; nothing at the end."""
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) else ""

    def value(self) -> Node:
        """Return the expression that begins here, with all that operators join to it."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RequestError(f"line {self.line(self.at)}: code is nested more than {_MAX_DEPTH} deep")
        start = self.at
        node = self._postfix(self._primary())
        is_joined = False
        while self.peek() in _OPERATORS and not (self.peek() == ":" and not is_joined) and not self._ends_here():
            is_joined = True
            self.at += 1
            if self.peek() not in {"", ")", "]", "}", ","}:
                self._postfix(self._primary())
        self._depth -= 1
        return Node("other", self._source(start), self.line(start)) if is_joined else node

    def _ends_here(self) -> bool:
        """Whether an operator ends the expression: what follows is a statement of its own, or a named argument."""
        return self._is_swift and self.peek() == "." and self.peek(1) == ""

    def _source(self, start: int) -> str:
        if start >= len(self.tokens):
            return ""
        last = self.tokens[max(self.at, start + 1) - 1]
        return self.text[self.tokens[start].at : last.at + len(last.text)]

    def _primary(self) -> Node:  # noqa: PLR0911 - one for each beginning
        start, sign = self.at, self.peek()
        line = self.line(start)
        if sign in {"const", "new", "await", "try", "-", "!", "&", "\\", "some", "any"}:
            self.at += 1
            return self._primary() if self.at < len(self.tokens) else Node("other", sign, line)
        if sign in _CLOSING:
            return self._bracketed(sign, start)
        if sign == "<" and (end := self._end_of_types()):  # a list of Dart with the type of its items: <Widget>[]
            self.at = end
            return self._primary()
        self.at += 1
        if sign[:1] in {"'", '"'} or sign[:2] in {"r'", 'r"'}:
            return Node(
                "text" if self._is_plain(sign) else "other", self._source(start), line, text=self._unquoted(sign)
            )
        if sign == "." and self.peek()[:1].isalpha():
            self.at += 1
            return Node("name", self._source(start), line, name=f".{self.peek(-1)}")
        if re.match(r"[@$#]?[A-Za-z_]", sign):
            return Node("name", sign, line, name=sign)
        if sign[:1].isdigit():
            return Node("other", sign, line)
        raise RequestError(f"line {line}: {sign[:20]!r} is not expected here")

    def _bracketed(self, sign: str, start: int) -> Node:
        line = self.line(start)
        if sign == "[":
            items = [node for _, node in self._arguments("[")]
            return Node("list", self._source(start), line, items=items)
        if sign == "{" and self._is_swift:
            return Node("closure", "", line, body=self.block())
        self.skip()
        if sign == "(" and self.peek() == "=>":
            self.at += 1
            inner = self.value()
            return Node("closure", self._source(start), line, body=[inner])
        if sign == "(" and not self._is_swift and self.peek() in {"{", "async"}:
            self.at += self.peek() == "async"
            if self.peek() == "{":
                self.skip()
            return Node("closure", self._source(start), line)
        return Node("other", self._source(start), line)

    def skip(self) -> None:
        """Go past a bracket and all in it."""
        open_signs: list[str] = []
        start = self.at
        while self.at < len(self.tokens):
            sign = self.peek()
            self.at += 1
            if sign in _CLOSING:
                open_signs.append(_CLOSING[sign])
            elif open_signs and sign == open_signs[-1]:
                open_signs.pop()
            if not open_signs:
                return
        raise RequestError(f"line {self.line(start)}: a {self.tokens[start].text} is not closed")

    def _postfix(self, node: Node) -> Node:
        """Return a value with its calls and what is called of it."""
        start = self.at - 1
        while True:
            sign = self.peek()
            if sign == "<" and node.kind == "name" and node.name[:1].isupper() and (end := self._end_of_types()):
                self.at = end
            elif sign == "(" and node.kind in {"name", "call"} and not (node.kind == "call" and not node.modifiers):
                node = self._called(node, start)
            elif sign == "{" and self._is_swift and node.kind in {"name", "call"} and self._takes_closure(node):
                self._add_closures(node)
            elif sign in {".", "?."} and re.match(r"[A-Za-z_]", self.peek(1)):
                self.at += 2
                name = self.peek(-1)
                if node.kind == "name":
                    node = Node("name", f"{node.name}.{name}", node.line, name=f"{node.name}.{name}")
                else:
                    self._add_modifier(node, name)
            elif sign == "[" and node.kind in {"name", "other"}:
                self.skip()
                node = Node(
                    "other",
                    node.source + self.text[self.tokens[start + 1].at : self.tokens[self.at - 1].at + 1],
                    node.line,
                )
            elif sign == "!" or (sign == "?" and self.peek(1) in {")", ",", "]", ";", ".", "}"}):
                self.at += 1
            elif sign in {"as", "is"} and not self._is_swift:
                self.at += 2
                if self.peek() == "<" and (end := self._end_of_types()):
                    self.at = end
            else:
                return node

    def _end_of_types(self) -> int:
        """Return where `<Types>` ends that a call follows; 0 where it is a comparison."""
        depth, at = 0, self.at
        while at < min(len(self.tokens), self.at + 40):
            sign = self.tokens[at].text
            depth += {"<": 1, ">": -1}.get(sign, 0)
            at += 1
            if depth == 0:
                return at if at < len(self.tokens) and self.tokens[at].text in {"(", "[", "{", "."} else 0
            if not re.fullmatch(r"[\w<>,?.]+", sign):
                return 0
        return 0

    def _called(self, node: Node, start: int) -> Node:
        if node.kind == "call":
            node.modifiers[-1].arguments = self._arguments("(")
            return node
        return Node("call", node.name, node.line, name=node.name, arguments=self._arguments("("))

    def _takes_closure(self, node: Node) -> bool:
        last = node.modifiers[-1] if node.modifiers else node
        return last.name[:1].isupper() or node.kind == "call"

    def _add_closures(self, node: Node) -> None:
        """Read the closures behind a call: `{ ... }`, and more of them with labels."""
        if node.kind == "name":
            node.kind = "call"
        last = node.modifiers[-1] if node.modifiers else node
        last.body = self.block()
        while self.peek(1) == ":" and self.peek(2) == "{" and re.match(r"[A-Za-z_]", self.peek()):
            label, line = self.peek(), self.line(self.at)
            self.at += 2
            last.arguments.append((label, Node("closure", "", line, body=self.block())))

    def _add_modifier(self, node: Node, name: str) -> None:
        modifier = Node("call", name, self.line(self.at - 1), name=name)
        if self.peek() == "<" and (end := self._end_of_types()):
            self.at = end
        if self.peek() == "(":
            modifier.arguments = self._arguments("(")
        node.modifiers.append(modifier)
        if self.peek() == "{" and self._is_swift:
            self._add_closures(node)

    def _arguments(self, sign: str) -> list[tuple[str, Node]]:
        """Return what stands in brackets, with the labels before colons."""
        start, closing = self.at, _CLOSING[sign]
        self.at += 1
        found: list[tuple[str, Node]] = []
        while self.peek() != closing:
            if not self.peek():
                raise RequestError(f"line {self.line(start)}: a {sign} is not closed")
            if self.peek() in {",", ";"}:
                self.at += 1
                continue
            label = ""
            if self.peek(1) == ":" and re.match(r"[A-Za-z_'\"]", self.peek()):
                label = self._unquoted(self.peek()) if self.peek()[0] in "'\"" else self.peek()
                self.at += 2
            if not self._is_swift and self.peek() in {"if", "for"} and self.peek(1) == "(":
                self.at += 1
                self.skip()
            found.append((label, self.value()))
            if self.peek() == "else":
                self.at += 1
        self.at += 1
        return found

    def map_literal(self) -> dict[str, Node]:
        """Return the entries of `{'key': value, ...}` that begins here, as Dart writes a map."""
        return dict(self._arguments("{"))

    def block(self) -> list[Node]:
        """Return the values that the statements of a block of Swift are, those within `if` and `for` included."""
        start = self.at
        self.at += 1
        self._skip_parameters()
        found: list[Node] = []
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RequestError(f"line {self.line(start)}: code is nested more than {_MAX_DEPTH} deep")
        while self.peek() != "}":
            if not self.peek():
                raise RequestError(f"line {self.line(start)}: a {{ is not closed")
            found += self._statement()
        self.at += 1
        self._depth -= 1
        return found

    def _skip_parameters(self) -> None:
        """Go past `item in`, `(a, b) in` or `_ in` at the beginning of a closure."""
        for ahead in range(12):
            sign = self.peek(ahead)
            if sign == "in":
                self.at += ahead + 1
                return
            if not re.fullmatch(r"[\w(),:$@\[\]]+", sign):
                return

    def _statement(self) -> Iterator[Node]:  # noqa: C901, PLR0912 - one for each keyword
        match self.peek():
            case ";" | ",":
                self.at += 1
            case "if" | "for" | "while" | "guard" | "switch":
                while self.peek() not in {"{", ""}:
                    self.at += 1
                yield from self.block() if self.peek() else []
            case "else":
                self.at += 1
                if self.peek() == "{":
                    yield from self.block()
            case "let" | "var":
                self.at += 2
                if self.peek() == ":":
                    while self.peek() not in {"=", "", "}"}:
                        self.at += 1
                if self.peek() == "=":
                    self.at += 1
                    self.value()
            case "return":
                self.at += 1
            case "case" | "default":
                while self.peek() not in {":", "", "}"}:
                    self.at += 1
                self.at += self.peek() == ":"
            case _:
                yield self.value()

    def _is_plain(self, sign: str) -> bool:
        """Whether nothing is computed within a text."""
        if sign[0] == "r":
            return True
        return not re.search(r"\\\(" if self._is_swift else r"\$", re.sub(r"\\\\|\\\$", "", sign))

    def _unquoted(self, sign: str) -> str:
        raw = sign[0] == "r"
        quoted = sign[1:] if raw else sign
        width = 3 if quoted[:3] in {"'''", '"""'} and len(quoted) >= 6 else 1
        inner = quoted[width:-width]
        return inner if raw else _DART_ESCAPE.sub(_letter, inner)


def _letter(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        number = int(code.strip("ux{}"), 16)
        return chr(number) if number < 0x110000 else ""
    return _LETTERS.get(code, code)


def walk_calls(nodes: list[Node], is_wanted: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the outermost calls below some nodes that are wanted."""
    for node in nodes:
        if node.kind == "call" and is_wanted(node):
            yield node
        else:
            below = [*node.items, *node.body, *(each for _, each in node.arguments)]
            yield from walk_calls(below, is_wanted)
