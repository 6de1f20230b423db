"""Reads mathematical text into a tree. No `eval`, no sympy: what is not in this grammar cannot be computed.

    equation  = sum ["=" sum]
    sum       = product {("+" | "-") product}
    product   = unary {("*" | "/" | "%" | "mod" | nothing) unary | "%"}      2x, 3 sin(x), (a)(b), 20%
    unary     = ("-" | "+") unary | power
    power     = postfix [("^" | "**") unary]                   2^3^2 = 2^9, -2^2 = -4
    postfix   = atom ["!" | "!!" | "°"] {"choose" atom}        5!! = 5*3*1, 6 choose 2 = 15, 180° = pi
    atom      = number | name | function "(" [sum {"," sum}] ")" | "(" sum ")" | matrix
    matrix    = "[" sum {"," sum} "]" | "[" row {"," row} "]"

Names are one letter, a letter with digits (`x1`), a Greek letter or a constant. Texts, numbers, nesting and matrices
are bounded here, before anything is computed. What people read in two ways is refused with both ways to write it:
`2 + 3 mod 2`, `200 + 10%`, `10% - 3`, `6/2(1 + 2)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pyagent.core.errors import RequestError
from pyagent.core.nearest import did_you_mean

MAX_CHARACTERS = 10_000
MAX_DEPTH = 60
MAX_NUMBER_DIGITS = 2_000
MAX_MATRIX_ENTRIES = 1_600


def _names(names: str) -> list[str]:
    return names.split()


FUNCTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(_names("sin cos tan cot sec csc asin acos atan sinh cosh tanh asinh acosh atanh"), (1, 1)),
    **dict.fromkeys(
        _names("exp ln log2 log10 sqrt cbrt abs floor ceil sign gamma erf zeta factorial factorial2"), (1, 1)
    ),
    **dict.fromkeys(_names("re im conjugate arg isprime det inverse transpose rank trace eigenvalues"), (1, 1)),
    **dict.fromkeys(_names("binomial mod root atan2"), (2, 2)),
    **dict.fromkeys(_names("gcd lcm min max"), (2, 50)),
    **dict.fromkeys(_names("sum product"), (4, 4)),
    "log": (1, 2),
    "round": (1, 2),
}
"""The functions there are, with the least and most arguments each takes."""

_SAME = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "ceiling": "ceil",
    "inv": "inverse",
    "choose": "binomial",
}
_CONSTANTS = {"pi": "pi", "e": "E", "E": "E", "i": "I", "I": "I", "oo": "oo", "inf": "oo", "infinity": "oo"}
_GREEK = frozenset(_names("alpha beta delta epsilon eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega"))
_WRITTEN_OTHERWISE = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"} | {"√": " sqrt ", "π": " pi ", "∞": " oo "}
)
_RAISED = re.compile("⁻?[⁰¹²³⁴-⁹]+")
_LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_TOKEN = re.compile(
    r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z]+\d*)|(\*\*|[-+*/%^!=(),°\[\]]))"
)

NodeKind = Literal[
    "number", "constant", "symbol", "call", "matrix", "+", "*", "%", "mod", "^", "negative", "reciprocal", "="
]


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression: what it is, its text where it has one, its parts.

    Sums and products have any number of parts, so that a long one is no deeper than a short one: `a - b` is a sum with
    a negative, `a / b` a product with a reciprocal. A matrix keeps its entries row by row, and its width.
    """

    kind: NodeKind
    text: str = ""
    parts: tuple[Node, ...] = ()
    num_columns: int = 0

    def symbols(self) -> set[str]:
        """Return the unknowns in it."""
        found = {self.text} if self.kind == "symbol" else set[str]()
        return found.union(*(part.symbols() for part in self.parts)) if self.parts else found

    def calls(self, name: str, num_arguments: int | None = None) -> bool:
        """Whether a function of that name is called in it, with that many arguments."""
        is_called = self.kind == "call" and self.text == name and num_arguments in (None, len(self.parts))
        return is_called or any(part.calls(name, num_arguments) for part in self.parts)

    def has_constant(self, name: str) -> bool:
        """Whether a constant stands in it."""
        is_here = self.kind == "constant" and self.text == name
        return is_here or any(part.has_constant(name) for part in self.parts)


