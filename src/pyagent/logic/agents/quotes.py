"""Finds for each point of a summary what of the text says so, literally, and where it stands. Pure.

A point and its quote share words, each weighing by how rare it is in the text, and the quote has all figures of the
point. Words count by their stems, characters of scripts without spaces by pairs, so that any language will do.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice

import msgspec

from pyagent.logic.agents.documents import Document
from pyagent.logic.agents.parts import is_finished, sentence_spans
from pyagent.logic.agents.passages import STOP_STEMS, terms

_MIN_COVERED = 0.45
_MIN_SHARED = 2
_MAX_SENTENCES = 40_000
_MAX_QUOTE_CHARACTERS = 600
_MAX_CANDIDATES = 400
_MAX_CENTRAL = 5_000
_MIN_TERMS = 3
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


class Quote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Words of the text as they stand there, from the character `start` on; `page` only in a PDF."""

    text: str
    file: str = ""
    line: int
    page: int | None = None
    start: int

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        where = f"page {self.page}" if self.page is not None else f"line {self.line}"
        return f"{self.file}, {where}" if self.file else where


class Point(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sentence of a summary, and what of the text says so; None where nothing was found that does."""

    text: str
    quote: Quote | None = None

    def __str__(self) -> str:
        if self.quote is None:
            return f"- {self.text}\n  (no sentence of the text was found that says so)"
        return f"- {self.text}\n  “{' '.join(self.quote.text.split())}” ({self.quote.place})"


class _Sentence(msgspec.Struct, frozen=True):
    document: int
    start: int
    end: int
    terms: frozenset[str]


class QuoteFinder:
    """The sentences of documents, by their words."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        spans = ((number, span) for number, document in enumerate(documents) for span in sentence_spans(document.text))
        self._sentences = [
            _Sentence(number, *span, frozenset(terms(documents[number].text[slice(*span)])) - STOP_STEMS)
            for number, span in islice(spans, _MAX_SENTENCES)
        ]
        self._term_to_places: dict[str, list[int]] = defaultdict(list)
        for place, sentence in enumerate(self._sentences):
            for term in sentence.terms:
                self._term_to_places[term].append(place)

    def point(self, text: str) -> Point:
        """Return a sentence of a summary with the sentence, or two neighbours, that say so."""
        wanted = sorted(set(terms(text)) - STOP_STEMS)
        weights = {term: self._weight(term) for term in wanted}
        total, num_least = sum(weights.values()), min(_MIN_SHARED, len(wanted))
        best, best_score = None, _MIN_COVERED * total
        for first, last in self._candidates(wanted):
            found = frozenset[str]().union(*(each.terms for each in self._sentences[first : last + 1]))
            shared = [term for term in wanted if term in found]
            score = sum(weights[term] for term in shared) - 0.01 * total * (last - first)
            quote = self._quote(first, last)
            has_figures = not Counter(_FIGURE.findall(text)) - Counter(_FIGURE.findall(quote.text))
            fits = len(quote.text) <= _MAX_QUOTE_CHARACTERS and len(shared) >= num_least
            if fits and has_figures and wanted and score > best_score:
                best, best_score = quote, score
        return Point(text, best)

    def central(self, count: int, beside: Sequence[Point]) -> list[Point]:
        """Return sentences of the text that have most of its frequent words, in the text's order, none twice.

        After SumBasic (Nenkova and Vanderwende 2005): a word that a chosen sentence has counts no more.
        """
        told = [point.quote for point in beside if point.quote is not None]
        covered = {term for quote in told for term in terms(quote.text)}
        left = [place for place in self._whole() if not any(self._is_within(place, quote) for quote in told)]
        chosen: list[int] = []
        while left and len(chosen) < count:
            best = max(left, key=lambda place: (self._centrality(place, covered), -place))
            left.remove(best)
            chosen.append(best)
            covered |= self._sentences[best].terms
        quotes = [self._quote(place, place) for place in sorted(chosen)]
        return [Point(" ".join(quote.text.split()), quote) for quote in quotes]

    def _whole(self) -> list[int]:
        """Return the sentences that say something and have an end, such as headings have not; all where none has."""
        places = [place for place, each in enumerate(self._sentences[:_MAX_CENTRAL]) if len(each.terms) >= _MIN_TERMS]
        return [place for place in places if is_finished(self._quote(place, place).text)] or places

    def _centrality(self, place: int, covered: set[str]) -> float:
        found = self._sentences[place].terms
        return sum(len(self._term_to_places[term]) for term in sorted(found - covered)) / len(found)

    def _is_within(self, place: int, quote: Quote) -> bool:
        sentence = self._sentences[place]
        is_there = quote.start <= sentence.start < quote.start + len(quote.text)
        return is_there and self._documents[sentence.document].path == quote.file

    def _weight(self, term: str) -> float:
        """Return how much a word tells sentences apart; one that is nowhere tells none, and counts half."""
        num_having = len(self._term_to_places.get(term, ()))
        rarity = math.log(1 + (len(self._sentences) - num_having + 0.5) / (num_having + 0.5))
        return rarity if num_having else rarity / 2

    def _candidates(self, wanted: Sequence[str]) -> list[tuple[int, int]]:
        """Return sentences, and pairs of neighbours in one document, that have most of the words."""
        counts: Counter[int] = Counter()
        for term in wanted:
            counts.update(self._term_to_places.get(term, ())[:_MAX_SENTENCES])
        likely = sorted(counts, key=lambda place: (-counts[place], place))[:_MAX_CANDIDATES]
        pairs = [(first, first + 1) for place in likely for first in (place - 1, place)
                 if 0 <= first < len(self._sentences) - 1
                 and self._sentences[first].document == self._sentences[first + 1].document]  # fmt: skip
        return [*((place, place) for place in likely), *dict.fromkeys(pairs)]

    def _quote(self, first: int, last: int) -> Quote:
        begin, end = self._sentences[first], self._sentences[last]
        document = self._documents[begin.document]
        page = bisect_right(document.page_starts, begin.start) if document.page_starts else None
        line = document.text.count("\n", 0, begin.start) + 1
        return Quote(
            text=document.text[begin.start : end.end], file=document.path, line=line, page=page, start=begin.start
        )
