"""Chooses what an essay says: statements of the sources that fit the topic, no two alike, and none that is disputed.

Statements of other sources that say the same with the same figures are cited with it. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from pyagent.logic.agents.passages import STOP_STEMS, terms
from pyagent.logic.web_essay.checking import Checked
from pyagent.logic.web_essay.statements import Statement
from pyagent.logic.web_essay.support import figures, supports

_ALIKE = 0.55
_ALIKE_OF_ONE_FACT = 0.3
_AGREED_WEIGHT = 0.4
_FIGURE_WEIGHT = 0.15
_EARLY_WEIGHT = 0.3
_REPEATED = 0.7
"""What likeness to a chosen statement takes from one (maximal marginal relevance, Carbonell and Goldstein 1998)."""
_FURTHER_OF_A_SOURCE = 0.08


class Note(msgspec.Struct, frozen=True):
    """A statement that the essay rests on, and the sources that say so, its own first."""

    statement: Statement
    sources: tuple[int, ...]


def choose(topic: str, statements: Sequence[Statement], checked: Checked, count: int) -> list[Note]:
    """Return at most so many notes, the weightiest first."""
    candidates = [
        each for each in statements if each.stands_alone and (each.source, each.start) not in checked.disputed
    ]
    weights = _weights(topic, candidates, checked)
    left = sorted((place for place in range(len(candidates)) if weights[place] > 0), key=lambda place: -weights[place])
    left = left[: 20 * count]
    chosen: list[int] = []
    per_source: Counter[int] = Counter()
    while left and len(chosen) < count:
        best = max(left, key=lambda place: _worth(place, chosen, candidates, weights, per_source))
        left.remove(best)
        if not any(_says_the_same(candidates[best], candidates[other], checked) for other in chosen):
            chosen.append(best)
            per_source[candidates[best].source] += 1
    return [Note(candidates[place], _cited(candidates[place], candidates, checked)) for place in chosen]


def _weights(topic: str, candidates: Sequence[Statement], checked: Checked) -> list[float]:
    """Return how much each says of the topic: shares of its words, by how rare these are; more where sources agree."""
    wanted = set(terms(topic)) - STOP_STEMS
    num_having = Counter(stem for each in candidates for stem in each.stems & wanted)
    word_to_weight = {word: math.log(1 + len(candidates) / (1 + num_having[word])) for word in sorted(wanted)}
    total = sum(word_to_weight.values()) or 1.0
    weights: list[float] = []
    for each in candidates:
        fits = sum(word_to_weight[word] for word in sorted(each.stems & wanted)) / total
        extra = _AGREED_WEIGHT if (each.source, each.start) in checked.agreed else 0.0
        extra += _FIGURE_WEIGHT if figures(each.quote) else 0.0
        weights.append(fits + (extra + _EARLY_WEIGHT / (1 + each.start / 500) if fits else 0.0))
    return weights


def _worth(
    place: int,
    chosen: Sequence[int],
    candidates: Sequence[Statement],
    weights: Sequence[float],
    per_source: Counter[int],
) -> float:
    repeated = max((_likeness(candidates[place], candidates[other]) for other in chosen), default=0.0)
    return weights[place] - _REPEATED * repeated - _FURTHER_OF_A_SOURCE * per_source[candidates[place].source]


def _says_the_same(first: Statement, second: Statement, checked: Checked) -> bool:
    """Whether two statements are nearly alike, or rather alike and of one agreed figure."""
    same = checked.agreed.get((first.source, first.start), -1)
    is_one_fact = same >= 0 and same == checked.agreed.get((second.source, second.start))
    return _likeness(first, second) >= (_ALIKE_OF_ONE_FACT if is_one_fact else _ALIKE)


def _likeness(first: Statement, second: Statement) -> float:
    return len(first.stems & second.stems) / max(1, len(first.stems | second.stems))


def _cited(statement: Statement, candidates: Sequence[Statement], checked: Checked) -> tuple[int, ...]:
    """Return the source, then those that agree by a figure or say the same in nearly the same words."""
    found = dict.fromkeys([statement.source])
    for other in candidates:
        is_same = other.source != statement.source and _likeness(statement, other) >= _ALIKE
        if is_same and supports(other.quote, statement.quote):
            found[other.source] = None
    return tuple(found)


def paragraphs(notes: Sequence[Note], size: int) -> list[list[Note]]:
    """Return the notes in groups of about that size, each of what is most alike; the weightiest first."""
    left, found = list(notes), list[list[Note]]()
    while left:
        group = [left.pop(0)]
        while left and len(group) < size:
            near = max(left, key=lambda note: max(_likeness(note.statement, one.statement) for one in group))
            left.remove(near)
            group.append(near)
        found.append(sorted(group, key=lambda note: (note.statement.source, note.statement.start)))
    if len(found) > 1 and len(found[-1]) == 1 and size > 1:
        [alone] = found.pop()
        found[-1].append(alone)
    return found
