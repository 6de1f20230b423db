"""Grammars by xgrammar (the extra `xgrammar`, which brings torch): JSON schemas and choices.

xgrammar leaves out what it does not know of a schema, in silence; only schemas of keywords that it enforces reach it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from pyagent import _rust
from pyagent.core.errors import RequestError
from pyagent.core.grammars import (
    GrammarBackend,
    GrammarBackendFactory,
    GrammarMatcher,
    GrammarSource,
    GrammarVocabulary,
    mask_bytes,
)
from pyagent.core.hooks import hookimpl
from pyagent.core.structured_output.errors import CANNOT_ENFORCE, GrammarError
from pyagent.core.structured_output.schema_checks import nodes_of

if TYPE_CHECKING:
    from pyagent.core.messages import JsonObject

_ABOUT = frozenset({"title", "description", "default", "examples", "$schema", "$comment", "$defs", "definitions"})
_BY_TYPE: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    **dict.fromkeys(("integer", "number", "boolean", "null"), frozenset[str]()),
}
"""What xgrammar enforces beside `type`; it looks at no keyword of another type, and at none where there is no type."""
_WHERE = re.compile(r"^\[[\d:]*\] \S*: ")
"""Time and source line before its messages."""
_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]*")
_ALONE = frozenset({"$ref", "anyOf", "enum", "const"})
"""Beside these, xgrammar does not look at other keywords."""


class XGrammarMatcher:
    """A `GrammarMatcher` of xgrammar's whose refusals are raised."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def is_finished(self) -> bool:
        """Whether the end was accepted."""
        return bool(self.inner.is_terminated())

    def accept(self, token: int) -> None:
        """Go on by a token."""
        if self.is_finished or not self.inner.accept_token(token):
            raise GrammarError(f"token {token} is not allowed here", "refused")

    def copy(self) -> XGrammarMatcher:
        """Return a matcher at the same place."""
        return XGrammarMatcher(self.inner.fork())


class XGrammarBackend:
    """xgrammar for one vocabulary."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        import numpy as np
        import xgrammar  # pyright: ignore[reportMissingImports]

        self._numpy: Any = np
        self._library = cast("Any", xgrammar)
        self._row_words = mask_bytes(vocabulary.size) // 4
        control = vocabulary.control_ids
        tokens = [b"" if token in control else data for token, data in enumerate(vocabulary.tokens())]
        info = self._library.TokenizerInfo(
            tokens, vocab_size=vocabulary.size, stop_token_ids=sorted(vocabulary.end_ids)
        )
        self._compiler: Any = self._library.GrammarCompiler(
            info, max_threads=_rust.available_cores(), cache_enabled=False
        )

    def compile(self, source: GrammarSource) -> XGrammarMatcher:
        """Return a matcher at the start. Raises `RequestError` for other kinds, and for keywords that are ignored."""
        try:
            compiled = self._compile(source)
        except RuntimeError as error:
            first = _WHERE.sub("", str(error)).strip().partition("\n")[0][:500]
            raise RequestError(f"{CANNOT_ENFORCE}: {first} (#)", param="response_format") from error
        return XGrammarMatcher(self._library.GrammarMatcher(compiled, max_rollback_tokens=-1))

    def _compile(self, source: GrammarSource) -> Any:
        match source.kind:
            case "json_schema":
                check(json.loads(source.text))
                return self._compiler.compile_json_schema(
                    source.text, any_whitespace=False, separators=(", ", ": "), strict_mode=False
                )
            case "choice":
                texts = " | ".join(map(_ebnf, json.loads(source.text)))
                return self._compiler.compile_grammar(f"root ::= {texts}")
            case "regex" | "lark":  # it leaves out what it does not know of a regex, too
                text = f"xgrammar is not asked for {source.kind}; guidance is"
                raise RequestError(f"{CANNOT_ENFORCE}: {text}", param="response_format")

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        """Write the masks."""
        words = self._numpy.frombuffer(masks, dtype=self._numpy.int32)
        table = words[: len(words) // self._row_words * self._row_words].reshape(-1, self._row_words)
        for matcher, row in cast("Sequence[tuple[XGrammarMatcher, int]]", rows):
            if not matcher.inner.fill_next_token_bitmask(table, row):
                table[row] = -1  # every token is allowed, and it has written nothing


class XGrammar:
    """xgrammar, where it is installed."""

    name = "xgrammar"

    def unavailable_reason(self) -> str | None:
        """Return why it cannot be used."""
        if importlib.util.find_spec("xgrammar") is None:
            return "it needs a package that is not installed: pip install xgrammar"
        return None

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
        """Return xgrammar for a vocabulary."""
        return XGrammarBackend(vocabulary)


XGRAMMAR = XGrammar()


@hookimpl
def pyagent_register_grammar_backends() -> Sequence[GrammarBackendFactory]:
    """The backend `xgrammar`."""
    return [XGRAMMAR]


def check(schema: JsonObject) -> None:
    """Raise `RequestError` for a keyword that would be ignored, with its place."""
    for pointer, node in nodes_of(schema).items():
        if keyword := _ignored(node):
            text = f"xgrammar does not enforce {keyword} there (#{pointer}/{keyword})"
            raise RequestError(f"{CANNOT_ENFORCE}: {text}", param="response_format")


def _ignored(node: JsonObject) -> str:
    """Return a keyword of a schema that xgrammar leaves out, or reads in its own way; nothing where there is none."""
    said, kind = node.keys() - _ABOUT, node.get("type")
    if alone := sorted(said & _ALONE):
        is_elsewhere = "$ref" in node and not str(node["$ref"]).startswith("#/")
        return "$ref" if is_elsewhere else min(said - {alone[0]}, default="")
    if not said or not isinstance(kind, str):
        return min(said, default="")
    unknown = said - {"type"} - _BY_TYPE.get(kind, frozenset())
    if node.get("items") is False or {"prefixItems", "items"} <= said:
        unknown.add("items")
    names = cast("JsonObject", node.get("properties", {}))
    required = cast("list[object]", node.get("required", []))
    if not all(isinstance(name, str) and _PLAIN_NAME.fullmatch(name) for name in (*names, *required)):
        unknown.add("properties")
    if any(name not in names for name in required):
        unknown.add("required")
    return min(unknown | _bounds_left_out(node), default="")


def _bounds_left_out(node: JsonObject) -> set[str]:
    """Return the bounds that are no numbers of things, and those that leave nothing between them."""
    bounds = {keyword: value for keyword, value in node.items() if keyword.startswith(("min", "max"))}
    found = {keyword for keyword, value in bounds.items() if type(value) is not int or value < 0}
    for things in ("Items", "Length"):
        least, most = bounds.get(f"min{things}", 0), bounds.get(f"max{things}")
        if isinstance(least, int) and isinstance(most, int) and least > most:
            found.add(f"min{things}")
    return found


def _ebnf(text: str) -> str:
    """Return a text as xgrammar's grammars have it, letters that are not ASCII by their numbers."""
    return (
        '"'
        + "".join(letter if letter.isalnum() and letter.isascii() else f"\\U{ord(letter):08x}" for letter in text)
        + '"'
    )