def parse(text: str) -> Node:
    """Return the tree of an expression or equation; raises `RequestError` naming what cannot be read, and where."""
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"the expression has {len(text):,} characters; the most is {MAX_CHARACTERS:,}", param="text")
    parser = _Parser(text, _tokens(text))
    if not parser.tokens:
        raise RequestError("the expression is empty", param="text")
    node = parser.equation()
    if not parser.is_done:
        raise parser.unexpected("an operator or the end")
    return node


def _tokens(text: str) -> list[tuple[str, str]]:
    text = _RAISED.sub(lambda match: f"^({match[0].translate(_LOWERED)})", text).translate(_WRITTEN_OTHERWISE).rstrip()
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise RequestError(f"cannot read {text[position:].strip()[:20]!r} in {text[:80]!r}", param="text")
        number, name, sign = match.groups()
        if number:
            tokens.append(("number", number))
        elif name:
            tokens.append(("name", name))
        else:
            tokens.append(("sign", "^" if sign == "**" else sign))
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, text: str, tokens: list[tuple[str, str]]) -> None:
        self.text = text
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.ending = ""  # "mod" or "%" when the product just read was one of these, bare

    # -- reading tokens -----------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.tokens)

    def peek(self, *signs: str) -> bool:
        return not self.is_done and self.tokens[self.position] in [("sign", sign) for sign in signs]

    def take(self, *signs: str) -> str | None:
        if not self.peek(*signs):
            return None
        self.position += 1
        return self.tokens[self.position - 1][1]

    def expect(self, sign: str) -> None:
        if self.take(sign) is None:
            raise self.unexpected(f"{sign!r}")

    def unexpected(self, wanted: str) -> RequestError:
        got = "the end" if self.is_done else repr(self.tokens[self.position][1])
        return RequestError(f"expected {wanted}, got {got} in {self.text.strip()[:80]!r}", param="text")

    # -- the grammar --------------------------------------------------------------------------------------------------

    def equation(self) -> Node:
        left = self.sum()
        return Node("=", parts=(left, self.sum())) if self.take("=") else left

    def sum(self) -> Node:
        parts, endings = [self.product()], [self.ending]
        while sign := self.take("+", "-"):
            part = self.product()
            parts.append(part if sign == "+" else Node("negative", parts=(part,)))
            endings.append(self.ending)
        if len(parts) > 1 and any(endings):
            raise self.ambiguous(next(filter(None, endings)))
        self.ending = ""
        return parts[0] if len(parts) == 1 else Node("+", parts=tuple(parts))

    def product(self) -> Node:
        parts, num_mods, ending = [self.unary()], 0, ""
        while True:
            if self.take("*"):
                parts.append(self.unary())
            elif self.take("/"):
                parts.append(Node("reciprocal", parts=(self.unary(),)))
            elif self.take("%"):
                if self.is_done or self.peek(*"+-*/^),]="):
                    parts, ending = [*parts, _PERCENT], "%"
                    continue
                num_mods = self.checked_depth(num_mods + 1)
                parts = [Node("%", parts=(_product(parts), self.unary()))]
            elif self._take_word("mod"):
                num_mods, ending = self.checked_depth(num_mods + 1), "mod"
                parts = [Node("mod", parts=(_product(parts), self.unary()))]
                continue
            elif self._is_factor_next():
                if parts[-1].kind == "reciprocal" and self.peek("("):
                    raise self.ambiguous("/")
                parts.append(self.power())
            else:
                self.ending = ending
                return _product(parts)
            ending = ending if ending == "mod" else ""

    def ambiguous(self, ending: str) -> RequestError:
        """Return the refusal of a text that can be read in two ways: neither is computed."""
        ways = {
            "mod": "(7 + 5) mod 3 or 7 + (5 mod 3)",
            "%": "10% of 200, 10/100 + 5 or (10 mod 5)",
            "/": "6/2*(1 + 2) or 6/(2*(1 + 2))",
        }[ending]
        return RequestError(f"{self.text.strip()[:80]!r} can be read in two ways; write it as {ways}", param="text")

    def checked_depth(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise RequestError(f"the expression nests deeper than {MAX_DEPTH}", param="text")
        return depth

    def _is_factor_next(self) -> bool:
        return not self.is_done and (self.tokens[self.position][0] == "name" or self.peek("(", "["))

    def _take_word(self, word: str) -> bool:
        is_next = not self.is_done and self.tokens[self.position] == ("name", word)
        self.position += is_next
        return is_next

    def unary(self) -> Node:
        signs: list[str] = []
        while sign := self.take("-", "+"):
            signs.append(sign)
        node = self.power()
        return Node("negative", parts=(node,)) if signs.count("-") % 2 else node

    def power(self) -> Node:
        self.depth = self.checked_depth(self.depth + 1)
        base = self.factorial()
        while self._take_word("choose"):
            base = Node("call", "binomial", (base, self.factorial()))
        node = Node("^", parts=(base, self.unary())) if self.take("^") else base
        self.depth -= 1
        return node

    def factorial(self) -> Node:
        base = self.atom()
        if self.take("°"):
            return Node("*", parts=(base, Node("constant", "pi"), Node("reciprocal", parts=(Node("number", "180"),))))
        if not self.take("!"):
            return base
        name = "factorial2" if self.take("!") else "factorial"
        if self.peek("!"):
            raise RequestError("of factorials ! and !! are known here; write ((3!)!)! for one of another", param="text")
        return Node("call", name, (base,))

    def atom(self) -> Node:
        if self.take("("):
            node = self.sum()
            self.expect(")")
            return node
        if self.take("["):
            return self.matrix()
        if self.is_done or self.tokens[self.position][0] == "sign":
            raise self.unexpected("a number, a name or '('")
        kind, text = self.tokens[self.position]
        self.position += 1
        return _number(text) if kind == "number" else self.named(text)

    def named(self, name: str) -> Node:
        lower = _SAME.get(name.lower(), name.lower())
        if lower in FUNCTIONS:
            return self.call(lower)
        if name in _CONSTANTS or lower in {"pi", "infinity"}:
            return Node("constant", _CONSTANTS.get(name) or _CONSTANTS[lower])
        if re.fullmatch(r"[A-Za-z]\d*", name) or lower in _GREEK:
            return Node("symbol", name)
        hint = did_you_mean(lower, [*FUNCTIONS, *_SAME], "names are single letters, Greek letters or functions")
        raise RequestError(f"{name!r} is not a name mathematics knows here; {hint}", param="text")

    def call(self, name: str) -> Node:
        if not self.take("("):  # `sin x`, `det [[1,2],[3,4]]`: the next factor is the argument
            arguments = [self.power()]
        else:
            arguments = [] if self.peek(")") else [self.sum()]
            while self.take(","):
                arguments.append(self.sum())
            self.expect(")")
        least, most = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            takes = f"{least}" if least == most else f"{least} to {most}"
            raise RequestError(f"{name} takes {takes} arguments, got {len(arguments)}", param="text")
        return Node("call", name, tuple(arguments))

    def matrix(self) -> Node:
        rows: list[list[Node]] = []
        is_nested = self.peek("[")
        while True:
            rows.append(self.row() if is_nested else [self.sum()])
            if not self.take(","):
                break
        self.expect("]")
        widths = {len(row) for row in rows}
        if len(widths) > 1:
            raise RequestError(f"the rows of a matrix have one length, got {sorted(widths)}", param="text")
        entries = tuple(entry for row in rows for entry in row)
        if len(entries) > MAX_MATRIX_ENTRIES:
            message = f"the matrix has {len(entries):,} entries; the most is {MAX_MATRIX_ENTRIES:,}"
            raise RequestError(message, param="text")
        return Node("matrix", parts=entries, num_columns=widths.pop())

    def row(self) -> list[Node]:
        self.expect("[")
        entries = [self.sum()]
        while self.take(","):
            entries.append(self.sum())
        self.expect("]")
        return entries


_PERCENT = Node("reciprocal", parts=(Node("number", "100"),))


def _product(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Node("*", parts=tuple(parts))


def _number(text: str) -> Node:
    digits, _, exponent = text.lower().partition("e")
    if len(digits) > MAX_NUMBER_DIGITS or abs(int(exponent or "0")) > MAX_NUMBER_DIGITS:
        raise RequestError(f"a number has more than {MAX_NUMBER_DIGITS:,} digits", param="text")
    return Node("number", text)
