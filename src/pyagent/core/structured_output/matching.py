"""Whether a whole text matches a response format, whichever backend wrote it. In bounded time; fetches nothing."""

from __future__ import annotations

from typing import cast

import msgspec

from pyagent.core.emulation.patterns import bytes_as_tokens
from pyagent.core.emulation.schemas import fault_of
from pyagent.core.errors import RequestError
from pyagent.core.response_format import ResponseFormat
from pyagent.core.structured_output.lark_source import is_json, lark_of, schema_of

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
    from llguidance import LLMatcher, LLParserLimits

    if len(text) > _MAX_CHARS:
        raise RequestError(f"a text of {len(text)} characters is too long to be checked", param=_PARAM)
    tokenizer = bytes_as_tokens()
    limits = LLParserLimits(step_max_items=_MAX_STEP_ITEMS, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark_of(wanted)), log_level=0, limits=limits)
    if matcher.is_error():
        raise RequestError("response_format cannot be checked: " + matcher.get_error().partition("\n")[0], param=_PARAM)
    tokens = tokenizer.tokenize_bytes(text.encode(errors="replace"))
    num_right = matcher.try_consume_tokens(tokens)
    if num_right == len(tokens) and matcher.is_accepting():
        return None
    if num_right == len(tokens):
        return f"{text[-40:]!r} is not yet all that response_format asks for"
    return f"{_from(text, num_right)!r} does not match response_format"


def _from(text: str, num_bytes: int) -> str:
    """Return where a text goes wrong, with a little of it."""
    return text.encode(errors="replace")[num_bytes:].decode(errors="replace")[:40]
