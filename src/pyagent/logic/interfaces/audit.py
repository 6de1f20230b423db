"""Computes what of WCAG 2.2 can be told from a tree of elements: names, texts, order, colours and sizes. No browser.

Each rule is a function from a page to findings. What a tree does not say (a colour of a theme, the place of an element)
is not guessed: such elements are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from pyagent.logic.interfaces.colors import contrast
from pyagent.logic.interfaces.elements import INPUTS, NAMED, Element, walk
from pyagent.logic.interfaces.findings import Finding
from pyagent.logic.interfaces.purposes import purpose_of

_MIN_TARGET = 24
"""CSS pixels of a target's side (https://www.w3.org/TR/WCAG22/#target-size-minimum)."""
_VAGUE = re.compile(
    r"(?:click |tap |press )?here|(?:read |learn |see )?more|link|this(?: page| link)?|go|details", re.IGNORECASE
)
_FILE_NAME = re.compile(
    r"[\w-]+\.(?:png|jpe?g|gif|svg|webp|bmp|ico)|(?:image|picture|photo|img|icon)\d*", re.IGNORECASE
)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]{1,8})*", re.IGNORECASE)
_MAX_FINDINGS = 500


class Rules(msgspec.Struct, frozen=True):
    """What of a framework the rules go by: fields that its code cannot say, and colours where it says none."""

    loses: frozenset[str] = frozenset()
    color: str = ""
    background: str = ""


def audit(page: Element, rules: Rules) -> list[Finding]:
    """Return what is against WCAG 2.2 in a page, in the order of the rules."""
    found: list[Finding] = []
    for rule in _RULES:
        found += rule(page, rules)
    return found[:_MAX_FINDINGS]


def described(element: Element) -> str:
    """Return how a finding names an element: its kind, and its text or id."""
    name = f" {element.text[:60]!r}" if element.text else f" #{element.id[:60]}" if element.id else ""
    return f"{element.kind}{name}"


def _at(element: Element, rule: str, criterion: str, figure: str, mend: str) -> Finding:
    return Finding(
        rule=rule, criterion=criterion, element=described(element), line=element.line, figure=figure, mend=mend
    )


def _title(page: Element, rules: Rules) -> Iterator[Finding]:
    if not page.text:
        yield _at(page, "title", "2.4.2", "the page has no title", "give it one that says what it is for")
    if "language" in rules.loses:
        return
    if not page.language:
        yield _at(page, "language", "3.1.1", "the page names no language", "name it, such as en")
    elif not _LANGUAGE.fullmatch(page.language) and not page.language.startswith("{"):
        yield _at(page, "language", "3.1.1", f"{page.language[:20]!r} is no language", "name one, such as en or pt-BR")


def _names(page: Element, _: Rules) -> Iterator[Finding]:
    for each in walk(page):
        if each.text or each.kind not in NAMED | {"group"}:
            continue
        match each.kind:
            case "image":
                if not each.decorative:
                    yield _at(
                        each,
                        "alt",
                        "1.1.1",
                        "the image has no alternative text",
                        "say what it shows, or mark it as decorative",
                    )
            case "link":
                yield _at(each, "name", "2.4.4, 4.1.2", "the link has no text", "say where it leads")
            case "button" | "tab":
                yield _at(
                    each, "name", "4.1.2", f"the {each.kind} has no name", "give it a text, or an accessible name"
                )
            case "group":
                yield _at(each, "group", "1.3.1", "the group has no name", "give it a legend")
            case "radio":
                yield _at(
                    each,
                    "group",
                    "1.3.1, 3.3.2",
                    f"{len(each.options)} radio buttons have no common label",
                    "group them below a legend",
                )
            case _:
                criterion = "1.3.1, 4.1.2" if each.kind == "progress" else "1.3.1, 3.3.2, 4.1.2"
                yield _at(each, "label", criterion, f"the {each.kind} has no label", "tie a label to it")


