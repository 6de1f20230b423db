"""From a text to an encoder's tokens, the special ones around it included. The files are hostile input.

Knows the vocabulary's files, not the model.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import cast

import tokenizers

from pyagent.core.errors import ContextOverflowError, ModelError, RequestError
from pyagent.core.one_line import printable
from pyagent.infrastructure.engine.encoders.gguf_tokens import tokenizer_of_gguf, word_pieces
from pyagent.infrastructure.engine.encoders.pair_template import PairTemplate
from pyagent.infrastructure.engine.tokens.model_folder import read_bounded, read_json
from pyagent.infrastructure.engine.tokens.tokenizer_json import read_tokenizer

Text = str | tuple[str, str]
"""A text, or a pair of them that a model sees as one."""
SECOND_TEXT = 1 << 31
"""The bit that the engine reads as: of a pair's second text."""
UNSEEN = 1 << 30
"""The bit that the engine reads as: at a text's end, sees it and is seen by no token."""
_INSTRUCTION = re.compile(r"Instruct: .*?\nQuery:", re.DOTALL)
"""What stands before a query of NV-Embed, whose own code leaves these tokens out of a text's vector."""


class TextTokens:
    """The tokens of texts for one encoder. Any thread may call it."""

    def __init__(  # noqa: PLR0913 - what files say of texts
        self,
        path: Path,
        max_tokens: int,
        vocab_size: int,
        pairs: PairTemplate | None = None,
        *,
        closing: int | None = None,
        skips_instructions: bool = False,
    ) -> None:
        """`pairs` is how the model is shown a query and a document, where that is not one after the other.

        `closing` is a token that stands behind every text. With `skips_instructions` a text that begins with
        `Instruct: ...` and a line `Query: ` is a pair of an instruction and a text.

        Raises `ModelError` for a folder without a vocabulary, or with one that is not the model's.
        """
        self._path = path
        self._pairs, self._closing, self._skips_instructions = pairs, closing, skips_instructions
        self._adds_special = True
        with _naming(path):
            self._inner = tokenizer_of(path)
        self._inner.no_padding()
        self._inner.no_truncation()
        self.max_tokens = max_tokens
        self._advice = "send shorter texts, or set truncate"
        num_tokens = 1 + max(self._inner.get_vocab().values(), default=-1)
        if num_tokens > vocab_size:
            text = f"{path}: its tokenizer has {num_tokens} tokens, the model {vocab_size}; take both from one source"
            raise ModelError(text, model=str(path))

    def encode(
        self, texts: Sequence[Text], numbers: Sequence[int] | None = None, *, truncates: bool = False
    ) -> list[list[int]]:
        """Return the tokens of each text or pair; `numbers` are what errors call them, from 0 on where none are given.

        A longer one is cut where `truncates` says so, a pair in its second text. `SECOND_TEXT` is set in what the
        tokenizer counts to that one. Raises `RequestError` naming a text that is empty, longer than the model takes, or
        no Unicode.
        """
        numbers = range(len(texts)) if numbers is None else numbers
        for number, text in zip(numbers, texts, strict=True):
            for part in [text] if isinstance(text, str) else text:
                _check(part, number)
        if (shown := self._pairs) is not None and texts and not isinstance(texts[0], str):
            pairs = zip(numbers, cast("Sequence[tuple[str, str]]", texts), strict=True)
            return [self._shown(shown, pair, number, truncates) for number, pair in pairs]
        with _naming(self._path):
            found = self._inner.encode_batch(list(texts), add_special_tokens=self._adds_special)
        if (closing := self._closing) is not None:
            alone = cast("Sequence[str]", texts)
            closed = zip(alone, numbers, found, strict=True)
            return [self._closed(text, closing, one, number, truncates) for text, number, one in closed]
        return [self._tokens(one, number, truncates) for number, one in zip(numbers, found, strict=True)]

    def within(self, max_tokens: int) -> TextTokens:
        """Return the same for texts of at most so many tokens, which are no more than the model takes."""
        other = copy.copy(self)
        other.max_tokens = max_tokens
        return other

    def without_special(self) -> TextTokens:
        """Return the same without the tokens that stand around texts, for those that have them already."""
        other = copy.copy(self)
        other._adds_special = False
        return other

    def for_queries(self) -> TextTokens:
        """Return the same for queries, whose errors do not advise to have them cut."""
        other = copy.copy(self)
        other._advice = "a query is never cut: send a shorter one"
        return other

    def token_id(self, token: str) -> int | None:
        """Return a token's number; None for one that the vocabulary has not."""
        return self._inner.token_to_id(token)

    def _shown(self, pairs: PairTemplate, pair: tuple[str, str], number: int, truncates: bool) -> list[int]:
        ids, whole = pairs.encode(*pair, self.max_tokens, truncates=truncates)
        if len(ids) > self.max_tokens:
            raise self._too_long(number, whole, truncates)
        return ids

    def _tokens(self, encoding: tokenizers.Encoding, number: int, truncates: bool) -> list[int]:
        is_pair = encoding.n_sequences > 1
        cut = self._cut_pair if is_pair else self._cut
        kept = range(len(encoding.ids)) if len(encoding.ids) <= self.max_tokens else cut(encoding, number, truncates)
        ids, kinds = encoding.ids, encoding.type_ids
        return [ids[index] | (SECOND_TEXT if is_pair and kinds[index] else 0) for index in kept]

    def _closed(
        self, text: str, closing: int, encoding: tokenizers.Encoding, number: int, truncates: bool
    ) -> list[int]:
        """Return the tokens with the one behind them; those behind an instruction have `SECOND_TEXT` set."""
        whole = len(encoding.ids) + 1
        if whole > self.max_tokens and not truncates:
            raise self._too_many(number, whole)
        ids = [*encoding.ids[: self.max_tokens - 1], closing]
        instruction = _INSTRUCTION.match(text) if self._skips_instructions else None
        if instruction is None:
            return ids
        begins = (index for index, (start, _) in enumerate(encoding.offsets) if start >= instruction.end())
        before = min(next(begins, whole), len(ids) - 1)
        return [*ids[:before], *(token | SECOND_TEXT for token in ids[before:])]

    def _cut_pair(self, encoding: tokenizers.Encoding, number: int, truncates: bool) -> list[int]:
        """Return which tokens stay when the second text is cut; the first one and the special ones are needed."""
        excess = len(encoding.ids) - self.max_tokens
        of_second = [index for index, text in enumerate(encoding.sequence_ids) if text == 1]
        if not truncates or excess >= len(of_second):
            raise self._too_long(number, len(encoding.ids), truncates)
        gone = set(of_second[len(of_second) - excess :])
        return [index for index in range(len(encoding.ids)) if index not in gone]

    def _too_long(self, number: int, num_tokens: int, truncates: bool) -> ContextOverflowError:
        whose = "its query alone fills that" if truncates else self._advice
        text = f"pair {number} has {num_tokens} tokens, the model takes {self.max_tokens}; {whose}"
        return ContextOverflowError(text, num_tokens=num_tokens, limit=self.max_tokens, param="input")

    def _too_many(self, number: int, num_tokens: int) -> ContextOverflowError:
        text = f"input {number} has {num_tokens} tokens, the model takes {self.max_tokens}; {self._advice}"
        return ContextOverflowError(text, num_tokens=num_tokens, limit=self.max_tokens, param="input")

    def _cut(self, encoding: tokenizers.Encoding, number: int, truncates: bool) -> list[int]:
        ids, most = encoding.ids, self.max_tokens
        if not truncates:
            raise self._too_many(number, len(ids))
        num_closing = 0
        for is_special in reversed(encoding.special_tokens_mask):
            if not is_special:
                break
            num_closing += 1
        num_closing = min(num_closing, most - 1)
        return [*range(most - num_closing), *range(len(ids) - num_closing, len(ids))]


