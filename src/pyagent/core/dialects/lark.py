"""Writes grammars in llguidance's Lark: literals with control tokens by id, JSON schemas, free text up to a tag.

Pure text; the grammar library compiles it elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pyagent.core.dialects.schema_text import quoted, schema_text
from pyagent.core.dialects.schemas import (
    closed,
    is_plain_number,
    is_plain_object,
    properties_of,
    required_of,
)
from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject

MAX_CHARS = 1 << 20
"""Of a grammar: more is refused while it is written, before it takes the memory."""
_MAX_MEMBERS = 1000
"""Of a list of arguments that is written out; the grammar library takes longer for it than for a schema."""
FREE_ANSWER = "answer: TEXT"
"""The rule for the text of an answer that is no call, where the dialect's grammar has it."""
_DEFINITIONS = ("$defs", "definitions")
_REFERENCE = '"$ref"'


class Lark:
    """A grammar under way: rules by name, and literals in which control tokens are tokens.

    `token_ids` has the ids of those tags that are control tokens of the model: their text is never sampled as letters.
    """

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        self._token_ids = token_ids
        tokens = sorted(token_ids, key=len, reverse=True)
        self._tokens = re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None
        self._rules: dict[str, str] = {"TEXT": r"/(.|\n)*/"}
        self._num_chars = 0

    def rule(self, name: str, body: str) -> str:
        """Add a rule; return its name."""
        self._count(name)
        self._rules[name] = body
        return name

    def has_rule(self, name: str) -> bool:
        """Whether there is a rule of this name."""
        return name in self._rules

    @property
    def num_rules(self) -> int:
        """Rules so far."""
        return len(self._rules)

    def literal(self, text: str) -> str:
        """Return the expression for exactly this text; empty for none."""
        parts = self._tokens.split(text) if self._tokens else [text]
        return self._count(
            " ".join(
                f"<[{self._token_ids[part]}]>" if part in self._token_ids else quoted(part) for part in parts if part
            )
        )

    def json(self, schema: JsonObject) -> str:
        """Return the expression for JSON that follows a schema; definitions only where it may refer to them."""
        return self._count(f"%json {schema_text(closed(_with_definitions_needed(schema)))}")

    def arguments(self, schema: JsonObject, rule: str) -> str:
        """Return the expression for a call's arguments as a JSON object.

        Numbers are bounded in their digits, which JSON Schema cannot say without losing exponents: a small model goes
        on writing them. Properties come in the schema's order, as in `json`.
        """
        schema = closed(_with_definitions_needed(schema))
        properties = properties_of(schema)
        is_small = len(properties) <= _MAX_MEMBERS
        if not is_small or not is_plain_object(schema) or not any(map(is_plain_number, properties.values())):
            return self.json(schema)
        required = required_of(schema)
        members = [
            (
                f"{self._count(quoted(f'{json.dumps(key, ensure_ascii=False)}: '))} {self._argument(kind)}",
                key in required,
            )
            for key, kind in properties.items()
        ]
        return f'"{{" {self.members(members, self.literal(", "), rule)} "}}"'

    def members(self, members: Sequence[tuple[str, bool]], separator: str, rule: str) -> str:
        """Return the expression for members in their order, of which those not required may be left out.

        From the first that is required on it is flat: rules that name one another 3,000 deep end the process.
        """
        first = next((at for at, (_, is_required) in enumerate(members) if is_required), len(members))
        rest = " ".join(
            member if at == first else f"{separator} {member}" if is_required else f"({separator} {member})?"
            for at, (member, is_required) in enumerate(members)
            if at >= first
        )
        is_optional = not rest
        for at in range(first - 1, -1, -1):
            with_rest = f"{members[at][0]} ({separator} {rest}){'?' if is_optional else ''}" if rest else members[at][0]
            rest = self.rule(f"{rule}_{at}", f"{with_rest} | {rest}" if rest else with_rest)
        return f"{rest}?" if rest and is_optional else rest

    def _argument(self, schema: JsonObject) -> str:
        return self._number() if is_plain_number(schema) else self.json(schema)

    def _number(self) -> str:
        return self.rule("NUMBER", r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/")

    def _count(self, text: str) -> str:
        self._num_chars += len(text)
        if self._num_chars > MAX_CHARS:
            raise RequestError(
                f"the tools' schemas make a grammar of more than {MAX_CHARS} characters; simplify them", param="tools"
            )
        return text

    def choice(self, texts: list[str]) -> str:
        """Return the expression for one of several expressions."""
        return f"({' | '.join(texts)})" if len(texts) > 1 else "".join(texts)

    def answer(self) -> str:
        """Return the expression for the text of an answer: any, in a rule of its own that a form can take."""
        name, _, body = FREE_ANSWER.partition(": ")
        return self.rule(name, body)

    def text_until(self, name: str, tag: str) -> str:
        """Return the expression for any text up to and with a tag."""
        before, *rest = self._tokens.split(tag) if self._tokens else [tag]
        if not rest:
            return self.rule(f"{name}[lazy]", f"TEXT {self.literal(tag)}").partition("[")[0]
        text = self.rule(name.upper(), f"TEXT {self.literal(before)}") if before else "TEXT"
        return f"{text} {self.literal(''.join(rest))}"

    def __str__(self) -> str:
        """Return the grammar's text, `start` first."""
        rules = sorted(self._rules.items(), key=lambda rule: rule[0] != "start")
        return "\n".join(f"{name}: {body}" for name, body in rules)


def _with_definitions_needed(schema: JsonObject) -> JsonObject:
    """Return a schema without definitions that nothing in it can mean: each property of a tool is given them all."""
    own = {name: value for name, value in schema.items() if name not in _DEFINITIONS}
    return schema if _REFERENCE in json.dumps(own) else own
