"""What pages state: sentences as they stand there, and the figures and years in them with what these are about. Pure.

Rules know English: units, what is measured (height, length, age) and what happened in a year (opened, founded, died).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Literal

import msgspec

from pyagent.logic.agents.parts import is_finished, sentence_spans
from pyagent.logic.agents.passages import STOP_STEMS, stem, terms
from pyagent.logic.web_essay.sources import Text
from pyagent.logic.web_essay.units import FIGURE, UNIT_WORDS, measured

MIN_CHARACTERS, MAX_CHARACTERS = 25, 500
MAX_STATEMENTS = 400
"""Of one source: about 8,000 words."""
Bound = Literal["", "about", "at least", "at most"]
_ATTRIBUTES = """
    height tall high height stands rises stood altitude elevation
    length long length stretches
    width wide width
    depth deep depth
    diameter diameter
    weight weigh weighs weighed weight heavy mass
    age old age aged
    area area covers covered
    population population inhabited home
    speed speed fast
    cost cost costs price budget worth
    visitors visitors visited visit
    built built constructed erected construction build
    begun began begun started
    finished completed finished completion
    opened opened opening inaugurated inauguration
    founded founded established formed created founding
    born born birth
    died died death dies
    discovered discovered discovery found
    invented invented invention patented
    published published publication released
    destroyed destroyed demolished collapsed burned burnt
    closed closed closure shut
    won won wins awarded
"""
_WORD_TO_ATTRIBUTE = {
    word: attribute for attribute, *words in (line.split() for line in _ATTRIBUTES.strip().splitlines())
    for word in words
}  # fmt: skip
_EVENTS = {
    "built", "begun", "finished", "opened", "founded", "born", "died", "discovered", "invented", "published",
    "destroyed", "closed", "won",
}  # fmt: skip
"""What happens in a year. A year near another attribute says when that was measured."""
_NOT_ABOUT = UNIT_WORDS | _WORD_TO_ATTRIBUTE.keys()
_POSSESSIVE = re.compile(r"['’]s?$")
_NEAR_WORDS = 7
_YEAR = re.compile(r"(?<![\w.,/:$€£-])(?:1[0-9]{3}|20[0-9]{2})(?![\w%°]|[.,/:-]\d)")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
NEGATION = re.compile(
    r"\b(?:not|never|no(?:body)?|none|neither|nor|without|cannot|nothing|false|untrue|myth|denies|denied|\w{2,8}n['’]t)\b",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"(?:about|around|approximately|roughly|nearly|almost|some|circa|ca\.?|an estimated)\s+(?:\S{1,3}\s?)?$",
    re.IGNORECASE,
)
_LEAST = re.compile(r"(?:more than|over|at least|exceeding|above|no fewer than|no less than)\s+\S{0,2}$", re.IGNORECASE)
_MOST = re.compile(r"(?:less than|fewer than|under|at most|up to|below|no more than)\s+\S{0,2}$", re.IGNORECASE)
_DANGLING = re.compile(
    r"(?:it|its|this|that|these|those|they|their|he|she|his|her|such|however|but|and|also|here|there|as such"
    r"|for example|moreover|furthermore|in addition|similarly|likewise|then|thus|therefore|so)\b",
    re.IGNORECASE,
)
_FRAME = re.compile(
    r"\b(?:cookies?|click|subscribe|sign up|log in|newsletter|all rights reserved|privacy policy"
    r"|terms of (?:use|service)|share this|read more|advertisement|javascript)\b|©|https?://|\[\d{1,4}\]",
    re.IGNORECASE,
)


class Statement(msgspec.Struct, frozen=True):
    """A sentence of a source, character by character as it stands there from `start` on."""

    source: int
    start: int
    quote: str

    @property
    def stems(self) -> frozenset[str]:
        """What it speaks about."""
        return content_stems(self.quote)

    @property
    def is_negated(self) -> bool:
        """Whether it denies something: two denials are none."""
        return len(NEGATION.findall(self.quote)) % 2 == 1

    @property
    def stands_alone(self) -> bool:
        """Whether it can be understood without the sentence before it, and is no part of a page's frame."""
        quote = self.quote
        is_whole = quote[:1].isalnum() and not quote[:1].islower() and is_finished(quote) and not quote.endswith("?")
        return is_whole and not _DANGLING.match(quote) and not _FRAME.search(quote)


