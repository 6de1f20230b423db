"""Calls as elements, one for each parameter: `<function=add><parameter=a>1</parameter></function>` and its relatives.

The arguments are made into JSON as they come. A parameter's schema says how its text is read: a string streams as it is
written, the rest is converted when it is whole, and stays a string where it does not fit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from pyagent.core.dialects.call_mode import CallMode
from pyagent.core.dialects.json_text import string, string_part
from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.literals import LiteralValue
from pyagent.core.dialects.output import Output
from pyagent.core.dialects.schemas import (
    constants_of,
    is_any,
    json_name,
    others_of,
    properties_of,
    property_of,
    required_of,
    schema_of,
    types_of,
)
from pyagent.core.dialects.source import Source, Tags, tags_of
from pyagent.core.dialects.text import Context, Mode, TextMode
from pyagent.core.messages import JsonObject, Tool

_MAX_NAME_CHARS = 256
_ANY_KEY = r"/[\w.-]{1,64}/"
_NO_STRINGS = ["null", "boolean", "number", "array", "object"]
_NAME = re.compile(r"""[^\s<>{}"'()]+""")


@dataclass(frozen=True, slots=True)
class XmlCalls:
    """Calls by their tags. `name` and `key` are what stands before and after them, `value` around a value.

    Where `is_trimmed`, a newline at each end of a value belongs to the format. `key_flags` may follow a key and say
    whether its value is a string.
    """

    opener: str
    closers: tuple[str, ...]
    name: tuple[str, str] = ("<function=", ">\n")
    key: tuple[str, str] = ("<parameter=", ">\n")
    value: tuple[str, str] = ("", "\n</parameter>\n")
    close: str = "</function>"
    separator: str = "\n"
    is_trimmed: bool = True
    is_bare: bool = False
    has_string_flags: bool = False

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """The function's tag, where models leave out the one around it."""
        return (self.name[0],) if self.is_bare else ()

    @property
    def group(self) -> tuple[str, str, str]:
        """The texts around and between calls."""
        closer = self.closers[0] if self.closers else ""
        return self.opener, closer + self.separator + self.opener, closer

    def open(self, context: Context, tag: str) -> Mode:
        """Return the mode that reads elements."""
        return XmlCallMode(context, [tag], self, tag in self.bare_openers)

    def lark(self, tool: Tool, rule: str, lark: Lark) -> str:
        """Return the elements of a call: the schema's properties in their order, each as its schema says."""
        schema = schema_of(tool)
        parts = [lark.literal(self.name[0] + tool.function.name + self.name[1])]
        required = required_of(schema)
        for at, (key, kind) in enumerate(properties_of(schema).items()):
            part = self._parameter(lark.literal(self.key[0] + key), kind, f"{rule}_{at}", lark)
            parts.append(f"({part})" if key in required else f"({part})?")
        if (others := others_of(schema)) is not None:
            begin = f"{lark.literal(self.key[0])} {_ANY_KEY}"
            kinds = enumerate(self._written_as(others))
            parts.append(
                f"({lark.choice([self._parameter(begin, kind, f'{rule}_any{at}', lark) for at, kind in kinds])})*"
            )
        return " ".join((*parts, lark.literal(self.close)))

    def _written_as(self, schema: JsonObject) -> list[JsonObject]:
        """Return the schemas under which a parameter is written: of any type as plain text, unless a flag says more."""
        if not is_any(schema):
            return [schema]
        return [{"type": "string"}, {"type": _NO_STRINGS}] if self.has_string_flags else [{"type": "string"}]

    def _parameter(self, begin: str, schema: JsonObject, rule: str, lark: Lark) -> str:
        end = self.value[1]
        is_text = types_of(schema) == {"string"}
        flag = f'" string="{"true" if is_text else "false"}' if self.has_string_flags else ""
        begin = f"{begin} {lark.literal(flag + self.key[1] + self.value[0])}"
        if is_text and (constants := constants_of(schema)):
            texts = [lark.literal(str(value)) for value in constants]
            return f"{begin} {lark.choice(texts)} {lark.literal(end)}"
        if is_text:
            return f"{begin} {lark.text_until(rule, end)}"
        return f"{begin} {lark.json(schema)} {lark.literal(end)}"


