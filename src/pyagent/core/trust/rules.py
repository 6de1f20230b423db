"""Rules of words: `ignore|forget ..4 previous|all ..2 instructions?` are three words, with up to so many between.

A word ends in `?` where its last letter may be missing. Found from right to left, each word once: a text of any kind
takes time in proportion to its length. No sentence's end may lie between. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pyagent.core.trust.folding import unleeted

_WORD = re.compile(r"[^\W_]+(?:['@$][^\W_]+)*|[.!?;。！？]")
_SPACES = str.maketrans(dict.fromkeys(',:()[]{}<>"_-*/\\|`~#+=&%^\0', " "))
_ENDS = frozenset(".!?;。！？")
_GAP = re.compile(r"\.\.(\d+)")
_MAX_HITS = 8
"""Places of one rule that are told."""
_BLOCK, _OVERLAP = 4096, 64
"""Words looked at together, and those of the next block that a rule may reach into."""


class Rule(msgspec.Struct, frozen=True):
    """Words in their order, by the numbers of their sets; `gaps` words may lie before each but the first."""

    kind: str
    weight: float
    sets: tuple[int, ...]
    gaps: tuple[int, ...]


class Hit(msgspec.Struct, frozen=True):
    """A rule found in a text, from the first character to behind the last."""

    rule: Rule
    start: int
    end: int


class RuleBook:
    """Rules, and for each word the sets that it is in."""

    def __init__(self, rules: Iterable[tuple[str, float, str]]) -> None:
        self._number: dict[frozenset[str], int] = {frozenset(_ENDS): 0}
        self.rules = tuple(self._read(*rule) for rule in rules)
        word_to_sets: dict[str, list[int]] = defaultdict(list)
        for words, number in self._number.items():
            for word in words:
                word_to_sets[word].append(number)
        self._word_to_sets = dict(word_to_sets)

    def find(self, text: str) -> Iterator[Hit]:
        """Find the rules in a folded text: in blocks, since a rule that was found often is not looked for again."""
        words = _words(text)
        num_found: Counter[Rule] = Counter()
        rules: Sequence[Rule] = self.rules
        spans: list[tuple[int, int]] = []
        for begin in range(0, len(words), _BLOCK):
            for rule, first, last in self._hits(words[begin : begin + _BLOCK + _OVERLAP], rules):
                if first < _BLOCK and num_found[rule] < _MAX_HITS:
                    num_found[rule] += 1
                    _extend(spans, text, words, begin + last)
                    yield Hit(rule, spans[begin + first][0], spans[begin + last][1])
            if num_found:
                rules = [rule for rule in rules if num_found[rule] < _MAX_HITS]

    def _hits(self, words: Sequence[str], rules: Sequence[Rule]) -> Iterator[tuple[Rule, int, int]]:
        known = self._word_to_sets
        present: dict[str, Sequence[int]] = {}
        for word in set(words):
            sets = known.get(word)
            if sets is None and not word.isalpha():
                sets = known.get(unleeted(word))
            if sets is not None:
                present[word] = sets
        numbers = frozenset(number for sets in present.values() for number in sets)
        applying = [rule for rule in rules if numbers.issuperset(rule.sets)]
        if not applying:
            return
        wanted = {0, *(number for rule in applying for number in rule.sets)}
        places: dict[int, list[int]] = {number: [] for number in wanted}
        word_to_lists = {
            word: [places[number] for number in sets if number in wanted]
            for word, sets in present.items()
            if not wanted.isdisjoint(sets)
        }
        for at, word in enumerate(words):
            if word in word_to_lists:
                for each in word_to_lists[word]:
                    each.append(at)
        for rule in applying:
            for first, last in _found(rule, places):
                yield rule, first, last

    def _read(self, kind: str, weight: float, pattern: str) -> Rule:
        sets: list[int] = []
        gaps: list[int] = []
        gap = 0
        for part in pattern.split():
            if found := _GAP.fullmatch(part):
                gap = int(found[1])
                continue
            words = frozenset(word for choice in part.split("|") for word in _forms(choice))
            sets.append(self._number.setdefault(words, len(self._number)))
            gaps.append(gap)
            gap = 0
        return Rule(kind, weight, tuple(sets), tuple(gaps[1:]))


def _words(text: str) -> list[str]:
    """Return the words and the ends of sentences, in their order."""
    if not text.isascii():
        return _WORD.findall(text)
    apart = text.translate(_SPACES)
    for end in ".!?;":
        apart = apart.replace(end, f" {end} ")
    return apart.replace("' ", " ").replace(" '", " ").split() if "'" in apart else apart.split()


def _extend(spans: list[tuple[int, int]], text: str, words: Sequence[str], last: int) -> None:
    """Add the places of words up to the last one asked for: a text without hits needs none."""
    end = spans[-1][1] if spans else 0
    for word in words[len(spans) : last + 1]:
        start = text.find(word, end)
        end = start + len(word)
        spans.append((start, end))


def _forms(word: str) -> tuple[str, ...]:
    return (word[:-1], word[:-2]) if word.endswith("?") else (word,)


def _found(rule: Rule, places: Mapping[int, list[int]]) -> list[tuple[int, int]]:
    """Return the first and last word of each place, of those that overlap the first."""
    ends = places.get(0, [])
    good = [(at, at) for at in places[rule.sets[-1]]]
    for number, gap in zip(reversed(rule.sets[:-1]), reversed(rule.gaps), strict=True):
        starts = [first for first, _ in good]
        before: list[tuple[int, int]] = []
        for at in places[number]:
            nth = bisect_right(starts, at)
            if nth == len(good) or starts[nth] - at > gap + 1:
                continue
            if not ends or bisect_left(ends, at) == bisect_left(ends, starts[nth]):
                before.append((at, good[nth][1]))
        good = before
    apart: list[tuple[int, int]] = []
    for first, last in good:
        if not apart or first > apart[-1][1]:
            apart.append((first, last))
    return apart[:_MAX_HITS]
