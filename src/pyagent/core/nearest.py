"""Names the known word nearest to an unknown one, for errors about names.

`difflib` is imported only when an error is made: commands and the server import this module before they answer.
"""

from __future__ import annotations

from collections.abc import Iterable

_MAX_CHARS = 100
"""Longer words are no mistyped names; comparing a megabyte takes minutes."""
_CUTOFF = 0.6
"""Least similarity, of 0 to 1, at which a word is offered; two letters exchanged in a word of four have 0.75."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to `word`, or None where none is similar."""
    from difflib import get_close_matches

    if len(word) > _MAX_CHARS:
        return None
    close = get_close_matches(word, list(known), n=1, cutoff=_CUTOFF)
    return close[0] if close else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'KNOWN'?` for the nearest known word; `otherwise` where none is similar."""
    found = nearest(word, known)
    return f"did you mean {found!r}?" if found is not None else otherwise
