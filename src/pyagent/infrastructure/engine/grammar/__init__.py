"""Structured output: JSON schema, any JSON, one of some texts, or calls of tools. Masks come from llguidance."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.dialects.lark import MAX_CHARS, quoted
from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject, ResponseFormat, Tool
from pyagent.infrastructure.engine.grammar.schema_checks import check_schema, place_of
from pyagent.infrastructure.engine.grammar.vocabulary import llguidance_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from pyagent.infrastructure.engine.memory.ledger import Reservation
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

_MAX_CACHED = 64
_MAX_REASON_CHARS = 500
_MAX_STEP_ITEMS, _MAX_LEXER_STATES = 20_000, 50_000
"""A mask that needs more items would take longer than 100 ms of the engine's step; a state takes up to 2 kB."""
_LIBRARY_BYTES, _BYTES_A_TOKEN, _BYTES_A_LETTER = 6_600_000, 390, 100
"""What llguidance takes for its code, a vocabulary and a schema, as measured: 6.6 MB of its file, 18.2 MB of heap for
49,152 tokens, 4.5 MB for 48 kB."""


CANNOT_ENFORCE = "response_format cannot be enforced"
_WORDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"NoExtension\w*"), "no text can go on from here: what it asks for is a contradiction"),
    (re.compile(r"Unimplemented keys: \[(.*)\]"), r"the keywords \1 are not supported; leave them out"),
    (
        re.compile(r"Resource '(.*?)' is not present in a registry.*"),
        r"$ref to \1 is outside the schema, and nothing is fetched; copy it into $defs",
    ),
    (re.compile(r"oneOf constraints are not supported.*"), "oneOf of alternatives that overlap; use anyOf"),
    (re.compile(r"Unsatisfiable schema: (.*)"), r"no value follows the schema: \1"),
    (
        re.compile(r"(?:.*: )?Current row has (\d+) items; max is (\d+).*"),
        r"it is too complex: \1 alternatives at one place, where \2 are taken; simplify it",
    ),
    (
        re.compile(r"(?:Lexer|Parser)TooComplex.*|.*(?:fuel|too many (?:states|expressions|items)).*"),
        "it is too complex; simplify its patterns",
    ),
)
"""llguidance's words for what schemas do most often wrong, and ours."""


_INNER_STATE = re.compile("<state>|<backtrace>|<non-verbose")
_UNKNOWN_KEYWORD = re.compile(r'Unimplemented keys: \["([^"]*)"')


class GrammarError(ValueError):
    """A grammar that cannot go on. `kind` is llguidance's word for why, which quotes nothing of the request."""

    def __init__(self, error: object, kind: str) -> None:
        super().__init__(told_briefly(error))
        self.kind = kind


