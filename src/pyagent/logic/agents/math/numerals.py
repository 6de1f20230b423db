"""Numbers as people write them, in plain digits: `1 000 000`, `1,000`, `1_000`, `5 million`, `twenty`, `two thirds`.

Only the number changes; all other text stays as it is. What could be two numbers as well as one is left for the grammar
to refuse, or refused here.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from pyagent.core.errors import RequestError

_SMALL_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_SMALL = {word: number for number, word in enumerate(_SMALL_WORDS.split())}
_TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * number for number, word in enumerate(_TENS_WORDS.split(), start=2)}
_SCALES = {"dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halves": 2} | {
    f"{word}{ending}": number
    for word, number in {
        "third": 3,
        "quarter": 4,
        "fourth": 4,
        "fifth": 5,
        "sixth": 6,
        "seventh": 7,
        "eighth": 8,
        "ninth": 9,
        "tenth": 10,
        "hundredth": 100,
        "thousandth": 1000,
    }.items()
    for ending in ("", "s")
}

_SEPARATOR = "[ ,'\u2019\u00a0\u2009\u202f]"
_GROUPED = re.compile(rf"(?<![\w.,])[1-9]\d{{0,2}}({_SEPARATOR})\d{{3}}(?:\1\d{{3}})*(?!\w|,\w)")
_UNDERSCORED = re.compile(r"(?<![\w.])\d+(?:_\d+)+(?!\w)")
_MIXED = re.compile(r"(?<![\w.,^/*+%()-])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\w.,!^(])")
_BASED = re.compile(r"(?<![\w.])0(?:[xX][0-9a-fA-F]+|[bB][01]+|[oO][0-7]+)(?!\w)")
_ONE_SIGN = re.compile(r"(?<![\w.])(?:(\d+) ?)?([¼-¾⅐-⅞])(?!\w)")
_WORD = "|".join(["hundred", *_SCALES, *_SMALL, *_TENS])
_TOKEN = rf"(?:\d{{1,300}}(?:\.\d{{1,300}})?(?!\w)|(?:{_WORD})\b)"
_RUN = re.compile(
    rf"(?<![\w.])(?:an?\s+(?=(?:hundred|{'|'.join(_SCALES)})\b))?{_TOKEN}(?:(?:\s+and\s+|\s+|-(?=[a-z])){_TOKEN})*",
    re.IGNORECASE,
)
_POINT = re.compile(r"(?<![\w.])(\d+) point (\d+(?: \d)*)(?!\w)", re.IGNORECASE)
_FRACTION = re.compile(
    rf"(?<![\w.])(?:(?P<whole>\d+) and )?(?:(?P<count>\d+|an?)[ -])?(?P<part>{'|'.join(_PARTS)})\b"
    r"(?!\s+(?:derivative|root|power|order|degree|integral))(?P<of>\s+of\b|(?<=half)\s+(?=\d))?",
    re.IGNORECASE,
)


def in_digits(text: str) -> str:
    """Return the text with its numbers in plain digits; raises `RequestError` for one that could be several."""
    text = _BASED.sub(lambda match: str(int(match[0], 0)), text)
    text = _ONE_SIGN.sub(_one_sign, text)
    text = _UNDERSCORED.sub(lambda match: match[0].replace("_", ""), text)
    text = _GROUPED.sub(lambda match: _ungrouped(match, text), text)
    text = _MIXED.sub(_mixed, text)
    text = _RUN.sub(_spoken, text)
    text = _POINT.sub(lambda match: f"{match[1]}.{match[2].replace(' ', '')}", text)
    return _FRACTION.sub(_fraction, text)


def numbers_in(text: str) -> list[Fraction]:
    """Return the numbers in a text, in digits or words, in ascending order."""
    return sorted(Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", in_digits(text)))


def _ungrouped(match: re.Match[str], text: str) -> str:
    """A number without its thousands separators; commas between a function's arguments or in a matrix are none."""
    if match[1] != "," or not _is_in_list(text[: match.start()]):
        return re.sub(_SEPARATOR, "", match[0])
    if ",0" in match[0]:
        message = f"{match[0]} in brackets could be one number or several; write it without commas, or with spaces"
        raise RequestError(message, param="text")
    return match[0]


