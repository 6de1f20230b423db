"""Tags of a page as elements: by HTML's meaning, by roles, and by the classes and styles that lay out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import cast, get_args

from msgspec.structs import replace

from pyagent.logic.interfaces.css import Sheet, Style
from pyagent.logic.interfaces.elements import Element, InputType, Kind
from pyagent.logic.interfaces.mending import clean
from pyagent.logic.interfaces.tags import Attributes, Tag

_SKIPPED = frozenset(
    {
        "script",
        "style",
        "head",
        "meta",
        "link",
        "noscript",
        "title",
        "base",
        "source",
        "track",
        "svelte:head",
        "legend",
        "summary",
        "caption",
        "label",
        "option",
        "datalist",
    }
)
_INLINE = frozenset(
    {"span", "b", "strong", "i", "em", "small", "code", "br", "u", "s", "sub", "sup", "mark", "abbr", "wbr", "time"}
)
_TYPES = frozenset(get_args(InputType))
_COLUMNS = re.compile(r"repeat\((\d{1,2})")


def page_of(root: Tag, title: str = "") -> Element:
    """Return what tags say as a page. `title` is one that a script sets."""
    return _Reading(root).page(title)


def all_tags(root: Tag) -> Iterator[Tag]:
    """Yield the tags below one, in reading order."""
    left: list[Tag | str] = [*reversed(root.children)]
    while left:
        one = left.pop()
        if isinstance(one, Tag):
            yield one
            left.extend(reversed(one.children))


def text_in(tag: Tag) -> str:
    """Return the text inside a tag, on one line; an image says its alternative text."""
    pieces: list[str] = []
    left: list[Tag | str] = [*reversed(tag.children)]
    while left:
        one = left.pop()
        if isinstance(one, str):
            pieces.append(one)
        elif one.name == "img":
            pieces.append(_said(one.attributes, "alt"))
        elif one.name not in {"script", "style"} and one.attributes.get("aria-hidden") != "true":
            left.extend(reversed(one.children))
            pieces.append(" " if one.name not in _INLINE or one.name == "br" else "")
    return clean("".join(pieces))


class _Reading:
    """One page's reading: its labels by the ids they are for, its texts by id, and its rules of style."""

    def __init__(self, root: Tag) -> None:
        self._root = root
        self._tags = list(all_tags(root))
        self._id_to_label = {
            str(tag.attributes["for"]): text_in(tag)
            for tag in self._tags
            if tag.name == "label" and "for" in tag.attributes
        }
        self._id_to_tag = {str(tag.attributes["id"]): tag for tag in self._tags if "id" in tag.attributes}
        self._sheet = Sheet.read("\n".join(_raw_text(tag) for tag in self._tags if tag.name == "style"))
        self._readers: dict[str, Callable[[Tag], Element | None]] = {
            "input": self._input,
            "textarea": self._area,
            "select": self._select,
            "button": self._button,
            "a": self._link,
            "img": self._image,
            "ul": self._list,
            "ol": self._list,
            "table": self._table,
            "progress": self._progress,
            "details": self._details,
            "fieldset": self._fieldset,
            "p": self._text,
        }

    def page(self, title: str) -> Element:
        found = {tag.name: tag for tag in reversed(self._tags)}
        main, body, html = found.get("main"), found.get("body"), found.get("html")
        outer = next((tag for tag in (main, body) if tag is not None), Tag(""))
        languages = [_said(tag.attributes, "lang") for tag in (html, body, main) if tag is not None]
        style = self._style(outer)
        said = title or (text_in(found["title"]) if "title" in found else "")
        return Element(
            kind="page",
            id=_said(outer.attributes, "id"),
            text=said,
            language=next((language for language in languages if language), ""),
            color=style.color,
            background=style.background,
            children=self._below(self._root),
            line=outer.line,
        )

    def _below(self, tag: Tag) -> tuple[Element, ...]:
        """Return the elements of a tag's children; texts and what is inline between them run together."""
        found: list[Element] = []
        texts: list[Tag | str] = []

        def end_text() -> None:
            if said := text_in(Tag("", {}, list(texts))):
                found.append(Element(kind="text", text=said, line=tag.line))
            texts.clear()

        for child in tag.children:
            if isinstance(child, str) or (child.name in _INLINE and not _says_more(child)):
                texts.append(child)
                continue
            end_text()
            found += self._elements(child)
        end_text()
        return tuple(found)

    def _elements(self, tag: Tag) -> tuple[Element, ...]:
        if "hidden" in tag.attributes or tag.attributes.get("type") == "hidden":
            return ()
        if tag.name == "label":
            return tuple(each for each in self._below(tag) if each.kind != "text") if _holds_tags(tag) else ()
        if tag.name in _SKIPPED:
            return ()
        if re.fullmatch(r"h[1-6]", tag.name):
            return (self._styled(tag, Element(kind="heading", text=_name(tag), level=int(tag.name[1]))),)
        name = _ROLES.get(_said(tag.attributes, "role"), tag.name)
        if name in self._readers:
            read = self._readers[name](tag)
            return () if read is None else (self._styled(tag, read),)
        return self._container(tag)

    def _container(self, tag: Tag) -> tuple[Element, ...]:
        classes = set(_said(tag.attributes, "class").split())
        children = self._below(tag)
        style = self._style(tag)
        is_group = len(children) > 1 and not classes & {"field", "check"}
        if "tabs" in classes and children and all(each.kind == "tab" for each in children):
            kind: Kind = "tabs"
        elif found := classes & {"row", "column", "grid"}:
            kind = cast("Kind", min(found))
        elif is_group and style.display:
            kind = style.display
        elif is_group and tag.name in {"div", "section", "article", "nav", "aside"}:
            kind = "column"
        else:
            return children
        if not children:
            return ()
        columns = _num_columns(style.columns) if kind == "grid" else 0
        return (Element(kind=kind, id=_said(tag.attributes, "id"), columns=columns, children=children, line=tag.line),)

    def _styled(self, tag: Tag, element: Element) -> Element:
        """Return an element with its tag's id, line, colours and size."""
        style = self._style(tag)
        given = element.id or _said(tag.attributes, "id")
        colors = {"color": style.color, "background": style.background} if element.kind != "group" else {}
        return replace(
            element, id=given, line=tag.line, size=style.size if element.kind == "button" else None, **colors
        )

    def _style(self, tag: Tag) -> Style:
        return self._sheet.style_of(tag.name, tag.attributes)

    def _label(self, tag: Tag, *, has_text: bool = False) -> str:
        """Return the name of a tag, as assistive software computes it from labels, ARIA and titles."""
        attributes = tag.attributes
        if label := clean(_said(attributes, "aria-label")):
            return label
        named = [
            text_in(self._id_to_tag[name])
            for name in _said(attributes, "aria-labelledby").split()[:20]
            if name in self._id_to_tag
        ]
        if any(named):
            return " ".join(named)
        if label := self._id_to_label.get(_said(attributes, "id"), ""):
            return label
        around = next((text_in(one) for one in self._tags if one.name == "label" and _is_in(one, tag)), "")
        own = _name(tag) if has_text else ""
        return around or own or clean(_said(attributes, "title"))

    def _entry(self, tag: Tag, element: Element) -> Element:
        """Return an input with its label, and whether something must be entered."""
        label = self._label(tag)
        starred = label.endswith("*")
        required = starred or "required" in tag.attributes or tag.attributes.get("aria-required") == "true"
        return replace(element, text=label.rstrip("* ") if starred else label, required=required)

    def _input(self, tag: Tag) -> Element:
        kind = _said(tag.attributes, "type").lower() or "text"
        value = clean(_said(tag.attributes, "value"))
        match kind:
            case "submit" | "button" | "reset" | "image":
                said = clean(_said(tag.attributes, "alt")) if kind == "image" else value
                return Element(
                    kind="button",
                    text=said or self._label(tag) or ("" if kind in {"button", "image"} else kind.capitalize()),
                )
            case "checkbox":
                return self._entry(tag, Element(kind="checkbox", checked="checked" in tag.attributes))
            case "radio":
                label = self._label(tag)
                chosen = label if "checked" in tag.attributes else ""
                return self._entry(tag, Element(kind="radio", options=(label,), value=chosen))
            case _:
                purpose = _said(tag.attributes, "autocomplete")
                purpose = "" if purpose in {"on", "off"} else purpose
                named = cast("InputType", kind) if kind in _TYPES else "text"
                return self._entry(tag, Element(kind="input", type=named, value=value, autocomplete=purpose))

    def _area(self, tag: Tag) -> Element:
        return self._entry(tag, Element(kind="area", value=text_in(tag) or clean(_said(tag.attributes, "value"))))

    def _select(self, tag: Tag) -> Element:
        options = [one for one in all_tags(tag) if one.name == "option"]
        texts = tuple(text_in(one) or _said(one.attributes, "label") for one in options)
        chosen = next((text for one, text in zip(options, texts, strict=True) if "selected" in one.attributes), "")
        value = clean(_said(tag.attributes, "value"))
        chosen = chosen or (value if value in texts else "")
        return self._entry(tag, Element(kind="select", options=texts, value=chosen))

    def _button(self, tag: Tag) -> Element:
        return Element(kind="button", text=self._label(tag, has_text=True))

    def _link(self, tag: Tag) -> Element:
        return Element(kind="link", text=self._label(tag, has_text=True), target=_said(tag.attributes, "href") or "#")

    def _image(self, tag: Tag) -> Element:
        alternative = tag.attributes.get("alt")
        decorative = alternative in {"", True} or _said(tag.attributes, "role") in {"presentation", "none"}
        text = clean(str(alternative)) if isinstance(alternative, str) else self._label(tag)
        return Element(kind="image", text=text, source=_said(tag.attributes, "src"), decorative=decorative)

    def _list(self, tag: Tag) -> Element | None:
        items = [child for child in tag.children if isinstance(child, Tag) and child.name == "li"]
        if any(each.kind != "text" for item in items for each in self._below(item)):
            children = tuple(each for item in items for each in self._below(item))
            return Element(kind="column", children=children)
        texts = tuple(text for item in items if (text := text_in(item)))
        return Element(kind="list", options=texts) if texts else None

    def _table(self, tag: Tag) -> Element:
        rows = [one for one in all_tags(tag) if one.name == "tr"]
        cells = [[cell for cell in row.children if isinstance(cell, Tag) and cell.name in {"td", "th"}] for row in rows]
        texts = [tuple(text_in(cell) for cell in row) for row in cells if row]
        caption = next((text_in(one) for one in tag.children if isinstance(one, Tag) and one.name == "caption"), "")
        has_head = bool(texts) and all(cell.name == "th" for cell in next(row for row in cells if row))
        return Element(
            kind="table", text=caption, head=texts[0] if has_head else (), rows=tuple(texts[1:] if has_head else texts)
        )

    def _progress(self, tag: Tag) -> Element:
        value, most = _number(tag, "value", 0.0), _number(tag, "max", 1.0)
        return Element(
            kind="progress", text=self._label(tag), percent=round(100 * min(max(value / (most or 1.0), 0.0), 1.0))
        )

    def _details(self, tag: Tag) -> Element:
        summary = next((text_in(one) for one in tag.children if isinstance(one, Tag) and one.name == "summary"), "")
        return Element(kind="tab" if "name" in tag.attributes else "group", text=summary, children=self._below(tag))

    def _fieldset(self, tag: Tag) -> Element | None:
        legend = next(
            (text_in(one) for one in tag.children if isinstance(one, Tag) and one.name == "legend"), ""
        ) or self._label(tag)
        children = self._below(tag)
        is_nested = any(one.name == "fieldset" for one in all_tags(tag))
        if children and not is_nested and all(each.kind == "radio" for each in children):
            required = legend.endswith("*")
            options = tuple(option for each in children for option in each.options)
            value = next((each.value for each in children if each.value), "")
            return Element(
                kind="radio",
                text=legend.rstrip("* ") if required else legend,
                required=required,
                options=options,
                value=value,
            )
        return Element(kind="group", text=legend, children=children) if children else None

    def _text(self, tag: Tag) -> Element | None:
        if any(one.name not in _INLINE for one in all_tags(tag)):
            return Element(kind="column", children=self._below(tag))
        text = text_in(tag)
        return Element(kind="text", text=text) if text else None


