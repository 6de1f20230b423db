"""Compares what sources state by exact rules: the same figure, another one, or a denial. Every verdict has its quotes.

Two figures are about the same where they measure the same (metres, people, the year of an opening), of the same thing
(shared words), and of the same years. They agree where their last digits allow it, `about` within five percent. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Literal

import msgspec

from pyagent.logic.agents.passages import stem
from pyagent.logic.web_essay.statements import Measure, Statement, content_stems, measures_of

Verdict = Literal["agree", "disagree"]
_ABOUT_SHARE = Decimal("0.05")
_MIN_SHARED = 0.5
_MIN_SHARED_WITHOUT_ATTRIBUTE = 0.6
_MIN_DENIAL_OVERLAP = 0.6
_MAX_MEASURES = 3_000
_MAX_CHECKS = 40
_OF_A_TIME = {"people", "share", "dollars", "euros", "pounds"}
"""What changes from year to year, so that only figures of the same years are compared."""


_DENYING = frozenset(
    map(
        stem, ["myth", "false", "untrue", "denies", "denied", "deny", "never", "claim", "contrary", "popular", "belief"]
    )
)


class Claim(msgspec.Struct, frozen=True):
    """What a source says: `quote` stands in its text from the character `start` on; `value` is in the quote."""

    source: int
    value: str
    quote: str
    start: int


class Check(msgspec.Struct, frozen=True):
    """What several sources say of one thing, and whether they agree."""

    about: str
    verdict: Verdict
    claims: list[Claim]


class Checked(msgspec.Struct, frozen=True):
    """All comparisons; `disputed` are the statements, by source and start, that another source contradicts.

    `agreed` are those that another source confirms, each with the place of its check.
    """

    checks: list[Check]
    disputed: frozenset[tuple[int, int]]
    agreed: dict[tuple[int, int], int]


def check_statements(statements: Sequence[Statement], topic: frozenset[str] = frozenset()) -> Checked:
    """Return where the sources agree and where they do not, in what has a word of the topic where one is given."""
    measures = [measure for statement in statements for measure in measures_of(statement)][:_MAX_MEASURES]
    checks: list[Check] = []
    for group in _groups(measures):
        checks += _checks(group)
    checks += _denials(statements)
    if topic:
        checks = [check for check in checks if any(content_stems(claim.quote) & topic for claim in check.claims)]
    checks.sort(key=lambda check: (check.verdict == "agree", -len({claim.source for claim in check.claims})))
    disputed = {
        (claim.source, claim.start) for check in checks if check.verdict == "disagree" for claim in check.claims
    }
    agreed = {
        (claim.source, claim.start): place
        for place, check in enumerate(checks)
        if check.verdict == "agree"
        for claim in check.claims
    }
    return Checked(checks[:_MAX_CHECKS], frozenset(disputed), agreed)


def _groups(measures: Iterable[Measure]) -> list[list[Measure]]:
    """Return the figures that are about the same, as far as that is said: each is compared with a group's first."""
    kind_to_groups: dict[tuple[str, str], list[list[Measure]]] = defaultdict(list)
    for measure in measures:
        groups = kind_to_groups[measure.kind, measure.attribute]
        fitting = next((group for group in groups if is_about_the_same(group[0], measure)), None)
        if fitting is None:
            groups.append([measure])
        else:
            fitting.append(measure)
    return [group for groups in kind_to_groups.values() for group in groups if len(_sources(group)) > 1]


def is_about_the_same(first: Measure, second: Measure) -> bool:
    """Whether two figures measure one thing."""
    if first.kind != second.kind or first.attribute != second.attribute or not _is_of_one_time(first, second):
        return False
    shared, least = first.about & second.about, min(len(first.about), len(second.about))
    if not first.attribute:
        return len(shared) >= 2 and len(shared) >= _MIN_SHARED_WITHOUT_ATTRIBUTE * least
    is_enough = len(shared) >= 2 or bool(shared & first.names & second.names)  # one word says it where it is a name
    return is_enough and len(shared) >= _MIN_SHARED * least


