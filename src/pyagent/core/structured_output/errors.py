"""What goes wrong with grammars, in words for people."""

from __future__ import annotations

import re

_MAX_REASON_CHARS = 500
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


class GrammarError(ValueError):
    """A grammar that cannot go on. `kind` is the backend's word for why, which quotes nothing of the request."""

    def __init__(self, error: object, kind: str) -> None:
        super().__init__(told_briefly(error))
        self.kind = kind


def told_briefly(error: object) -> str:
    """Return a fault of a grammar's for people: llguidance adds its inner state, which holds the answer's tokens."""
    first = " ".join(_INNER_STATE.split(str(error), maxsplit=1)[0].split())[:_MAX_REASON_CHARS]
    for pattern, words in _WORDS:
        first = pattern.sub(words, first) if pattern.fullmatch(first) else first
    return f"{CANNOT_ENFORCE}: {first or type(error).__name__}"