class Grammar:
    """One request's place in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow any more."""
        return self._matcher.is_stopped()

    def mask(self) -> bytes:
        """One bit per token, set where allowed, least significant first. Raises `GrammarError` when it failed."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error() or "the grammar failed", self._matcher.stop_reason())
        return mask

    def accept(self, token: int) -> None:
        """Go on by a token that the mask allowed."""
        if not self._matcher.consume_token(token):
            error = self._matcher.get_error() or f"token {token} is not allowed here"
            raise GrammarError(error, self._matcher.stop_reason())


def told_briefly(error: object) -> str:
    """Return a fault of a grammar's for people: llguidance adds its inner state, which holds the answer's tokens."""
    first = " ".join(_INNER_STATE.split(str(error), maxsplit=1)[0].split())[:_MAX_REASON_CHARS]
    for pattern, words in _WORDS:
        first = pattern.sub(words, first) if pattern.fullmatch(first) else first
    return f"{CANNOT_ENFORCE}: {first or type(error).__name__}"


class GrammarCompiler:
    """Compiles response formats for one vocabulary, and remembers those last used.

    With a reservation, their estimated bytes are held there first; what is remembered goes when memory is short.
    """

    def __init__(self, tokenizer: ModelTokenizer, memory: Reservation | None = None) -> None:
        self._tokenizer = tokenizer
        self._memory = memory
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        # The process's own account has a library that was there before the model.
        self._library_bytes = 0 if "llguidance" in sys.modules else _LIBRARY_BYTES
        self._lock = threading.Lock()  # requests are prepared in several threads

    def compile(self, wanted: ResponseFormat, tenant: str = "") -> Grammar:
        """Return a grammar at its start. Raises `RequestError` saying what in the schema cannot be enforced.

        What was compiled for another tenant (`Origin.tenant`) is compiled again: the time would tell of it.
        """
        schema = wanted.json_schema.schema if wanted.json_schema else {}
        return self._compile(_source(wanted), tenant, schema)

    def compile_calls(
        self, calls: str, tools: Sequence[Tool], tenant: str = "", other: ResponseFormat | None = None
    ) -> Grammar:
        """Likewise for a Lark grammar of calls; with `other`, an answer that follows that will do instead of a call."""
        from llguidance import LLMatcher

        lark = calls if other is None else _either(calls, other)
        _check_length("tools have", lark, "tools")
        if other is not None and other.json_schema:
            check_schema(other.json_schema.schema)
        try:
            for tool in tools:
                check_schema(tool.function.parameters)
            return self._compile(LLMatcher.grammar_from_lark(lark), tenant, {})
        except (ValueError, RecursionError, RequestError) as error:
            text = str(error) if isinstance(error, RequestError) else told_briefly(error)
            raise RequestError(text.replace("response_format", "tools", 1), param="tools") from error

    def _compile(self, source: str, tenant: str, schema: JsonObject) -> Grammar:
        key = tenant, source
        with self._lock:
            matcher = self._compiled.get(key)
            if matcher is None:
                self._make_room(source)
                matcher = self._match(source, schema)
                self._compiled[key] = matcher
                if len(self._compiled) > _MAX_CACHED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
            return Grammar(matcher.deep_copy())

    def give_back(self) -> None:
        """Forget what is remembered, unless something is being compiled just now."""
        if self._memory is None or not self._lock.acquire(blocking=False):  # two compilers may ask each other
            return
        try:
            self._compiled.clear()
            self._memory.try_resize(min(self._memory.num_bytes, self._num_bytes()))
        finally:
            self._lock.release()

    def _make_room(self, source: str) -> None:
        """Hold memory for one grammar more, at the cost of those remembered. Raises `CapacityError`."""
        if self._memory is None:
            return
        while not self._memory.try_resize(self._num_bytes(source)) and self._compiled:
            self._compiled.popitem(last=False)
        self._memory.resize(self._num_bytes(source))

    def _num_bytes(self, *more: str) -> int:
        sources = sum(map(len, (*(source for _, source in self._compiled), *more)))
        return self._library_bytes + _BYTES_A_TOKEN * self._tokenizer.vocab_size + _BYTES_A_LETTER * sources

    def _match(self, source: str, schema: JsonObject) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        check_schema(schema)
        limits = LLParserLimits(
            step_max_items=_MAX_STEP_ITEMS, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
        )
        matcher = LLMatcher(self._llguidance_tokenizer(), source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), schema)
        try:
            Grammar(matcher).mask()  # what allows no first token would end the request in the middle of a step
        except GrammarError as error:
            raise RequestError(str(error), param="response_format") from error
        return matcher

    def _llguidance_tokenizer(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = llguidance_tokenizer(self._tokenizer)
            _rust.trim_memory()  # the tokens' bytes
        return self._vocabulary


def _source(wanted: ResponseFormat) -> str:
    from llguidance import LLMatcher

    if wanted.type == "choice":
        if not wanted.choice or any(not text for text in wanted.choice):
            raise RequestError(
                "response_format.choice needs at least one text, none of them empty", param="response_format"
            )
        # As one lexeme, since as rules more than 2,000 are too many for the parser.
        texts = " | ".join(map(quoted, wanted.choice))
        _check_length("choices have", texts)
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")
    if wanted.type == "json_schema" and wanted.json_schema is None:
        raise RequestError("response_format of type json_schema needs json_schema.schema", param="response_format")
    try:
        text = json.dumps(wanted.json_schema.schema if wanted.json_schema else {"type": "object"})
        _check_length("JSON schema has", text)
        # A small model left free to add spaces adds them for ever.
        return LLMatcher.grammar_from_json_schema(
            text, defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        )
    except (ValueError, RecursionError) as error:  # nested too deep for Python, or for llguidance
        raise RequestError(told_briefly(error), param="response_format") from error


def _refusal(error: str, schema: JsonObject) -> RequestError:
    """Return the error for a schema that llguidance refuses, with the place of a keyword that it does not know."""
    unknown = _UNKNOWN_KEYWORD.search(error)
    place = place_of(schema, unknown[1]) if unknown else ""
    return RequestError(told_briefly(error) + (f" ({place})" if place else ""), param="response_format")


_SPACING: JsonObject = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _either(calls: str, other: ResponseFormat) -> str:
    """Return a grammar of calls with a response format as the other choice."""
    if other.type == "choice":
        answer = " | ".join(map(quoted, other.choice or ()))
    else:
        schema = other.json_schema.schema if other.json_schema else {"type": "object"}
        answer = f"%json {quoted({**schema, 'x-guidance': _SPACING})}"
    return f"{calls.replace('start:', 'called:', 1)}\nstart: called | answer\nanswer: {answer}"


def _check_length(what: str, text: str, param: str = "response_format") -> None:
    if len(text) > MAX_CHARS:
        raise RequestError(f"the {what} {len(text)} characters; the limit is {MAX_CHARS}", param=param)
