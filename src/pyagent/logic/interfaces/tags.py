"""Elements as tags of HTML, which HTML, JSX, Vue and Svelte write down in nearly the same way."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyagent.logic.interfaces.elements import INPUTS, Element, walk

Attributes = dict[str, str | bool]
PRESSED = "pressed"
"""The name by which a form tells which button was pressed."""


class Tag(msgspec.Struct):
    """A tag with its attributes, by HTML's names; `line` is where it was read, from 1."""

    name: str
    attributes: Attributes = {}
    children: list[Tag | str] = []
    line: int = 0


def page_tag(page: Element) -> Tag:
    """Return a page as `main`; one with inputs or buttons has a form in it."""
    children: list[Tag | str] = [*_tags(page.children)]
    if any(each.kind in INPUTS or each.kind == "button" for each in walk(page)):
        children = [Tag("form", {}, children)]
    return Tag("main", _with_style(page, {"class": "page"}), children)


def _tags(elements: Sequence[Element]) -> list[Tag]:
    return [_tag(element) for element in elements]


def _tag(element: Element) -> Tag:  # noqa: PLR0911 - one for each kind
    match element.kind:
        case "row" | "column":
            return Tag("div", _with_id(element, {"class": element.kind}), [*_tags(element.children)])
        case "grid":
            style = f"grid-template-columns: repeat({element.columns}, 1fr)"
            return Tag("div", _with_id(element, {"class": "grid", "style": style}), [*_tags(element.children)])
        case "group":
            legend = Tag("legend", {}, [element.text])
            return Tag("fieldset", _with_id(element, {}), [legend, *_tags(element.children)])
        case "tabs":
            return Tag("div", _with_id(element, {"class": "tabs"}), [*_tab_tags(element)])
        case "heading":
            return Tag(f"h{element.level}", _with_style(element, {}), [element.text])
        case "input" | "area" | "select" | "progress":
            label = Tag("label", {"for": element.id}, [element.label])
            return Tag("div", {"class": "field"}, [label, _control(element)])
        case "checkbox":
            label = Tag("label", {"for": element.id}, [element.label])
            return Tag("div", {"class": "check"}, [_box(element), label])
        case "radio":
            return _radio(element)
        case _:
            return _plain(element)


def _plain(element: Element) -> Tag:
    match element.kind:
        case "button":
            attributes: Attributes = {"type": "submit", "name": PRESSED, "value": element.id}
            return Tag("button", _with_style(element, attributes), [element.text])
        case "link":
            return Tag("a", _with_style(element, {"href": element.target}), [element.text])
        case "image":
            return Tag("img", _with_id(element, {"src": element.source, "alt": element.text}))
        case "list":
            return Tag("ul", _with_id(element, {}), [Tag("li", {}, [option]) for option in element.options])
        case "table":
            return _table(element)
        case _:
            return Tag("p", _with_style(element, {}), [element.text])


def _control(element: Element) -> Tag:
    attributes: Attributes = {"id": element.id}
    if element.kind == "progress":
        return Tag("progress", attributes | {"max": "100", "value": str(element.percent)})
    attributes["name"] = element.id
    if element.required:
        attributes["required"] = True
    if element.kind == "area":
        return Tag("textarea", attributes | {"rows": "4"}, [element.value] if element.value else [])
    if element.kind == "select":
        return Tag("select", attributes, [_option(element, option) for option in element.options])
    attributes = {"type": element.type, **attributes}
    if element.autocomplete:
        attributes["autocomplete"] = element.autocomplete
    if element.value:
        attributes["value"] = element.value
    return Tag("input", attributes)


def _option(element: Element, option: str) -> Tag:
    return Tag(
        "option", {"value": option, "selected": True} if option == element.value else {"value": option}, [option]
    )


def _box(element: Element) -> Tag:
    attributes: Attributes = {"type": "checkbox", "id": element.id, "name": element.id}
    flags = {"required": element.required, "checked": element.checked}
    return Tag("input", attributes | {name: True for name, is_set in flags.items() if is_set})


def _radio(element: Element) -> Tag:
    children: list[Tag | str] = [Tag("legend", {}, [element.label])]
    for number, option in enumerate(element.options, 1):
        name = f"{element.id}-{number}"
        attributes: Attributes = {"type": "radio", "id": name, "name": element.id, "value": option}
        if element.required:
            attributes["required"] = True
        if option == element.value:
            attributes["checked"] = True
        children.append(
            Tag("div", {"class": "check"}, [Tag("input", attributes), Tag("label", {"for": name}, [option])])
        )
    return Tag("fieldset", {"id": element.id}, children)


def _tab_tags(element: Element) -> list[Tag]:
    """Return tabs as details of one name: one is open at a time, without a script."""
    name = f"{element.id or 'tabs'}-of-{element.children[0].id}"
    tags: list[Tag] = []
    for number, tab in enumerate(element.children):
        attributes: Attributes = {"name": name, "id": tab.id}
        if number == 0:
            attributes["open"] = True
        tags.append(Tag("details", attributes, [Tag("summary", {}, [tab.text]), *_tags(tab.children)]))
    return tags


def _table(element: Element) -> Tag:
    head = Tag("tr", {}, [Tag("th", {"scope": "col"}, [cell]) for cell in element.head])
    rows = [Tag("tr", {}, [Tag("td", {}, [cell] if cell else []) for cell in row]) for row in element.rows]
    caption = [Tag("caption", {}, [element.text])] if element.text else []
    body = [Tag("tbody", {}, [*rows])] if rows else []
    return Tag("table", _with_id(element, {}), [*caption, Tag("thead", {}, [head]), *body])


def _with_id(element: Element, attributes: Attributes) -> Attributes:
    return {"id": element.id, **attributes} if element.id else attributes


def _with_style(element: Element, attributes: Attributes) -> Attributes:
    rules: list[str] = []
    if element.color:
        rules.append(f"color: {element.color}")
    if element.background:
        rules.append(f"background-color: {element.background}")
    if element.size is not None:
        width, height = element.size
        rules.append(f"width: {width}px; height: {height}px; min-height: 0; padding: 0")
    style: Attributes = {"style": "; ".join(rules)} if rules else {}
    return _with_id(element, attributes) | style