@contextlib.contextmanager
def _naming(path: Path) -> Generator[None]:
    """Raise `ModelError` where the library that cuts texts fails or panics, which has no name: a file is damaged."""
    try:
        yield
    except ModelError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        text = f"{path}: its tokenizer cannot be run: {printable(str(error))}"
        raise ModelError(text, model=str(path)) from error


def _check(text: str, number: int) -> None:
    if not text:
        raise RequestError(f"input {number} is empty; there is no text to compute", param="input")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"input {number} is no Unicode text: {error.reason}", param="input") from error


def tokenizer_of(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of an encoder's folder or GGUF file. Raises `ModelError` where there is none, or no such."""
    file, vocabulary = path / "tokenizer.json", path / "vocab.txt"
    try:
        if path.is_file():
            return tokenizer_of_gguf(path)
        if file.is_file():
            return read_tokenizer(file)
        if vocabulary.is_file():
            return _word_pieces(path, vocabulary)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{path}: not a tokenizer: {error}", model=str(path)) from error
    raise ModelError(f"{path}: no tokenizer.json or vocab.txt; save the model with its tokenizer", model=str(path))


def _word_pieces(path: Path, vocabulary: Path) -> tokenizers.Tokenizer:
    """BERT's tokenizer from its list of pieces."""
    pieces = read_bounded(vocabulary).decode().splitlines()
    return word_pieces(vocabulary, pieces, read_json(path / "tokenizer_config.json"))
