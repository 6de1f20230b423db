"""Prompt normalization: take spans that change with every request out of system prompts, so that prefixes match.

Popular clients write counters and clocks near the start of their system prompts. A span without meaning to a model is
dropped; a clock's time is moved behind the last user message, where the prompt is new anyway. Dates without a time hold
for a day and stay. Pure: messages in, messages out; only system messages are changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pyagent.core.messages import Message

_TIME = r"\d{1,2}:\d{2}[^\n]{0,40}"


@dataclass(frozen=True, slots=True)
class Span:
    """A span that a client writes: its pattern, whether it is dropped or moved, why, and where it was reported."""

    name: str
    pattern: re.Pattern[str]
    action: Literal["drop", "move"]
    reason: str
    source: str


SPANS = (
    Span(
        "claude-code-billing",
        re.compile(r"^x-anthropic-billing-header:(?: ?[\w.-]{1,64}=[^;\n]{0,128};){1,16} ?\n*", re.MULTILINE),
        "drop",
        "`cch` is a hash of the request, for its maker's accounts",
        "https://github.com/anthropics/claude-code/issues/68900",
    ),
    Span(
        "pi-clock",
        re.compile(rf"^Current date and time: [^\n:]{{0,60}}{_TIME}$\n?", re.MULTILINE),
        "move",
        "the time to the second",
        "https://github.com/earendil-works/pi/issues/2013",
    ),
    Span(
        "anything-llm-clock",
        re.compile(r"The current date and time is [^\n:.]{0,60}\d{1,2}:\d{2}(?: ?[AP]M)?\.[ \n]?"),
        "move",
        "the time to the minute",
        "https://github.com/Mintplex-Labs/anything-llm/issues/6398",
    ),
    Span(
        "nanobot-clock",
        re.compile(rf"^## Current Time\n{{1,2}}[^\n:]{{0,60}}{_TIME}$\n{{0,2}}", re.MULTILINE),
        "move",
        "the time to the minute",
        "https://github.com/HKUDS/nanobot/issues/226",
    ),
    Span(
        "goose-clock",
        re.compile(r"The current date is \d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?\.[ \n]?"),
        "move",
        "the time to the second",
        "https://github.com/aaif-goose/goose/pull/2434",
    ),
    Span(
        "opencrabs-clock",
        re.compile(r"^Timestamp: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$\n?", re.MULTILINE),
        "move",
        "the time to the second",
        "https://github.com/adolfousier/opencrabs/issues/657",
    ),
)


@dataclass(frozen=True, slots=True)
class NormalizedPrompt:
    """A conversation without changing spans. `moved` goes behind the last user message; `names` are the spans found.

    `places` has the index of each remaining message in the conversation as the client sent it.
    """

    messages: Sequence[Message]
    places: Sequence[int]
    moved: str = ""
    names: tuple[str, ...] = ()

    @classmethod
    def unchanged(cls, messages: Sequence[Message]) -> NormalizedPrompt:
        """Return the conversation as it is."""
        return cls(messages, range(len(messages)))


NOTHING = NormalizedPrompt.unchanged(())


def normalize(messages: Sequence[Message]) -> NormalizedPrompt:
    """Return the conversation without the spans of `SPANS`, and without system messages that hold nothing else."""
    remaining, places, moved, names = list[Message](), list[int](), list[str](), list[str]()
    for place, message in enumerate(messages):
        if message.role not in {"system", "developer"} or not message.text:
            remaining.append(message)
            places.append(place)
            continue
        text = message.text
        for span in SPANS:
            text = _without(text, span, moved, names)
        if text:
            remaining.append(message if text == message.text else msgspec.structs.replace(message, content=text))
            places.append(place)
    if not remaining or not names:
        return NormalizedPrompt.unchanged(messages)
    return NormalizedPrompt(remaining, places, "\n".join(moved), tuple(dict.fromkeys(names)))


def _without(text: str, span: Span, moved: list[str], names: list[str]) -> str:
    """Return the text without a span; append what was found to the lists."""
    for found in span.pattern.findall(text):
        names.append(span.name)
        if span.action == "move":
            moved.append(found.strip())
    return span.pattern.sub("", text)


def with_moved(normalized: NormalizedPrompt) -> Sequence[Message]:
    """Return the messages with the moved text behind the last user message, where there is one."""
    messages = normalized.messages
    questions = [place for place, message in enumerate(messages) if message.role == "user"]
    if not normalized.moved or not questions:
        return messages
    question = messages[questions[-1]]
    extended = msgspec.structs.replace(question, content=f"{question.text}\n\n{normalized.moved}")
    return [*messages[: questions[-1]], extended, *messages[questions[-1] + 1 :]]
