"""The few rules of CSS that layout and audit need: colours, size, flex and grid, by tag, class and id."""

from __future__ import annotations

import re
from typing import Literal, Self

import msgspec

from pyagent.logic.interfaces.colors import read_color
from pyagent.logic.interfaces.tags import Attributes

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_RULE = re.compile(r"([^{}]*)\{([^{}]*)\}")
_SELECTOR = re.compile(r"(?:[a-zA-Z][\w-]*)?(?:[.#][\w-]+)?", re.ASCII)
_PIXELS = re.compile(r"(\d{1,4})(?:\.\d+)?px")
_MAX_RULES = 5_000


class Style(msgspec.Struct, frozen=True):
    """What the rules say of an element. `display` is row, column, grid or nothing; `columns` is a grid's template."""

    color: str = ""
    background: str = ""
    size: tuple[int, int] | None = None
    display: Literal["", "row", "column", "grid"] = ""
    columns: str = ""


class Sheet(msgspec.Struct, frozen=True):
    """Rules by their selector: a tag, a class, an id. Others, and those within at-rules, are passed over."""

    selector_to_rules: dict[str, dict[str, str]]

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the rules of a style sheet; what is not understood is passed over."""
        found: dict[str, dict[str, str]] = {}
        for match in _RULE.finditer(_COMMENT.sub(" ", text)):
            for selector in match[1].split(","):
                if len(found) < _MAX_RULES and _SELECTOR.fullmatch(selector.strip()):
                    found.setdefault(selector.strip(), {}).update(_declarations(match[2]))
        return cls(found)

    def style_of(self, name: str, attributes: Attributes) -> Style:
        """Return the style of a tag: its tag's rules, its classes', its id's and its own, later ones first."""
        classes = str(attributes.get("class", "")).split()[:50]
        selectors = [name, *(f".{each}" for each in classes), *(f"{name}.{each}" for each in classes)]
        selectors += [f"#{attributes.get('id', '')}", f"{name}#{attributes.get('id', '')}"]
        rules: dict[str, str] = {}
        for selector in selectors:
            rules |= self.selector_to_rules.get(selector, {})
        own = attributes.get("style", "")
        return _style(rules | _declarations(own if isinstance(own, str) else ""))


def _declarations(text: str) -> dict[str, str]:
    pairs = (each.partition(":") for each in text.split(";")[:200])
    return {name.strip().lower(): value.replace("!important", "").strip() for name, _, value in pairs if value}


def _style(rules: dict[str, str]) -> Style:
    width, height = (_PIXELS.fullmatch(rules.get(name, "")) for name in ("width", "height"))
    return Style(
        color=read_color(rules.get("color", "")),
        background=read_color(rules.get("background-color", "") or rules.get("background", "")),
        size=(int(width[1]), int(height[1])) if width and height else None,
        display=_display(rules),
        columns=rules.get("grid-template-columns", ""),
    )


def _display(rules: dict[str, str]) -> Literal["", "row", "column", "grid"]:
    match rules.get("display", ""):
        case "flex" | "inline-flex":
            return "column" if rules.get("flex-direction", "").startswith("column") else "row"
        case "grid" | "inline-grid":
            return "grid"
        case _:
            return ""
