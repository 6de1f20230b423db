"""Response formats written as llguidance's Lark, where they stand alone or within each other. Pure text.

A format that is regular is written as one terminal: of several in a row, llguidance lets the first take what it can,
and never goes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from pyagent.core.dialects.lark import MAX_CHARS
from pyagent.core.dialects.schema_text import quoted, schema_text
from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject
from pyagent.core.response_format import GrammarFormat, ResponseFormat
from pyagent.core.structured_output.gbnf_lark import lark_of_gbnf
from pyagent.core.structured_output.lark_depth import check_depth
from pyagent.core.structured_output.lark_parts import parts_in

_T = TypeVar("_T")
_PARAM = "response_format"
TokenId = Callable[[str], int | None]
"""Returns the id of the control token of this name."""
_TOKEN_NAME = re.compile(r"(<[^<>\s]{1,128}>)")
_REGULAR = frozenset({"text", "choice", "regex"})
_JSON = frozenset({"json_object", "json_schema"})
_NOT_HERE = re.compile(
    r'^[ \t]*[\w!?-]++[ \t]*\[(?:"(?:[^"\\\n]|\\.)*+"|[^\]"\n])*?\b(temperature|stop)[ \t]*=', re.MULTILINE
)
"""Options of Lark rules that change how tokens are sampled, or take some of them back."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords of JSON schemas whose values are no schemas."""
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
"""Keywords whose values hold schemas under names of the caller's."""


class LarkWriter:
    """A grammar under way: rules and terminals under names of their own.

    `token_id` says which texts such as `<tool_call>` are control tokens of the model, whose letters it never samples.
    """

    def __init__(self, token_id: TokenId = lambda _: None) -> None:
        self._token_id = token_id
        self._rules: dict[str, str] = {}
        self._num_chars = 0

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule; return its name."""
        return self._add(f"r{len(self._rules)}", body, options)

    def terminal(self, body: str) -> str:
        """Add a terminal; return its name."""
        return self._add(f"T{len(self._rules)}", body, "")

    def literal(self, text: str) -> str:
        """Return the expression for exactly this text; empty for none."""
        parts = ((part, self._token_id(part) if is_name else None) for part, is_name in in_tokens(text))
        return " ".join(quoted(part) if token is None else f"<[{token}]>" for part, token in parts if part)

    def until_token(self, text: str) -> int | None:
        """Return where the first control token in a text begins; None where there is none."""
        at = 0
        for part, is_name in in_tokens(text):
            if is_name and self._token_id(part) is not None:
                return at
            at += len(part)
        return None

    def _add(self, name: str, body: str, options: str) -> str:
        self._num_chars += len(body)
        if self._num_chars > MAX_CHARS:
            text = f"response_format makes a grammar of more than {MAX_CHARS} characters; simplify it"
            raise RequestError(text, param=_PARAM)
        self._rules[name + options] = body
        return name

    def text(self, start: str) -> str:
        """Return the grammar that begins with an expression."""
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items())])


def in_tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text, and of each whether it may be the name of a control token."""
    for number, part in enumerate(_TOKEN_NAME.split(text)):
        yield part, bool(number % 2)


def lark_of(wanted: ResponseFormat, token_id: TokenId = lambda _: None) -> str:
    """Return a format as a grammar of its own. Raises `RequestError` for what cannot be written."""
    if wanted.type == "grammar":
        return _lark(_present(wanted.grammar, "grammar"))
    writer = LarkWriter(token_id)
    return writer.text(expression(wanted, writer))


def expression(wanted: ResponseFormat, writer: LarkWriter) -> str:
    """Return the expression of a format within a grammar. Raises `RequestError` for what cannot be written."""
    if is_json(wanted):
        return json_expression(schema_of(wanted))
    if is_regular(wanted):
        return writer.terminal(_regular(wanted))
    if wanted.type == "grammar":
        return nested(_lark(_present(wanted.grammar, "grammar"), is_embedded=True))
    if wanted.type == "structural_tag":
        from pyagent.core.structured_output.tags import tag_expression

        return tag_expression(_present(wanted.structural_tag, "structural_tag"), writer)
    return _combined(wanted, writer)


ANY_TEXT = "/(?s:.*)/"


def json_expression(schema: JsonObject) -> str:
    """Return the expression for JSON that follows a schema."""
    return f"%json {schema_text(schema)}"


def nested(lark: str) -> str:
    """Return a grammar as an expression within another; its names stay its own."""
    return f"%lark {{\n{lark}\n}}"


def regex_literal(pattern: str) -> str:
    r"""Return a regular expression as Lark has it: between slashes, those in it escaped, on one line."""
    if not pattern:
        return '""'
    escaped, is_after_backslash = list[str](), False
    for letter in pattern:
        if letter == "\n":
            escaped.append("n" if is_after_backslash else r"\n")
        elif letter == "/" and not is_after_backslash:
            escaped.append(r"\/")
        else:
            escaped.append(letter)
        is_after_backslash = letter == "\\" and not is_after_backslash
    return f"/{''.join(escaped)}/"


