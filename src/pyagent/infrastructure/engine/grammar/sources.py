"""What was asked for as the text that a grammar backend compiles. Pure; compiles nothing."""

from __future__ import annotations

import json

from pyagent.core.dialects.lark import MAX_CHARS, SPACING, quoted
from pyagent.core.errors import RequestError
from pyagent.core.grammars import GrammarSource
from pyagent.core.messages import JsonObject, ResponseFormat
from pyagent.infrastructure.engine.grammar.errors import told_briefly


def source_of(wanted: ResponseFormat) -> GrammarSource:
    """Return a response format's source. Raises `RequestError` for one that lacks something, or is too long."""
    if wanted.type == "choice":
        if not wanted.choice or any(not text for text in wanted.choice):
            raise RequestError(
                "response_format.choice needs at least one text, none of them empty", param="response_format"
            )
        texts = json.dumps(wanted.choice, ensure_ascii=False)
        check_length("choices have", texts)
        return GrammarSource("choice", texts)
    if wanted.type == "json_schema" and wanted.json_schema is None:
        raise RequestError("response_format of type json_schema needs json_schema.schema", param="response_format")
    try:
        text = json.dumps(schema_of(wanted))
    except (ValueError, RecursionError) as error:  # nested too deep
        raise RequestError(told_briefly(error), param="response_format") from error
    check_length("JSON schema has", text)
    return GrammarSource("json_schema", text)


def schema_of(wanted: ResponseFormat) -> JsonObject:
    """Return the schema of a response format; that of any object where it has none."""
    return wanted.json_schema.schema if wanted.json_schema else {"type": "object"}


def calls_source(calls: str, other: ResponseFormat | None) -> GrammarSource:
    """Return the source of a Lark grammar of calls; with `other`, an answer that follows that is the other choice."""
    lark = calls if other is None else f"{calls.replace('start:', 'called:', 1)}\n{_other(other)}"
    check_length("tools have", lark, "tools")
    return GrammarSource("lark", lark)


def _other(wanted: ResponseFormat) -> str:
    if wanted.type == "choice":
        answer = " | ".join(map(quoted, wanted.choice or ()))
    else:
        answer = f"%json {quoted({**schema_of(wanted), 'x-guidance': SPACING})}"
    return f"start: called | answer\nanswer: {answer}"


def check_length(what: str, text: str, param: str = "response_format") -> None:
    """Raise `RequestError` for a text that is too long to compile."""
    if len(text) > MAX_CHARS:
        raise RequestError(f"the {what} {len(text)} characters; the limit is {MAX_CHARS}", param=param)
