"""The words of a page in HTML. Pure.

Who wrote the page is not trusted, so this takes time in proportion to its length whatever it says: no part of the
pattern gives back what it took, and what is never closed ends with the page. `html.parser` needs minutes for some
pages of 30 kB.
"""

from __future__ import annotations

import re
from html import unescape

_TOKEN = re.compile(
    r"""<!--(?:-?>|.*?(?:-->|\Z))                     # a comment
      | <(?:[!?]|/(?![a-z]))[^>]*+(?:>|\Z)            # <!doctype>, <?xml?>, what browsers take as a comment
      | <(?P<close>/?)(?P<name>[a-z][^\s/>]*+)
        (?:=\s*+"[^"]*+(?:"|\Z) | =\s*+'[^']*+(?:'|\Z) | [^>=]++ | =)*+
        (?:>|\Z)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_VERBATIM = {name: re.compile(rf"</{name}(?![a-z])", re.IGNORECASE) for name in ("script", "style")}
"""Tags whose text is no HTML, and where it ends."""
_HIDDEN = {"noscript", "template", "svg"}
_BLOCKS = {"p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "title", "section", "article"}


def html_text(html: str) -> str:
    """Return the words of a page, without what is not shown, a line for each block."""
    pieces: list[str] = []
    place = num_hidden = 0
    while token := _TOKEN.search(html, place):
        if not num_hidden:
            pieces.append(f"{_unescaped(html[place : token.start()])} ")
        place = token.end()
        name = (token["name"] or "").lower()
        if name in _HIDDEN and not token[0].endswith("/>"):
            num_hidden = max(0, num_hidden + (-1 if token["close"] else 1))
        if name in _BLOCKS and not token["close"] and not num_hidden:
            pieces.append("\n")
        if name in _VERBATIM and not token["close"]:
            end = _VERBATIM[name].search(html, place)
            place = end.start() if end else len(html)
    if not num_hidden:
        pieces.append(_unescaped(html[place:]))
    lines = (" ".join(line.split()) for line in "".join(pieces).splitlines())
    return "\n".join(line for line in lines if line)


def _unescaped(text: str) -> str:
    try:
        return unescape(text)
    except ValueError:  # a number of over 4,300 digits
        return text
