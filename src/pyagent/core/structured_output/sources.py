"""What was asked for as the text that a grammar backend compiles. Pure; compiles nothing."""

from __future__ import annotations

import json

from pyagent.core.dialects.lark import FREE_ANSWER, MAX_CHARS
from pyagent.core.errors import RequestError
from pyagent.core.grammars import GrammarKind, GrammarSource
from pyagent.core.messages import ResponseFormat
from pyagent.core.structured_output.errors import told_briefly
from pyagent.core.structured_output.lark_source import TokenId, choice_literal, is_json, lark_of, nested, schema_of


def source_of(wanted: ResponseFormat, token_id: TokenId = lambda _: None) -> GrammarSource:
    """Return a response format's source for a model with these control tokens.

    Raises `RequestError` for one that lacks something, or is too long.
    """
    try:
        source = _source(wanted, token_id)
    except (ValueError, RecursionError) as error:  # nested too deep
        raise RequestError(told_briefly(error), param="response_format") from error
    check_length(_NAMES[source.kind], source.text)
    return source


_NAMES: dict[GrammarKind, str] = {
    "choice": "choices have",
    "json_schema": "JSON schema has",
    "regex": "regular expression has",
    "lark": "grammar has",
}


def _source(wanted: ResponseFormat, token_id: TokenId) -> GrammarSource:
    if wanted.type == "choice":
        choice_literal(wanted.choice)  # checks it
        return GrammarSource("choice", json.dumps(wanted.choice, ensure_ascii=False))
    if wanted.type == "regex" and wanted.regex:
        return GrammarSource("regex", wanted.regex)
    if is_json(wanted):
        return GrammarSource("json_schema", json.dumps(schema_of(wanted)))
    return GrammarSource("lark", lark_of(wanted, token_id))


def calls_source(calls: str, other: ResponseFormat | None, token_id: TokenId = lambda _: None) -> GrammarSource:
    """Return the source of a Lark grammar of calls; with `other`, an answer that follows that is the other choice.

    Where the grammar has a place for the answer's text (`FREE_ANSWER`), it stands there, else for the whole.
    """
    lark = calls
    if other is not None:
        answer = f"answer: {nested(lark_of(other, token_id))}"
        if has_answer(calls):
            lark = calls.replace(f"\n{FREE_ANSWER}", f"\n{answer}", 1)
        else:
            lark = f"{calls.replace('start:', 'called:', 1)}\nstart: called | answer\n{answer}"
    check_length("tools have", lark, "tools")
    return GrammarSource("lark", lark)


def has_answer(calls: str) -> bool:
    """Whether a grammar of calls says where the text of an answer stands."""
    return f"\n{FREE_ANSWER}\n" in f"{calls}\n"


def check_length(what: str, text: str, param: str = "response_format") -> None:
    """Raise `RequestError` for a text that is too long to compile."""
    if len(text) > MAX_CHARS:
        raise RequestError(f"the {what} {len(text)} characters; the limit is {MAX_CHARS}", param=param)