def _is_in_list(before: str) -> bool:
    """Whether what follows stands in a matrix or among a function's arguments."""
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        if before[place] in ")]":
            depth += 1
        elif before[place] in "([":
            depth -= 1
            if depth < 0:
                return before[place] == "[" or before[:place].rstrip()[-1:].isalpha()
    return False


def _mixed(match: re.Match[str]) -> str:
    whole, part, parts = (int(number) for number in match.groups())
    return f"({whole} + {part}/{parts})" if part < parts else match[0]


def _one_sign(match: re.Match[str]) -> str:
    """`½` and `2½`."""
    value = Fraction(unicodedata.numeric(match[2])).limit_denominator(10) + int(match[1] or 0)
    return f"({value})"


def _fraction(match: re.Match[str]) -> str:
    """`two thirds of 9`, `half of 10`, `2 and a half`; a bare `third` is a place in an order."""
    count, part = match["count"], match["part"].lower()
    if count is None and (match["whole"] or not part.startswith("hal")):
        return match[0]
    number = f"{1 if count is None or count.lower() in {'a', 'an'} else count}/{_PARTS[part]}"
    whole = f"{match['whole']} + " if match["whole"] else ""
    return f"({whole}{number})" + (" *" if match["of"] else "")


def _spoken(match: re.Match[str]) -> str:
    """Return a run of digits and number words as numbers in digits."""
    words = re.findall(r"[\d.]+|[a-z]+", match[0].lower())
    if all(word == "and" or word[0].isdigit() for word in words):
        return match[0]
    return " ".join(_Reader(words).numbers())


class _Reader:
    """Reads the words of a run. `and` joins only what ends a number: `one hundred and five`, not `two and three`."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.place = 0

    def numbers(self) -> list[str]:
        found: list[str] = []
        while self.place < len(self.words):
            if self._take("and"):
                found.append("and")
                continue
            value = self._number()
            found.append(str(value) if value.denominator == 1 else f"({value})")
        return found

    def _number(self) -> Fraction:
        total, least = Fraction(0), None
        while True:
            group = self._group()
            scale = _SCALES.get(self._word(), 1)
            self.place += scale > 1
            total, least = total + group * scale, scale
            if least == 1 or not self._goes_on(least):
                return total

    def _goes_on(self, scale: int) -> bool:
        """Whether the next words belong to this number: a smaller group, after `and` one below a hundred."""
        start = self.place
        has_and = self._take("and")
        if not self._word() or self._word() == "and" or (has_and and not self._is_small()):
            self.place = start
            return False
        group_start = self.place
        group = self._group()
        next_scale = _SCALES.get(self._word(), 1)
        self.place = group_start
        if group == 0 or group * next_scale >= scale or (has_and and next_scale > 1):
            self.place = start
            return False
        return True

    def _group(self) -> Fraction:
        """Return a number below a thousand in words, or one in digits, with its hundreds."""
        word = self._word()
        if word in {"a", "an", "hundred"} or word in _SCALES:
            self.place += word in {"a", "an"}
            value = Fraction(1)
        elif word[:1].isdigit():
            self.place += 1
            value = Fraction(word)
        else:
            value = self._below_hundred()
        if not self._take("hundred"):
            return value
        value, start = value * 100, self.place
        self._take("and")
        if self._is_small():
            rest = self._below_hundred()
            if self._word() != "hundred":
                return value + rest
        self.place = start
        return value

    def _below_hundred(self) -> Fraction:
        word = self._word()
        self.place += 1
        if word in _SMALL:
            return Fraction(_SMALL[word])
        value = Fraction(_TENS.get(word, 0))
        if 0 < _SMALL.get(self._word(), 0) < 10:
            value += _SMALL[self._word()]
            self.place += 1
        return value

    def _word(self) -> str:
        return self.words[self.place] if self.place < len(self.words) else ""

    def _take(self, word: str) -> bool:
        is_next = self._word() == word
        self.place += is_next
        return is_next

    def _is_small(self) -> bool:
        return self._word() in _SMALL or self._word() in _TENS
