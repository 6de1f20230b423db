"""Whether a whole text matches a response format, whichever backend wrote it. In bounded time; fetches nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec

from pyagent.core.emulation.patterns import bytes_as_tokens
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError
from pyagent.core.response_format import ResponseFormat
from pyagent.core.structured_output.deep_stack import run_deep
from pyagent.core.structured_output.lark_source import is_json, lark_of, schema_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

_PARAM = "response_format"
_MAX_CHARS = 1 << 20
_MAX_STEP_ITEMS, _MAX_LEXER_STATES = 20_000, 50_000


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
        value = cast("object", msgspec.json.decode(text.encode(errors="surrogatepass")))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"it is not JSON: {error}"
    return fault_of(value, schema_of(wanted), _PARAM)


def _fault_by_grammar(text: str, wanted: ResponseFormat) -> str | None:
    begun = Beginning.of(text, wanted)
    if begun.fault is None and not begun.is_whole:
        return f"{text[-40:]!r} is not yet all that response_format asks for"
    return begun.fault


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is wrong with the beginning of an answer, and where nothing is, whether it matches as it is."""

    fault: str | None
    is_whole: bool

    @classmethod
    def of(cls, text: str, wanted: ResponseFormat) -> Beginning:
        """Raises `RequestError` for a format that cannot be checked."""
        if len(text) > _MAX_CHARS:
            raise RequestError(f"a text of {len(text)} characters is too long to be checked", param=_PARAM)
        matcher = _matcher(_grammar(wanted))
        written = text.encode(errors="replace")
        tokens = bytes_as_tokens().tokenize_bytes(written)
        num_right = matcher.try_consume_tokens(tokens)
        if num_right == len(tokens):
            return cls(None, matcher.is_accepting())
        return cls(f"{written[num_right:].decode(errors='replace')[:40]!r} does not match response_format", False)


def _grammar(wanted: ResponseFormat) -> str:
    """Return a format as llguidance takes it; JSON may have any spaces."""
    from llguidance import LLMatcher

    if is_json(wanted):
        return LLMatcher.grammar_from_json_schema(json.dumps(schema_of(wanted)))
    return LLMatcher.grammar_from_lark(lark_of(wanted))


def _matcher(grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(step_max_items=_MAX_STEP_ITEMS, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = run_deep(lambda: LLMatcher(bytes_as_tokens(), grammar, log_level=0, limits=limits))
    if matcher.is_error():
        raise RequestError("response_format cannot be checked: " + matcher.get_error().partition("\n")[0], param=_PARAM)
    return matcher
