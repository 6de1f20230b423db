"""Gemma's calls: `call:get_weather{city:<escape>Oslo<escape>,days:3}`, bare keys, strings between two of one token."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pyagent.core.dialects.lark import Lark
from pyagent.core.dialects.literals import LiteralValue, Syntax
from pyagent.core.dialects.named_calls import NamedCalls, Value
from pyagent.core.dialects.schemas import (
    constants_of,
    is_any,
    items_of,
    others_of,
    properties_of,
    required_of,
    resolved,
    types_of,
)
from pyagent.core.messages import JsonObject

_BARE = re.compile(r"\w+")
_ANY_KEY, _ANY_VALUE = r"/\w{1,64}/", "any_value"
_MAX_RULES = 2000
_MAX_RULE_CHARS = 100
"""Names of rules grow with the nesting. A schema that goes deeper, or refers to itself, gets null there."""


def gemma_calls(opener: str, closer: str, quote: str) -> NamedCalls:
    """Return calls whose strings stand between two `quote`s."""

    def value(stops: tuple[str, ...]) -> Value:
        return LiteralValue(Syntax(quote=quote), stops, is_arguments=True)

    writer = _Writer(quote)
    return NamedCalls(opener, (closer,), ("call:{name}",), value=value, write_arguments=writer.write)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes values that follow a schema."""

    quote: str

    def write(self, schema: JsonObject, lark: Lark, rule: str) -> str:
        """Return the expression for a value."""
        if is_any(schema):
            return self._any(lark)
        if len(rule) > _MAX_RULE_CHARS or lark.num_rules > _MAX_RULES:
            return lark.literal("null")
        schema = resolved(schema)
        types = types_of(schema)
        if constants := constants_of(schema):
            return lark.choice([self._constant(value, lark) for value in constants])
        kinds: dict[str, Callable[[JsonObject, Lark, str], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
        }
        known = sorted(types & kinds.keys()) or ([] if types else ["string"])
        parts = [kinds[kind](schema, lark, f"{rule}_{kind}") for kind in known]
        if rest := sorted(types - kinds.keys()):
            parts.append(lark.json({**schema, "type": rest}))
        return lark.choice(parts)

    def _any(self, lark: Lark) -> str:
        """Return the rule of any value, which is written once and refers to itself."""
        if not lark.has_rule(_ANY_VALUE):
            lark.rule(_ANY_VALUE, "")  # not to be written again by what is inside
            kinds: list[JsonObject] = [{"type": kind} for kind in ("string", "array", "object")]
            values = [self.write(kind, lark, f"{_ANY_VALUE}_of") for kind in kinds]
            lark.rule(_ANY_VALUE, " | ".join((*values, lark.json({"type": ["null", "boolean", "number"]}))))
        return _ANY_VALUE

    def _constant(self, value: object, lark: Lark) -> str:
        if isinstance(value, str):
            return lark.literal(f"{self.quote}{value}{self.quote}")
        return lark.json({"const": value})

    def _string(self, schema: JsonObject, lark: Lark, rule: str) -> str:
        return f"{lark.literal(self.quote)} {lark.text_until(rule, self.quote)}"

    def _array(self, schema: JsonObject, lark: Lark, rule: str) -> str:
        item = lark.rule(f"{rule}i", self.write(items_of(schema), lark, f"{rule}i"))
        return f'"[" ({item} ("," {item})*)? "]"'

    def _object(self, schema: JsonObject, lark: Lark, rule: str) -> str:
        """Return the properties in their order; those not required may be left out."""
        if (others := others_of(schema)) is not None:
            pair = lark.rule(f"{rule}_any", f'{_ANY_KEY} ":" {self.write(others, lark, f"{rule}_anyv")}')
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        required, members = required_of(schema), list[tuple[str, bool]]()
        for at, (key, kind) in enumerate(properties_of(schema).items()):
            named = key if _BARE.fullmatch(key) else f"{self.quote}{key}{self.quote}"
            members.append((f"{lark.literal(f'{named}:')} {self.write(kind, lark, f'{rule}_{at}v')}", key in required))
        written = lark.members(members, lark.literal(","), rule)
        return f'"{{" {written} "}}"'
