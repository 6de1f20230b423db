"""Signs of form: role markers, template tokens, calls of tools, links that take data along, text that is not shown.

Expressions are bounded at every repetition, or begin at a sign that few texts have. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """A sign of form."""

    kind: str
    weight: float
    start: int
    end: int


_TOKENS = re.compile(
    r"<[|｜][\w▁ ]{2,30}[|｜]>|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<\|[a-z_]{2,30}|[a-z_]{2,30}\|>"
)
_TOKEN_SIGNS = ("<|", "|>", "<｜", "INST]", "SYS>", "_of_turn>")
_HEADING = re.compile(
    r"^[ \t]{0,8}#{2,4} ?(?:instruction|response|system|human|assistant)(?: prompt)?:", re.IGNORECASE | re.MULTILINE
)
_ROLE = re.compile(
    r"^[ \t>*#\[]{0,8}(system|assistant|human|user|developer|ai)(?: ?message)?\]?[*]{0,2}:",
    re.IGNORECASE | re.MULTILINE,
)
_INLINE_ROLE = re.compile(r"(?<=[.!?\n]) {0,2}(?:assistant|human|user|system): ?", re.IGNORECASE)
_ROLE_TAG = re.compile(
    r"</?(?:system|assistant|system[_-]prompt|system[_-]message|instructions?|im_start)>", re.IGNORECASE
)
_JSON_ROLE = re.compile(r"[\"']role[\"'] {0,4}: {0,4}[\"'](?:system|developer)[\"']", re.IGNORECASE)
_ORDER = re.compile(
    r"[\s:]{0,4}(?:you (?:are|must|will|have|should|can|may)|the user|ignore|disregard|new|override|from now|your|"
    r"always|never|all |safety|i )",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"</?(?:tool_?calls?|function_?calls?|tool_response|tool_result|invoke|antml:\w{1,30})\b[^>\n]{0,80}>"
    r"|<function=|\"(?:tool_calls|function_call)\" {0,4}:|\[TOOL_CALLS\]|\{ {0,4}\"(?:tool|action)\" {0,4}: {0,4}\"\w",
    re.IGNORECASE,
)
_CALL_OBJECT = re.compile(
    r"\{\s{0,8}\"name\"\s{0,4}:\s{0,4}\"[\w.-]{1,64}\"\s{0,4},\s{0,8}\"(?:arguments|parameters|input)\"\s{0,4}:"
)
_IMAGE = re.compile(
    r"!\[[^\]\n]{0,200}\]\(\s{0,4}(https?://[^)\s]{1,2000})|<img\b[^>]{0,200}?src=[\"']?(https?://[^\"'>\s]{1,2000})",
    re.IGNORECASE,
)
_URL = re.compile(r"https?://[^\s<>\"')\]]{1,2000}", re.IGNORECASE)
_SLOT = re.compile(
    r"\{\{?[\w .-]{1,40}\}|\$\{?[A-Za-z_]\w{2,40}"
    r"|<[\w .-]{2,40}>|\[[a-zA-Z _-]{3,40}\]?|=[A-Z][A-Z_]{5,40}\b|%s"
)
_EMPTY = re.compile(r"[?&][\w.-]{1,20}=$")
_DATA = re.compile(
    r"[?&/](?:data|payload|history|conversation|chat|secrets?|password|pwd|token|api_?key|leak|exfil|steal|dump|prompt|"
    r"summary|email|context|messages?|cookie)=",
    re.IGNORECASE,
)
_NOT_SHOWN = re.compile(
    r"display\s{0,3}:\s{0,3}none|visibility\s{0,3}:\s{0,3}hidden|font-size\s{0,3}:\s{0,3}0|opacity\s{0,3}:\s{0,3}0(?![.\d])|"
    r"color\s{0,3}:\s{0,3}(?:#fff(?:fff)?|white)\b|left\s{0,3}:\s{0,3}-\d{3,}px",
    re.IGNORECASE,
)
_ROLE_SIGNS = ("system", "assistant", "human", "user", "developer", "ai")
_STYLES = ("display", "visibility", "font-size", "opacity", "color", "left")
_MAX_MARKS = 16
"""Places of one kind of sign that are told."""


def marks(text: str) -> Iterator[Mark]:
    """Find signs of form."""
    small = text.lower()
    if any(sign in text for sign in _TOKEN_SIGNS):
        yield from _each(_TOKENS, text, "marker", 0.55)
    if "<" in text:
        yield from _each(_ROLE_TAG, text, "marker", 0.4)
    if "#" in text:
        yield from _each(_HEADING, text, "marker", 0.5)
    if any(sign in small for sign in _ROLE_SIGNS):
        yield from _roles(text)
    if "<" in text or "{" in text or "[" in text:
        yield from _each(_CALL, text, "tool-call", 0.55)
        yield from _each(_CALL_OBJECT, text, "tool-call", 0.5)
    if "://" in text:
        yield from _links(text)
    if any(sign in small for sign in _STYLES):
        yield from _each(_NOT_SHOWN, text, "concealed", 0.2)


def _each(pattern: re.Pattern[str], text: str, kind: str, weight: float) -> Iterator[Mark]:
    for nth, found in enumerate(pattern.finditer(text)):
        if nth == _MAX_MARKS:
            return
        yield Mark(kind, weight, *found.span())


def _roles(text: str) -> Iterator[Mark]:
    """Find lines of a conversation that the text makes up: a role that says what a prompt says, or two that speak."""
    found = [*_ROLE.finditer(text), *_INLINE_ROLE.finditer(text)]
    roles = {re.sub(r"\W", "", each[0]).lower() for each in found}
    speaks = "assistant" in roles and bool(roles & {"user", "human"})
    for each in found[:_MAX_MARKS]:
        is_system = "system" in each[0].lower() or "developer" in each[0].lower()
        if is_system and _ORDER.match(text, each.end()):
            yield Mark("marker", 0.6, *each.span())
        elif speaks:
            yield Mark("marker", 0.5, *each.span())
    yield from _each(_JSON_ROLE, text, "marker", 0.3)


def _links(text: str) -> Iterator[Mark]:
    images = {found.start(found.lastindex or 0) for found in _IMAGE.finditer(text)}
    for found in _URL.finditer(text):
        if weight := _weight(found[0].rstrip(".,;:!"), is_image=found.start() in images):
            yield Mark("exfiltration", weight, *found.span())


def _weight(url: str, *, is_image: bool) -> float:
    """Return how much a link looks as if it were to carry data away: places to fill in, above all in images."""
    _, asks, query = url.partition("?")
    has_slot = bool(_SLOT.search(unquote(asks + query)))
    if has_slot:
        return 0.8 if is_image else 0.45
    if _EMPTY.search(url):
        return 0.4
    if is_image and _DATA.search(url):
        return 0.6
    return 0.3 if is_image and len(query) > 120 else 0.0