def _texts(page: Element, _: Rules) -> Iterator[Finding]:
    for each in walk(page):
        if each.kind == "link" and _VAGUE.fullmatch(each.text):
            yield _at(
                each, "link-text", "2.4.4", f"the text {each.text!r} does not say where it leads", "name the target"
            )
        elif each.kind == "image" and _FILE_NAME.fullmatch(each.text):
            yield _at(
                each, "alt", "1.1.1", f"the alternative text {each.text!r} is a file's name", "say what the image shows"
            )
        elif each.kind == "heading" and not each.text:
            yield _at(each, "heading", "1.3.1, 2.4.6", "the heading is empty", "give it a text, or leave it out")
        elif each.kind == "table" and each.rows and not any(each.head):
            yield _at(each, "table", "1.3.1", f"{len(each.rows)} rows have no head", "name the columns in header cells")


def _headings(page: Element, _: Rules) -> Iterator[Finding]:
    before = 0
    for each in walk(page):
        if each.kind == "heading":
            if before and each.level > before + 1:
                figure = f"level {each.level} follows level {before}"
                yield _at(each, "heading-order", "1.3.1", figure, f"make it level {before + 1}")
            before = each.level


def _contrast(page: Element, rules: Rules) -> Iterator[Finding]:
    """Compare colours of texts and what is behind them; a page's are those of what says none of its own."""
    color, background = page.color or rules.color, page.background or rules.background
    for each in walk(page):
        if each.kind not in {"heading", "text", "button", "link"} or not each.text:
            continue
        is_plain = each.kind in {"heading", "text"}
        front = each.color or (color if is_plain else "")
        behind = each.background or (background if each.kind != "button" else "")
        if not front or not behind or (not is_plain and not each.color):
            continue
        is_large = each.kind == "heading" and each.level <= 2
        ratio, least = contrast(front, behind), 3.0 if is_large else 4.5
        if ratio < least:
            figure = f"{front} on {behind} has a contrast of {int(ratio * 100) / 100:.2f}, expected {least:g}"
            yield _at(each, "contrast", "1.4.3", figure, "darken the one or lighten the other")


def _targets(page: Element, _: Rules) -> Iterator[Finding]:
    for each in walk(page):
        if each.size is not None and min(each.size) < _MIN_TARGET:
            figure = f"{each.size[0]} by {each.size[1]} pixels, expected {_MIN_TARGET} by {_MIN_TARGET}"
            yield _at(each, "target-size", "2.5.8", figure, "make it larger, or leave so much space around it")


def _purposes(page: Element, rules: Rules) -> Iterator[Finding]:
    asked: dict[str, Element] = {}
    for each in walk(page):
        if each.kind != "input":
            continue
        purpose = purpose_of(each.text, each.type, each.autocomplete)
        if purpose and not each.autocomplete and "autocomplete" not in rules.loses:
            yield _at(
                each, "purpose", "1.3.5", "its purpose is not told to programs", f"give it autocomplete {purpose!r}"
            )
        if purpose in asked and purpose not in {"new-password", "current-password", "one-time-code"}:
            figure = f"{purpose} is asked for again, after {described(asked[purpose])}"
            yield _at(each, "redundant-entry", "3.3.7", figure, "fill it in, or let people choose what they entered")
        if purpose:
            asked.setdefault(purpose, each)


def _ids(page: Element, _: Rules) -> Iterator[Finding]:
    seen: dict[str, Element] = {}
    for each in walk(page):
        if (
            each.id in seen
            and each.id
            and not each.id.startswith("{")
            and each.kind in INPUTS | {"button", "link", "image"}
        ):
            figure = f"the id {each.id[:60]!r} is that of {described(seen[each.id])} too"
            yield _at(each, "id", "1.3.1, 4.1.2", figure, "give each an id of its own, as labels go by them")
        seen.setdefault(each.id, each)


_RULES: tuple[Callable[[Element, Rules], Iterator[Finding]], ...] = (
    _title,
    _names,
    _texts,
    _headings,
    _contrast,
    _targets,
    _purposes,
    _ids,
)