def choice_literal(texts: list[str] | None) -> str:
    """Return the expression for one of some texts."""
    if not texts or any(not text for text in texts):
        text = "response_format.choice needs at least one text, none of them empty"
        raise RequestError(text, param=_PARAM)
    return " | ".join(map(quoted, texts))


def schema_of(wanted: ResponseFormat) -> JsonObject:
    """Return the JSON schema of a format; that of any object for `json_object`."""
    if wanted.type == "json_schema":
        return _present(wanted.json_schema, "json_schema").schema
    if wanted.type == "all_of":
        return {
            "allOf": [_moved(schema_of(one), f"#/allOf/{number}") for number, one in enumerate(wanted.all_of or ())]
        }
    return {"type": "object"}


def schemas_in(wanted: ResponseFormat) -> Iterator[JsonObject]:
    """Yield all JSON schemas of a format, those in its grammars included."""
    if wanted.type == "json_schema":
        yield schema_of(wanted)
    elif wanted.type == "grammar" and wanted.grammar is not None and wanted.grammar.syntax == "lark":
        yield from _schemas_in_lark(wanted.grammar.definition)
    elif wanted.type == "structural_tag" and wanted.structural_tag is not None:
        from pyagent.core.structured_output.tags import formats_in

        for one in formats_in(wanted.structural_tag):
            yield from schemas_in(one)
    for member in wanted.members:
        yield from schemas_in(member)


def is_json(wanted: ResponseFormat) -> bool:
    """Whether the answer is one JSON value."""
    return wanted.type in _JSON or (bool(wanted.all_of) and all(map(is_json, wanted.all_of or ())))


def is_regular(wanted: ResponseFormat) -> bool:
    """Whether one terminal describes the answer."""
    return wanted.type in _REGULAR or (bool(wanted.members) and all(map(is_regular, wanted.members)))


def _regular(wanted: ResponseFormat) -> str:
    """Return the body of a terminal."""
    if wanted.type == "text":
        return ANY_TEXT
    if wanted.type == "choice":
        return choice_literal(wanted.choice)
    if wanted.type == "regex":
        return regex_literal(_present(wanted.regex, "regex"))
    operator = " | " if wanted.type == "any_of" else " & "
    return operator.join(f"({_regular(member)})" for member in wanted.members)


def _combined(wanted: ResponseFormat, writer: LarkWriter) -> str:
    """Return the expression of one of several formats. Raises `RequestError` where all of them are to hold."""
    if not wanted.members:
        raise RequestError(f"response_format {wanted.type} needs formats", param=f"{_PARAM}.{wanted.type}")
    if wanted.type == "any_of":
        return writer.rule(" | ".join(expression(member, writer) for member in wanted.members))
    kinds = ", ".join(dict.fromkeys(member.type for member in wanted.members))
    text = f"response_format all_of takes regular expressions and choices, or JSON schemas; got {kinds}"
    raise RequestError(text, param=f"{_PARAM}.all_of", code="unsupported_parameter")


def _lark(grammar: GrammarFormat, *, is_embedded: bool = False) -> str:
    if grammar.syntax == "gbnf":
        lark = lark_of_gbnf(grammar.definition, is_embedded=is_embedded)
    else:
        lark = grammar.definition
        _check_options(lark)
    check_depth(lark)
    return lark


def _check_options(lark: str) -> None:
    if found := _NOT_HERE.search(lark):
        line = lark.count("\n", 0, found.start(1)) + 1
        text = f"response_format.grammar, line {line}: the option {found[1]!r} of a rule is not supported"
        raise RequestError(text, param=_PARAM, code="unsupported_parameter")


def _schemas_in_lark(lark: str) -> Iterator[JsonObject]:
    """Yield the schemas that a grammar holds."""
    for part, value in parts_in(lark):
        if part["json"] == "json" and isinstance(value, dict):
            yield cast("JsonObject", value)


def _moved(schema: JsonObject, root: str) -> JsonObject:
    """Return a schema whose references within itself hold when it stands at `root`."""
    return {keyword: _moved_value(keyword, held, root) for keyword, held in schema.items()}


def _moved_value(keyword: str, value: object, root: str) -> object:
    """Return a keyword's value likewise: what is a name in it, as of a property, is no keyword."""
    if keyword == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return root + value[1:]
    if keyword in _VALUES:
        return value
    if isinstance(value, dict):
        held = cast("JsonObject", value)
        if keyword in _BY_NAME:
            return {name: _moved_value("", one, root) for name, one in held.items()}
        return _moved(held, root)
    return [_moved_value("", one, root) for one in cast("list[object]", value)] if isinstance(value, list) else value


def _present(value: _T | None, name: str) -> _T:
    if value is None:
        raise RequestError(f"response_format of type {name} needs {name}", param=f"{_PARAM}.{name}")
    return value
