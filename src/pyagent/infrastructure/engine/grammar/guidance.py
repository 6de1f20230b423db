"""Grammars by llguidance: JSON schemas, choices, regexes and Lark, with the masks of a step on all of its threads."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from pyagent import _rust
from pyagent.core.dialects.schema_text import quoted, schema_text
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
from pyagent.core.messages import JsonObject
from pyagent.core.structured_output.errors import GrammarError, told_briefly
from pyagent.core.structured_output.parser_limits import parser_limits
from pyagent.infrastructure.engine.grammar.blame import blamed
from pyagent.infrastructure.engine.grammar.vocabulary import llguidance_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MANY_CORES = 8
"""On two, waking threads for the masks of 16 rows took longer than the masks (docs/explanation/log.md)."""


_UNSPELLED = re.compile(r"doesn't satisfy the grammar; forced bytes: got ('.+?')")
"""What llguidance says where no token has the only bytes that may follow: T5's vocabulary has no braces."""


class GuidanceMatcher:
    """An `LLMatcher` whose errors are raised."""

    __slots__ = ("inner",)

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow any more."""
        return self.inner.is_stopped()

    def accept(self, token: int) -> None:
        """Go on by a token."""
        if not self.inner.consume_token(token):
            raise self.error(f"token {token} is not allowed here")

    def copy(self) -> GuidanceMatcher:
        """Return a matcher at the same place."""
        return GuidanceMatcher(self.inner.deep_copy())

    def error(self, otherwise: str) -> GrammarError:
        """Return what went wrong."""
        told = self.inner.get_error() or otherwise
        if (unspelled := _UNSPELLED.search(told)) is not None:
            told = (
                f"no token of the answer spells {unspelled[1]}, which the grammar asks for next;"
                " a model whose vocabulary has none for it cannot answer in this format"
            )
        return GrammarError(told, self.inner.stop_reason())


class GuidanceBackend:
    """llguidance for one vocabulary, with threads for masks where there are many cores."""

    def __init__(self, vocabulary: GrammarVocabulary, num_cores: int) -> None:
        from llguidance import LLExecutor

        self._row_bytes = mask_bytes(vocabulary.size)
        self._tokenizer = llguidance_tokenizer(vocabulary)
        self._executor = LLExecutor(num_cores) if num_cores >= _MANY_CORES else None
        self._limits = parser_limits()
        _rust.trim_memory()  # the tokens' bytes

    def compile(self, source: GrammarSource) -> GuidanceMatcher:
        """Return a matcher at the start. Raises `RequestError` saying what cannot be enforced."""
        from llguidance import LLMatcher

        matcher = GuidanceMatcher(LLMatcher(self._tokenizer, _text(source), log_level=0, limits=self._limits))
        if matcher.inner.is_error():
            raise _refusal(matcher.inner.get_error(), source, self._error_of)
        return matcher

    def _error_of(self, schema: JsonObject) -> str:
        from llguidance import LLMatcher

        text = LLMatcher.grammar_from_json_schema(schema_text(schema))
        return LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits).get_error()

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        """Write the masks, without the interpreter's lock. Raises `GrammarError` where a matcher failed."""
        own = cast("Sequence[tuple[GuidanceMatcher, int]]", rows)
        address = ctypes.addressof(ctypes.c_char.from_buffer(masks))
        inner = [(matcher.inner, row) for matcher, row in own]
        if self._executor is None or len(inner) == 1:
            for matcher, row in inner:
                matcher.unsafe_compute_mask_ptr(address + row * self._row_bytes, self._row_bytes)
        else:
            self._executor.unsafe_compute_mask_ptr(inner, address, self._row_bytes, masks.nbytes // self._row_bytes)
        for matcher, _ in own:
            if matcher.inner.is_error():
                raise matcher.error("the grammar failed")


class Guidance:
    """llguidance, as vLLM names it."""

    name = "guidance"

    def unavailable_reason(self) -> None:
        """PyAgent depends on llguidance."""

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
        """Return llguidance for a vocabulary."""
        return GuidanceBackend(vocabulary, _rust.available_cores())


GUIDANCE = Guidance()


@hookimpl
def pyagent_register_grammar_backends() -> Sequence[GrammarBackendFactory]:
    """The backend `guidance`."""
    return [GUIDANCE]


def _text(source: GrammarSource) -> str:
    """Return a source as llguidance takes it."""
    from llguidance import LLMatcher

    try:
        match source.kind:
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(schema_text(json.loads(source.text)))
            case "choice":  # as one lexeme, since as rules more than 2,000 are too many for the parser
                texts = " | ".join(map(quoted, json.loads(source.text)))
                return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")
            case "regex":
                return LLMatcher.grammar_from_regex(source.text)
            case "lark":
                return LLMatcher.grammar_from_lark(source.text)
    except (ValueError, RecursionError) as error:  # nested too deep
        raise RequestError(told_briefly(error), param="response_format") from error


def _refusal(error: str, source: GrammarSource, refuses: Callable[[JsonObject], str]) -> RequestError:
    """Return the error for what llguidance refuses; of a schema with the place of the keyword that is to blame."""
    place = blamed(json.loads(source.text), error, refuses) if source.kind == "json_schema" else ""
    return RequestError(told_briefly(error) + (f" ({place})" if place else ""), param="response_format")
