"""Vocabularies that the library `tokenizers` runs: those of a tokenizer.json, and what other files are turned into."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from typing import cast

import tokenizers
from tokenizers import AddedToken
from tokenizers.decoders import Decoder

from pyagent.core.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_LONG_CHARS = 10_000
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads of its own for one text would only cost


class HuggingFaceTokenizer:
    """A tokenizer of the library, as `core.tokenizers.Tokenizer` has it."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        inner: tokenizers.Tokenizer,
        name: str,
        *,
        num_tokens: int | None = None,
        begin_id: int | None = None,
        end_ids: Collection[int] = (),
        suppressed_ids: Collection[int] = (),
        cuts_words: bool = False,
    ) -> None:
        """`cuts_words` says that it encodes what stands before a word and from its space on apart.

        `suppressed_ids` are tokens that the model is not to write, by its files.

        `family` is the built-in chat template that goes with it, where its file says so; a reader sets it.

        Raises `ModelError` naming the model when it is of a kind not known.
        """
        self.inner = inner
        self.num_tokens = inner.get_vocab_size() if num_tokens is None else num_tokens
        self.begin_id = begin_id
        self.end_ids = frozenset(end_ids)
        self.suppressed_ids = frozenset(suppressed_ids)
        self.cuts_words = cuts_words
        self.family = ""
        self.added: dict[int, AddedToken] = inner.get_added_tokens_decoder()
        self.special_tokens = {token.content: token_id for token_id, token in self.added.items() if token.special}
        decoder = cast("Decoder | None", inner.decoder)
        kinds = _decoder_kinds(json.loads(decoder.__getstate__())) if decoder else set[str]()
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise ModelError(
                f"{name}: its tokenizer decodes by {', '.join(sorted(kinds)) or 'nothing'}; "
                "supported are byte-level and SentencePiece BPE",
                model=name,
            )
        self._byte_of = {name: byte for byte, name in enumerate(byte_alphabet())} if "ByteLevel" in kinds else None
        self.has_leading_space = "Strip" in kinds or "Metaspace" in kinds

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. A long word takes seconds: only a batch lets other threads go on meanwhile."""
        if len(text) < _LONG_CHARS:
            return self.inner.encode(text, add_special_tokens=False).ids
        return self.inner.encode_batch([text], add_special_tokens=False)[0].ids

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to a text."""
        if (added := self.added.get(token)) is not None:
            return b"" if added.special else added.content.encode()
        piece = self.inner.id_to_token(token) or ""
        if self._byte_of is not None:
            if all(letter in self._byte_of for letter in piece):
                return bytes(self._byte_of[letter] for letter in piece)
            return piece.encode()
        if byte := _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace("▁", " ").encode()

    def first_token(self) -> int | None:
        """Return the token that it puts before a text by itself, where it says so."""
        plain = self.inner.encode("a", add_special_tokens=False).ids
        begun = self.inner.encode("a").ids
        is_begun = len(begun) > len(plain) and begun[1 : 1 + len(plain)] == plain
        return begun[0] if is_begun else None


def byte_alphabet() -> list[str]:
    """Return the letter for each byte in a byte-level vocabulary: itself, or for the unprintable one from U+0100 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters: list[str] = []
    for byte in range(256):
        num_hidden = sum(letter >= "\u0100" for letter in letters)
        letters.append(chr(byte) if byte in shown else chr(256 + num_hidden))
    return letters


def _decoder_kinds(decoder: object) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    fields = cast("dict[str, object]", decoder)
    if fields.get("type") == "Sequence":
        return set[str]().union(*map(_decoder_kinds, cast("list[object]", fields.get("decoders") or [])))
    return {str(fields.get("type"))}
