"""Reads a conversation: JSON lines or a JSON list of messages, or lines such as `user: Hello`. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from pyagent.core.errors import RequestError

Form = Literal["auto", "text", "conversation"]
MAX_TURNS = 10_000
_LINE = re.compile(r"[ \t]{0,8}([^\W\d][\w .'’-]{0,39}):(?:[ \t]+(.*)|[ \t]*)")
_ROLES = frozenset(
    [
        "user",
        "assistant",
        "system",
        "human",
        "ai",
        "bot",
        "agent",
        "customer",
        "support",
        "client",
        "tool",
        "developer",
        "model",
    ]
)
_SPEAKER_KEYS = ("speaker", "name", "role", "from", "author")
_TEXT_KEYS = ("content", "text", "message", "value")


class Turn(msgspec.Struct, frozen=True):
    """What one speaker said at a time."""

    speaker: str
    text: str


def read_turns(text: str, form: Form = "auto", *, speaker: str = "text") -> list[Turn]:
    """Return the turns of a conversation, or the whole text as one; raises `RequestError` where `form` is not met."""
    if form == "text":
        return [Turn(speaker, text)]
    turns = _json_turns(text, is_sure=form == "conversation")
    if turns is None:
        turns = _line_turns(text, is_sure=form == "conversation")
    if turns is None:
        if form == "conversation":
            expected = "JSON lines with `role` and `content`, or lines such as `user: Hello`"
            raise RequestError(f"that is no conversation; expected {expected}", param="form")
        return [Turn(speaker, text)]
    if len(turns) > MAX_TURNS:
        raise RequestError(f"the conversation has {len(turns):,} turns; the most is {MAX_TURNS:,}", param="text")
    return turns


def _json_turns(text: str, *, is_sure: bool) -> list[Turn] | None:
    start = text.lstrip()[:1]
    if start not in {"{", "["}:
        return None
    items = _json_items(text, start, is_sure=is_sure)
    if not items:
        return None
    turns = [_turn(item) for item in items]
    if all(turns):
        return cast("list[Turn]", turns)
    if is_sure:
        nth = turns.index(None) + 1
        raise RequestError(f"message {nth} has no `role` and `content` that are texts", param="text")
    return None


def _json_items(text: str, start: str, *, is_sure: bool) -> Sequence[object] | None:
    try:
        whole = cast("object", msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None if start == "[" else _json_lines(text, is_sure=is_sure)
    if isinstance(whole, dict):
        fields = cast("dict[str, object]", whole)
        whole = fields.get("messages", [fields])
    return cast("Sequence[object]", whole) if isinstance(whole, list) else None


def _json_lines(text: str, *, is_sure: bool) -> list[object] | None:
    items: list[object] = []
    for nth, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            items.append(cast("object", msgspec.json.decode(line)))
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            if is_sure:
                raise RequestError(f"line {nth} is not JSON: {error}", param="text") from error
            return None
    return items


def _turn(item: object) -> Turn | None:
    if not isinstance(item, dict):
        return None
    fields = cast("dict[str, object]", item)
    speaker = next((fields[key] for key in _SPEAKER_KEYS if isinstance(fields.get(key), str)), None)
    content = next((fields[key] for key in _TEXT_KEYS if fields.get(key) is not None), None)
    if isinstance(content, list):  # parts, as in OpenAI's API
        content = _joined(cast("list[object]", content))
    return Turn(speaker, content) if isinstance(speaker, str) and isinstance(content, str) else None


def _joined(parts: Sequence[object]) -> str:
    texts = (cast("dict[str, object]", part).get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _line_turns(text: str, *, is_sure: bool) -> list[Turn] | None:
    """Return the turns of lines with names, and lines that go on; None where that is not what the text is."""
    turns: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            turns.append((found[1].strip(), [found[2] or ""]))
        elif turns:
            turns[-1][1].append(line)
        elif line.strip():
            return None
    names = Counter(name.lower() for name, _ in turns)
    speaks_again = any(number > 1 for number in names.values())
    if not turns or not (is_sure or (len(turns) > 1 and (speaks_again or len(_ROLES & set(names)) > 1))):
        return None
    return [Turn(name, "\n".join(lines).strip()) for name, lines in turns]
