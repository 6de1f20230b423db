"""Tokens to text as they arrive, without ever sending half a character."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer:
    """One answer's text. What `push` and `flush` return, joined, is the text of all tokens pushed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Take a token; returns the text it completes, possibly none."""
        self._pending.append(token)
        text = self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._pending.clear()
        return text

    def flush(self) -> str:
        """The end of the answer: bytes that never became a character, as U+FFFD."""
        text = self._tokenizer.decode(self._pending, skip_special_tokens=True)
        self._pending.clear()
        return text
