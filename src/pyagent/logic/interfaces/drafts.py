"""A page as a model drafts it: lines held to a regular expression, which rules make a page of.

The lines are few and short, for models of 135M parameters: a title, and sections of elements of a closed set.
What the description names stands in the page whatever the model writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

import msgspec

from pyagent.logic.interfaces.elements import Element, InputType, Kind, walk

_LABEL = r"[A-Z][A-Za-z0-9',?]{0,11}(?: [A-Za-z0-9',?]{1,12}){0,2}"
_PLAIN = r"(?:text|input|email|password|number|date|area|checkbox|image|link|button)"
_LISTED = r"(?:select|radio|list|table)"
_LINE = rf"(?:{_PLAIN}: {_LABEL}|{_LISTED}: {_LABEL} \({_LABEL}(?:; {_LABEL}){{1,2}}\))"
DRAFT = rf"page: {_LABEL}\n(?:section: {_LABEL}\n(?:{_LINE}\n){{2,4}}){{1,2}}end"
DRAFT_TOKENS = 500
_EXAMPLE = """page: Order
section: Your order
select: Size (Small; Large)
number: Quantity
section: Delivery
input: Address
date: Day
button: Order now
end"""
_READ = re.compile(rf"(\w+): ({_LABEL})(?: \(([^()\n]*)\))?")
_TYPES = frozenset({"email", "password", "number", "date"})


def prompt_for(description: str) -> str:
    """Return what a model is asked."""
    return (
        "Write the elements of a user interface, one a line, in sections. For example, for a shop's order page:\n\n"
        f"{_EXAMPLE}\n\nNow write those of this one: {description[:2_000]}"
    )


def page_from_draft(draft: str, named: Element, *, is_named: bool) -> Element:
    """Return a draft as a page: what the description names, if anything, and then what only the model has."""
    known = {_name(each) for each in walk(named)}
    children: list[Element] = []
    title, heading = named.text, ""
    for kind, label, options in _lines(draft):
        if kind == "page":
            title = label
        elif kind == "section":
            heading = label
        else:
            element = _element(kind, label, options)
            if _name(element) in known:
                continue
            known.add(_name(element))
            if heading and heading != title:
                children.append(Element(kind="heading", text=heading, level=2))
            heading = ""
            children.append(element)
    if is_named or not children:
        return msgspec.structs.replace(named, children=(*named.children, *children))
    return Element(kind="page", text=title, children=(Element(kind="heading", text=title, level=1), *children))


def _lines(draft: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield kind, label and options of each line; lines of another form, and those of the example, are passed over."""
    copied = set(_EXAMPLE.splitlines())
    for line in draft.splitlines()[:40]:
        if line.strip() not in copied and (found := _READ.fullmatch(line.strip())) is not None:
            yield found[1], found[2], tuple(each.strip() for each in (found[3] or "").split(";") if each.strip())


def _name(element: Element) -> str:
    return element.text.lower().rstrip("* ")


def _element(kind: str, label: str, options: tuple[str, ...]) -> Element:
    if kind in _TYPES:
        return Element(kind="input", type=cast("InputType", kind), text=label)
    if kind == "table":
        return Element(kind="table", text=label, head=options)
    return Element(kind=cast("Kind", kind), text=label, options=options)
