"""Scans a text: reads it as it looks, by words, by its form and inside encodings, and weighs what is found. Pure.

What is quoted, or stands in a text that speaks about attacks, weighs less: articles and tests quote them. Time is in
proportion to the text's length; of a text longer than `MAX_CHARACTERS` beginning and end are looked at.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from pyagent.core.trust.encoded import Inside, texts_inside
from pyagent.core.trust.findings import Finding, Group, Scan, quoted, scan_of, why_of
from pyagent.core.trust.folding import Folded, folded
from pyagent.core.trust.injection_rules import INJECTION_RULES, UNSPACED_RULES
from pyagent.core.trust.manipulation_rules import MANIPULATION_RULES
from pyagent.core.trust.markup import marks
from pyagent.core.trust.rules import RuleBook
from pyagent.core.trust.unseen import unseen

MAX_CHARACTERS = 2_000_000
MAX_FINDINGS = 64
_MAX_INSIDE = 2
_QUOTE = re.compile(
    r'```[^`]{0,20000}```|`[^`\n]{1,400}`|(?<!\w)"[^"\n]{1,600}"|“[^”\n]{1,600}”|«[^»\n]{1,600}»|„[^“”\n]{1,600}[“”]'
    r"|(?<!\w)'[^'\n]{1,400}'(?!\w)|‘[^’\n]{1,400}’"
)
_ABOUT = re.compile(
    r"\b(?:prompt[- ]injections?|injections?|jailbreak(?:s|ing|ed)?|attack(?:s|ers?|ed)?|adversar\w{1,8}|phishing"
    r"|scam(?:s|mers?|med)?|impersonat\w{1,5}|often pose as|fraud(?:sters?|ulent)?|red[- ]team\w{0,5}|owasp"
    r"|researchers?|phrases?|filters?|classifiers?|detect(?:s|ed|ion|ors?)?|exploits?|vulnerab\w{1,10}|manipulat(?:ion|ive|ors?)"
    r"|blackmail|villain|novel|character|police advise|never give|def test_|assert|payloads?|malicious"
    r"|hidden (?:commands?|text)|social engineering|warn(?:s|ed|ing)? (?:of|about|against)|paper|study|article|chapter"
    r"|chat template|template|tokens?|boundaries|betrüger|masche|angriffe?|angreifer|attaques?|arnaques?|ataques?"
    r"|estafas?)\b"
)
_NEAR_CHARACTERS = 400


@cache
def rule_book(only: Group | None = None) -> RuleBook:
    """Return the rules of words, all or of one group."""
    rules = {"injection": INJECTION_RULES, "manipulation": MANIPULATION_RULES}
    return RuleBook([*INJECTION_RULES, *MANIPULATION_RULES] if only is None else rules[only])


@cache
def _unspaced() -> tuple[tuple[str, float, re.Pattern[str]], ...]:
    return tuple((kind, weight, re.compile(pattern)) for kind, weight, pattern in UNSPACED_RULES)


def scan(text: str, only: Group | None = None) -> Scan:
    """Return what a text shows, of both groups or of one."""
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]}\n{text[-half:]}"
    return scan_of(_heaviest(_weighed(text, list(_findings(text, 0, only)))))


def _heaviest(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -finding.weight)[:MAX_FINDINGS]


def _findings(text: str, depth: int, only: Group | None) -> Iterator[Finding]:
    view = folded(text)
    yield from _by_words(text, view, only)
    for mark in marks(text):
        yield _finding(mark.kind, mark.weight, text, mark.start, mark.end)
    for each in unseen(text):
        yield _finding("hidden", each.weight, text, each.start, each.end)
        if each.carried and depth < _MAX_INSIDE:
            carried = Inside("hidden characters", each.start, each.end, each.carried)
            yield from _inside(text, carried, depth)
    for start, end in view.lookalikes[:8]:
        yield _finding("lookalike", 0.3, text, *view.span(start, end))
    if depth < _MAX_INSIDE:
        for found in texts_inside(text):
            yield from _inside(text, found, depth)


def _by_words(text: str, view: Folded, only: Group | None) -> Iterator[Finding]:
    for hit in rule_book(only).find(view.text):
        yield _finding(hit.rule.kind, hit.rule.weight, text, *view.span(hit.start, hit.end))
    if view.text.isascii():
        return
    for kind, weight, pattern in _unspaced():
        for found in pattern.finditer(view.text):
            yield _finding(kind, weight, text, *view.span(*found.span()))


def _inside(text: str, carried: Inside, depth: int) -> Iterator[Finding]:
    """Find what a text in an encoding says; that it is encoded counts where it says something."""
    found = [each for each in _findings(carried.text, depth + 1, "injection") if each.group == "injection"]
    if not found:
        return
    start, end, how = carried.start, carried.end, carried.how
    yield msgspec.structs.replace(_finding("encoded", 0.6, text, start, end), inside=how)
    for each in found[:8]:
        yield msgspec.structs.replace(each, start=start, end=end, inside=each.inside or how)


def _finding(kind: str, weight: float, text: str, start: int, end: int) -> Finding:
    return Finding(kind=kind, weight=weight, start=start, end=end, quote=quoted(text, start, end), why=why_of(kind))


def _weighed(text: str, findings: list[Finding]) -> list[Finding]:
    """Return the findings with what is quoted or spoken about weighing less."""
    if not findings:
        return findings
    quotes = [found.span() for found in _QUOTE.finditer(text)]
    about = [found.start() for found in _ABOUT.finditer(text.lower())]
    return [_lightened(each, quotes, about) for each in findings]


def _lightened(finding: Finding, quotes: Sequence[tuple[int, int]], about: Sequence[int]) -> Finding:
    if finding.kind in {"hidden", "lookalike", "encoded"}:
        return finding
    near = bisect_right(about, finding.end + _NEAR_CHARACTERS) - bisect_right(about, finding.start - _NEAR_CHARACTERS)
    nth = bisect_right(quotes, (finding.start, 1 << 60)) - 1
    is_quoted = nth >= 0 and quotes[nth][0] <= finding.start < quotes[nth][1] and finding.end <= quotes[nth][1] + 1
    factor = (0.3 if near else 0.8) if is_quoted else (0.4 if near > 1 else 0.8 if near else 1.0)
    return finding if factor == 1.0 else msgspec.structs.replace(finding, weight=round(finding.weight * factor, 3))
