"""SentencePiece's other kind of vocabulary: of all ways to cut a text into pieces the likeliest (arXiv 1804.10959)."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, models

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import (
    BYTE,
    MADE_OF_TEXT,
    UNKNOWN,
    add_special,
    mark_spaces,
    refuse_long_pieces,
)

_BYTE_NAME = "<0x123456789ABCDEF>"
"""All letters that names of bytes have."""
_NEVER = -1e6
"""The score of what no text is cut into, as its letters are pieces too. SentencePiece leaves it out, but `tokenizers`
finds the pieces of bytes by their names, and so must know them."""


def build_unigram(
    pieces: Sequence[str], scores: Sequence[float], types: Sequence[int], *, adds_space: bool, name: str
) -> Tokenizer:
    """Return the tokenizer of such pieces. Raises `ModelError` where texts would be cut otherwise than they should."""
    refuse_long_pieces(pieces, name)
    letters = {piece for piece, kind in zip(pieces, types, strict=True) if kind in MADE_OF_TEXT}
    if UNKNOWN not in types or BYTE not in types or not letters.issuperset(_BYTE_NAME):
        text = f"{name}: a unigram model without pieces for bytes and for the letters of {_BYTE_NAME}"
        raise ModelError(f"{text}: save the model with its tokenizer.json", model=name)
    known = zip(pieces, scores, types, strict=True)
    # Names of control tokens are none of a text: they are looked for before it is cut.
    vocabulary = [(piece, score if kind in MADE_OF_TEXT else _NEVER) for piece, score, kind in known]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=list(types).index(UNKNOWN), byte_fallback=True))
    mark_spaces(tokenizer, adds_space=adds_space)
    add_special(tokenizer, pieces, types)
    return tokenizer
