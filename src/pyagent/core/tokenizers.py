"""What a tokenizer is: the vocabulary of one model, and how it is found beside the model's weights. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol


class Tokenizer(Protocol):
    """The vocabulary of one model: text to token ids, and ids to bytes. Any thread may call it, several at once."""

    @property
    def num_tokens(self) -> int:
        """Token ids are below this; the model may have more of them."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Control tokens by name: those that separate turns, begin or end a text. They are no text themselves."""
        ...

    @property
    def begin_id(self) -> int | None:
        """The token that stands before a plain text; None where nothing does."""
        ...

    @property
    def end_ids(self) -> Collection[int]:
        """The tokens that end an answer."""
        ...

    @property
    def has_leading_space(self) -> bool:
        """Whether it puts a space before each text, as SentencePiece does, which a text of its tokens does not have."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text, nothing added; names of control tokens in it become these."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to a text, of whose UTF-8 it may be a part; nothing for control tokens and holes."""
        ...


class TokenizerFactory(Protocol):
    """Loads one kind of tokenizer, where a model has it."""

    @property
    def name(self) -> str:
        """What `engine.tokenizer` calls it."""
        ...

    def matches(self, path: Path) -> bool:
        """Whether a model, which is a folder or a file, has such a tokenizer. Looks at few bytes."""
        ...

    def load(self, path: Path) -> Tokenizer:
        """Return the model's tokenizer. Raises `ModelError` saying what is wrong with its files."""
        ...


READERS = ("gguf", "huggingface", "tekken", "tiktoken", "sentencepiece")
"""The names of the built-in factories."""


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """Which factory loads a model's tokenizer: by name, or the first of `brought` and built-in that knows its files.

    `chat_template` is a built-in template's name, a file or a text, or what the model's own files have (`auto`);
    `chat_templates` are those of models by name.
    """

    name: str = "auto"
    brought: Sequence[TokenizerFactory] = ()
    chat_template: str = "auto"
    chat_templates: Mapping[str, str] = field(default_factory=dict[str, str])

    def of_model(self, name: str) -> TokenizerOptions:
        """Return the options of one model."""
        return replace(self, chat_template=self.chat_templates.get(name, self.chat_template))


NO_OPTIONS = TokenizerOptions()