@dataclass(slots=True)
class XmlCallMode(CallMode):
    """Reads one call; where it `is_bare`, what stands before its name is read already."""

    calls: XmlCalls
    is_bare: bool
    num_values: int = 0
    has_between: bool = False
    """Whether text, which is none of a call's, came since the last element."""
    types: set[str] = field(default_factory=set[str])
    is_streaming: bool = False
    is_value_begun: bool = False
    newline: str = ""
    held: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.part = self._read_name if self.is_bare else self._read_head

    def end_arguments(self, output: Output) -> None:
        """End the call, the last value too."""
        if self.part == self._read_value:
            self._end_value(output)
        output.add_arguments("}" if self.num_values else "")
        output.end_call()

    def cut(self, output: Output) -> None:
        """Give out what is known of the last value, one of no type yet as the beginning of a string."""
        if self.held:
            output.add_arguments(f'"{string_part("".join(self.held))}')

    def _read_head(self, source: Source, output: Output) -> Mode | bool:
        head = self.calls.name[0].strip()
        self.raw.append(source.take_space())
        seen = source.text[source.at : source.at + len(head)]
        if not source.num_left or (seen != head and head.startswith(seen) and not source.is_last):
            return False
        if seen != head:
            return self.fail(output)
        self.raw.append(source.take(len(head)))
        return self.go(self._read_name)

    def _read_name(self, source: Source, output: Output) -> Mode | bool:
        """Read the name up to the end of its tag; where it has none, up to the next tag."""
        end = self.calls.name[1].strip()
        ends = (end,) if end else (self.calls.key[0], *self.context.closers)
        window = source.text[source.at : source.at + _MAX_NAME_CHARS]
        places = [place for one in ends if (place := window.find(one)) >= 0]
        if not places:
            return self.fail(output) if len(window) == _MAX_NAME_CHARS else False
        name = window[: min(places)].strip()
        is_alone = self.is_bare and not output.is_in_section
        if not _NAME.fullmatch(name) or (is_alone and name not in self.context.tools):
            return self.fail(output)
        source.take(min(places) + len(end))
        self.begin(name, output)
        return self.go(self._read_between)

    def _read_between(self, source: Source, output: Output) -> Mode | bool:
        calls = self.calls
        between, tag = tags_of(calls.key[0].strip(), calls.close, *self.context.closers).read(source)
        between = between if self.has_between else between.lstrip()
        output.content.write(between)
        self.has_between = not tag and (self.has_between or bool(between))
        if not tag:
            return False
        if tag == calls.key[0].strip():
            return self.go(self._read_key)
        self.end_arguments(output)
        output.pass_tag()
        return TextMode(self.context, closers=() if tag in self.context.closers else self.context.closers)

    def _read_key(self, source: Source, output: Output) -> Mode | bool:
        end = _key_end(self.calls.key[1], self.calls.value[0])
        match = end.search(source.text, source.at, source.at + _MAX_NAME_CHARS)
        if match is None:
            is_near = source.num_left < _MAX_NAME_CHARS
            return False if is_near else self.fail(output)
        written = source.take(match.start() - source.at)
        source.take(len(match.group()))
        self._begin_value(written, output)
        return self.go(self._read_value)

    def _begin_value(self, written: str, output: Output) -> None:
        key, _, flags = written.strip().strip('"').partition('"')
        tool = self.context.tools.get(self.name)
        self.types = types_of(property_of(schema_of(tool), key)) if tool else set()
        if "string=" in flags:
            self.types = {"string"} if "true" in flags else set()
        self.is_streaming = self.types == {"string"}
        self.is_value_begun, self.newline, self.held = False, "", []
        before = ", " if self.num_values else "{"
        self.num_values += 1
        quote = '"' if self.is_streaming else ""
        output.add_arguments(f"{before}{string(key)}: {quote}")

    def _ends(self) -> Tags:
        """Return what ends a value; a model that forgets to close it goes on with the next key or the call's end."""
        calls = self.calls
        return tags_of(calls.value[1].strip(), *(f"\n{tag.strip()}" for tag in (calls.key[0], calls.close) if tag))

    def _read_value(self, source: Source, output: Output) -> Mode | bool:
        text, tag = self._ends().read(source)
        self._add(text, output)
        if not tag:
            return False
        if tag != self.calls.value[1].strip():
            source.at -= len(tag)
        self._end_value(output)
        return self.go(self._read_between)

    def _add(self, text: str, output: Output) -> None:
        if not self.is_streaming:
            self.held.append(text)
            return
        if not text:
            return
        if self.calls.is_trimmed:
            if not self.is_value_begun:
                text = text.removeprefix("\n")
            self.is_value_begun = True
            text = self.newline + text
            self.newline = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        output.add_arguments(string_part(text))

    def _end_value(self, output: Output) -> None:
        if self.is_streaming:
            output.add_arguments('"')
            return
        text = "".join(self.held)
        self.held = []
        if self.calls.is_trimmed:
            text = text.removeprefix("\n").removesuffix("\n")
        output.add_arguments(converted(text, self.types))


@lru_cache(maxsize=64)
def _key_end(end: str, value_begin: str) -> re.Pattern[str]:
    """Return what stands between a key and its value, with any white space inside."""
    return re.compile(r"\s*".join(re.escape(part.strip()) for part in (end, value_begin) if part.strip()))


def converted(text: str, types: set[str]) -> str:
    """Return a parameter's text as JSON of one of its types; as a string where it is none of them."""
    for written in (text.strip(), _from_python(text.strip())):
        try:
            value = cast("object", json.loads(written, parse_constant=_refuse))
        except (ValueError, RecursionError):
            continue
        kind = json_name(value)
        fits = not types or kind in types or (kind == "integer" and "number" in types)
        return written if fits else string(text)
    return string(text)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _from_python(text: str) -> str:
    """Return a constant, list, tuple or dict of Python as JSON; else the text."""
    if text.lower() in {"true", "false", "none"}:
        return text.lower().replace("none", "null")
    if text[:1] not in set("[{("):
        return text
    source = Source()
    source.extend(text)
    source.is_last = True
    value = LiteralValue()
    return value.read(source) + value.end()
