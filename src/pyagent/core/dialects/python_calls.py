"""Calls as Python writes them: `[get_weather(city="Oslo", days=3), now()]`. Arguments become JSON as they come."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from pyagent.core.dialects.call_mode import CallMode
from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.literals import LiteralValue
from pyagent.core.dialects.output import Output
from pyagent.core.dialects.schemas import constants_of, others_of, properties_of, required_of, schema_of, types_of
from pyagent.core.dialects.source import Source
from pyagent.core.dialects.text import Context, Mode, TextMode
from pyagent.core.messages import JsonObject, Tool

_MAX_NAME_CHARS = 256
_ANY_KEY = r"/[A-Za-z_]\w{0,63}/"
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEY = re.compile(r"([A-Za-z_][\w.-]*)\s*=(?!=)")
_KEY_BEGUN = re.compile(r"[A-Za-z_][\w.-]*\s*=?")


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls in a list between tags; where `is_bare` without tags, and then only calls of offered functions."""

    opener: str = ""
    closers: tuple[str, ...] = ()
    brackets: tuple[str, str] = ("[", "]")
    separator: str = ", "
    is_bare: bool = False

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """The list's bracket, where calls stand without tags."""
        return ("[",) if self.is_bare else ()

    @property
    def group(self) -> tuple[str, str, str]:
        """The texts around and between calls."""
        begin, end = self.brackets
        return f"{self.opener}{begin}", self.separator, f"{end}{self.closers[0] if self.closers else ''}"

    def open(self, context: Context, tag: str) -> Mode:
        """Return the mode that reads a list."""
        return PythonCallsMode(context, [tag], tag in self.bare_openers)

    def lark(self, tool: Tool, rule: str, lark: Lark) -> str:
        """Return a call with keyword arguments in the order of the schema's properties."""
        arguments = _keywords(schema_of(tool), rule, lark)
        return f"{lark.literal(f'{tool.function.name}(')} {arguments} {lark.literal(')')}"


def _keywords(schema: JsonObject, rule: str, lark: Lark) -> str:
    """Return the expression for keyword arguments in the schema's order; those not required may be left out."""
    if (others := others_of(schema)) is not None:
        pair = lark.rule(f"{rule}_any", f'{_ANY_KEY} "=" {python_value(others, lark)}')
        return f"({pair} ({lark.literal(', ')} {pair})*)?"
    required = required_of(schema)
    members = [
        (f"{lark.literal(f'{key}=')} {python_value(kind, lark)}", key in required)
        for key, kind in properties_of(schema).items()
    ]
    return lark.members(members, lark.literal(", "), rule)


def python_value(schema: JsonObject, lark: Lark) -> str:
    """Return the expression for a value: as JSON, whose strings and numbers Python shares, but for its constants."""
    if types_of(schema) == {"boolean"} and not constants_of(schema):
        return '("True" | "False")'
    return lark.json(schema)


@dataclass(slots=True)
class PythonCallsMode(CallMode):
    """Reads a list of calls, or one that stands alone; where it `is_bare`, the list's bracket is read already."""

    is_bare: bool
    is_list: bool = field(init=False)
    num_values: int = 0
    value: LiteralValue | None = None
    is_in_comment: bool = False

    def __post_init__(self) -> None:
        self.is_list = self.is_bare
        self.part = self._read_name if self.is_bare else self._read_open

    def end_arguments(self, output: Output) -> None:
        """End the call, the last argument too."""
        if self.value:
            output.add_arguments(self.value.end())
        output.add_arguments("}" if self.num_values else "")
        output.end_call()

    def cut(self, output: Output) -> None:
        """Give out what is known of the last argument."""
        if self.value:
            output.add_arguments(self.value.end(is_cut=True))

    def _read_open(self, source: Source, output: Output) -> Mode | bool:
        self.raw.append(source.take_space())
        if not source.num_left:
            return False
        if source.first == "[":
            self.is_list = True
            self.raw.append(source.take(1))
        return self.go(self._read_name)

    def _read_name(self, source: Source, output: Output) -> Mode | bool:
        self.raw.append(source.take_space())
        window = source.text[source.at : source.at + _MAX_NAME_CHARS]
        match = _NAME.match(window)
        if match is None:
            return self.fail(output) if window else False
        if match.end() == len(window):
            return self.fail(output) if len(window) == _MAX_NAME_CHARS else False
        name = match.group()
        if window[match.end()] != "(" or (self.is_bare and name not in self.context.tools):
            return self.fail(output)
        source.take(match.end() + 1)
        self.num_values = 0
        self.begin(name, output)
        return self.go(self._read_key)

    def _read_key(self, source: Source, output: Output) -> Mode | bool:
        mark = self._mark(source)
        if not mark:
            return False
        if mark in "),":
            source.take(1)
            return self.go(self._read_key) if mark == "," else self._close(output)
        window = source.text[source.at : source.at + _MAX_NAME_CHARS]
        match = _KEY.match(window)
        if not source.is_last and len(window) < _MAX_NAME_CHARS and (match is None or match.end() == len(window)):
            begun = _KEY_BEGUN.match(window)
            if begun is not None and begun.end() == len(window):
                return False
        if match is not None:
            source.take(match.end())
        self._begin_value(match.group(1) if match else self._positional(), output)
        return self.go(self._read_value)

    def _positional(self) -> str:
        """Return the name of an argument that was written without one."""
        tool = self.context.tools.get(self.name)
        keys = list(properties_of(schema_of(tool))) if tool else []
        return keys[self.num_values] if self.num_values < len(keys) else f"arg{self.num_values}"

    def _begin_value(self, key: str, output: Output) -> None:
        before = ", " if self.num_values else "{"
        self.num_values += 1
        self.value = LiteralValue()
        output.add_arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")

    def _read_value(self, source: Source, output: Output) -> Mode | bool:
        assert self.value
        output.add_arguments(self.value.read(source))
        if not self.value.is_done:
            return False
        if self.value.next_key:
            self._begin_value(self.value.next_key, output)
            return True
        return self.go(self._read_after_value)

    def _read_after_value(self, source: Source, output: Output) -> Mode | bool:
        """Go on with the next argument, also where the comma before its name is missing."""
        mark = self._mark(source)
        window = source.text[source.at : source.at + _MAX_NAME_CHARS]
        begun = _KEY_BEGUN.match(window)
        if mark == "" or (begun and begun.end() == len(window) < _MAX_NAME_CHARS and not source.is_last):
            return False
        return self.go(self._read_key) if mark in ")," or _KEY.match(window) else self.fail(output)

    def _mark(self, source: Source) -> str:
        """Return the next character that is no white space and in no comment, unread; empty when there is none yet."""
        while True:
            if self.is_in_comment:
                end = source.text.find("\n", source.at)
                self.is_in_comment = end < 0
                source.take(source.num_left if end < 0 else end - source.at)
            source.take_space()
            if source.first != "#":
                return source.first
            self.is_in_comment = True

    def _close(self, output: Output) -> Mode | bool:
        self.end_arguments(output)
        self.name = ""
        return self.go(self._read_after_call)

    def _read_after_call(self, source: Source, output: Output) -> Mode | bool:
        """Go on with the list, or with a call on the next line where there are no brackets."""
        mark = self._mark(source)
        if not mark:
            return False
        if self.is_list and mark == ",":
            source.take(1)
            return self.go(self._read_name)
        if self.is_list and mark == "]":
            source.take(1)
        elif not self.is_list and _NAME.match(mark) and self.context.closers:
            return self.go(self._read_name)
        return TextMode(self.context, closers=self.context.closers)