def _is_of_one_time(first: Measure, second: Measure) -> bool:
    if first.years and second.years:
        return bool(first.years & second.years)
    is_changing = first.kind in _OF_A_TIME or first.kind.startswith("#") or first.attribute in {"population", "age"}
    return not is_changing or first.years == second.years


def agrees(first: Measure, second: Measure) -> bool:
    """Whether two figures can both be true."""
    low, high = sorted((first, second), key=lambda measure: measure.value)
    if high.value - low.value <= max(first.tolerance, second.tolerance):
        return True
    if low.bound == "at least" or high.bound == "at most":
        return True
    is_near = high.value - low.value <= _ABOUT_SHARE * high.value and first.kind != "year"
    return is_near and "about" in {first.bound, second.bound}


def _checks(group: Sequence[Measure]) -> list[Check]:
    """Return the verdict on one thing: the figures fall into sets that agree, one for each figure that is said."""
    sets: list[list[Measure]] = []
    for measure in sorted(group, key=lambda each: (each.bound != "", each.tolerance)):
        fitting = next((one for one in sets if all(agrees(measure, other) for other in one)), None)
        if fitting is None:
            sets.append([measure])
        else:
            fitting.append(measure)
    about = _about(group)
    apart = [(one, other) for one, other in combinations(sets, 2) if len(_sources([*one, *other])) > 1]
    if apart:
        told = [measure for one in sets if any(one in pair for pair in apart) for measure in _one_a_source(one)]
        return [Check(about, "disagree", [_claim(measure) for measure in told])]
    agreed = max(sets, key=lambda one: len(_sources(one)))
    if len(_sources(agreed)) < 2:
        return []
    return [Check(about, "agree", [_claim(measure) for measure in _one_a_source(agreed)])]


def _denials(statements: Sequence[Statement]) -> list[Check]:
    """Return the pairs of which one says what the other denies: nearly the same words, and one negation more."""
    found: list[Check] = []
    denying = [each for each in statements if each.is_negated]
    saying = [each for each in statements if not each.is_negated]
    stem_to_places: dict[str, list[int]] = defaultdict(list)
    for place, statement in enumerate(saying):
        for each in statement.stems:
            stem_to_places[each].append(place)
    for denial in denying:
        stems = denial.stems - _DENYING
        rare = sorted(stems, key=lambda each: (len(stem_to_places.get(each, ())), each))[:4]
        places = {place for each in rare for place in stem_to_places.get(each, ())[:200]}
        for place in sorted(places):
            other = saying[place]
            if other.source != denial.source and _overlap(stems, other.stems) >= _MIN_DENIAL_OVERLAP:
                claims = [Claim(each.source, "", each.quote, each.start) for each in (other, denial)]
                found.append(Check(" ".join(_words_of(other, stems & other.stems)[:6]), "disagree", claims))
                break
    return found


def _overlap(first: frozenset[str], second: frozenset[str]) -> float:
    shared = len(first & second)
    return shared / len(first | second) if shared >= 3 else 0.0


def _about(group: Sequence[Measure]) -> str:
    """Return what a group is about in words of its first quote."""
    first = group[0]
    shared = first.about.intersection(*(measure.about for measure in group)) or first.about
    what = first.attribute or first.kind.removeprefix("#")
    return f"{' '.join(_words_of(first.statement, shared)[:4])}: {what}"


def _words_of(statement: Statement, stems: frozenset[str]) -> list[str]:
    words = [word.strip(".,;:!?()\"'“”’") for word in statement.quote.split()]
    return list(dict.fromkeys(word for word in words if word and stem(word.lower()) in stems))


def _sources(measures: Iterable[Measure]) -> set[int]:
    return {measure.statement.source for measure in measures}


def _one_a_source(measures: Iterable[Measure]) -> list[Measure]:
    source_to_first: dict[int, Measure] = {}
    for measure in measures:
        source_to_first.setdefault(measure.statement.source, measure)
    return [source_to_first[number] for number in sorted(source_to_first)]


def _claim(measure: Measure) -> Claim:
    return Claim(measure.statement.source, measure.shown, measure.statement.quote, measure.statement.start)
