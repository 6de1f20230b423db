"""Custom tools of OpenAI's APIs, whose input is free text: models are offered functions that take that one text. Pure.

Backends know functions alone, whose arguments are JSON; so only what JSON schema can say of a text can be enforced: a
regular expression, and Lark that is one.
"""

from __future__ import annotations

import json
import re
from typing import Literal, cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import FunctionDefinition, JsonObject, Tool
from pyagent.core.structured_output.lark_regex import regex_of_lark
from pyagent.infrastructure.server.bounds import MAX_PATTERN_CHARS

_BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_BEGIN = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
_MAX_BEGINNING = 1000
"""Letters within which the input begins; spaces without an end would be looked at again with each piece."""
_END = re.compile(r"(?<=[^\\])\$\Z")
"""The anchor at a regex's end; after a backslash it may be a letter, and is left."""
_HIGH, _REST = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_PART = re.compile(
    rf'(?P<text>[^"\\]+|\\["\\/bfnrt]|\\{_HIGH}\\{_REST}|\\(?!{_HIGH})u[0-9a-fA-F]{{4}})'
    rf"|(?P<half>\\{_HIGH}(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{{2}}))"
)
"""A run of letters or one escape; half of a surrogate pair only where the other half does not follow."""


class InputGrammar(msgspec.Struct, forbid_unknown_fields=True):
    """What a custom tool's input must match."""

    definition: str
    syntax: Literal["lark", "regex"]


def custom_tool(name: str, description: str | None, grammar: InputGrammar | None, where: str) -> Tool:
    """Return the function that stands for a custom tool. Raises `RequestError` for a grammar that JSON cannot hold."""
    text: JsonObject = {"type": "string"}
    if grammar is not None:
        text["pattern"] = _pattern(grammar, where)
    parameters: JsonObject = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return Tool(FunctionDefinition(name, description or "", parameters, strict=True))


def _pattern(grammar: InputGrammar, where: str) -> str:
    param = f"{where}.definition"
    if len(grammar.definition) > MAX_PATTERN_CHARS:
        text = f"{param} has {len(grammar.definition)} characters; {MAX_PATTERN_CHARS} are taken at most"
        raise RequestError(text, param=param)
    if grammar.syntax == "lark":
        try:
            return f"^(?:{regex_of_lark(grammar.definition, MAX_PATTERN_CHARS)})$"
        except ValueError as error:
            why = "a call's input is text within JSON, of which only a regular expression can be enforced"
            text = f"{param} is not supported: {error}; {why}"
            raise RequestError(text, param=param, code="unsupported_parameter") from error
    return f"^(?:{_END.sub('', grammar.definition.removeprefix('^'))})$"


def as_arguments(text: str) -> str:
    """Return a custom tool's input as the function's arguments."""
    return json.dumps({"input": text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """Return the input that arguments stand for, as far as it is there; what is something else, as it is."""
    reader = InputReader()
    return reader.push(arguments) + reader.finish()


class InputReader:
    """Reads the input from the arguments of a call, in pieces.

    Arguments that begin with the input are told as they come; others at their end, when it is known what they are.
    """

    def __init__(self) -> None:
        self._is_begun = False
        self._is_over = False
        self._held = ""
        self._others: list[str] = []

    def push(self, piece: str) -> str:
        """Take a piece of the arguments; return what it adds to the input."""
        if self._others:
            self._others.append(piece)
        if self._is_over or self._others:
            return ""
        self._held += piece
        if not self._is_begun and not self._begins():
            return ""
        parts, at = list[str](), 0
        while (part := _PART.match(self._held, at)) is not None:
            parts.append("\N{REPLACEMENT CHARACTER}" if part["half"] else _unescaped(part[0]))
            at = part.end()
        self._held = self._held[at:]
        self._is_over = self._held.startswith('"')
        return "".join(parts)

    def finish(self) -> str:
        """Return what is left of the input at the end of the arguments."""
        return "" if self._is_begun else _input_in(self._held + "".join(self._others))

    def _begins(self) -> bool:
        """Whether the input begins in what is held; where it cannot any more, keep all that comes."""
        begun = _BEGINNING.match(self._held)
        if begun is not None and begun.end() <= _MAX_BEGINNING:
            self._is_begun, self._held = True, self._held[begun.end() :]
        elif begun is not None or len(self._held) > _MAX_BEGINNING or not _MAY_BEGIN.fullmatch(self._held):
            self._others, self._held = [self._held], ""
        return self._is_begun


def _input_in(arguments: str) -> str:
    """Return the input among other arguments; where there is none, the arguments."""
    try:
        found = cast("object", json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments
    text = cast("JsonObject", found).get("input") if isinstance(found, dict) else None
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else arguments


def _unescaped(text: str) -> str:
    if not text.startswith("\\"):
        return text
    found: str = json.loads(f'"{text}"')
    return found.encode("utf-8", "replace").decode()
