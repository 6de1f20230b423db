"""Tokens to text as they arrive, without ever sending half a character.

A token is bytes. Joined, the bytes are UTF-8 where the model meant text; what is not becomes U+FFFD as soon as that is
known, and never swallows a good character beside it.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import cast

from tokenizers import Tokenizer
from tokenizers.decoders import Decoder

from pyagent.core.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes of each token of a tokenizer. Control tokens have none."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        """Raises `ModelError` naming the model when its tokenizer is of a kind not known."""
        self._tokenizer = tokenizer
        self._added = {
            token_id: b"" if token.special else token.content.encode()
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._known: dict[int, bytes] = {}
        decoder = cast("Decoder | None", tokenizer.decoder)
        kinds = _decoder_kinds(json.loads(decoder.__getstate__())) if decoder else set[str]()
        if not kinds & {"ByteLevel", "ByteFallback", "Metaspace"}:
            raise ModelError(
                f"{name}: its tokenizer decodes by {', '.join(sorted(kinds)) or 'nothing'}; "
                "supported are byte-level and SentencePiece BPE",
                model=name,
            )
        self._byte_of = {name: byte for byte, name in enumerate(byte_alphabet())} if "ByteLevel" in kinds else None
        self.has_leading_space = "Strip" in kinds or "Metaspace" in kinds

    def __getitem__(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self.made(token)
        return found

    def special(self, token: int) -> str:
        """Return a control token's own text; nothing for other tokens."""
        return (self._tokenizer.id_to_token(token) or "") if self._added.get(token) == b"" else ""

    def made(self, token: int) -> bytes:
        """A token's bytes, not remembered: for those who look at all of them once."""
        if token in self._added:
            return self._added[token]
        piece = self._tokenizer.id_to_token(token) or ""
        if self._byte_of is not None:
            if all(letter in self._byte_of for letter in piece):
                return bytes(self._byte_of[letter] for letter in piece)
            return piece.encode()
        if byte := _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace("▁", " ").encode()


class Detokenizer:
    """One answer's text. What `push` and `flush` return, joined, is the text of all tokens pushed."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        shows_special: bool = False,
        shown: frozenset[int] = frozenset(),
        is_further: bool = False,
    ) -> None:
        """With `shows_special` all control tokens are written out, else those of `shown`.

        Where the tokenizer puts a space before a text, one that the tokens begin with is dropped, unless they are
        the further part of a text.
        """
        self._token_bytes = token_bytes
        self._shows_special = shows_special
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_start = token_bytes.has_leading_space and not is_further

    def copy(self) -> Detokenizer:
        """Another that goes on from where this one is."""
        other = Detokenizer(self._token_bytes, shows_special=self._shows_special, shown=self._shown)
        other._utf8.setstate(self._utf8.getstate())
        other._is_start = self._is_start
        return other

    @property
    def is_inside_character(self) -> bool:
        """Whether the tokens so far end within a character."""
        return bool(self._utf8.getstate()[0])

    def push(self, token: int) -> str:
        """Take a token; returns the text it completes, possibly none."""
        data = self._token_bytes[token]
        if not data and (self._shows_special or token in self._shown):
            data = self._token_bytes.special(token).encode()
        if self._is_start and data:
            self._is_start = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """Return the end of the answer: bytes that never became a character, as U+FFFD."""
        return self._utf8.decode(b"", final=True)


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
