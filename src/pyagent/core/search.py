"""Search over texts: passages, queries that cannot go wrong, and rankings fused into one. Pure.

A text is cut into passages, each of which is found by its words (BM25) and, where a backend embeds, by its vector. The
two rankings are fused by reciprocal rank (Cormack, Clarke and Buettcher, SIGIR 2009), which needs no common scale.
How passages are kept is `infrastructure.storage.search`'s business.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

PASSAGE_CHARACTERS = 1_200
MAX_PASSAGES = 2_000
"""Passages of one document; what comes after them is not found."""
MAX_QUERY_CHARACTERS = 2_000
_MAX_QUERY_WORDS = 32
_MAX_WORD_CHARACTERS = 64
_OVERLAP_CHARACTERS = 150
_RANK_CONSTANT = 60
_WORD = re.compile(r"\w+")


class Passage(msgspec.Struct, frozen=True):
    """A piece of a document. `place` says where: the number of a run's record, or of a file's line."""

    place: int
    text: str


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A passage found. `source` is a run's id or a file's path; ranks are from 1, None where a ranking lacks it."""

    source: str
    place: int
    text: str
    score: float
    keyword_rank: int | None = None
    vector_rank: int | None = None
    tenant: str = ""


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The passages that fit best, of how many, and how many of these have a vector. `note` says what is missing."""

    hits: list[SearchHit]
    num_passages: int
    num_vectors: int
    note: str = ""


def passages_of(text: str, place: int = 0, *, is_lined: bool = False) -> Iterator[Passage]:
    """Cut a text into passages that overlap, at ends of lines where it has some.

    `is_lined` counts the place by lines, from 1; else each passage has the place given.
    """
    begin, line = 0, 1
    while begin < len(text):
        end = min(len(text), begin + PASSAGE_CHARACTERS)
        if end < len(text):
            newline = text.rfind("\n", begin + PASSAGE_CHARACTERS // 2, end)
            end = end if newline < 0 else newline + 1
        piece = text[begin:end]
        if piece.strip():
            yield Passage(line if is_lined else place, piece)
        if end >= len(text):
            return
        following = max(begin + 1, end - _OVERLAP_CHARACTERS)
        line += text.count("\n", begin, following) if is_lined else 0
        begin = following


def words_of(query: str) -> list[str]:
    """Return the words of a query, lower case, each once; a bounded number of bounded words."""
    found = (word[:_MAX_WORD_CHARACTERS].lower() for word in _WORD.findall(query[:MAX_QUERY_CHARACTERS]))
    return list(dict.fromkeys(found))[:_MAX_QUERY_WORDS]


def match_of(query: str) -> str:
    """Return a query in FTS5's language that any of its words matches; empty when it has none. Never malformed.

    Words are quoted, so that operators, columns and parentheses of the query are words too, or nothing.
    """
    return " OR ".join(f'"{word}"' for word in words_of(query))


def fused(*rankings: Sequence[int]) -> list[tuple[int, float]]:
    """Return what the rankings hold, best first, each with its score: the sum of 1 / (60 + rank)."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] += 1 / (_RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def excerpt(text: str, query: str, width: int) -> str:
    """Return at most `width` characters of a passage on one line, around the first word of the query in it."""
    line = " ".join(text.split())
    lower = line.lower()
    found = min((place for word in words_of(query) if (place := lower.find(word)) >= 0), default=0)
    begin = max(0, min(found - width // 3, len(line) - width))
    shown = line[begin : begin + width]
    return f"{'…' if begin else ''}{shown}{'…' if begin + width < len(line) else ''}"
