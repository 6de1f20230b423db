"""A text as it reads: without characters that are not seen, lookalikes as the letters they look like. Pure.

Folding keeps a place for each character, so that what is found can be quoted from the text as it was.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import msgspec

UNSEEN = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
_UNSEEN = re.compile(f"[{UNSEEN}\U000e0000-\U000e0fff]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_LATIN_AND_OTHERS = re.compile(r"[a-z]")
_LOOKALIKES = {
    **dict(zip("авеіјкмнорстухѕԁһԛԝѵӏѐ", "abeijkmhopctyxsdhqwvle", strict=True)),  # Cyrillic
    **dict(zip("αεικνορτυχ", "aeikvoptux", strict=True)),  # Greek
    **dict(zip("ցոօսհɡɩı", "gnouhgii", strict=True)),  # Armenian, and Latin ones outside of ASCII
}
_LEET = str.maketrans("013457@$", "oieastas")


class Folded(msgspec.Struct, frozen=True):
    """A text to look in. `offsets` are the places of its characters in the text given; None where they are the same."""

    text: str
    offsets: Sequence[int] | None = None
    lookalikes: tuple[tuple[int, int], ...] = ()

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the place in the text given."""
        if self.offsets is None:
            return start, end
        return self.offsets[start], self.offsets[end - 1] + 1


def folded(text: str) -> Folded:
    """Return the text as it reads, in small letters."""
    if text.isascii():
        return Folded(text.lower())
    seen, offsets = _seen(text)
    small = seen.translate({ord(each): _plain(each) for each in set(seen) if not each.isascii()}).lower()
    if len(small) != len(seen):  # a letter that has two small ones
        small = "".join(each.lower()[0] for each in seen)
    small, lookalikes = _unmasked(small)
    return Folded(small, offsets, lookalikes)


def unleeted(word: str) -> str:
    """Return a word with its digits as the letters they stand for: `1gn0re`."""
    return word.translate(_LEET)


def _seen(text: str) -> tuple[str, Sequence[int] | None]:
    if not _UNSEEN.search(text):
        return text, None
    pieces: list[str] = []
    offsets: list[int] = []
    at = 0
    for found in _UNSEEN.finditer(text):
        pieces.append(text[at : found.start()])
        offsets.extend(range(at, found.start()))
        at = found.end()
    pieces.append(text[at:])
    offsets.extend(range(at, len(text)))
    return "".join(pieces), offsets


def _plain(character: str) -> str:
    """Return a character as the plain one that Unicode has for it, if that is a single one."""
    if character == "’":
        return "'"
    plain = unicodedata.normalize("NFKC", character)
    small = plain.lower()
    return small if len(small) == 1 else (plain if len(plain) == 1 else character)


def _unmasked(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Write words of Latin letters and lookalikes in Latin letters alone; return also where they stand."""
    if not any(letter in text for letter in _LOOKALIKES):
        return text, ()
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    at = 0
    for found in _LETTERS.finditer(text):
        word = found[0]
        if word.isascii() or not _LATIN_AND_OTHERS.search(word):
            continue
        plain = "".join(_LOOKALIKES.get(letter, letter) for letter in word)
        if plain == word or not plain.isascii():
            continue
        pieces += [text[at : found.start()], plain]
        at = found.end()
        places.append((found.start(), at))
    return "".join([*pieces, text[at:]]), tuple(places)
