"""Calls as JSON objects that hold name and arguments: `{"name": "add", "arguments": {"a": 1}}`, alone or in a list.

The arguments stream as they are written, once the name is known. An object that turns out to be no call (no name, or
not JSON) comes out as text, with its tag.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from pyagent.core.dialects.call_mode import CallMode
from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.literals import JSON, LiteralValue
from pyagent.core.dialects.output import Output
from pyagent.core.dialects.schemas import schema_of
from pyagent.core.dialects.source import Source
from pyagent.core.dialects.text import Context, Mode, TextMode
from pyagent.core.messages import Tool

_NAMES = frozenset({"name", "tool_name"})
_ARGUMENTS = frozenset({"arguments", "parameters", "args"})
_WRAPPER = "function"
_KNOWN = _NAMES | _ARGUMENTS | {_WRAPPER, "type", "id", "tool_call_id"}
_STRINGS = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", re.DOTALL) for quote in ('"', "'")}
_BARE_KEY = re.compile(r"([A-Za-z_]\w*)")
_MAX_KEY_CHARS = 256
_BRACKETS = ("{", "[")


@dataclass(slots=True)
class JsonCallsMode(CallMode):
    """Reads an object or a list of them, whose bracket may be read already; marks of the `separator` part objects."""

    separator: str
    is_bare: bool = False
    is_list: bool = False
    level: int = 0
    """Braces that are open: those around the arguments."""
    has_arguments: bool = False
    held: list[str] = field(default_factory=list[str])
    value: LiteralValue | None = None
    other: LiteralValue = field(default_factory=lambda: LiteralValue(JSON))
    """The value of a key that says nothing here."""
    key: str = ""

    def __post_init__(self) -> None:
        self.part = self._read_key if self.level else self._read_open

    def end_arguments(self, output: Output) -> None:
        """End the call: its arguments end where they are."""
        if self.value and not self.value.is_done:
            self._add_arguments(self.value.end(), output)
            self._end_value(output)
        output.end_call()

    def cut(self, output: Output) -> None:
        """Give out what is known of the arguments."""
        if self.value and not self.value.is_done:
            self._add_arguments(self.value.end(is_cut=True), output)
        output.add_arguments("".join(self.held))

    def _take(self, source: Source, num_chars: int) -> str:
        taken = source.take(num_chars)
        if not self.name:
            self.raw.append(taken)
        return taken

    def _mark(self, source: Source) -> str:
        """Return the next character that is no white space, unread; empty when there is none yet."""
        space = source.take_space()
        if not self.name:
            self.raw.append(space)
        return source.first

    def _read_open(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if mark == "[" and not self.is_list:
            self.is_list = True
            self._take(source, 1)
            return True
        if mark == "{":
            self.level = 1
            self._take(source, 1)
            return self.go(self._read_key)
        return self.fail(output) if mark else False

    def _read_key(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if mark == "}":
            return self._read_comma(source, output)
        if not mark or (mark == "," and self._take(source, 1)):
            return bool(mark)
        if mark not in "\"'" and not _BARE_KEY.match(mark):
            return self.fail(output)
        key = self._read_string(source)
        if key is None:
            return self.fail(output) if source.num_left >= _MAX_KEY_CHARS else False
        if self.is_bare and not self.name and key not in _KNOWN:
            return self.fail(output)
        self.key = key
        return self.go(self._read_colon)

    def _read_string(self, source: Source) -> str | None:
        """Return a string in quotes, or a name without them whose end is seen; None while more must come."""
        pattern = _STRINGS.get(source.first, _BARE_KEY)
        match = pattern.match(source.text, source.at, source.at + _MAX_KEY_CHARS)
        if match is None or (pattern is _BARE_KEY and match.end() == len(source.text)):
            return None
        text = self._take(source, match.end() - source.at)
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            return match.group(1)

    def _read_colon(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if mark != ":":
            return self.fail(output) if mark else False
        self._take(source, 1)
        return self.go(self._read_value)

    def _read_value(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if not mark:
            return False
        if mark in "\"'" and not self.name and (self.key in _NAMES or self.key == _WRAPPER):
            return self.go(self._read_name)
        if mark == "{" and self.key == _WRAPPER:
            self.level += 1
            self._take(source, 1)
            return self.go(self._read_key)
        if self.key in _ARGUMENTS and not self.has_arguments:
            self.value = LiteralValue(JSON, self.context.stops, is_arguments=True)
            return self.go(self._read_arguments)
        self.other = LiteralValue(JSON, self.context.stops)
        return self.go(self._read_other)

    def _read_name(self, source: Source, output: Output) -> Mode | bool:
        name = self._read_string(source)
        if name is None:
            return self.fail(output) if source.num_left >= _MAX_KEY_CHARS else False
        if not name or (self.is_bare and name not in self.context.tools):
            return self.fail(output)
        self.begin(name, output)
        self._tell_held(output)
        return self.go(self._read_comma)

    def _read_other(self, source: Source, output: Output) -> Mode | bool:
        self._read_into(self.other, source)
        return self.go(self._read_comma) if self.other.is_done else False

    def _read_arguments(self, source: Source, output: Output) -> Mode | bool:
        assert self.value
        self._add_arguments(self._read_into(self.value, source), output)
        if not self.value.is_done:
            return False
        self._end_value(output)
        return self.go(self._read_comma)

    def _read_into(self, value: LiteralValue, source: Source) -> str:
        start = source.at
        piece = value.read(source)
        if not self.name:
            self.raw.append(source.text[start : source.at])
        return piece

    def _add_arguments(self, piece: str, output: Output) -> None:
        if self.name and self.value and self.value.is_object:
            output.add_arguments(piece)
        else:
            self.held.append(piece)

    def _end_value(self, output: Output) -> None:
        self.has_arguments = True
        if self.name:
            self._tell_held(output)

    def _tell_held(self, output: Output) -> None:
        """Give out arguments that came before the name, or that are no object."""
        if self.held:
            output.add_arguments(_arguments("".join(self.held)))
            self.held = []

    def _read_comma(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if mark == ",":
            self._take(source, 1)
            return self.go(self._read_key)
        if mark in "\"'" or _BARE_KEY.match(mark):  # where a comma is missing
            return self.go(self._read_key) if mark else False
        if mark != "}":
            return self.fail(output)
        self._take(source, 1)
        self.level -= 1
        if self.level:
            return self.go(self._read_comma)
        return self._close(output)

    def _close(self, output: Output) -> Mode | bool:
        if not self.name:
            return self.fail(output)
        output.end_call()
        if not self.is_list:
            return self.go(self._read_surplus if self.context.closers else self._read_next)
        self.name, self.has_arguments, self.value = "", False, None
        return self.go(self._read_between)

    def _read_next(self, source: Source, output: Output) -> Mode | bool:
        """Go on with another object where a mark parts them."""
        mark = self._mark(source)
        if not mark or mark not in self.separator:
            return TextMode(self.context) if mark else False
        self.name, self.has_arguments, self.value = "", False, None
        self._take(source, 1)
        return self.go(self._read_open)

    def _read_surplus(self, source: Source, output: Output) -> Mode | bool:
        """Drop braces too many before the closing tag, which small models write."""
        mark = self._mark(source)
        if mark and mark in "}]":
            source.take(1)
            return True
        return TextMode(self.context, closers=self.context.closers) if mark else False

    def _read_between(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if not mark:
            return False
        if mark == ",":
            self._take(source, 1)
            return self.go(self._read_open)
        if mark == "]":
            source.take(1)
        return TextMode(self.context, closers=self.context.closers)


def _arguments(text: str) -> str:
    """Return held arguments: some models write an object as a string, or null for none; others stay what they are."""
    if text == "null":
        return "{}"
    written = str(json.loads(text)).strip() if text.startswith('"') else ""
    if written[:1] not in {"{", "n"}:
        return text
    source, value = Source(), LiteralValue(JSON, is_arguments=True)
    source.extend(written)
    source.is_last = True
    said = value.read(source) + value.end()
    return _arguments(said) if said == "null" else said if value.is_object else text


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls as JSON objects: one in each pair of tags, or a list of them all; where `is_bare` also without tags.

    `aliases` are other openers, at the beginning of a line; `id_key` is written before the name, with a number.
    """

    opener: str = ""
    closers: tuple[str, ...] = ()
    separator: str = ""
    is_list: bool = False
    is_bare: bool = False
    aliases: tuple[str, ...] = ()
    name: str = "name"
    arguments: str = "arguments"
    id_key: str = ""

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """Braces and brackets, where calls stand without tags, and other openers."""
        return (*_BRACKETS, *self.aliases) if self.is_bare else self.aliases

    @property
    def group(self) -> tuple[str, str, str]:
        """The texts around and between calls."""
        closer = self.closers[0] if self.closers else ""
        if self.is_list:
            return f"{self.opener}[", ", ", f"]{closer}"
        return self.opener, closer + self.separator + self.opener, closer

    def open(self, context: Context, tag: str) -> Mode:
        """Return the mode that reads objects."""
        is_bare = tag in _BRACKETS
        return JsonCallsMode(context, [tag], self.separator, is_bare, tag == "[", level=int(tag == "{"))

    def lark(self, tool: Tool, rule: str, lark: Lark) -> str:
        """Return an object with name and arguments."""
        name = json.dumps(tool.function.name, ensure_ascii=False)
        head = f'"{self.name}": {name}, "{self.arguments}": '
        begin = lark.literal("{" + head)
        if self.id_key:
            number = "/[0-9]{1,3}/"
            begin = " ".join((lark.literal('{"' + self.id_key + '": "'), number, lark.literal('", ' + head)))
        return f"{begin} {lark.arguments(schema_of(tool), rule)} {lark.literal('}')}"
