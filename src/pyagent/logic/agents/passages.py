"""Finds the passages of documents that matter to a question: BM25 over paragraphs (Robertson and Zaragoza 2009).

Words count by their stems, characters of scripts without spaces, and of Korean, by pairs. Knows no model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from pyagent.logic.agents.documents import Document
from pyagent.logic.agents.parts import is_finished, spans, weight

PASSAGE_WEIGHT = 700
"""About 175 tokens: a clause of a contract, a paragraph of a paper."""
_HEADING_CHARACTERS = 80
_K1, _B = 1.2, 0.75
_MIN_SHARE = 0.3
"""Of the best passage's score; below it a passage is about something else."""
_WORD = re.compile(r"[^\W_]+")
_DENSE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f\uac00-\ud7af]+")
_STOP_WORDS = """
    a about above after all also am an and any are as at be been being but by can could did do does doing for from had
    has have having he her here him his how i if in into is it its just many may me might more most much must my no nor
    not of on one or other our out over own please said say says shall she should so some such tell than that the their
    them then there these they this those through to under until up us very was we were what when where which while who
    whom whose why will with would you your according document file text contract agreement article paper report
    answer question yes passage mention state
    """


class Passage(msgspec.Struct, frozen=True):
    """A piece of a document, and where it begins."""

    file: str
    line: int
    text: str


def passages_of(document: Document) -> list[Passage]:
    """Return the paragraphs of a document, long ones in parts; a heading goes with what it stands above."""
    text, found, line, seen = document.text, list[Passage](), 1, 0
    for start, end in _paragraphs(text):
        for part_start, part_end in spans(text[start:end], PASSAGE_WEIGHT):
            line += text.count("\n", seen, start + part_start)
            seen = start + part_start
            found.append(Passage(document.path, line, text[start + part_start : start + part_end]))
    return found


def _paragraphs(text: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    open_heading: int | None = None
    for match in re.finditer(r"(?:[^\n]*\S[^\n]*(?:\n|$))+", text):
        start = match.start() if open_heading is None else open_heading
        block = match[0].strip()
        is_heading = len(block) <= _HEADING_CHARACTERS and "\n" not in block and not is_finished(block)
        open_heading = start if is_heading else None
        if not is_heading:
            found.append((start, match.end()))
    return found if open_heading is None else [*found, (open_heading, len(text))]


class Found(msgspec.Struct, frozen=True):
    """Passages in the documents' order, the best of them, and whether it has most of what the question is about."""

    passages: list[Passage]
    best: Passage | None
    is_sure: bool


def find(question: str, passages: Sequence[Passage], *, max_weight: int, max_count: int = 5) -> Found:
    """Return the passages that matter to a question; none when none has a word of it."""
    asked = set(terms(question)) - STOP_STEMS
    texts = [_counted(passage.text, asked) for passage in passages]
    num_having = Counter(term for text, _ in texts for term in text)
    wanted = {
        term: math.log(1 + (len(texts) - num_having[term] + 0.5) / (num_having[term] + 0.5)) for term in sorted(asked)
    }
    mean_length = max(1.0, sum(length for _, length in texts) / max(1, len(texts)))
    scores = [_score(text, wanted, length / mean_length) for text, length in texts]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    if best is None or scores[best] <= 0:
        return Found([], None, is_sure=False)
    chosen = [place for place in range(len(scores)) if scores[place] >= _MIN_SHARE * scores[best]]
    chosen = _fitting(sorted(chosen, key=lambda place: -scores[place])[:max_count], passages, max_weight)
    covered = sum(value for term, value in wanted.items() if term in texts[best][0])
    return Found([passages[place] for place in sorted(chosen)], passages[best], covered >= sum(wanted.values()) / 2)


def _counted(text: str, asked: set[str]) -> tuple[Counter[str], int]:
    """How often each term that is asked for stands in a text, and how many terms it has."""
    found = terms(text)
    return Counter(term for term in found if term in asked), len(found)


def _score(text: Counter[str], wanted: dict[str, float], relative_length: float) -> float:
    norm = _K1 * (1 - _B + _B * relative_length)
    return sum(wanted[term] * count * (_K1 + 1) / (count + norm) for term, count in text.items())


def _fitting(places: Sequence[int], passages: Sequence[Passage], max_weight: int) -> list[int]:
    """Return the first of them that fit together, at least one."""
    chosen: list[int] = []
    for place in places:
        max_weight -= weight(passages[place].text)
        if chosen and max_weight < 0:
            break
        chosen.append(place)
    return chosen


def terms(text: str) -> list[str]:
    """Return what a text is compared by: stems of its words, pairs of characters where there are no spaces."""
    words = _WORD.findall(text.lower())
    if text.isascii():
        return [stem(word) for word in words]
    found: list[str] = []
    for word in words:
        for dense in _DENSE.findall(word):
            found += [dense[place : place + 2] for place in range(max(1, len(dense) - 1))]
        found += [stem(rest) for rest in _DENSE.sub(" ", word).split()]
    return found


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the word without the commonest English endings: pets and pet, smoking and smoke are one."""
    for ending in ("ies", "ings", "ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + ("y" if ending == "ies" else "")
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsaeiou":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word


STOP_STEMS = frozenset(_STOP_WORDS.split()).union(map(stem, _STOP_WORDS.split()))
"""Words that say nothing of what a text is about."""
