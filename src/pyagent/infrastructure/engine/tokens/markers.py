"""Which texts a chat template writes as markers, and how the same characters in a message stay text.

A marker is a token of the vocabulary that separates turns, names roles or frames calls and thoughts. Files do not agree
on how they say so: as a control token, as a user-defined one (GGUF's type 4), or as an added token that is not special.
So markers are found by what the template does with them, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TypeVar, cast

from tokenizers import AddedToken

from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

_T = TypeVar("_T")

BREAK = "\ue0ff"
"""Parts a marker that a message has in its text; a private-use character no vocabulary has."""

# How well-known families write their markers; a template may put them together from pieces, such as a role's name.
_SHAPE = re.compile(
    r"<[|｜][^<>\s]+[|｜]>|<(?:start|end|begin)_of_\w+>|</?s>|<(?:bos|eos|pad)>|\[/?[A-Z_]+\]|<</?SYS>>"
)
_CALL: dict[str, object] = {"id": "a", "type": "function", "function": {"name": "a", "arguments": {"a": 1}}}
_TOOL: dict[str, object] = {"type": "function", "function": {"name": "a", "description": "a", "parameters": {}}}
_SYSTEM: dict[str, object] = {"role": "system", "content": "a"}
_USER: dict[str, object] = {"role": "user", "content": "a"}
_ANSWER: dict[str, object] = {"role": "assistant", "content": "a"}
_CALLING: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT: dict[str, object] = {"role": "tool", "content": "a", "name": "a", "tool_call_id": "a"}
_CONVERSATIONS: tuple[list[dict[str, object]], ...] = (
    [_USER],
    [_SYSTEM, _USER, _ANSWER, _USER],
    [_USER, _CALLING, _RESULT],
)


class Markers:
    """The markers of one model. `texts` are the longest first."""

    def __init__(self, added: Collection[AddedToken], template: ChatTemplate | None) -> None:
        special = {token.content for token in added if token.special}
        # Words and line breaks that a vocabulary merely has whole are text like any other.
        others = {token.content for token in added if not (token.special or token.content.isalnum())}
        source = template.source if template is not None else ""
        written = {text for text in others if text.strip() and (_SHAPE.fullmatch(text) or text in source)}
        if template is not None and others - written:
            rendered = "\n".join(_renderings(template))
            written |= {text for text in others if text.strip() and text in rendered}
        # One letter cannot be parted.
        self.texts = _longest_first({text for text in special | written if len(text) > 1})
        self._in_answers = [text for text in self.texts if text in special or not _is_looked_for(text, source)]

    def parted(self, value: _T) -> _T:
        """Return the value with every marker in its texts parted, so that it stays text."""
        return _parted(value, self.texts)

    def parted_answer(self, value: _T) -> _T:
        """Likewise for what an assistant said, where a template looks for some texts itself: thoughts, to drop them."""
        return _parted(value, self._in_answers)


def _renderings(template: ChatTemplate) -> Iterator[str]:
    """What the template writes for conversations that have nothing in them; some it may refuse."""
    for messages in _CONVERSATIONS:
        for tools in ((), (_TOOL,)):
            try:
                yield template.render(messages, tools)
            except (RequestError, ModelError):
                continue


def _is_looked_for(text: str, source: str) -> bool:
    """Whether a template's source searches texts for this one."""
    quoted = rf"""(['"]){re.escape(text)}\1"""
    return bool(re.search(rf"(?:split|find|replace|partition)\(\s*{quoted}|{quoted}\s+(?:not\s+)?in\b", source))


def _longest_first(texts: Collection[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))


def _parted(value: _T, texts: Collection[str]) -> _T:
    if isinstance(value, str):
        text = value.replace(BREAK, "")
        for marker in texts:
            if marker in text:
                text = text.replace(marker, marker[0] + BREAK + marker[1:])
        return cast("_T", text)
    if isinstance(value, list):
        return cast("_T", [_parted(item, texts) for item in cast("list[object]", value)])
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return cast("_T", {_parted(key, texts): _parted(item, texts) for key, item in items})
    return value
