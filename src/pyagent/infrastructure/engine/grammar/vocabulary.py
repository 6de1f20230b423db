"""A model's vocabulary as llguidance takes it: each token's bytes, and the model's own tokenizer for forced text.

Of the tokenizer's JSON llguidance would make a second tokenizer, which takes as much again as the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from pyagent.core.grammars import GrammarVocabulary


_LETTER = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_LETTER}{{1,{length}}}" for length in (6, 16)), f"{_LETTER}+"]
"""Kinds of tokens that a mask allows or forbids together, without a look at each: as llguidance's own, but for texts of
up to 6 and 16 letters where those are 10 and 30. Inside a text that may have 40 letters, which few tokens of 10 fit in
everywhere, a mask takes 10 µs where it took 50 (docs/explanation/log.md)."""


class _Vocabulary:
    """What `llguidance.TokenizerWrapper` asks for."""

    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens: Sequence[bytes] = vocabulary.tokens()
        self.special_token_ids = sorted(vocabulary.control_ids)
        self.eos_token_id = min(vocabulary.end_ids, default=0)
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of text in the middle of an answer."""
        return self._vocabulary.encode(text.decode(errors="replace"))


def llguidance_tokenizer(vocabulary: GrammarVocabulary) -> LLTokenizer:
    """The vocabulary, ready for matchers."""
    from llguidance import LLTokenizer, TokenizerWrapper

    told = _Vocabulary(vocabulary)
    wrapper = TokenizerWrapper(told)
    ends = sorted(vocabulary.end_ids)
    made = LLTokenizer(wrapper, n_vocab=vocabulary.size, eos_token=ends, slices=_SLICES)
    wrapper.tokens = told.tokens = ()  # it has copied them, and keeps the wrapper
    return made
