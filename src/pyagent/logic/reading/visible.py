"""Drops what a page holds and people do not see: the place for words that are meant for programs alone."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0(?:\.0+)?\s*(?:;|$|!)"
    r"|font-size\s*:\s*0(?:\.0+)?\s*(?:p[xt]|r?em|%)?\s*(?:;|$|!)|(?:left|top|text-indent)\s*:\s*-\d{3,}"
    r"|(?:^|;)\s*(?:max-)?(?:width|height)\s*:\s*[01](?:px)?\s*(?:;|$)|clip\s*:\s*rect\(\s*0",
    re.IGNORECASE,
)
_WHITE = re.compile(r"(?:^|;)\s*color\s*:\s*(?:#fff(?:fff)?|white|transparent)\b", re.IGNORECASE)
_NEVER = {"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas"}


def without_hidden(text: str) -> Any | None:
    """Return a page's tree without its hidden elements; None for what is no tree. Its head is kept for the title.

    What a style sheet or a script hides is not known here.
    """
    html: Any = import_module("lxml.html")  # optional, so its types cannot be relied on
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    try:
        tree: Any = html.document_fromstring(text.encode(), parser=parser)
    except (import_module("lxml.etree").LxmlError, ValueError):
        return None
    for element in list(tree.iter()):
        if is_hidden(element):
            element.drop_tree()
    return tree


def is_hidden(element: Any) -> bool:
    """Whether an element says of itself that it is not shown."""
    if not isinstance(element.tag, str):
        return False
    if element.tag in _NEVER:
        return True
    if element.get("hidden") is not None or element.get("aria-hidden", "").strip().lower() == "true":
        return True
    style = element.get("style", "")[:2_000]
    return bool(style) and bool(_STYLE.search(style) or _WHITE.search(style))
