"""A page as a model drafts it: a small tree under a schema, which rules make a page of.

The schema is small enough for a model of 135M parameters: sections of elements of a closed set. What the description
names stands in the page whatever the model writes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from pyagent.logic.interfaces.elements import Element, Kind, walk
from pyagent.logic.interfaces.mending import clean

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
_Widget = Literal[
    "text",
    "input",
    "email",
    "password",
    "number",
    "date",
    "area",
    "checkbox",
    "select",
    "radio",
    "button",
    "list",
    "table",
    "image",
    "link",
]
DRAFT_TOKENS = 900


class Widget(msgspec.Struct, frozen=True):
    """An element: its kind, what it is called, and its options, items or columns."""

    kind: _Widget
    label: _Label
    options: Annotated[list[_Label], msgspec.Meta(max_length=4)] = []


class Section(msgspec.Struct, frozen=True):
    """A heading and what stands below it."""

    heading: _Label
    widgets: Annotated[list[Widget], msgspec.Meta(min_length=1, max_length=5)]


class Draft(msgspec.Struct, frozen=True):
    """A page's title and its sections."""

    title: _Text
    sections: Annotated[list[Section], msgspec.Meta(min_length=1, max_length=3)]


def prompt_for(description: str) -> str:
    """Return what a model is asked."""
    return (
        "Design a user interface. Answer with its title and its sections; each section has a heading and widgets, and "
        "each widget a kind, a short label and, for select, radio, list and table, options.\n\n"
        f"The interface: {description[:2_000]}"
    )


def page_from_draft(draft: Draft, named: Element, *, is_named: bool) -> Element:
    """Return a draft as a page; with the elements that the description names before those that only the model has."""
    known = {_name(each) for each in walk(named)} if is_named else set[str]()
    sections: list[Element] = []
    for section in draft.sections:
        elements: list[Element] = []
        for widget in section.widgets:
            element = _element(widget)
            if (name := _name(element)) not in known:
                known.add(name)
                elements.append(element)
        if elements:
            sections += [Element(kind="heading", text=section.heading, level=2), *elements]
    if is_named:
        return msgspec.structs.replace(named, children=(*named.children, *sections))
    title = clean(draft.title) or named.text
    return Element(kind="page", text=title, children=(Element(kind="heading", text=title, level=1), *sections))


def _name(element: Element) -> str:
    return f"{element.kind} {clean(element.text).lower().rstrip('* ')}"


def _element(widget: Widget) -> Element:
    options = tuple(widget.options)
    match widget.kind:
        case "email" | "password" | "number" | "date":
            return Element(kind="input", type=widget.kind, text=widget.label)
        case "list":
            return Element(kind="list", text=widget.label, options=options or (widget.label,))
        case "table":
            return Element(kind="table", text=widget.label, head=options or ("Name", "Value"))
        case kind:
            named: Kind = kind
            return Element(kind=named, text=widget.label, options=options)
