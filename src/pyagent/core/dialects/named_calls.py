"""Calls whose name stands before their arguments: `get_weather[ARGS]{"city": "Oslo"}`, `functions.now:0 ... {}`.

What stands before the arguments' brace is matched against the written form of the header. A list or an object in its
place is read as JSON calls, since models of one family write both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from pyagent.core.dialects.json_calls import JsonCalls, JsonCallsMode
from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.literals import JSON, LiteralValue
from pyagent.core.dialects.output import Output
from pyagent.core.dialects.schemas import schema_of
from pyagent.core.dialects.source import Source
from pyagent.core.dialects.text import Context, Mode, TextMode
from pyagent.core.messages import JsonObject, Tool

_MAX_HEADER_CHARS = 512
_PARTS = {"{name}": r"(?P<name>[^\s{}\[\]<>]+)", "{index}": r"(?P<index>\d+)", "{id}": r"(?P<id>[^\s{}\[\]<>]*)"}


class Value(Protocol):
    """A reader of arguments, which gives them out as JSON text."""

    @property
    def is_done(self) -> bool:
        """Whether the value is whole."""
        ...

    def read(self, source: Source) -> str:
        """Read what has come of it."""
        ...

    def end(self, *, is_cut: bool = False) -> str:
        """Return what the end of the answer leaves of it: what makes it whole, unless the answer `is_cut`."""
        ...


@lru_cache(maxsize=64)
def _pattern(header: str) -> re.Pattern[str]:
    """Return a header as a pattern; white space in it may be more or less."""
    parts = re.split(r"(\{\w+\}|\s+)", header)
    patterns = [_PARTS.get(part) or (r"\s*" if part.isspace() else re.escape(part)) for part in parts]
    return re.compile(rf"\s*{''.join(patterns)}\s*")


def _json_value(stops: tuple[str, ...]) -> Value:
    return LiteralValue(JSON, stops, is_arguments=True)


def _json_arguments(schema: JsonObject, lark: Lark, rule: str) -> str:
    return lark.arguments(schema, rule)


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """Calls by their headers, texts with `{name}`, `{index}` and `{id}`; models are held to the first.

    `tail` stands after the arguments. `call_id` makes a call's id from what its header says. Models that write a list
    of objects in the same place are held to `written`.
    """

    opener: str
    closers: tuple[str, ...]
    headers: tuple[str, ...]
    tail: str = ""
    separator: str = ""
    call_id: str = ""
    value: Callable[[tuple[str, ...]], Value] = _json_value
    write_arguments: Callable[[JsonObject, Lark, str], str] = _json_arguments
    written: JsonCalls | None = None

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """None: each call has its tag."""
        return ()

    @property
    def group(self) -> tuple[str, str, str]:
        """The texts around and between calls."""
        if self.written:
            return self.written.group
        closer = self.closers[0] if self.closers else ""
        return self.opener, closer + self.separator + self.opener, closer

    def open(self, context: Context, tag: str) -> Mode:
        """Return the mode that reads a header."""
        return NamedCallMode(context, self, tag)

    def lark(self, tool: Tool, rule: str, lark: Lark) -> str:
        """Return header, arguments and tail."""
        if self.written:
            return self.written.lark(tool, rule, lark)
        header = self.headers[0].replace("{name}", tool.function.name)
        before, index, after = header.partition("{index}")
        written = f"{lark.literal(before)} /[0-9]{{1,3}}/ {lark.literal(after)}" if index else lark.literal(header)
        return f"{written} {self.write_arguments(schema_of(tool), lark, rule)} {lark.literal(self.tail)}"


@dataclass(slots=True)
class NamedCallMode:
    """Reads a header, then the arguments."""

    context: Context
    calls: NamedCalls
    raw: str
    value: Value | None = None

    def step(self, source: Source, output: Output) -> Mode | None:
        """Read on."""
        if self.value is None:
            return self._read_header(source, output)
        output.add_arguments(self.value.read(source))
        if not self.value.is_done:
            return None
        output.end_call()
        return TextMode(self.context, closers=self.context.closers)

    def end(self, source: Source, output: Output) -> None:
        """End with the answer: a call stays as far as it came, what is none yet is text."""
        if self.value is None:
            output.content.write(self.raw + source.take_rest())
        else:
            output.add_arguments(self.value.end(is_cut=source.is_cut))

    def _read_header(self, source: Source, output: Output) -> Mode | None:
        window = source.text[source.at : source.at + _MAX_HEADER_CHARS]
        if window.lstrip()[:1] in {"[", "{"}:
            return JsonCallsMode(self.context, [self.raw], self.calls.separator)
        ends = [place for mark in ("{", *self.context.closers[:1]) if (place := window.find(mark)) >= 0]
        if not ends:
            return self._fail(output) if len(window) == _MAX_HEADER_CHARS else None
        match = _first_match(self.calls.headers, window[: min(ends)])
        if match is None:
            return self._fail(output)
        self._begin(match, output)
        source.take(min(ends))
        if source.first != "{":
            output.end_call()
            return TextMode(self.context, closers=self.context.closers)
        self.value = self.calls.value(self.context.stops)
        return self

    def _begin(self, match: re.Match[str], output: Output) -> None:
        said = match.groupdict()
        output.pass_tag()
        call_id = said.get("id") or (self.calls.call_id.format(**said) if said.get("index") else "")
        output.begin_call(said["name"], call_id)

    def _fail(self, output: Output) -> Mode:
        output.content.write(self.raw)
        return TextMode(self.context)


def _first_match(headers: tuple[str, ...], text: str) -> re.Match[str] | None:
    matches = (_pattern(header).fullmatch(text) for header in headers)
    return next((match for match in matches if match is not None), None)
