"""The conditions under which a link is asked: `tools`, `not private`, `context > 8000`, `vision or schema`.

Pure: a text becomes a `Condition`, which says of a request whether it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from pyagent.core.messages import ChatRequest
from pyagent.core.nearest import nearest
from pyagent.core.token_estimate import estimated_request_tokens, num_images

_COMPARISON = r"(context|max_tokens) ?(>|<|>=|<=) ?(\d[\d_]*)"
_NAMED = r"(agent|client|class) ?= ?(\S+)"


class Term(msgspec.Struct, frozen=True):
    """One term of a condition; with `is_negated` its opposite."""

    word: str
    operator: str = ""
    operand: str = ""
    is_negated: bool = False


class Condition(msgspec.Struct, frozen=True):
    """Holds when one of its terms does; `text` is how the user wrote it."""

    text: str
    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, text: object) -> Condition:
        """Parse a condition; raise `ValueError` naming the known terms."""
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f'expected a condition such as "tools" or "context > 8000", got {text!r}')
        words = " ".join(text.split())
        return cls(words, tuple(_read_term(term) for term in words.split(" or ")))

    def holds(self, request: ChatRequest) -> bool:
        """Return whether a request meets the condition."""
        return any(_is_so(term, request) != term.is_negated for term in self.terms)


_WORDS: dict[str, Callable[[ChatRequest], bool]] = {
    "tools": lambda request: bool(request.tools),
    "vision": lambda request: any(num_images(message.content) for message in request.messages),
    "schema": lambda request: request.response_format is not None and request.response_format.type != "text",
    "private": lambda request: request.private,
    "session": lambda request: request.session is not None,
    "logprobs": lambda request: bool({request.sampling.top_logprobs, request.sampling.prompt_logprobs} - {None}),
    "completion": lambda request: not request.messages,
}
_NUMBERS: dict[str, Callable[[ChatRequest], int]] = {
    "context": estimated_request_tokens,
    "max_tokens": lambda request: request.sampling.max_tokens or 2**31 - 1,
}
_NAMES: dict[str, Callable[[ChatRequest], str]] = {
    "agent": lambda request: request.origin.agent,
    "client": lambda request: request.origin.client,
    "class": lambda request: request.request_class,
}


def _read_term(text: str) -> Term:
    is_negated = text.startswith("not ")
    said = text.removeprefix("not ").strip()
    if said in _WORDS:
        return Term(said, is_negated=is_negated)
    if match := re.fullmatch(_COMPARISON, said):
        return Term(match[1], match[2], match[3].replace("_", ""), is_negated)
    if match := re.fullmatch(_NAMED, said):
        return Term(match[1], "=", match[2], is_negated)
    found = nearest(said, _WORDS)
    known = f"{found!r}" if found else f"{', '.join(_WORDS)}, `context > N`, `max_tokens > N`, `agent = NAME`"
    raise ValueError(f"expected {known}, got {text!r}")


def _is_so(term: Term, request: ChatRequest) -> bool:
    if term.word in _WORDS:
        return _WORDS[term.word](request)
    if term.word in _NAMES:
        return _NAMES[term.word](request) == term.operand
    number, bound = _NUMBERS[term.word](request), int(term.operand)
    match term.operator:
        case ">":
            return number > bound
        case ">=":
            return number >= bound
        case "<":
            return number < bound
        case _:
            return number <= bound