def _num_columns(template: str) -> int:
    """Return how many columns a grid's template has: `repeat(3, 1fr)`, or a size for each."""
    found = _COLUMNS.search(template)
    return min(max(int(found[1]) if found else len(template.split()), 1), 12)


_ROLES = {
    "button": "button",
    "link": "a",
    "img": "img",
    "checkbox": "checkbox",
    "textbox": "textarea",
    "combobox": "select",
    "progressbar": "progress",
    "radiogroup": "fieldset",
}


def _holds_tags(tag: Tag) -> bool:
    return any(one.name not in _INLINE for one in all_tags(tag))


def _says_more(tag: Tag) -> bool:
    """Whether an inline tag is more than text: it has a role that is read, or holds what is."""
    return _said(tag.attributes, "role") in _ROLES or _holds_tags(tag)


def _is_in(outer: Tag, tag: Tag) -> bool:
    return any(one is tag for one in all_tags(outer))


def _name(tag: Tag) -> str:
    return text_in(tag)


def _said(attributes: Attributes, name: str) -> str:
    value = attributes.get(name, "")
    return value if isinstance(value, str) else ""


def _number(tag: Tag, name: str, default: float) -> float:
    try:
        return float(_said(tag.attributes, name).strip("{}"))
    except ValueError:
        return default


def _raw_text(tag: Tag) -> str:
    return "".join(child for child in tag.children if isinstance(child, str))