class Measure(msgspec.Struct, frozen=True):
    """A figure or a year in a statement: `kind` is what it measures, `about` and `attribute` what it is of.

    `names` are the words of `about` with a capital letter. `shown` is the figure as it stands there, `tolerance` half
    its last digit. `years` are those that it is said of.
    """

    statement: Statement
    kind: str
    value: Decimal
    tolerance: Decimal
    shown: str
    bound: Bound
    attribute: str
    about: frozenset[str]
    names: frozenset[str]
    years: frozenset[str]


@lru_cache(maxsize=1 << 13)
def content_stems(text: str) -> frozenset[str]:
    """Return the stems of a text that say what it is about."""
    return frozenset(found for found in terms(text) if not found.isdigit()) - STOP_STEMS


def statements_of(text: Text) -> list[Statement]:
    """Return the sentences of a source that may be quoted, in their order."""
    found: list[Statement] = []
    for start, end in sentence_spans(text.text):
        quote = text.text[start:end]
        if MIN_CHARACTERS <= len(quote) <= MAX_CHARACTERS and quote.isprintable() and len(found) < MAX_STATEMENTS:
            found.append(Statement(text.source.number, start, quote))
    return found


def measures_of(statement: Statement) -> list[Measure]:
    """Return the figures with units, and the years in which something happened."""
    quote = statement.quote
    words = [(match.start(), _POSSESSIVE.sub("", match[0])) for match in _WORD.finditer(quote)]
    counted = [word for _, word in words if word.lower() not in _NOT_ABOUT]
    about = frozenset(stem(word.lower()) for word in counted) - STOP_STEMS
    names = frozenset(stem(word.lower()) for word in counted if word[0].isupper()) & about
    places = [(start, word.lower()) for start, word in words]
    years = {match.span(): match[0] for match in _YEAR.finditer(quote)}
    found = list(_years(Measure(statement, "year", Decimal(0), Decimal(0), "", "", "", about, names, frozenset()),
                        places, years))  # fmt: skip
    for match in FIGURE.finditer(quote):
        is_year = match.span("number") in years and not _is_unit(match["unit"])
        read = None if is_year else _read(match)
        if read is not None:
            kind, value, tolerance = read
            attribute = "" if kind.startswith("#") else _attribute(places, match.start(), quote)
            said = frozenset(year for span, year in years.items() if span != match.span("number"))
            found.append(Measure(statement, kind, value, tolerance, match[0].strip(), _bound(quote, match.start()),
                                 attribute, about - {kind.removeprefix("#")}, names, said))  # fmt: skip
    return found


def _read(match: re.Match[str]) -> tuple[str, Decimal, Decimal] | None:
    read = measured(match["sign"], match["scale"], match["unit"], match["number"])
    if read is None:
        return None
    kind, value, tolerance = read
    if not kind.startswith("#"):
        return read
    counted = stem(kind[1:])
    return None if counted in STOP_STEMS or len(counted) < 3 else (f"#{counted}", value, tolerance)


def _is_unit(word: str | None) -> bool:
    return word is not None and word.lower() in UNIT_WORDS


def _years(frame: Measure, words: list[tuple[int, str]], years: dict[tuple[int, int], str]) -> Iterator[Measure]:
    """Find the years of events: those with what happened near them."""
    quote = frame.statement.quote
    for (start, _), year in years.items():
        if (attribute := _attribute(words, start, quote)) in _EVENTS:
            bound: Bound = "about" if _ABOUT.search(quote[max(0, start - 30) : start]) else ""
            yield msgspec.structs.replace(frame, value=Decimal(year), shown=year, bound=bound, attribute=attribute)


def _attribute(words: list[tuple[int, str]], place: int, quote: str) -> str:
    """Return what is measured, by the nearest word that says so in the clause; none where no word is near."""
    nth = sum(start < place for start, _ in words)
    found = [
        (abs(number - nth) + (0 if number < nth else 0.5), word)
        for number, (start, word) in enumerate(words[: nth + _NEAR_WORDS])
        if number >= nth - _NEAR_WORDS and word in _WORD_TO_ATTRIBUTE
        and not re.search(r"[;:]", quote[min(start, place) : max(start, place)])
    ]  # fmt: skip
    return _WORD_TO_ATTRIBUTE[min(found)[1]] if found else ""


def _bound(quote: str, place: int) -> Bound:
    before = quote[max(0, place - 40) : place]
    if _LEAST.search(before):
        return "at least"
    if _MOST.search(before):
        return "at most"
    return "about" if _ABOUT.search(before) else ""
