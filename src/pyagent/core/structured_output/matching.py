"""Whether a whole text matches a response format, whichever backend wrote it, and whether that can be told at all.

In bounded time; fetches nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never, cast

import msgspec

from pyagent.core.emulation.patterns import bytes_as_tokens
from pyagent.core.emulation.schemas import check_checkable, fault_of
from pyagent.core.errors import RequestError
from pyagent.core.response_format import ResponseFormat
from pyagent.core.structured_output.errors import CANNOT_ENFORCE, told_briefly
from pyagent.core.structured_output.lark_source import is_json, lark_of, schema_of, schemas_in
from pyagent.core.structured_output.parser_limits import parser_limits
from pyagent.core.structured_output.schema_checks import check_schema
from pyagent.core.structured_output.schema_limits import source_excess
from pyagent.core.structured_output.sources import source_of
from pyagent.core.structured_output.work import bounded, go_on

if TYPE_CHECKING:
    from llguidance import LLMatcher

_PARAM = "response_format"
_MAX_CHARS = 1 << 20
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*+"|/(?:[^/\\\n]|\\.)++/|//[^\n]*+')
_TOKEN_BY_ID = re.compile(r"<\[")
_MOST_TOLD = 4
_FIRST_BYTES, _MOST_BYTES, _CALL_SECONDS = 64, 8192, 0.002
_BEYOND_FLOATS = "Number out of range"
"""What msgspec says of `1e999`: it is JSON (RFC 8259, 6), and readers make an infinity of it."""


def fault_of_text(text: str, wanted: ResponseFormat) -> str | None:
    """Return why a text does not match; None when it does. Raises `RequestError` where that cannot be checked."""
    if wanted.type == "text":
        return None
    if wanted.type == "choice":
        return None if text in (wanted.choice or ()) else f"{text[:60]!r} is none of the choices"
    if is_json(wanted):
        return _fault_of_json(text, wanted)
    return _fault_by_grammar(text, wanted)


def _fault_of_json(text: str, wanted: ResponseFormat) -> str | None:
    try:
        value = _decoded(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    return fault_of(value, schema_of(wanted), _PARAM)


def _decoded(text: str) -> object:
    try:
        return cast("object", msgspec.json.decode(text.encode(errors="surrogatepass")))
    except msgspec.DecodeError as error:
        if _BEYOND_FLOATS not in str(error):
            raise
        return cast("object", json.loads(text, parse_int=float, parse_constant=_refuse))


def _refuse(word: str) -> Never:
    raise ValueError(f"{word} is no number of JSON")


def _fault_by_grammar(text: str, wanted: ResponseFormat) -> str | None:
    begun = Beginning.of(text, wanted)
    if begun.fault is None and not begun.is_whole:
        return f"{text[-40:]!r} is not yet all that response_format asks for"
    return begun.fault


def told_of_stop(fault: str, text: str, wanted: ResponseFormat, stop: Sequence[str]) -> str:
    """Return what is wrong with an answer, and that a text to stop at cut it, where that may be so."""
    if not is_cut_at_stop(text, wanted, stop):
        return fault
    named = ", ".join(repr(one[:20]) for one in stop[:_MOST_TOLD])
    return f"{fault}; it ended at one of the request's stop strings ({named}): leave out those that an answer may have"


def is_cut_at_stop(text: str, wanted: ResponseFormat, stop: Sequence[str]) -> bool:
    """Whether an answer is the beginning of one that matches, which a text to stop at may have cut."""
    if not stop or wanted.type == "text":
        return False
    try:
        begun = Beginning.of(text, wanted)
    except RequestError:  # it cannot be checked
        return False
    return begun.fault is None and not begun.is_whole


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is wrong with the beginning of an answer, and where nothing is, whether it matches as it is."""

    fault: str | None
    is_whole: bool

    @classmethod
    def of(cls, text: str, wanted: ResponseFormat) -> Beginning:
        """Raises `RequestError` for a format that cannot be checked, and `TooLongToCheckError`."""
        if len(text) > _MAX_CHARS:
            raise RequestError(f"a text of {len(text)} characters is too long to be checked", param=_PARAM)
        return bounded(lambda: cls._of(text, wanted))

    @classmethod
    def _of(cls, text: str, wanted: ResponseFormat) -> Beginning:
        matcher = _matcher(_grammar(wanted))
        written = text.encode(errors="replace")
        num_right = _num_right(matcher, written)
        if num_right == len(written):
            return cls(None, matcher.is_accepting())
        return cls(f"{written[num_right:].decode(errors='replace')[:40]!r} does not match response_format", False)


def _num_right(matcher: LLMatcher, written: bytes) -> int:
    """Return how many bytes match. Each call keeps the interpreter's lock, so slow ones are given fewer bytes."""
    tokens = bytes_as_tokens().tokenize_bytes(written)
    num_right, size = 0, _FIRST_BYTES
    while num_right < len(tokens):
        go_on(f"an answer of {len(tokens)} bytes")
        begun = time.thread_time()
        asked = tokens[num_right : num_right + size]
        num_taken = matcher.try_consume_tokens(asked)
        num_right += num_taken
        if num_taken < len(asked):
            _check(matcher)
            return num_right
        is_slow = time.thread_time() - begun > _CALL_SECONDS
        size = max(1, size // 8) if is_slow else min(size * 2, _MOST_BYTES)
    return num_right


def check_format(wanted: ResponseFormat) -> None:
    """Raise `RequestError` for a format by which no answer can be checked: too large, or not what it says it is.

    To be asked before a model is. `ModelTokensError`: it names tokens of a model, which only its own engine knows.
    """
    for schema in schemas_in(wanted):
        check_schema(schema)
    if is_json(wanted):
        bounded(lambda: check_checkable(schema_of(wanted), _PARAM))
        return
    source = source_of(wanted)
    if text := source_excess(source):
        raise RequestError(f"{CANNOT_ENFORCE}: {text}", param=_PARAM)
    if wanted.type not in {"text", "choice"}:
        bounded(lambda: _matcher(_grammar(wanted)))


class ModelTokensError(RequestError):
    """A grammar that names tokens of a model's vocabulary."""

    def __init__(self) -> None:
        super().__init__("response_format.grammar names tokens, which only an engine knows", param=_PARAM)


def _grammar(wanted: ResponseFormat) -> str:
    """Return a format as llguidance takes it; JSON may have any spaces, and a token by its id means nothing here."""
    from llguidance import LLMatcher

    if is_json(wanted):
        return LLMatcher.grammar_from_json_schema(json.dumps(schema_of(wanted)))
    lark = lark_of(wanted)
    if _TOKEN_BY_ID.search(_LITERAL.sub("", lark)):
        raise ModelTokensError
    return LLMatcher.grammar_from_lark(lark)


def _matcher(grammar: str) -> LLMatcher:
    from llguidance import LLMatcher

    matcher = LLMatcher(bytes_as_tokens(), grammar, log_level=0, limits=parser_limits())
    _check(matcher)
    return matcher


def _check(matcher: LLMatcher) -> None:
    if not matcher.is_error():
        return
    if "unknown special token" in matcher.get_error():
        raise ModelTokensError
    raise RequestError(told_briefly(matcher.get_error()), param=_PARAM)
