"""Harmony, the format of gpt-oss: messages with a channel, and a recipient where they are calls.

`<|channel|>analysis<|message|>` begins reasoning, `final` and `commentary` content, `commentary to=functions.NAME` a
call, whose arguments are the message. Reasoning has messages of its own, so the grammar spans the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyagent.core.dialects.dialect import ModeParser, OutputParser, random_id
from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.literals import JSON, LiteralValue
from pyagent.core.dialects.output import Output
from pyagent.core.dialects.schemas import schema_of
from pyagent.core.dialects.source import Source, tags_of
from pyagent.core.dialects.text import Mode, Reasoning
from pyagent.core.messages import Tool

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TAGS = tags_of(_START, _CHANNEL, _MESSAGE, "<|constrain|>", *_ENDS)
_REASONING = Reasoning(
    f"{_CHANNEL}analysis{_MESSAGE}",
    f"<|end|>{_START}assistant{_CHANNEL}final{_MESSAGE}",
    end_before_calls=f"<|end|>{_START}assistant",
    no_begin=f"{_CHANNEL}final{_MESSAGE}",
)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_MAX_HEADER_CHARS = 512


@dataclass(slots=True)
class _Header:
    """Reads what a message says of itself, up to its text."""

    tools: Mapping[str, Tool]
    header: str = ""

    def step(self, source: Source, output: Output) -> Mode | None:
        """Read on; a header that ends without a message is text."""
        while True:
            text, tag = _TAGS.read(source)
            self.header += text
            if tag == _MESSAGE:
                output.pass_tag()
                return self._begin(output)
            if len(self.header) > _MAX_HEADER_CHARS or tag in _ENDS:
                output.content.write(self.header)
                return _Body(self.tools)
            if not tag:
                return None
            self.header += tag

    def end(self, source: Source, output: Output) -> None:
        """End with the answer; half a header says nothing."""

    def _begin(self, output: Output) -> Mode:
        channel = self.header.rpartition(_CHANNEL)[2].split()
        recipient = _RECIPIENT.search(self.header)
        if recipient and (recipient.group(1) in self.tools or (self.tools and "functions." in recipient.group())):
            output.begin_call(recipient.group(1))
            return _Arguments(self.tools)
        is_reasoning = bool(recipient) or channel[:1] == ["analysis"]
        if is_reasoning:
            output.reasoning.begin_part()
        elif output.content.has_text:
            output.content.begin_part()
        return _Body(self.tools, is_reasoning)


@dataclass(slots=True)
class _Body:
    """Reads a message's text."""

    tools: Mapping[str, Tool]
    is_reasoning: bool = False

    def step(self, source: Source, output: Output) -> Mode | None:
        """Give out text up to the next tag."""
        while True:
            text, tag = _TAGS.read(source)
            (output.reasoning if self.is_reasoning else output.content).write(text)
            if not tag:
                return None
            output.pass_tag()
            if tag in {_START, _CHANNEL}:
                return _Header(self.tools, tag)

    def end(self, source: Source, output: Output) -> None:
        """End with the answer; nothing is held back."""


@dataclass(slots=True)
class _Arguments:
    """Reads a call's arguments."""

    tools: Mapping[str, Tool]
    value: LiteralValue = field(default_factory=lambda: LiteralValue(JSON, is_arguments=True))
    unread: Source = field(default_factory=Source)
    has_rest: bool = False
    """Whether text came after the arguments."""

    def step(self, source: Source, output: Output) -> Mode | None:
        """Give out the arguments up to the next tag; what follows a whole value is text."""
        text, tag = _TAGS.read(source)
        self.unread.extend(text)
        if not self.value.is_begun:
            self.unread.take_space()
        self.unread.is_last = bool(tag)
        output.add_arguments(self.value.read(self.unread))
        if self.value.is_done:
            rest = self.unread.take_rest()
            rest = rest if self.has_rest else rest.lstrip()
            output.content.write(rest)
            self.has_rest = self.has_rest or bool(rest)
        if not tag:
            return None
        self._end(output)
        output.pass_tag()
        return _Header(self.tools, tag) if tag in {_START, _CHANNEL} else _Body(self.tools)

    def end(self, source: Source, output: Output) -> None:
        """End with the answer; a call that is cut stays as far as it came."""
        if not source.is_cut:
            self._end(output)

    def _end(self, output: Output) -> None:
        if self.value.is_begun:
            output.add_arguments(self.value.end())
        output.end_call()


@dataclass(slots=True)
class _Start:
    """The beginning of an answer, whose recipient may stand before its channel."""

    tools: Mapping[str, Tool]
    is_reasoning: bool = False

    def step(self, source: Source, output: Output) -> Mode | None:
        """Find out whether a header goes on here."""
        window = source.text[source.at : source.at + _MAX_HEADER_CHARS]
        text = window.lstrip()
        if len(text) < 3 and "to=".startswith(text) and len(window) < _MAX_HEADER_CHARS and not source.is_last:
            return None
        return _Header(self.tools) if text.startswith("to=") else _Body(self.tools, self.is_reasoning)

    def end(self, source: Source, output: Output) -> None:
        """End with the answer, which had no text."""


@dataclass(frozen=True, slots=True)
class Harmony:
    """The dialect of gpt-oss."""

    name: str = "openai"
    models: str = "gpt-oss"
    markers: frozenset[str] = frozenset(_TAGS.tags)
    reasoning: Reasoning | None = _REASONING
    spans_reasoning: bool = True

    def matches(self, template: str) -> bool:
        """Whether the template writes channels."""
        return _CHANNEL in template and _MESSAGE in template

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt's last message is reasoning and open."""
        return prompt.endswith(f"{_CHANNEL}analysis{_MESSAGE}")

    def parser(self, tools: Sequence[Tool], *, is_reasoning: bool = False, is_held: bool = False) -> OutputParser:
        """Return a parser for an answer."""
        by_name = {tool.function.name: tool for tool in tools}
        return ModeParser(_Start(by_name, is_reasoning), random_id, _is_reasoning)

    def grammar(
        self, tools: Sequence[Tool], *, is_required: bool, is_parallel: bool, token_ids: Mapping[str, int] | None = None
    ) -> str:
        """Return a grammar for a whole answer; its models make one call at a time, and comment on that alone."""
        lark = Lark(token_ids or {})
        for channel in ("analysis", "commentary"):
            begin = lark.literal(f"{_CHANNEL}{channel}{_MESSAGE}")
            end = f"{lark.text_until(f'{channel}_text', _ENDS[0])} {lark.literal(f'{_START}assistant')}"
            lark.rule(channel, f"{begin} {end}")
        calls = [
            f"{lark.literal(f'{_CHANNEL}commentary to=functions.{tool.function.name} <|constrain|>json{_MESSAGE}')} "
            + lark.arguments(schema_of(tool), f"arguments_{at}")
            for at, tool in enumerate(tools)
        ]
        lark.rule("call", lark.choice(calls))
        final = "" if is_required else f" | {lark.literal(f'{_CHANNEL}final{_MESSAGE}')} {lark.answer()}"
        lark.rule("start", f"analysis* (commentary* call{final})")
        return str(lark)


def _is_reasoning(mode: Mode) -> bool:
    """Whether the answer has not come to its content yet."""
    return isinstance(mode, _Header | _Start) or (isinstance(mode, _Body) and mode.is_reasoning)


HARMONY = Harmony()
