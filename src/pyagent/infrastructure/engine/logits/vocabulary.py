"""A loaded model's vocabulary as logits processors and grammar backends see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.tokens import ModelTokenizer


class ModelVocabulary:
    """The tokens of a model. Hashable, and weakly referable: plugins keep tables of their own by it."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """Rows of logits are this long: token ids end here."""
        return self._tokenizer.vocab_size

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._tokenizer.end_ids

    @property
    def control_ids(self) -> frozenset[int]:
        """The tokens that are no text: ends, roles, tags."""
        return frozenset(self._tokenizer.control_ids())

    def control_token(self, name: str) -> int | None:
        """Return the token of this name, such as `<think>`, that llguidance takes for no text."""
        return self._tokenizer.token_id(name)

    def tokens(self) -> list[bytes]:
        """Return the bytes of each token, made anew: those of a control token are its name, some ids have none."""
        return self._tokenizer.vocabulary()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of text in the middle of an answer."""
        return self._tokenizer.encode_further(text)
