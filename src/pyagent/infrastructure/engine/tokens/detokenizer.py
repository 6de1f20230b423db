"""Tokens to text as they arrive, without ever sending half a character.

A token is bytes. Joined, the bytes are UTF-8 where the model meant text; what is not becomes U+FFFD as soon as that is
known, and never swallows a good character beside it.
"""

from __future__ import annotations

import codecs

from pyagent.core.tokenizers import Tokenizer


class TokenBytes(dict[int, bytes]):
    """The bytes of each token of a tokenizer, remembered as they are asked for. Control tokens have none.

    A dict, so that the lookup of a known token, made for each token of each answer, calls no Python.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special = {token: name for name, token in tokenizer.special_tokens.items()}
        self.has_leading_space = tokenizer.has_leading_space

    def __missing__(self, token: int) -> bytes:
        found = self[token] = self._tokenizer.token_bytes(token)
        return found

    def special(self, token: int) -> str:
        """Return a control token's own text; nothing for other tokens."""
        return self._special.get(token, "")

    def made(self, token: int) -> bytes:
        """A token's bytes, not remembered: for those who look at all of them once."""
        return self._tokenizer.token_bytes(token)


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
