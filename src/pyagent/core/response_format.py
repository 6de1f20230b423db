"""What an answer must look like: JSON, a regular expression, a grammar, tags in free text, and combinations of these.

Names are those of OpenAI where it has one, else vLLM's, llama.cpp's and xgrammar's. Values only; what becomes of them
is in `core/structured_output/` (as text that llguidance compiles) and `core/emulation/` (in words).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.structural_tags import TagFormat

FormatType = Literal[
    "text", "json_object", "json_schema", "choice", "regex", "grammar", "structural_tag", "any_of", "all_of"
]
GrammarSyntax = Literal["lark", "gbnf"]


class JsonSchemaFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JSON schema that the answer must match; `description` tells the model its purpose."""

    name: str = "answer"
    schema: dict[str, object] = {}
    strict: bool | None = None
    description: str = ""


class GrammarFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A context-free grammar: Lark as llguidance takes it, or GBNF, which is llama.cpp's (and xgrammar's EBNF)."""

    definition: str
    syntax: GrammarSyntax = "lark"

    @classmethod
    def of(cls, definition: str) -> GrammarFormat:
        """Return a grammar in the syntax that it is written in, as vLLM tells them apart: by its `::=`."""
        lines = (line.partition("#")[0] for line in definition.splitlines())
        return cls(definition, "gbnf" if any("::=" in line for line in lines) else "lark")


class ResponseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The format of the answer. `json_object` and `json_schema` are OpenAI's; the others have the names of vLLM.

    `any_of` and `all_of` (ours) hold formats of which the answer must match one, or each.
    """

    type: FormatType = "text"
    json_schema: JsonSchemaFormat | None = None
    choice: list[str] | None = None
    regex: str | None = None
    grammar: GrammarFormat | None = None
    structural_tag: TagFormat | None = None
    any_of: list[ResponseFormat] | None = None
    all_of: list[ResponseFormat] | None = None

    @property
    def types(self) -> set[str]:
        """Its type and those of the formats within."""
        return {self.type}.union(*(member.types for member in self.members))

    @property
    def members(self) -> list[ResponseFormat]:
        """The formats that it combines."""
        return [*(self.any_of or ()), *(self.all_of or ())]
