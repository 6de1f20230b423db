"""A vocabulary of single bytes for the suites of grammars, dialects and logits processors, and walks through masks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pyagent.core.grammars import GrammarBackend, GrammarMatcher, mask_bytes

END = 256
_MOST_TOKENS = 2_000
_FREE, _SOON = 60, 20
"""Where so many bytes may come next, text is free; after so many it ends."""
_LETTERS = frozenset({10, *range(32, 127)})
_CLOSING = tuple(b'}]"')


class ByteVocabulary:
    """Tokens 0 to 255 are bytes, 256 ends an answer."""

    size = 257
    end_ids = frozenset({END})
    control_ids = frozenset({END})

    def tokens(self) -> list[bytes]:
        """Return the bytes of each token."""
        return [*(bytes([byte]) for byte in range(256)), b"<|end|>"]

    def encode(self, text: str) -> list[int]:
        """Return a text's bytes."""
        return list(text.encode())


def allowed(backend: GrammarBackend, matcher: GrammarMatcher) -> set[int]:
    """Return the tokens that may come next, by the backend's mask."""
    mask = bytearray(mask_bytes(ByteVocabulary.size))
    backend.fill_masks([(matcher, 0)], memoryview(mask))
    return {token for token in range(ByteVocabulary.size) if mask[token // 8] >> token % 8 & 1}


def walk(backend: GrammarBackend, matcher: GrammarMatcher, chance: random.Random, endings: Sequence[str] = ()) -> bytes:
    """Return what a model may write that chooses at random. Moves the matcher.

    Free text soon ends the answer by one of the `endings`, where the grammar has it.
    """
    written = bytearray()
    while not matcher.is_finished:
        may = allowed(backend, matcher)
        assert may, f"after {bytes(written)!r} no token is allowed, and it is not finished"
        assert len(written) < _MOST_TOKENS, f"the walk does not end: {bytes(written)!r:.200}"
        if len(may) > _FREE and len(written) > _SOON and (ending := _ending(backend, matcher, endings)) is not None:
            return bytes(written) + ending
        token = _chosen(may, chance)
        matcher.accept(token)
        if token == END:
            break
        written.append(token)
    return bytes(written)


def _ending(backend: GrammarBackend, matcher: GrammarMatcher, endings: Sequence[str]) -> bytes | None:
    """Return the longest of the endings after which the answer may end."""
    for ending in sorted(endings, key=len, reverse=True):
        copy = matcher.copy()
        if _accepts(copy, ending.encode()) and (copy.is_finished or END in allowed(backend, copy)):
            return ending.encode()
    return None


def _accepts(matcher: GrammarMatcher, text: bytes) -> bool:
    try:
        for byte in text:
            matcher.accept(byte)
    except Exception:  # noqa: BLE001 - whatever it raises ends one answer
        return False
    return True


def _chosen(may: set[int], chance: random.Random) -> int:
    if END in may and (may == {END} or chance.random() < 0.6):
        return END
    closing = [token for token in _CLOSING if token in may]
    if closing and chance.random() < 0.5:
        return closing[0]
    return chance.choice(sorted(may & _LETTERS or may - {END}))
