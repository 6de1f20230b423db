"""Tokens of parts of prompts, kept for prompts of the same tenant that have the same parts. Knows no tokenizer.

Found for another tenant too, they would tell by the time taken what another tenant has sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from threading import Lock

_ENTRY_CHARS = 128
"""What an entry takes beside its text and tokens, in characters."""


class SegmentCache:
    """The tokens of the parts asked for last; any thread may ask. Longer parts than `longest` are encoded each time."""

    def __init__(self, encode: Callable[[str], array[int]], *, most_chars: int, longest: int) -> None:
        self._encode = encode
        self._most_chars = most_chars
        self._longest = longest
        self._tokens: dict[tuple[str, str], array[int]] = {}
        self._num_chars = 0
        self._lock = Lock()

    def tokens_of(self, part: str, tenant: str = "") -> array[int]:
        """Return the part's tokens, for a tenant (`Origin.tenant`)."""
        key = tenant, part
        with self._lock:
            found = self._tokens.pop(key, None)
            if found is not None:
                self._tokens[key] = found  # the dictionary's end is the latest
                return found
        tokens = self._encode(part)
        if len(part) <= self._longest:
            self._keep(key, tokens)
        return tokens

    def _keep(self, key: tuple[str, str], tokens: array[int]) -> None:
        with self._lock:
            if key in self._tokens:
                return
            self._tokens[key] = tokens
            self._num_chars += len(key[1]) + _ENTRY_CHARS
            while self._num_chars > self._most_chars:
                oldest = next(iter(self._tokens))
                del self._tokens[oldest]
                self._num_chars -= len(oldest[1]) + _ENTRY_CHARS
