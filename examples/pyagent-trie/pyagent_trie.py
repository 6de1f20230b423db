"""A PyAgent plugin with a grammar backend: choices, by what is left of each; all else is left to others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyagent.plugin import (
    GrammarBackend,
    GrammarBackendFactory,
    GrammarMatcher,
    GrammarSource,
    GrammarVocabulary,
    RequestError,
    hookimpl,
)


@dataclass
class ChoiceMatcher:
    """What is left of each choice that begins with what was written."""

    tokens: Sequence[bytes]
    ends: frozenset[int]
    left: frozenset[bytes]
    is_ended: bool = False

    @property
    def is_finished(self) -> bool:
        return self.is_ended or self.left == frozenset({b""})

    def allowed(self) -> list[int]:
        """A token fits where some choice goes on with it; where one is whole, the answer may end."""
        if self.is_ended:
            return []
        texts = [(token, text) for token, text in enumerate(self.tokens) if text and token not in self.ends]
        fits = [token for token, text in texts if any(choice.startswith(text) for choice in self.left)]
        return [*fits, *(self.ends if b"" in self.left else ())]

    def accept(self, token: int) -> None:
        if token not in self.allowed():
            raise ValueError(f"token {token} is not allowed here")
        if token in self.ends:
            self.is_ended = True
        else:
            text = self.tokens[token]
            self.left = frozenset(one[len(text) :] for one in self.left if one.startswith(text))

    def copy(self) -> ChoiceMatcher:
        return ChoiceMatcher(self.tokens, self.ends, self.left, self.is_ended)


class ChoiceBackend:
    """Choices over one vocabulary."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = vocabulary.tokens()
        self.ends = vocabulary.end_ids
        self.row_bytes = -(-vocabulary.size // 32) * 4

    def compile(self, source: GrammarSource) -> GrammarMatcher:
        if source.kind != "choice":
            raise RequestError(f"the grammar backend trie takes choices, not {source.kind}", param="response_format")
        choices = frozenset(choice.encode() for choice in json.loads(source.text))
        return ChoiceMatcher(self.tokens, self.ends, choices)

    def fill_masks(self, rows: Sequence[tuple[GrammarMatcher, int]], masks: memoryview) -> None:
        for matcher, row in rows:
            assert isinstance(matcher, ChoiceMatcher)
            mask = bytearray(self.row_bytes)
            for token in matcher.allowed():
                mask[token // 8] |= 1 << token % 8
            masks[row * self.row_bytes : (row + 1) * self.row_bytes] = mask


class Trie:
    name = "trie"

    def unavailable_reason(self) -> str | None:
        return None  # a package that is not installed is named here

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
        return ChoiceBackend(vocabulary)


@hookimpl
def pyagent_register_grammar_backends() -> Sequence[GrammarBackendFactory]:
    return [Trie()]
