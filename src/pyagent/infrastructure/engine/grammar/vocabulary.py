"""A model's vocabulary as llguidance takes it: each token's bytes, and the model's own tokenizer for forced text.

Of the tokenizer's JSON llguidance would make a second tokenizer, which takes as much again as the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from pyagent.infrastructure.engine.tokens import ModelTokenizer


class _Vocabulary:
    """What `llguidance.TokenizerWrapper` asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.tokens: Sequence[bytes] = tokenizer.vocabulary()
        self.special_token_ids = tokenizer.control_ids()
        self.eos_token_id = min(tokenizer.end_ids, default=0)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of text in the middle of an answer."""
        return self._tokenizer.encode_further(text.decode(errors="replace"))


def llguidance_tokenizer(tokenizer: ModelTokenizer) -> LLTokenizer:
    """The vocabulary, ready for matchers."""
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = _Vocabulary(tokenizer)
    wrapper = TokenizerWrapper(vocabulary)
    made = LLTokenizer(wrapper, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.end_ids))
    wrapper.tokens = vocabulary.tokens = ()  # it has copied them, and keeps the wrapper
    return made
