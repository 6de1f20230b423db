"""Cuts texts into parts that fit a prompt, between paragraphs, else sentences, else words.

A prompt's room is in tokens, which only a backend can count. The estimate here is meant to be too high rather than too
low: a letter of English is a quarter of a token, a character of a dense script two tokens.
"""

from __future__ import annotations

import re

_NON_ASCII_WEIGHT = 8 / 3
"""Letters of English that a byte beyond ASCII weighs: eight a character of Chinese, where SmolLM2 needs 1.8 tokens."""
_ENDS = "。！？｡।॥؟۔።။។։"
"""Ends of sentences that need no space after them: Chinese, Japanese, Hindi, Arabic, Urdu, Amharic, Burmese, Khmer."""
_BORDERS = ("\n\n", "\n", ". ", "? ", "! ", *_ENDS, " ")
_SENTENCE = re.compile(rf".+?(?:(?<![.!?…])[.!?…]++[\"')\]”’»]*+(?=\s|$)|[{_ENDS}]++[」』”’»)]*+|$)", re.DOTALL)
"""A run of full stops is looked at once, from its beginning: a page may have nothing else."""
_THAI = re.compile(r"[\u0e00-\u0e7f]")
_THAI_SENTENCE_CHARACTERS = 60
"""Thai ends a sentence by a space, and clauses as well: one is taken from this length on."""
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|vs|etc|e\.g|i\.e|approx|Inc|Ltd|Jr|Sr)|\b[A-Z]|^\d{1,3})\.$"
)
_BULLET = re.compile(r"^[^\S\n]*(?:[-*•]|\d{1,3}[.)])\s+", re.MULTILINE)


def weight(text: str) -> int:
    """Return the length of the English text that would have as many tokens, about."""
    if text.isascii():
        return len(text)
    num_ascii = len(text.encode("ascii", "ignore"))
    return num_ascii + int((len(text.encode("utf-8", "replace")) - num_ascii) * _NON_ASCII_WEIGHT)


def spans(text: str, max_weight: int) -> list[tuple[int, int]]:
    """Where parts of about equal weight begin and end; none is above the maximum, nor begins or ends with space."""
    found: list[tuple[int, int]] = []
    start, end = _skip(text, 0), len(text.rstrip())
    left = weight(text[start:end])
    while start < end:
        num_parts = -(-left // max_weight)
        stop = end if num_parts <= 1 else start + _cut(text[start : start + max_weight], -(-left // num_parts))
        found.append((start, start + len(text[start:stop].rstrip())))
        after = _skip(text, stop)
        left -= weight(text[start:after])
        start = after
    return found


def split_text(text: str, max_weight: int) -> list[str]:
    """Return the text in parts of about equal weight; joined, they hold every word of it in its order."""
    return [text[start:end] for start, end in spans(text, max_weight)]


def sentences(text: str) -> list[str]:
    """Return the sentences, on one line each and without bullets; the last may be unfinished."""
    found: list[str] = []
    for paragraph in _BULLET.sub("", text).split("\n"):
        for match in _SENTENCE.finditer(paragraph.strip()):
            sentence = match[0].strip()
            if found and _ABBREVIATION.search(found[-1]) and sentence:
                found[-1] += f" {sentence}"
            elif sentence:
                found.append(sentence)
    return found


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return where sentences begin and end, of any language, bullets left out; none goes beyond its line."""
    found: list[tuple[int, int]] = []
    place = 0
    for line in text.split("\n"):
        bullet = _BULLET.match(line)
        begin, merges = bullet.end() if bullet else 0, False
        for match in _SENTENCE.finditer(line, begin):
            for start, end in _thai_spans(line, *_stripped(line, *match.span())):
                if merges and found:
                    found[-1] = (found[-1][0], place + end)
                else:
                    found.append((place + start, place + end))
                merges = _ABBREVIATION.search(line[max(0, end - 12) : end]) is not None
        place += len(line) + 1
    return found


def _stripped(line: str, start: int, end: int) -> tuple[int, int]:
    piece = line[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _thai_spans(line: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return a piece as it is, or one of Thai cut at spaces."""
    if start >= end:
        return []
    if not _THAI.search(line, start, end):
        return [(start, end)]
    found, begin = list[tuple[int, int]](), start
    for space in re.finditer(r"\s+", line[start:end]):
        if start + space.start() - begin >= _THAI_SENTENCE_CHARACTERS:
            found.append((begin, start + space.start()))
            begin = start + space.end()
    return [*found, (begin, end)]


def is_finished(sentence: str) -> bool:
    """Whether a sentence has its end, so that nothing was cut off; Thai marks none."""
    bare = sentence.rstrip("\"')]”’」』»*_` ")
    return bare.endswith((".", "!", "?", "…", *_ENDS)) or (bool(bare) and _THAI.match(bare[-1]) is not None)


def _skip(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _cut(text: str, limit: int) -> int:
    """Where to cut within the weight: behind the last border of the best kind in the last third, else anywhere."""
    fitting = _fitting(text, limit)
    for border in _BORDERS:
        place = text.rfind(border, fitting - fitting // 3, fitting)
        if place > 0:
            return min(place + len(border), fitting)
    return fitting


def _fitting(text: str, limit: int) -> int:
    """Return how many characters of the text have at most this weight, at least one."""
    if text[:limit].isascii():
        return min(len(text), limit)
    low, high = 1, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if weight(text[:middle]) <= limit else (low, middle - 1)
    return low
