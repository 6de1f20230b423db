"""Writes GBNF as llguidance's Lark, so that both mean the same texts. Pure."""

from __future__ import annotations

from pyagent.core.dialects.schema_text import quoted
from pyagent.core.errors import RequestError
from pyagent.core.structured_output.gbnf import read_gbnf
from pyagent.core.structured_output.lexemes import Lexemes
from pyagent.core.structured_output.nodes import Chars, Either, Node, Ref, Repeat, Sequence, Text, Token
from pyagent.core.structured_output.repetitions import with_repetitions


def lark_of_gbnf(text: str, *, is_embedded: bool = False) -> str:
    """Return a grammar in llguidance's Lark; `is_embedded`: other text may follow it.

    Raises `RequestError` with line and column of what is wrong.
    """
    rules = {name: with_repetitions(name, body) for name, body in read_gbnf(text).items()}
    return _Writer({name: number for number, name in enumerate(rules)}).lark(rules, is_embedded=is_embedded)


class _Writer:
    """A grammar under way: `ids` number the rules, whose names Lark would read as something else."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._names = dict[str, str]()
        self._spelled = dict[Node, str]()

    def lark(self, rules: dict[str, Node], *, is_embedded: bool) -> str:
        """Return the grammar's text."""
        self._lexemes = Lexemes(rules, self._terminal, is_embedded=is_embedded)
        start = self._written(Ref("root"))
        written = [
            f"r{self._ids[name]}: {self._written(self._lexemes.rules[name])}" for name in self._lexemes.reached()
        ]
        named = [f"{name}: {body}" for body, name in self._names.items()]
        terminals = [f"T{self._ids[name]}: {self._terminal(rules[name])}" for name in self._lexemes.regular]
        return "\n".join([f"start: {start}", *written, *named, *terminals])

    def _written(self, node: Node) -> str:  # noqa: PLR0911 - one for each kind
        if self._lexemes.is_lexeme(node):
            return self._names.setdefault(self._terminal(node), f"L{len(self._names)}")
        match self._lexemes.apart(node):
            case Ref(name):
                return f"r{self._ids[name]}"
            case Token() as token:
                return _token(token)
            case Text() | Chars():
                return self._terminal(node)
            case Sequence(items):
                return _in_a_row([*map(self._written, items)])
            case Either(items):
                return f"({' | '.join(map(self._written, items))})"
            case Repeat(item, least, most):
                return _times(self._written(item), least, most)

    def _terminal(self, node: Node) -> str:
        """Return a regular node as the body of a terminal."""
        found = self._spelled.get(node)
        if found is None:
            found = self._spelled[node] = self._spell(node)
        return found

    def _spell(self, node: Node) -> str:
        match node:
            case Text(text):
                return quoted(text)
            case Chars():
                return _class(node)
            case Ref(name):
                return f"T{self._ids[name]}"
            case Sequence(items):
                return _in_a_row([*map(self._terminal, items)])
            case Either(items):
                return f"({' | '.join(map(self._terminal, items))})"
            case Repeat(item, least, most):
                return _times(self._terminal(item), least, most)
            case Token():
                raise AssertionError("a token is no text")


def _in_a_row(items: list[str]) -> str:
    return f"({' '.join(items)})" if items else '""'


def _times(item: str, least: int, most: int | None) -> str:
    if most == 0:
        return '""'
    short: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    counted = f"{{{least},{'' if most is None else most}}}"
    inner = f"({item})" if item[-1] in "*+?}" else item
    return f"{inner}{short.get((least, most), counted)}"


def _class(chars: Chars) -> str:
    if not chars.ranges:
        return "/(?s:.)/"
    ranges = (f"\\x{{{low:X}}}" + (f"-\\x{{{high:X}}}" if high > low else "") for low, high in chars.ranges)
    return f"/[{'^' if chars.is_negated else ''}{''.join(ranges)}]/"


def _token(token: Token) -> str:
    if token.id is not None:
        return f"<[{'^' if token.is_negated else ''}{token.id}]>"
    if token.is_negated:
        text = f"response_format.grammar: !<{token.name}> needs the token's id, as in !<[1000]>"
        raise RequestError(text, param="response_format.grammar")
    return f"<{token.name}>"
