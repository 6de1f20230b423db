"""Structural tags: free text in which, after a trigger, the content of a tag follows a format.

The names are xgrammar's, which vLLM and SGLang take too. Values only; `structured_output/tags.py` writes the grammar.
"""

from __future__ import annotations

import msgspec


class _Format(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type"):
    """What all formats have in common: `type` says which one it is, and an unknown field is refused."""


class ConstString(_Format, frozen=True, tag="const_string"):
    """Exactly this text."""

    value: str


class JsonSchemaContent(_Format, frozen=True, tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: dict[str, object] | bool


class RegexContent(_Format, frozen=True, tag="regex"):
    """Text that matches a regular expression as a whole."""

    pattern: str


class GrammarContent(_Format, frozen=True, tag="grammar"):
    """Text of a grammar, in GBNF or Lark."""

    grammar: str


class AnyText(_Format, frozen=True, tag="any_text"):
    """Any text, without those excluded; in a tag, up to its end."""

    excludes: list[str] = []
    excluded_str: list[str] = []

    @property
    def excluded(self) -> list[str]:
        """What must not stand in it, under its newer and older name."""
        return [*self.excludes, *self.excluded_str]


class Sequence(_Format, frozen=True, tag="sequence"):
    """One format after another."""

    elements: list[TagFormat]


class Either(_Format, frozen=True, tag="or"):
    """One of several formats."""

    elements: list[TagFormat]


class Tag(_Format, frozen=True, tag="tag"):
    """A beginning, a content and an end; of several ends one will do."""

    begin: str
    content: TagFormat
    end: str | list[str]

    @property
    def ends(self) -> list[str]:
        """The texts of which one ends it."""
        return [self.end] if isinstance(self.end, str) else self.end


class TriggeredTags(_Format, frozen=True, tag="triggered_tags"):
    """Free text with tags: what begins as a trigger must go on as one of the tags that begin so."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class TagsWithSeparator(_Format, frozen=True, tag="tags_with_separator"):
    """Tags with a separator between them, and nothing else."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


TagFormat = (
    ConstString
    | JsonSchemaContent
    | RegexContent
    | GrammarContent
    | AnyText
    | Sequence
    | Either
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


def parts_of(wanted: TagFormat) -> list[TagFormat]:
    """Return the formats that a format is put together from."""
    match wanted:
        case Sequence() | Either():
            return wanted.elements
        case Tag():
            return [wanted.content]
        case TriggeredTags() | TagsWithSeparator():
            return [*wanted.tags]
        case _:
            return []
